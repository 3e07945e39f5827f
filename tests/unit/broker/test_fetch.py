"""What consumers read: committed records only, within limits, at once or when there is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from raftmq.errors import ErrorCode
from raftmq.partition.leader import FetchFromLeader as ReplicaAsks
from raftmq.wire.messages.fetch import NEW_SESSION
from tests.unit.broker.consuming import Parked, ask, leading, values_in
from tests.unit.broker.copying import (
    alone,
    body_of,
    key_of,
    payload_of,
    told_of,
    want,
)
from tests.unit.partition.replica_world import broker_epoch, led_by, settle
from tests.unit.storage.batches import batch

if TYPE_CHECKING:
    from trio.testing import MockClock


# -- what is seen --------------------------------------------------------------------------


async def test_committed_records_are_read(autojump_clock: MockClock) -> None:
    """As parts of the log's file, with the bounds of the log."""
    async with alone() as broker:
        await leading(broker, b"a", b"b")
        reply = await ask(broker, want(1))
        assert values_in(reply) == [b"b"]
        told = told_of(reply)[0]
        assert (told.error, told.high_watermark, told.log_start_offset) == (0, 2, 0)
        assert told.length == len(payload_of(reply))
        assert body_of(reply).session_id == 0


async def test_nothing_is_read_that_is_not_committed(autojump_clock: MockClock) -> None:
    """The leader has it on its disk, the follower does not hold it yet (A5.7)."""
    async with alone() as broker:
        replica = await broker.take_up(led_by(1))
        replica.append(batch(b"a"), acks=1)
        await settle()
        told = told_of(await ask(broker, want(0)))[0]
        assert (told.error, told.length, told.high_watermark) == (0, 0, 0)
        told = told_of(await ask(broker, want(1)))[0]
        assert told.error == ErrorCode.NONE


async def test_offsets_outside_of_the_log_are_told_where_it_is(autojump_clock: MockClock) -> None:
    """Before its start, and behind its end."""
    async with alone() as broker:
        replica = await leading(broker, b"a", b"b")
        await broker.directory.delete_records(replica.log, 1)
        for offset in (0, 3):
            told = told_of(await ask(broker, want(offset)))[0]
            assert told.error == ErrorCode.OFFSET_OUT_OF_RANGE
            assert (told.high_watermark, told.log_start_offset) == (2, 1)
            assert "from 1 to 2" in told.message


async def test_who_leads_is_told_to_those_who_ask_the_wrong_one(autojump_clock: MockClock) -> None:
    """Another leader, an epoch that is over, one that is not known here, no such partition."""
    async with alone() as broker:
        await broker.take_up(led_by(1, 5))
        told = told_of(await ask(broker, want(leader_epoch=4), want(partition=7)))
        assert told[0].error == ErrorCode.FENCED_LEADER_EPOCH
        assert (told[0].leader, told[0].leader_epoch) == (1, 5)
        assert told[7].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        told = told_of(await ask(broker, want(leader_epoch=6)))
        assert told[0].error == ErrorCode.UNKNOWN_LEADER_EPOCH
        await broker.take_up(led_by(2, 7))
        told = told_of(await ask(broker, want()))
        assert told[0].error == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (told[0].leader, told[0].leader_epoch) == (2, 7)


async def test_a_consumer_that_read_what_was_taken_back_learns_where(
    autojump_clock: MockClock,
) -> None:
    """It has read up to 5 in epoch 1, which ended at 2 here; or in an epoch that is yet to come."""
    async with alone() as broker:
        replica = await broker.take_up(led_by(1, 1, replicas=(1,)))
        for value in (b"a", b"b"):
            replica.append(batch(value), acks=1)
        await broker.take_up(led_by(1, 4, replicas=(1,)))
        for _ in range(4):
            replica.append(batch(b"c"), acks=1)
        await settle()
        told = told_of(await ask(broker, want(5, last_fetched_epoch=1), wait_ms=500))[0]
        assert told.diverging is not None
        assert (told.diverging.leader_epoch, told.diverging.end_offset) == (1, 2)
        assert told.length == 0
        assert told_of(await ask(broker, want(2, last_fetched_epoch=1)))[0].length > 0
        told = told_of(await ask(broker, want(2, last_fetched_epoch=9)))[0]
        assert told.error == ErrorCode.UNKNOWN_LEADER_EPOCH


# -- limits --------------------------------------------------------------------------------


async def test_the_first_batch_comes_whole(autojump_clock: MockClock) -> None:
    """Over the limit of the partition, and over that of the answer; nothing else is."""
    async with alone() as broker:
        await leading(broker, b"a" * 500, b"b")
        await leading(broker, b"c" * 500, partition=1)
        reply = await ask(broker, want(bytes_max=1), want(partition=1), bytes_max=1)
        assert values_in(reply) == [b"a" * 500]
        reply = await ask(broker, want(bytes_max=1), want(partition=1, bytes_max=1))
        assert values_in(reply) == [b"a" * 500, b"c" * 500]


async def test_partitions_have_their_turns(autojump_clock: MockClock) -> None:
    """An answer has room for one batch; whoever was left out comes first the next time."""
    async with alone() as broker:
        for number in range(3):
            await leading(broker, *(b"%d" % number * 100 for _ in range(3)), partition=number)
        wanted = [want(partition=number, bytes_max=1) for number in range(3)]
        reply = await ask(broker, *wanted, session=(0, NEW_SESSION), bytes_max=200)
        session_id, offsets, seen = body_of(reply).session_id, [0, 0, 0], []
        for epoch in range(1, 10):
            [number] = told_of(reply)
            seen.append(number)
            offsets[number] += 1
            again = want(offsets[number], number, bytes_max=1)
            reply = await ask(broker, again, session=(session_id, epoch), bytes_max=200)
        assert seen == [0, 1, 2] * 3


