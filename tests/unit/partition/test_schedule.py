"""A12.2, A12.3: what is pending in a partition, by the batches of its log."""

from __future__ import annotations

import tracemalloc
from random import Random
from typing import TYPE_CHECKING

import pytest

from raftmq.partition.scheduling.columns import (
    ROWS_MAX,
    RowState,
    ScheduledBatch,
    ScheduledColumns,
    Settlement,
)
from raftmq.partition.scheduling.schedule import CancelRefusal, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.partition.scheduling.columns import ScheduledEntry

NOW = 1_700_000_000_000
MUCH = 1 << 40
PRODUCER = 7


def batch(
    base_offset: int, due: int, *, count: int = 1, length: int = 100, producer_id: int = -1
) -> ScheduledBatch:
    """Due that many milliseconds from NOW on."""
    return ScheduledBatch(
        base_offset, count, NOW + due, position=base_offset * 10, length=length,
        producer_id=producer_id,
    )  # fmt: skip


def schedule_of(*due: int, count: int = 1) -> Schedule:
    """A batch for each, at offsets 0, `count`, ..."""
    schedule = Schedule()
    for place, each in enumerate(due):
        schedule.on_scheduled(batch(place * count, each, count=count))
    return schedule


def copy(
    schedule: Schedule, offset: int, replaced: int, first: int, left_out: Iterable[int] = ()
) -> None:
    schedule.on_copy(
        batch(offset, 50, count=3), replaced=replaced, first_offset=first, left_out=left_out
    )


def offsets(entries: Iterable[ScheduledEntry] | None) -> list[int]:
    assert entries is not None
    return [each.base_offset for each in entries]


def take(schedule: Schedule, until: int = MUCH, limit: int = 100) -> list[int]:
    return offsets(schedule.take_due(NOW + until, limit))


def refusal(schedule: Schedule, handle: int) -> CancelRefusal | None:
    return schedule.check_cancel(handle).refusal


# -- The leader ------------------------------------------------------------------------------------


def test_what_is_due_comes_in_order_of_due_then_offset() -> None:
    """At most so many at once, and nothing before its time."""
    schedule = schedule_of(300, 100, 200, 100, 900)
    assert schedule.next_due() == NOW + 100
    assert take(schedule, 300, limit=3) == [1, 3, 2]
    assert schedule.next_due() == NOW + 300
    assert take(schedule, 300) == [0]
    assert take(schedule, 899) == []
    assert schedule.next_due() == NOW + 900


def test_what_is_taken_is_pending_until_its_delivery_is_in_the_log() -> None:
    """It is not handed out again, unless it is given back."""
    schedule = schedule_of(100, 200)
    assert take(schedule) == [0, 1]
    assert take(schedule) == []
    assert (schedule.pending_count, schedule.pending_bytes) == (2, 200)
    schedule.on_delivery(2, 1)
    schedule.give_back(0)
    schedule.give_back(1)  # it is settled
    assert take(schedule) == [0]
    assert schedule.pending_count == 1
    assert schedule.pending_at(1) is None


def test_a_delivery_that_is_cut_is_made_again() -> None:
    """By the next leader, or by this one when it leads again."""
    schedule = schedule_of(100, 200)
    assert take(schedule) == [0, 1]
    schedule.on_delivery(2, 0)
    schedule.cut(2, 0)
    assert schedule.pending_count == 2
    assert take(schedule) == [0, 1]


def test_a_leader_that_stops_gives_all_back() -> None:
    """What it has read belongs to a log that may be cut now."""
    schedule = schedule_of(100)
    assert take(schedule) == [0]
    schedule.stop_leading()
    assert take(schedule) == [0]


def test_what_was_read_may_be_settled_before_its_delivery_is_appended() -> None:
    """So the leader asks again: what is left out is what is cancelled in that moment."""
    schedule = schedule_of(100, 200, count=3)
    assert take(schedule) == [0, 3]
    schedule.on_cancel(6, [1])
    schedule.on_cancel(7, [3, 4, 5])
    entry = schedule.pending_at(0)
    assert entry is not None
    assert entry.left_out == (1,)
    assert schedule.pending_at(3) is None


def test_an_earlier_due_time_that_comes_later_is_next() -> None:
    """Also after the leader has begun to keep the order."""
    schedule = schedule_of(900)
    assert schedule.next_due() == NOW + 900
    schedule.on_scheduled(batch(1, 500))
    schedule.on_roll(2)
    schedule.on_scheduled(batch(2, 100))
    assert schedule.next_due() == NOW + 100
    assert take(schedule) == [2, 1, 0]
    assert schedule.next_due() is None


