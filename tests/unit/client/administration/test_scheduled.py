"""`Admin`: what is scheduled in a topic, and cancels by handles (A12.2, A12.3)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from raftmq.client.administration.scheduled import PartitionSchedule, ScheduledRecord
from raftmq.client.producer.batch import RecordMetadata
from raftmq.client.scheduling.handles import ScheduleHandle
from raftmq.errors import (
    CannotCancel,
    CorruptRecord,
    ErrorCode,
    InvalidRequest,
    LeaderNotAvailable,
    OutcomeUnknown,
    ServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from raftmq.wire.messages.metadata import Metadata
from raftmq.wire.messages.scheduled import (
    HANDLES_MAX,
    CancelScheduled,
    CancelScheduledReply,
    ListScheduled,
    ListScheduledReply,
    RecordCancelled,
    ScheduledRow,
)
from tests.unit.client.administration.bureau import LOST, Bureau
from tests.unit.client.administration.schedules import DUE_MS, open_schedules, refused

if TYPE_CHECKING:
    from trio.testing import MockClock


def handle(bureau: Bureau, offset: int, partition: int = 0) -> ScheduleHandle:
    return ScheduleHandle(bureau.world.topics["t"].topic_id, partition, offset)


SENT = RecordMetadata("t", 0, 5, 0)


# -- cancels --------------------------------------------------------------------------------------


async def test_one_record(autojump_clock: MockClock) -> None:
    """It succeeds once; after that the error says why."""
    async with open_schedules() as (schedules, bureau, admin):
        batch = schedules.add(4, b"a", b"b")
        assert await admin.cancel_scheduled(handle(bureau, 5)) == {}
        assert batch.left_out == {1}
        with pytest.raises(CannotCancel, match="t-0 offset 5: because cancelled") as caught:
            await admin.cancel_scheduled(handle(bureau, 5))
        error = caught.value
        assert (error.reason, error.definite, error.retriable) == ("cancelled", True, False)
        assert (error.topic, error.partition) == ("t", 0)


@pytest.mark.parametrize("reason", ["delivered", "aborted", "unknown"])
async def test_records_that_cannot_be_cancelled(autojump_clock: MockClock, reason: str) -> None:
    async with open_schedules() as (schedules, bureau, admin):
        schedules.told[7] = refused(reason)
        with pytest.raises(CannotCancel) as caught:
            await admin.cancel_scheduled(handle(bureau, 7))
        assert caught.value.reason == reason


async def test_several_records(autojump_clock: MockClock) -> None:
    """Of several partitions: those that failed are returned, the others are cancelled."""
    async with open_schedules() as (schedules, bureau, admin):
        bureau.world.add_partition("t", 2)
        for partition in (0, 1):
            schedules.add(0, b"a", b"b", partition=partition)
        schedules.told[1] = refused("delivered")
        handles = [handle(bureau, offset, partition) for partition in (0, 1) for offset in (0, 1)]
        failed = await admin.cancel_scheduled([*handles, handles[0]])
        assert {one: error.reason for one, error in failed.items()} == {  # type: ignore[attr-defined]
            handles[1]: "delivered",
            handles[3]: "delivered",
        }
        assert [len(body.offsets) for body in bureau.asked(CancelScheduled)] == [2, 2]
        assert all(isinstance(error, CannotCancel) for error in failed.values())


async def test_more_than_a_request_takes(autojump_clock: MockClock) -> None:
    async with open_schedules() as (schedules, bureau, admin):
        count = 2 * HANDLES_MAX + 1
        schedules.add(0, *[b""] * count)
        handles = (handle(bureau, offset) for offset in range(count))
        assert await admin.cancel_scheduled(handles) == {}
        sizes = sorted(len(body.offsets) for body in bureau.asked(CancelScheduled))
        assert sizes == [1, HANDLES_MAX, HANDLES_MAX]


async def test_an_answer_that_is_lost(autojump_clock: MockClock) -> None:
    """It is asked again, and what is cancelled by then was asked for; what was delivered meanwhile
    was not cancelled by anybody."""
    async with open_schedules() as (schedules, bureau, admin):
        schedules.add(0, b"a", b"b")
        bureau.errors = [LOST]
        assert await admin.cancel_scheduled(handle(bureau, 0)) == {}
        assert bureau.count(CancelScheduled) == 2
        bureau.errors = [LOST]
        schedules.told[1] = refused("delivered")
        with pytest.raises(CannotCancel, match="because delivered"):
            await admin.cancel_scheduled(handle(bureau, 1))


async def test_a_refusal_before_leaves_no_doubt(autojump_clock: MockClock) -> None:
    """A definite error of an earlier attempt has cancelled nothing: somebody else did."""
    async with open_schedules() as (schedules, bureau, admin):
        schedules.add(0, b"a").left_out.add(0)
        bureau.errors = [ErrorCode.NOT_ENOUGH_REPLICAS]
        with pytest.raises(CannotCancel, match="because cancelled"):
            await admin.cancel_scheduled(handle(bureau, 0))


async def test_nobody_answers(autojump_clock: MockClock) -> None:
    """It may be cancelled, or not."""
    async with open_schedules() as (schedules, bureau, admin):
        schedules.add(0, b"a", b"b")
        bureau.errors = [LOST, *[ErrorCode.REQUEST_TIMED_OUT] * 10_000]
        with pytest.raises(OutcomeUnknown) as caught:
            await admin.with_timeout(2).cancel_scheduled(handle(bureau, 0))
        assert not caught.value.definite
        several = [handle(bureau, 0), handle(bureau, 1)]
        failed = await admin.with_timeout(2).cancel_scheduled(several)
        assert [type(error) for error in failed.values()] == [OutcomeUnknown] * 2


async def test_another_broker_leads(autojump_clock: MockClock) -> None:
    """The answer names it."""
    async with open_schedules() as (schedules, bureau, admin):
        schedules.add(0, b"a")
        await admin.scheduled("t")
        before = bureau.count(Metadata)
        partition = bureau.world.topics["t"].partitions[0]
        partition.leader, partition.leader_epoch = 2, 1
        assert await admin.cancel_scheduled(handle(bureau, 0)) == {}
        assert bureau.count(Metadata) == before


async def test_part_of_the_log_cannot_be_read(autojump_clock: MockClock) -> None:
    """It is asked again until it is repaired."""
    async with open_schedules() as (schedules, bureau, admin):
        schedules.told[3] = RecordCancelled(ErrorCode.CORRUPT_MESSAGE, "part of the log")
        with pytest.raises(CorruptRecord, match="part of the log"):
            await admin.with_timeout(1).cancel_scheduled(handle(bureau, 3))
        assert bureau.count(CancelScheduled) > 3


@pytest.mark.parametrize("is_cached", [True, False])
async def test_a_topic_that_was_deleted(autojump_clock: MockClock, is_cached: bool) -> None:
    """Its handles are good no more, also where another topic has its name."""
    async with open_schedules() as (_, bureau, admin):
        gone = handle(bureau, 0)
        if is_cached:
            await admin.scheduled("t")
        await admin.delete_topic("t")
        for _ in range(2):
            with pytest.raises(UnknownTopicId, match="was deleted"):
                await admin.with_timeout(3).cancel_scheduled(gone)
            await admin.create_topic("t", if_not_exists=True)
        assert bureau.count(CancelScheduled) == 0


async def test_a_handle_of_no_partition(autojump_clock: MockClock) -> None:
    async with open_schedules() as (_, bureau, admin):
        with pytest.raises(UnknownTopicOrPartition, match="topic t has no partition 5"):
            await admin.cancel_scheduled(handle(bureau, 0, 5))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("a" * 32 + ":0:1", r"is a str: expected a ScheduleHandle, as .*\.parse\(text\)"),
        (7, "7 is an int: expected a ScheduleHandle"),
        (SENT, "is a RecordMetadata: expected .* as `metadata.schedule_handle` is"),
        ([SENT], "is a RecordMetadata: expected .* as `metadata.schedule_handle` is"),
        ([b"x" * 16], "is a bytes: expected a ScheduleHandle"),
        ([(b"x" * 16, 0, 0)], "is a tuple: expected a ScheduleHandle, as"),
    ],
)
async def test_handles_that_are_none(autojump_clock: MockClock, given: Any, told: str) -> None:
    async with open_schedules() as (_, _, admin):
        with pytest.raises(TypeError, match=told):
            await admin.cancel_scheduled(given)
        with pytest.raises(InvalidRequest, match="nothing to cancel"):
            await admin.cancel_scheduled([])


@pytest.mark.parametrize(
    "made",
    [
        ScheduleHandle("a", "b", "c"),  # type: ignore[arg-type]
        ScheduleHandle(b"x", 0, 0),
        ScheduleHandle(b"x" * 16, 0, -1),
        ScheduleHandle(b"x" * 16, 0, None),  # type: ignore[arg-type]
        ScheduleHandle(b"x" * 16, True, 0),
    ],
)
async def test_handles_made_by_hand(autojump_clock: MockClock, made: ScheduleHandle) -> None:
    """One of them, or several, before anything is asked."""
    async with open_schedules() as (_, bureau, admin):
        for given in (made, [made]):
            with pytest.raises(InvalidRequest, match="is no handle of a scheduled record: expect"):
                await admin.cancel_scheduled(given)
        assert bureau.count(CancelScheduled) == 0


async def test_answers_for_others(autojump_clock: MockClock) -> None:
    """Nothing is concluded from them."""
    async with open_schedules() as (_, bureau, admin):
        bureau.lie(CancelScheduled, CancelScheduledReply(records=(RecordCancelled(),) * 2))
        with pytest.raises((ServerError, OutcomeUnknown), match="asked to cancel 1 records"):
            await admin.cancel_scheduled(handle(bureau, 0))


# -- lists ----------------------------------------------------------------------------------------


async def test_what_is_scheduled(autojump_clock: MockClock) -> None:
    """By due time; cancelled records are left out, and handles count from the first original."""
    async with open_schedules() as (schedules, bureau, admin):
        bureau.world.add_partition("t", 2)
        schedules.add(4, b"abc", b"d").left_out.add(1)
        schedules.add(9, b"e", due_ms=DUE_MS - 100, first_offset=2)
        schedules.add(0, b"f", partition=1, due_ms=DUE_MS + 100)
        schedules.undecided.add(0)
        found = await admin.scheduled("t")
        assert found.records == (
            ScheduledRecord(
                handle(bureau, 2), DUE_MS - 100, 1000, b"k0", (("h", b"1"),), ("x",), 1
            ),
            ScheduledRecord(handle(bureau, 4), DUE_MS, 1000, b"k0", (("h", b"1"),), ("x",), 3),
            ScheduledRecord(
                handle(bureau, 0, 1), DUE_MS + 100, 1000, b"k0", (("h", b"1"),), ("x",), 1, True
            ),
        )
        assert found.is_complete
        assert (found.batch_count, found.next_due) == (3, DUE_MS - 100)
        assert found.batch_bytes == sum(one.batch_bytes for one in found.partitions)
        assert [one.partition for one in found.partitions] == [0, 1]
        assert found.records[0].due_time == datetime.fromtimestamp((DUE_MS - 100) / 1000, UTC)
        only = await admin.scheduled("t", 1)
        assert (only.records, only.next_due) == (found.records[2:], DUE_MS + 100)


async def test_pages_until_the_limit(autojump_clock: MockClock) -> None:
    """No more is asked for than is wanted, and the result says whether it is all."""
    async with open_schedules() as (schedules, bureau, admin):
        for offset in range(7):
            schedules.add(offset, b"a")
        assert len((await admin.scheduled("t")).records) == 7
        assert [body.start_offset for body in bureau.asked(ListScheduled)] == [0, 2, 4, 6]
        for limit, is_complete in ((3, False), (7, True), (0, False), (100, True)):
            found = await admin.scheduled("t", limit=limit)
            assert (len(found.records), found.is_complete) == (min(limit, 7), is_complete)
            assert found.batch_count == 7


async def test_nothing_is_scheduled(autojump_clock: MockClock) -> None:
    async with open_schedules() as (_, _, admin):
        for limit in (0, 10):
            found = await admin.scheduled("t", limit=limit)
            assert found.partitions == (PartitionSchedule(0, 0, 0, None),)
            assert (found.records, found.is_complete, found.next_due) == ((), True, None)


@pytest.mark.parametrize("fault", ["flipped", "elsewhere", "missing"])
async def test_a_batch_that_cannot_be_read(autojump_clock: MockClock, fault: str) -> None:
    """Its records can be cancelled all the same."""
    async with open_schedules() as (schedules, bureau, admin):
        batch = schedules.add(4, b"a", b"b")
        batch.left_out.add(0)
        if fault == "flipped":
            batch.data = batch.data[:-1] + bytes([batch.data[-1] ^ 1])
        elif fault == "elsewhere":
            batch.data = schedules.add(9, b"a", b"b", partition=7).data
        else:
            batch.data = b""
        found = await admin.scheduled("t")
        assert found.records == (ScheduledRecord(handle(bureau, 5), DUE_MS),)


async def test_a_large_batch_is_cut_at_the_limit(autojump_clock: MockClock) -> None:
    async with open_schedules() as (schedules, _, admin):
        schedules.add(0, *[b"x"] * 50)
        found = await admin.scheduled("t", limit=20)
        assert (len(found.records), found.is_complete) == (20, False)


async def test_pages_that_lead_nowhere(autojump_clock: MockClock) -> None:
    """A faulty broker does not make it loop for ever."""
    async with open_schedules() as (_, bureau, admin):
        bureau.lie(ListScheduled, ListScheduledReply(pending_count=1, next_offset=0))
        with pytest.raises(ServerError, match="lead nowhere"):
            await admin.scheduled("t")
        row = ScheduledRow(0, 0, 1, DUE_MS, 7)
        bureau.lie(ListScheduled, ListScheduledReply(entries=(row,)))
        with pytest.raises(Exception, match="payload of 0 bytes"):
            await admin.with_timeout(1).scheduled("t")


async def test_lists_that_cannot_be_had(autojump_clock: MockClock) -> None:
    """No such topic or partition, no leader, brokers that are too old, no number."""
    async with open_schedules() as (_, bureau, admin):
        with pytest.raises(UnknownTopicOrPartition):
            await admin.scheduled("missing")
        with pytest.raises(UnknownTopicOrPartition, match="there is no 3"):
            await admin.scheduled("t", 3)
        with pytest.raises(InvalidRequest, match="limit = -1"):
            await admin.scheduled("t", limit=-1)
        bureau.errors = [ErrorCode.UNSUPPORTED_VERSION]
        with pytest.raises(UnsupportedVersion):
            await admin.scheduled("t")
        bureau.world.lead("t", 0, -1)
        with pytest.raises(LeaderNotAvailable):
            await admin.with_timeout(1).scheduled("t")
