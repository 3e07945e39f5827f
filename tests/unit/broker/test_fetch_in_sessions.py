"""Consumers with a session: only what is new is looked at, told and asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.broker.requests.fetch import ConsumerView
from raftmq.errors import InvalidFetchSessionEpoch
from raftmq.wire.messages.fetch import NEW_SESSION
from tests.unit.broker.consuming import Parked, ask, leading, values_in
from tests.unit.broker.copying import (
    alone,
    body_of,
    key_of,
    told_of,
    want,
)
from tests.unit.partition.replica_world import settle
from tests.unit.storage.batches import batch

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.partition.replica import Replica


async def test_of_many_partitions_only_those_with_news_are_looked_at(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred in the session; one gets a record."""
    async with alone() as broker:
        replicas = [await leading(broker, partition=number) for number in range(100)]
        wanted = [want(partition=number) for number in range(100)]
        reply = await ask(broker, *wanted, session=(0, NEW_SESSION))
        session_id = body_of(reply).session_id
        assert len(told_of(reply)) == 100
        looked: list[int] = []
        look = ConsumerView.look

        def noted(view: ConsumerView, replica: Replica, partition: Any) -> Any:
            looked.append(partition.wanted.partition)
            return look(view, replica, partition)

        monkeypatch.setattr(ConsumerView, "look", noted)
        replicas[42].append(batch(b"a"), acks=1)
        await settle()
        reply = await ask(broker, session=(session_id, 1), wait_ms=100)
        assert list(told_of(reply)) == [42]
        assert set(looked) == {42}
        looked.clear()
        reply = await ask(broker, session=(session_id, 2), wait_ms=100)
        assert looked == []
        assert told_of(reply) == {}


async def test_a_partition_rests_until_it_is_named_again(autojump_clock: MockClock) -> None:
    """A consumer that has no room for more does not get the same again."""
    async with alone() as broker:
        replica = await leading(broker, b"a")
        reply = await ask(broker, want(), session=(0, NEW_SESSION))
        session_id = body_of(reply).session_id
        replica.append(batch(b"b"), acks=1)
        await settle()
        assert told_of(await ask(broker, session=(session_id, 1))) == {}
        reply = await ask(broker, want(1), session=(session_id, 2))
        assert values_in(reply) == [b"b"]
        assert told_of(await ask(broker, want(2), session=(session_id, 3))) == {}


async def test_the_next_request_ends_the_wait_of_the_one_before(autojump_clock: MockClock) -> None:
    """Nothing that was found for it is lost."""
    async with alone() as broker, trio.open_nursery() as nursery:
        replica = await leading(broker)
        await leading(broker, b"b", partition=1)
        reply = await ask(broker, want(), session=(0, NEW_SESSION))
        session_id, first, second = body_of(reply).session_id, Parked(), Parked()
        answer = ask(broker, session=(session_id, 1), wait_ms=9000, bytes_min=9999)
        nursery.start_soon(first.run, answer)
        replica.append(batch(b"a"), acks=1)
        await settle()
        assert first.is_waiting
        answer = ask(broker, want(partition=1), session=(session_id, 2), wait_ms=9000)
        nursery.start_soon(second.run, answer)
        await settle()
        assert told_of(first.replies[0]) == {}
        assert sorted(values_in(second.replies[0]), key=str) == [b"a", b"b"]


async def test_a_request_that_is_lost_is_noticed(autojump_clock: MockClock) -> None:
    """Epochs count them."""
    async with alone() as broker:
        await leading(broker)
        reply = await ask(broker, want(), session=(0, NEW_SESSION))
        with pytest.raises(InvalidFetchSessionEpoch):
            await ask(broker, session=(body_of(reply).session_id, 2))


async def test_what_does_not_exist_is_not_remembered(autojump_clock: MockClock) -> None:
    """Names alone would fill the memory."""
    async with alone() as broker:
        names = [want(partition=number) for number in range(50)]
        await ask(broker, *names, session=(0, NEW_SESSION))
        [session] = broker.fetching.sessions._sessions.values()
        assert session.partitions == session.news == {}


async def test_a_cancelled_fetch_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    """With a session its news stay; without one nobody watches any more."""
    async with alone() as broker:
        replica = await leading(broker, b"a")
        reply = await ask(broker, want(), session=(0, NEW_SESSION))
        session_id = body_of(reply).session_id
        with trio.move_on_after(1):
            await ask(broker, want(1), wait_ms=9000)
        [session] = broker.fetching.sessions._sessions.values()
        assert list(replica.watchers) == [session]
        with trio.move_on_after(1):
            answer = ask(broker, want(0), session=(session_id, 1), wait_ms=9000, bytes_min=9999)
            await answer
        assert session.turn is None
        assert list(session.news) == [key_of()]


async def test_cancelling_while_the_disk_is_asked_loses_no_news(autojump_clock: MockClock) -> None:
    """What was being looked at is looked at by the next request."""
    async with alone() as broker:
        replica = await leading(broker, b"a", b"b")
        reply = await ask(broker, session=(0, NEW_SESSION))
        session_id = body_of(reply).session_id
        replica.log.active._known.clear()
        broker.files.cold, broker.disk.seconds = True, 5.0
        with trio.move_on_after(1):
            await ask(broker, want(1), session=(session_id, 1), wait_ms=9000)
        broker.files.cold, broker.disk.seconds = False, 0.0
        assert values_in(await ask(broker, session=(session_id, 2))) == [b"b"]