# -- Transactions ----------------------------------------------------------------------------------


def in_transaction() -> Schedule:
    schedule = schedule_of(500)
    schedule.on_scheduled(batch(1, 100, producer_id=PRODUCER))
    schedule.on_scheduled(batch(2, 200, producer_id=PRODUCER))
    return schedule


def test_a_transaction_is_pending_from_its_commit_marker_on() -> None:
    """Whatever comes due before is not passed: it is next, then."""
    schedule = in_transaction()
    assert take(schedule) == [0]
    schedule.on_delivery(3, 0)
    assert schedule.pending_count == 0
    schedule.on_marker(4, PRODUCER, is_commit=True)
    assert schedule.pending_count == 2
    assert take(schedule) == [1, 2]


def test_an_abort_marker_settles_its_transaction() -> None:
    """That of the producer, and not its next one."""
    schedule = in_transaction()
    schedule.on_marker(3, PRODUCER, is_commit=False)
    schedule.on_scheduled(batch(4, 10, producer_id=PRODUCER))
    schedule.on_marker(5, PRODUCER + 1, is_commit=True)
    assert take(schedule) == [0]
    assert [each.settled_at for each in schedule.entries()] == [-1, 3, 3, -1]
    assert refusal(schedule, 1) is CancelRefusal.ABORTED


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_that_is_cut_decides_nothing(is_commit: bool) -> None:
    """The transaction is open again, and ends in another way."""
    schedule = in_transaction()
    before = [*schedule.entries()]
    schedule.on_marker(3, PRODUCER, is_commit=is_commit)
    schedule.on_scheduled(batch(4, 10, producer_id=PRODUCER))
    schedule.cut(3, 0)
    assert [*schedule.entries()] == before
    schedule.on_marker(3, PRODUCER, is_commit=not is_commit)
    assert schedule.pending_count == (1 if is_commit else 3)


def test_what_is_cancelled_before_the_commit_stays_so() -> None:
    """A client may cancel what it has sent in an open transaction."""
    schedule = in_transaction()
    schedule.on_cancel(3, [1])
    schedule.on_marker(4, PRODUCER, is_commit=True)
    assert take(schedule) == [2, 0]
    schedule.cut(4, 0)
    assert refusal(schedule, 1) is CancelRefusal.CANCELLED
    schedule.cut(3, 0)
    assert refusal(schedule, 1) is None


# -- Cancels and copies ----------------------------------------------------------------------------


def test_a_handle_cancels_one_record() -> None:
    """The batch is settled by the cancel of its last one."""
    schedule = schedule_of(100, count=3)
    assert schedule.check_cancel(1) == (1, None)
    schedule.on_cancel(3, [1, 1])
    assert refusal(schedule, 1) is CancelRefusal.CANCELLED
    assert refusal(schedule, 0) is None
    schedule.on_cancel(4, [0])
    assert schedule.pending_count == 1
    schedule.on_cancel(5, [2])
    assert schedule.pending_count == 0
    assert schedule.is_settled_before(3, 6)
    assert not schedule.is_settled_before(3, 5)


def test_cancels_that_are_cut_are_undone_one_by_one() -> None:
    """Each batch is pending as the rest of the log says."""
    schedule = schedule_of(100, count=3)
    for offset, record in ((3, 1), (4, 0), (5, 2)):
        schedule.on_cancel(offset, [record])
    found = []
    for offset in (5, 4, 3):
        schedule.cut(offset, 0)
        entry = schedule.pending_at(0)
        assert entry is not None
        found.append(entry.left_out)
    assert found == [(0, 1), (1,), ()]


def test_a_copy_stands_in_for_its_original() -> None:
    """The handle of a record leads to the copy of the copy, where the segments are gone, too."""
    schedule = schedule_of(100, count=3)
    schedule.on_roll(3)
    copy(schedule, 3, replaced=0, first=0)
    assert take(schedule) == [3]
    schedule.trim(3)
    schedule.on_roll(6)
    copy(schedule, 6, replaced=3, first=0)
    assert schedule.check_cancel(2) == (8, None)
    schedule.trim(6)
    assert schedule.check_cancel(2) == (8, None)
    entry = schedule.pending_at(6)
    assert entry is not None
    assert (entry.segment_offset, entry.first_offset) == (6, 0)
    schedule.on_delivery(9, 6)
    assert refusal(schedule, 2) is CancelRefusal.DELIVERED


