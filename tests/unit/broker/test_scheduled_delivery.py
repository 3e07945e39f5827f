"""Scheduled records on the broker that leads: hidden until they are due, then delivered once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.broker.replication.scheduled_delivery import AHEAD_BYTES_MAX
from raftmq.client.consumer.completed_fetches import CompletedFetch
from raftmq.client.consumer.fetch_response import Expected, check_answer
from raftmq.errors import ErrorCode, UnsupportedVersion
from raftmq.model import IsolationLevel
from raftmq.partition.scheduling.leading import APPENDED_BYTES_MAX
from raftmq.partition.scheduling.schedule import CancelRefusal
from raftmq.rpc.context import Listener
from raftmq.tag_filter import parse
from raftmq.wire.messages.topics import DeleteRecords, RecordsToDelete
from tests.unit.broker.asking import ask
from tests.unit.broker.consuming import Parked
from tests.unit.broker.copying import CLIENT, payload_of, told_of
from tests.unit.broker.hosting import settle
from tests.unit.broker.readers import batches_in, reading
from tests.unit.broker.scheduling import now_ms, plain, schedule, scheduling
from tests.unit.broker.test_record_deletion import deletion
from tests.unit.broker.transacting import end, open_id

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.rpc.reply import Reply
    from tests.unit.broker.readers import Reader


def records_in(reply: Reply, offset: int, tags: str = "") -> tuple[list[tuple[int, Any]], int]:
    """Offsets and values that a consumer hands out, and where it goes on; it checks all of it."""
    told, asked = told_of(reply)[0], parse(tags) if tags else None
    assert told.error == ErrorCode.NONE, told.message
    end_offset = told.last_stable_offset
    expected = Expected(offset, -1, 99, end_offset, "t", told.aborted, asked, told.left_out)
    pieces, damage = check_answer(payload_of(reply), expected)
    assert damage is None, f"{damage}"
    found: list[tuple[int, Any]] = []
    for piece in pieces:
        if isinstance(piece, CompletedFetch) and not piece.is_passed_over:
            batch = piece.batch
            if batch.header.record_count:
                found += zip(batch.offsets, batch.values, strict=True)
    return found, pieces[-1].end_offset if pieces else offset


async def read_all(reader: Reader, tags: str = "", bytes_max: int = 1 << 20) -> list[Any]:
    """Values, in order."""
    found, offset = list[tuple[int, Any]](), 0
    while True:
        asked = tags or "*"
        reply = await reader.ask(offset, tags=asked, bytes_max=bytes_max)
        some, position = records_in(reply, offset, tags)
        found += [each for each in some if each[0] >= offset]
        if position == offset:
            return [value for _, value in found]
        offset = position


# -- delivery --------------------------------------------------------------------------------------


async def test_it_is_hidden_until_it_is_due(autojump_clock: MockClock) -> None:
    """And delivered once, within a tick; positions move over it. (A12.2, A12.3)"""
    async with scheduling() as (_, _, replica, reader):
        plain(replica, b"a")
        schedule(replica, b"b", b"c", delay=10)
        plain(replica, b"d")
        await settle()
        reply = await reader.ask(0)
        assert records_in(reply, 0) == ([(0, b"a"), (3, b"d")], 4)
        assert [(one.start_offset, one.end_offset) for one in told_of(reply)[0].left_out] == [
            (1, 3)
        ]
        await trio.sleep(9.5)
        assert await read_all(reader) == [b"a", b"d"]
        await trio.sleep(0.5)
        assert await read_all(reader) == [b"a", b"d", b"b", b"c"]
        await trio.sleep(100)
        assert await read_all(reader) == [b"a", b"d", b"b", b"c"]
        assert replica.log.log_end_offset == 6
        assert replica.log.schedule.pending_count == 0


async def test_a_long_poll_is_woken_by_a_delivery_and_not_by_what_waits(
    autojump_clock: MockClock,
) -> None:
    """A12.2."""
    async with scheduling() as (_, _, replica, reader):
        plain(replica, b"a")
        await settle()
        parked = Parked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parked.run, reader.ask(1, wait_ms=30_000))
            await trio.sleep(1)
            schedule(replica, b"b", delay=5)
            await trio.sleep(4.9)
            assert parked.is_waiting
        assert 6.0 <= parked.ended_at <= 6.2
        assert records_in(parked.replies[0], 1) == ([(2, b"b")], 3)


async def test_what_is_overdue_comes_in_the_order_of_due(autojump_clock: MockClock) -> None:
    """As after an outage: the clock is set forward. (A12.3)"""
    forward = 0

    def clock() -> int:
        return now_ms() + forward

    async with reading(now_ms=clock) as (_, _, replica, reader):
        for delay in (30, 10, 20, 40, 15):
            schedule(replica, b"%d" % delay, delay=delay)
        forward = 35_000
        await trio.sleep(2)
        assert await read_all(reader) == [b"10", b"15", b"20", b"30"]


async def test_a_due_time_in_the_past_is_delivered_at_once(autojump_clock: MockClock) -> None:
    async with scheduling() as (_, _, replica, reader):
        schedule(replica, b"a", delay=-1000)
        await settle()
        assert await read_all(reader) == [b"a"]


async def test_many_are_delivered_in_portions(autojump_clock: MockClock) -> None:
    """More than one append takes, with readers of small answers. (A12.3)"""
    async with scheduling(segment_bytes="100000") as (_, _, replica, reader):
        values = [b"%04d" % number * 200 for number in range(3_000)]
        for value in values:
            schedule(replica, value, delay=30)
        await trio.sleep(40)
        assert await read_all(reader, bytes_max=30_000) == values
        assert await read_all(reader, "!x", bytes_max=30_000) == values


async def test_a_filter_applies_to_deliveries(autojump_clock: MockClock) -> None:
    """A12.1, A12.2."""
    async with scheduling() as (_, _, replica, reader):
        schedule(replica, b"a", b"b", b"c", delay=5, tags=[["eu"], ["us"], ["eu"]])
        schedule(replica, b"d", delay=6, tags=[["us"]])
        await settle()
        assert await read_all(reader, "eu") == []
        await trio.sleep(10)
        assert await read_all(reader, "eu") == [b"a", b"c"]


# -- transactions and cancels ----------------------------------------------------------------------


@pytest.mark.parametrize("is_commit", [True, False])
async def test_in_a_transaction_it_waits_for_the_commit(
    autojump_clock: MockClock, *, is_commit: bool
) -> None:
    """Also where it was due long before; an abort settles it. (A12.3, A11.4)"""
    async with scheduling() as (cluster, _, replica, reader):
        producer = await open_id(cluster)
        producer_id, epoch = producer
        schedule(
            replica, b"a", delay=1, producer_id=producer_id, producer_epoch=epoch,
            base_sequence=0, transactional=True,
        )  # fmt: skip
        plain(replica, b"b")
        await trio.sleep(5)
        assert await read_all(reader) == []
        await end(cluster, producer, is_commit=is_commit)
        await trio.sleep(2)
        assert await read_all(reader) == [b"b", b"a"] if is_commit else [b"b"]
        assert replica.log.schedule.pending_count == 0
        assert not replica.log.schedule.is_undecided(producer_id)


async def test_a_cancelled_record_never_comes(autojump_clock: MockClock) -> None:
    """The others of its batch do. Too late, twice and unknown are refused. (A12.2)"""
    async with scheduling() as (_, _, replica, reader):
        first = schedule(replica, b"a", b"b", b"c", delay=5)
        second = schedule(replica, b"d", delay=5)
        cancelled = replica.cancel_scheduled([first + 1, second, first + 1, 77])
        assert [check.refusal for check in cancelled.checks] == [
            None, None, CancelRefusal.CANCELLED, CancelRefusal.UNKNOWN,
        ]  # fmt: skip
        assert cancelled.end_offset == replica.log.log_end_offset
        await trio.sleep(6)
        assert await read_all(reader) == [b"a", b"c"]
        refusals = [check.refusal for check in replica.cancel_scheduled([first, second]).checks]
        assert refusals == [CancelRefusal.DELIVERED, CancelRefusal.CANCELLED]


# -- retention -------------------------------------------------------------------------------------


async def test_retention_waits_for_what_is_pending(autojump_clock: MockClock) -> None:
    """It is carried forward where that frees room: 20 minutes late, retention of one. (A12.2)"""
    around = {"segment_bytes": "5000", "retention_ms": str(60_000)}
    async with scheduling(**around) as (_, node, replica, reader):
        handle = schedule(replica, b"late", b"never", delay=20 * 60)
        for number in range(100):
            plain(replica, b"%d" % number * 100)
        await settle()
        assert replica.cancel_scheduled([handle + 1]).checks[0].refusal is None
        for _ in range(10):
            await trio.sleep(60)
            plain(replica, b"now")
            await node.directory.enforce_retention(now_ms())
            await trio.sleep(30)
            await node.directory.enforce_retention(now_ms())
        assert replica.log.log_start_offset > handle
        assert replica.log.schedule.pending_count == 1
        check = replica.log.schedule.check_cancel(handle)
        assert check.refusal is None
        assert check.offset != handle
        await trio.sleep(11 * 60)
        offset = replica.log.log_start_offset
        reply = await reader.ask(offset)
        assert b"late" in [value for _, value in records_in(reply, offset)[0]]
        assert replica.log.schedule.pending_count == 0


async def test_what_holds_much_stays(autojump_clock: MockClock) -> None:
    """A segment that is full of what waits is not copied; it stays until all is delivered."""
    around = {"segment_bytes": "5000", "retention_ms": str(60_000)}
    async with scheduling(**around) as (_, node, replica, reader):
        for number in range(50):
            schedule(replica, b"%d" % number * 100, delay=5 * 60)
        await settle()
        await trio.sleep(3 * 60)
        plain(replica, b"now")
        await node.directory.enforce_retention(now_ms())
        await trio.sleep(60)
        await node.directory.enforce_retention(now_ms())
        assert replica.log.log_start_offset == 0
        assert len(replica.log.segments) > 1
        await trio.sleep(3 * 60)
        assert len(await read_all(reader)) == 51
        await node.directory.enforce_retention(now_ms())
        assert replica.log.log_start_offset > 0


async def test_rot_delays_a_delivery_and_nothing_else(autojump_clock: MockClock) -> None:
    """It is tried again; others are delivered."""
    async with scheduling() as (_, _, replica, reader):
        first = schedule(replica, b"a" * 50, delay=5)
        schedule(replica, b"b", delay=6)
        await settle()
        [entry] = [one for one in replica.log.schedule.entries() if one.base_offset == first]
        file = replica.log.active.file
        place = entry.position + entry.length - 5
        before = file.read(place, 1)
        file.write(place, [bytes([before[0] ^ 1])])
        await trio.sleep(10)
        assert await read_all(reader) == [b"b"]
        file.write(place, [before])
        await trio.sleep(10)
        assert await read_all(reader) == [b"b", b"a" * 50]


# -- who gets all of it ----------------------------------------------------------------------------


async def test_another_replica_gets_what_readers_do_not(autojump_clock: MockClock) -> None:
    """It asks as its own copy has rotted, and needs the bytes of the log. (A12.2, A2.3)"""
    broker = CLIENT._replace(listener=Listener("brokers", is_for_brokers=True), node_id=2)
    async with scheduling() as (_, _, replica, reader):
        plain(replica, b"a")
        schedule(replica, b"b", b"c")
        plain(replica, b"d")
        await settle()
        level = IsolationLevel.READ_UNCOMMITTED
        reply = await reader.ask(1, takes_gaps=False, context=broker, level=level)
        told = told_of(reply)[0]
        assert (told.error, told.left_out) == (ErrorCode.NONE, ())
        (segment,) = replica.log.segments
        scheduled, last = batches_in(reply)
        assert (scheduled.base_offset, scheduled.is_scheduled, last.base_offset) == (1, True, 3)
        length = scheduled.size + last.size
        assert payload_of(reply) == segment.file.read(segment.size - length, length)
        client = broker._replace(node_id=-1)
        told = told_of(await reader.ask(1, takes_gaps=False, context=client, level=level))[0]
        assert told.error == UnsupportedVersion.code


# -- who may not -----------------------------------------------------------------------------------


async def test_a_client_that_knows_no_gaps_is_told(autojump_clock: MockClock) -> None:
    """It would take the hidden offsets for damage. (A12.2)"""
    async with scheduling() as (_, _, replica, reader):
        plain(replica, b"a")
        await settle()
        assert told_of(await reader.ask(0, takes_gaps=False))[0].error == ErrorCode.NONE
        schedule(replica, b"b")
        await settle()
        told = told_of(await reader.ask(0, takes_gaps=False))[0]
        assert told.error == UnsupportedVersion.code
        assert "upgrade" in told.message


# -- faults that a reading has found ---------------------------------------------------------------


async def test_all_is_deleted_while_something_waits(autojump_clock: MockClock) -> None:
    """Up to what was the end when it was asked: the copy stands behind that. (A12.2)"""
    async with scheduling() as (_, node, replica, _):
        for _ in range(5):
            plain(replica, b"x")
        schedule(replica, b"late", delay=1000)
        await settle()
        request = DeleteRecords((RecordsToDelete(replica.key.topic_id, 0, -1),))
        [told] = (await ask(deletion(node).delete, request)).partitions
        assert (told.error, told.log_start_offset) == (ErrorCode.NONE, 6)
        assert replica.log.log_start_offset == 6
        assert replica.log.log_end_offset == 7
        assert replica.log.schedule.pending_count == 1


async def test_a_deletion_waits_for_what_cannot_be_read(autojump_clock: MockClock) -> None:
    """It may be pending, and is not carried forward: nothing is deleted. (A12.2, D3)"""
    async with scheduling() as (_, node, replica, _):
        schedule(replica, b"late", delay=1000)
        plain(replica, b"x")
        await settle()
        replica.log.schedule.on_unread(0, 1)
        request = DeleteRecords((RecordsToDelete(replica.key.topic_id, 0, 2),))
        [told] = (await ask(deletion(node).delete, request)).partitions
        assert told.error == ErrorCode.OFFSET_NOT_AVAILABLE
        assert "scheduled records before offset 2 are not carried forward" in told.message
        assert (replica.log.log_start_offset, replica.log.log_end_offset) == (0, 2)
        replica.log.schedule.accept_unread()
        [told] = (await ask(deletion(node).delete, request)).partitions
        assert (told.error, told.log_start_offset) == (ErrorCode.NONE, 2)
        assert replica.log.schedule.pending_count == 1


async def test_deliveries_wait_for_followers(autojump_clock: MockClock) -> None:
    """What is delivered and not committed is bounded: a follower is silent for a minute. (A12.3)"""
    value, count = b"v" * 100_000, 100
    async with scheduling(beside=(1,)) as (_, _, replica, _):
        for _ in range(count):
            schedule(replica, value, delay=5)
        await settle()
        end = replica.log.size
        await trio.sleep(60)
        assert replica.high_watermark == 0
        ahead = replica.log.size - end
        assert AHEAD_BYTES_MAX <= ahead <= AHEAD_BYTES_MAX + APPENDED_BYTES_MAX + len(value) + 1000
        assert replica.leader is not None


async def test_rot_of_many_does_not_hold_the_others_back(autojump_clock: MockClock) -> None:
    """More of them than are read at a time, all due before. (A12.3)"""
    async with scheduling() as (_, _, replica, reader):
        for _ in range(300):
            schedule(replica, b"a" * 20, delay=5)
        schedule(replica, b"sound", delay=6)
        await settle()
        file = replica.log.active.file
        for entry in list(replica.log.schedule.entries())[:300]:
            place = entry.position + entry.length - 3
            (byte,) = file.read(place, 1)
            file.write(place, [bytes([byte ^ 1])])
        await trio.sleep(10)
        assert await read_all(reader) == [b"sound"]


async def test_a_delivery_in_the_page_cache_settles_nothing(autojump_clock: MockClock) -> None:
    """A deletion is durable at once: a cut of power would take both. (A12.2)"""
    around = {"durability": "page_cache", "segment_bytes": "2000", "retention_bytes": "1"}
    async with scheduling(**around) as (_, node, replica, _):
        schedule(replica, b"late", delay=5)
        for _ in range(20):
            plain(replica, b"p" * 300)
        node.directory.flusher.request_lazy()
        await trio.sleep(5.5)
        log = replica.log
        assert log.schedule.pending_count == 0
        assert log.durable_end_offset <= 21 < replica.high_watermark
        await node.directory.enforce_retention(now_ms())
        assert log.log_start_offset == 0
        node.directory.flusher.request_lazy()
        await trio.sleep(4)
        await node.directory.enforce_retention(now_ms())
        assert log.log_start_offset > 0