# -- waiting -------------------------------------------------------------------------------


async def test_a_fetch_waits_for_records(autojump_clock: MockClock) -> None:
    """It is answered when they are committed, not when they are appended."""
    async with alone() as broker, trio.open_nursery() as nursery:
        replica, parked = await leading(broker), Parked()
        nursery.start_soon(parked.run, ask(broker, want(), wait_ms=5000))
        await settle(1)
        broker.disk.seconds = 0.5
        replica.append(batch(b"a"), acks=1)
        await settle(0.3)
        assert parked.is_waiting
        await settle(0.3)
        assert values_in(parked.replies[0]) == [b"a"]
        assert parked.ended_at == pytest.approx(1.5)


async def test_a_fetch_waits_no_longer_than_was_said(autojump_clock: MockClock) -> None:
    """Then it says that there is nothing; without wait it says so at once."""
    async with alone() as broker:
        await leading(broker)
        began_at = trio.current_time()
        reply = await ask(broker, want(), wait_ms=700)
        assert trio.current_time() - began_at == pytest.approx(0.7)
        assert told_of(reply)[0].length == 0
        await ask(broker, want(), wait_ms=0)
        await ask(broker, want(), wait_ms=5000, bytes_min=0)
        assert trio.current_time() - began_at == pytest.approx(0.7)


async def test_a_fetch_waits_for_enough(autojump_clock: MockClock) -> None:
    """Three small batches of two partitions together are enough; each alone is not."""
    async with alone() as broker, trio.open_nursery() as nursery:
        replicas = [await leading(broker, partition=number) for number in range(2)]
        parked, size = Parked(), len(batch(b"x"))
        wanted = [want(partition=number) for number in range(2)]
        answer = ask(broker, *wanted, wait_ms=5000, bytes_min=3 * size)
        nursery.start_soon(parked.run, answer)
        for number in (0, 1, 0):
            assert parked.is_waiting
            replicas[number].append(batch(b"x"), acks=1)
            await settle()
        assert {number: told.length for number, told in told_of(parked.replies[0]).items()} == {
            0: 2 * size,
            1: size,
        }


async def test_a_fetch_does_not_wait_for_what_will_not_fit(autojump_clock: MockClock) -> None:
    """More is there than may be told of one partition, and that is less than was asked for."""
    async with alone() as broker:
        replica, size = await leading(broker), len(batch(b"x"))
        for _ in range(3):
            replica.append(batch(b"x"), acks=1)
        await settle()
        began_at = trio.current_time()
        wanted = want(bytes_max=2 * size)
        reply = await ask(broker, wanted, wait_ms=5000, bytes_min=9 * size)
        assert 0 < told_of(reply)[0].length <= 2 * size
        assert trio.current_time() - began_at < 1.0


async def test_a_wait_ends_when_the_part_changes(autojump_clock: MockClock) -> None:
    """Somebody else leads, or the partition is deleted."""
    async with alone() as broker, trio.open_nursery() as nursery:
        for number in range(2):
            await leading(broker, partition=number)
        waiting = [Parked(), Parked()]
        for number, parked in enumerate(waiting):
            answer = ask(broker, want(partition=number), wait_ms=50_000)
            nursery.start_soon(parked.run, answer)
        await settle()
        await broker.take_up(led_by(3, 9), 0)
        gone = broker.hosted.replicas.pop(key_of(1))
        await gone.close()
        await wait_all_tasks_blocked()
        told = told_of(waiting[0].replies[0])[0]
        assert (told.error, told.leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 3)
        told = told_of(waiting[1].replies[0])[1]
        assert told.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not gone.watchers


async def test_a_consumer_is_not_woken_for_what_it_does_not_see(autojump_clock: MockClock) -> None:
    """Appends that are not committed; a high watermark before its offset answers nothing."""
    async with alone() as broker, trio.open_nursery() as nursery:
        replica, parked = await broker.take_up(led_by(1)), Parked()
        for _ in range(2):
            replica.append(batch(), acks=1)
        answer = ask(broker, want(2), wait_ms=1000, session=(0, NEW_SESSION))
        nursery.start_soon(parked.run, answer)
        await settle()
        [session] = broker.fetching.sessions._sessions.values()
        replica.append(batch(), acks=1)
        assert not session.news
        replica.on_replica_fetch(
            2, 102, ReplicaAsks(1, 2, 0), leader_epoch=0, now=trio.current_time()
        )
        replica.on_replica_progress(2, broker_epoch(2), 2, leader_epoch=0, now=trio.current_time())
        await wait_all_tasks_blocked()
        assert (replica.high_watermark, parked.replies) == (2, [])
        replica.on_replica_fetch(
            2, 102, ReplicaAsks(1, 3, 0), leader_epoch=0, now=trio.current_time()
        )
        replica.on_replica_progress(2, broker_epoch(2), 3, leader_epoch=0, now=trio.current_time())
        await wait_all_tasks_blocked()
        assert told_of(parked.replies[0])[0].length


async def test_a_log_that_cannot_be_read_is_an_error_of_its_partition(
    autojump_clock: MockClock,
) -> None:
    """The others are read all the same."""
    async with alone() as broker:
        replica = await leading(broker, b"a", b"b")
        await leading(broker, b"c", partition=1)
        replica.log.active._known.clear()
        broker.files.flip_bit(replica.log.active.path, 16, 3)  # of the magic
        reply = await ask(broker, want(1), want(partition=1))
        assert told_of(reply)[0].error == ErrorCode.CORRUPT_MESSAGE
        assert values_in(reply) == [b"c"]