def test_a_copy_that_is_cut_leaves_its_original_pending() -> None:
    """And handles lead to that again."""
    schedule = schedule_of(100, count=3)
    copy(schedule, 3, replaced=0, first=0)
    copy(schedule, 6, replaced=3, first=0)
    schedule.cut(6, 0)
    assert schedule.check_cancel(1) == (4, None)
    schedule.cut(3, 0)
    assert schedule.check_cancel(1) == (1, None)
    assert take(schedule) == [0]


def test_a_copy_leaves_out_what_was_cancelled() -> None:
    """The cancel may be deleted before the copy is."""
    schedule = Schedule(10)  # behind it
    copy(schedule, 10, replaced=0, first=0, left_out=[0, 2])
    assert refusal(schedule, 2) is CancelRefusal.CANCELLED
    assert refusal(schedule, 1) is None
    schedule.on_cancel(13, [11])
    assert schedule.pending_count == 0


def test_the_first_settlement_counts() -> None:
    """What comes later names what is settled, or what is not there any more."""
    schedule = schedule_of(100, count=2)
    schedule.on_delivery(2, 0)
    schedule.on_cancel(3, [0])
    schedule.on_delivery(4, 0)
    schedule.on_delivery(5, 77)
    schedule.cut(3, 0)
    assert schedule.pending_count == 0
    assert refusal(schedule, 0) is CancelRefusal.DELIVERED


def test_an_unknown_handle_is_no_record_of_another_batch() -> None:
    """A plain record, one behind the log's end, a record of a copy, one that was trimmed."""
    schedule = Schedule()
    schedule.on_scheduled(batch(5, 100, count=3))
    copy(schedule, 20, replaced=5, first=5)
    unknown = [handle for handle in (4, 8, 20, 23) if refusal(schedule, handle)]
    assert unknown == [4, 8, 20, 23]
    schedule.on_delivery(23, 20)
    schedule.on_roll(24)
    schedule.trim(24)
    assert refusal(schedule, 5) is CancelRefusal.UNKNOWN


# -- Retention -------------------------------------------------------------------------------------


def test_a_segment_may_go_once_its_settlements_are_committed() -> None:
    """By the replica's own high watermark."""
    schedule = schedule_of(100, 200)
    schedule.on_roll(2)
    schedule.on_delivery(2, 0)
    assert not schedule.is_settled_before(2, 10)
    schedule.on_delivery(3, 1)
    assert not schedule.is_settled_before(2, 3)
    assert schedule.is_settled_before(2, 4)


def test_what_is_pending_is_carried_if_it_is_less_than_a_quarter() -> None:
    """Of all that would go: one segment that is full of it does not keep the rest."""
    schedule = schedule_of(100, 200, 300)
    schedule.on_delivery(3, 1)
    schedule.on_roll(10)
    assert not schedule.is_worth_carrying(10, 800)
    assert schedule.is_worth_carrying(10, 801)
    assert offsets(schedule.pending_from(0, 10, 9)) == [0, 2]
    assert offsets(schedule.pending_from(0, 10, 1)) == [0]
    assert offsets(schedule.pending_from(1, 10, 9)) == [2]
    schedule.on_roll(20)
    assert schedule.is_worth_carrying(20, 800 + 5_000)
    assert not schedule.is_worth_carrying(0, MUCH)


def test_nothing_is_carried_out_of_an_open_transaction() -> None:
    """A copy is of no transaction: it would be delivered whatever becomes of that."""
    schedule = in_transaction()
    assert schedule.has_undecided(3)
    assert not schedule.is_worth_carrying(3, MUCH)
    assert not schedule.has_undecided(1)
    assert offsets(schedule.pending_from(0, 1, 9)) == [0]
    assert not schedule.is_settled_before(3, 10)
    schedule.on_marker(3, PRODUCER, is_commit=False)
    assert not schedule.has_undecided(3)
    assert offsets(schedule.pending_from(0, 3, 9)) == [0]


def test_a_trim_forgets_whole_segments() -> None:
    """As a replica that starts over there would not have them."""
    schedule = schedule_of(100, 200)
    schedule.on_roll(2)
    schedule.on_scheduled(batch(2, 300))
    schedule.on_roll(3)
    schedule.trim(1)
    assert schedule.pending_count == 3
    assert take(schedule, limit=1) == [0]
    schedule.trim(2)
    assert (schedule.pending_count, schedule.pending_bytes) == (1, 100)
    assert take(schedule) == [2]


