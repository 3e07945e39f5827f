"""Changes of what a member reads that overtake each other, and time that passes unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.broker.groups.offset_requests import OffsetRequests
from tests.unit.client.group.grouped import SESSION_SECONDS, grouped, keys, until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trio.testing import MockClock

    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.consumer.partition_state import ConsumedPartition
    from raftmq.client.group.effects import Rebalance

BOTH = tuple(sorted(keys(0, 1)))


@pytest.fixture
def looking_up(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Committed offsets are told after three seconds; when they were asked for."""
    asked: list[float] = []
    fetch = OffsetRequests.fetch

    async def slowly(self: OffsetRequests, *given: Any) -> Any:
        asked.append(trio.current_time())
        await trio.sleep(3.0)
        return await fetch(self, *given)

    monkeypatch.setattr(OffsetRequests, "fetch", slowly)
    return asked


async def test_lost_and_got_again_while_it_is_looked_up(
    autojump_clock: MockClock, looking_up: list[float]
) -> None:
    """The question for what is lost is answered when the partitions are its own again: they were
    lost before they were assigned, and not while it reads them."""
    async with grouped(2) as here:
        for partition in range(2):  # others coordinate
            here.world.lead("orders", partition, 1)
            here.append(partition, *"abc")
        member = here.begin("a")
        await until(lambda: looking_up)
        here.world.network.isolate("a")
        await trio.sleep(SESSION_SECONDS + 2.0)
        here.world.network.heal(source="a")
        here.world.network.heal(target="a")
        await until(lambda: len(member.records) == 6)
        kinds = [(one.assigned, one.revoked, one.lost) for one in member.rebalances]
        assert kinds == [((), (), BOTH), (BOTH, (), ())]


async def test_revoked_while_it_is_looked_up(
    autojump_clock: MockClock, looking_up: list[float]
) -> None:
    """Nothing of it is handed out before it goes, also while the program takes its leave."""

    async def linger(rebalance: Rebalance) -> None:
        if rebalance.revoked:
            await trio.sleep(1.0)

    async with grouped(2) as here:
        for partition in range(2):
            here.append(partition, *"abc")
        first = here.begin("a", on_rebalance=linger)
        await until(lambda: looking_up)
        second = here.begin("b")
        await until(lambda: len(second.records) == len(first.records) == 3)
        assert {record.partition for record in first.records} == {0}
        assert {record.partition for record in second.records} == {1}


@pytest.mark.parametrize("commit", ["batch", "before"])
async def test_time_passes_unseen_while_records_arrive(
    autojump_clock: MockClock, commit: str
) -> None:
    """The process is stopped right between their arrival and the program: whoever has their
    partition by then reads them. Ten times, as the order of tasks is nobody's choice."""
    async with grouped(1) as here:
        for number in range(10):
            async with here.consumer(f"a{number}", commit=commit) as consumer:
                await until(lambda consumer=consumer: consumer.assignment)
                stopped_at = _stop_at_arrival(consumer, autojump_clock)
                here.nursery.start_soon(_append_later, here)
                record = await anext(consumer)
                assert len(stopped_at) == 1
                assert trio.current_time() > stopped_at[0] + SESSION_SECONDS + 1.0, "at once"
                assert record.value == b"x"


def _stop_at_arrival(consumer: Consumer, clock: MockClock) -> list[float]:
    """For longer than a session, once, when something has arrived; when that was."""
    arrived, stopped_at = consumer._fetcher._on_news, list[float]()

    def arrive(states: Iterable[ConsumedPartition]) -> None:
        states = list(states)
        arrived(states)
        if any(state.undelivered for state in states) and not stopped_at:
            stopped_at.append(trio.current_time())
            clock.jump(SESSION_SECONDS + 1.0)

    consumer._fetcher._on_news = arrive
    return stopped_at


async def _append_later(here: Any) -> None:
    await trio.sleep(0.3)
    here.append(0, "x")


async def test_time_passes_unseen_right_before_it_is_handed_out(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records have been found, and the partition is lost then: nobody is handed any of them
    before it is got again."""
    async with grouped(1) as here:
        here.append(0, *"abc")
        async with here.consumer("a") as consumer:
            await until(lambda: consumer.assignment)
            opened, stopped_at = consumer._collector.open_as, list[float]()

            def stop(*given: Any) -> Any:
                found = opened(*given)
                if found is not None and not stopped_at:
                    autojump_clock.jump(SESSION_SECONDS + 1.0)
                    stopped_at.append(trio.current_time())
                return found

            monkeypatch.setattr(consumer._collector, "open_as", stop)
            first = await anext(consumer)
            assert trio.current_time() > stopped_at[0], "at once"
            values = [first.value, *[(await anext(consumer)).value for _ in range(2)]]
            assert values == [b"a", b"b", b"c"]
