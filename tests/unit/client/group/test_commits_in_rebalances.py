"""Commits by hand while the group deals anew: repeated as long as the partition stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.broker.groups.offset_requests import OffsetRequests
from raftmq.errors import IllegalGeneration, RaftmqError, RebalanceInProgress
from tests.unit.client.group.grouped import grouped, until

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.consumer.consumer import Consumer

NINE = tuple(map(str, range(9)))


@pytest.mark.parametrize("joins_at", [0.5, 0.8])
async def test_others_join_under_load(autojump_clock: MockClock, joins_at: float) -> None:
    """A program commits each record as soon as it has it; another member joins. It goes on, and
    what it is told to be committed is."""
    done: dict[int, int] = {}

    async def commit_all(c: Consumer) -> None:
        async for batch in c.batches(max_records=1):
            try:
                await c.commit(batch)
                done[batch.partition] = batch.end_offset
            except IllegalGeneration:
                assert ("orders", batch.partition) not in c.assignment

    async with grouped(4) as here, trio.open_nursery() as nursery:
        for partition in range(4):
            here.append(partition, *map(str, range(150)))
        async with here.consumer("a", commit="manual") as c:
            nursery.start_soon(commit_all, c)
            await trio.sleep(joins_at)
            other = here.begin("b", commit="none")
            await until(lambda: len(other.held) == 2)
            await trio.sleep(0.5)
            nursery.cancel_scope.cancel()
        ahead = [(here.committed(each) or 0) - done[each] for each in range(4)]
        assert set(ahead) <= {0, 1}  # one may have been committed, and not answered


@pytest.mark.parametrize("error", [RebalanceInProgress("join again"), IllegalGeneration("old")])
@pytest.mark.parametrize("what", ["batch", "all", "record by record"])
async def test_refused_for_a_while(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, error: RaftmqError, what: str
) -> None:
    """The coordinator is in the next generation already, and its answer under way: the commit
    returns when it is in the quorum."""
    admitted, refusals = OffsetRequests._admitted, list[float]()

    def sometimes(self: OffsetRequests, request: Any) -> Any:
        if len(refusals) < 3:
            refusals.append(trio.current_time())
            raise error
        return admitted(self, request)

    async with grouped(1) as here:
        here.append(0, *NINE)
        is_each = what == "record by record"
        async with here.consumer("a", commit="record" if is_each else "manual") as c:
            batch = await anext(c.batches(max_records=1))
            monkeypatch.setattr(OffsetRequests, "_admitted", sometimes)
            monkeypatch.setattr(c._membership.member.offsets._committing, "_on_refused", ignore)
            if is_each:
                await anext(c)
            else:
                await c.commit(None if what == "all" else batch)
            assert here.committed(0) == 1
            assert len(refusals) == 3


def ignore(_error: RaftmqError, _generation: int) -> None:
    """As while it joins: that generation is about to be over."""


@pytest.mark.parametrize("is_all", [False, True])
async def test_the_partition_goes_meanwhile(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, *, is_all: bool
) -> None:
    """A commit is refused until the program has taken too long over it: then it says so."""

    def never(_self: OffsetRequests, _request: Any) -> Any:
        raise RebalanceInProgress("join again")

    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual", max_poll_interval_ms=3000) as c:
            batch = await anext(c.batches())
            monkeypatch.setattr(OffsetRequests, "_admitted", never)
            with (
                trio.fail_after(4.0),
                pytest.raises(IllegalGeneration, match="for max_poll_interval_ms = 3000") as caught,
            ):
                await c.commit(None if is_all else batch)
            assert isinstance(caught.value.__cause__, RebalanceInProgress)
            assert c.assignment == []
        assert here.committed(0) is None