def test_a_cut_over_segments_leaves_what_the_rest_says() -> None:
    """And before the log's beginning nothing; it goes on there."""
    schedule = schedule_of(100, 200)
    schedule.on_roll(2)
    schedule.on_scheduled(batch(2, 50))
    schedule.on_roll(3)
    schedule.on_delivery(3, 0)
    schedule.cut(2, 2)
    assert take(schedule) == [0, 1]
    schedule.cut(0, 0)
    assert (schedule.pending_count, schedule.pending_bytes, schedule.next_due()) == (0, 0, None)
    schedule.on_scheduled(batch(0, 70))
    assert take(schedule) == [0]


# -- What cannot be read ---------------------------------------------------------------------------


def test_behind_a_gap_nothing_is_done() -> None:
    """A delivery, a cancel or a marker may stand there, of any batch."""
    schedule = schedule_of(100, 200)
    schedule.on_unread(2, 4)
    schedule.on_scheduled(batch(4, 300))
    assert schedule.next_due() is None
    assert take(schedule) == []
    assert refusal(schedule, 0) is CancelRefusal.UNREAD
    assert schedule.has_undecided(2)
    assert not schedule.is_settled_before(0, 10)
    schedule.accept_unread()
    assert take(schedule) == [0, 1, 4]


def test_a_cut_and_a_trim_take_the_gap_with_them() -> None:
    """A cut within leaves its beginning."""
    schedule = schedule_of(100, 200)
    schedule.on_unread(2, 4)
    schedule.on_unread(6, 7)
    schedule.cut(5, 0)
    assert schedule.next_due() is None
    schedule.cut(2, 0)
    assert schedule.next_due() == NOW + 100
    schedule.on_unread(2, 4)
    schedule.on_roll(4)
    schedule.on_scheduled(batch(4, 300))
    schedule.trim(4)
    assert take(schedule) == [4]


# -- Many ------------------------------------------------------------------------------------------


def test_many_stretches_are_one_order() -> None:
    """Against a sorted list: taken, delivered and cut, over several stretches and segments."""
    random = Random(3)
    schedule = Schedule()
    due = [random.randrange(5_000) for _ in range(3 * ROWS_MAX)]
    for offset, each in enumerate(due):
        if offset % 5_000 == 4_999:
            schedule.on_roll(offset)
        schedule.on_scheduled(batch(offset, each))
    order = sorted(range(len(due)), key=lambda offset: (due[offset], offset))
    done = len(due) // 3
    for place, base_offset in enumerate(take(schedule, limit=done)):
        assert base_offset == order[place]
        schedule.on_delivery(len(due) + place, base_offset)
    cut_at = done // 2
    schedule.cut(len(due) + cut_at, 9_999)  # in the last segment
    assert schedule.pending_count == len(due) - cut_at
    assert take(schedule, limit=len(due)) == order[cut_at:]


def test_an_entry_is_forty_bytes() -> None:
    """So that a million of one partition are 42 MB, and the heads of a leader hardly more."""
    count = 2 * ROWS_MAX
    tracemalloc.start()
    schedule = Schedule()
    for offset in range(count):
        schedule.on_scheduled(ScheduledBatch(offset, 1, NOW - offset, 0, 100))
    assert schedule.next_due() == NOW - count + 1
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / count < 48


def test_a_stretch_knows_its_rows() -> None:
    """Records of a batch lead to its row, and those between two batches nowhere."""
    columns = ScheduledColumns()
    for base_offset in (3, 10):
        columns.append(batch(base_offset, 100, count=2))
    assert [columns.row_of(offset) for offset in (2, 3, 4, 5, 10, 11, 12)] == [
        None, 0, 0, None, 1, 1, None,
    ]  # fmt: skip
    assert not columns.is_full
    assert [*columns.rows_before(10)] == [0]


def test_entries_say_what_has_become_of_them() -> None:
    """For who looks at a partition: a part of it, by offset."""
    schedule = in_transaction()
    schedule.on_delivery(3, 0)
    assert offsets(schedule.entries(1)) == [1, 2]
    delivered, open_one = schedule.entries(0, 2)
    assert (delivered.settled_by, delivered.settled_at) == (Settlement.DELIVERED, 3)
    assert (open_one.state, open_one.settled_by) == (RowState.UNDECIDED, Settlement.NONE)
