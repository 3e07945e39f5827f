"""The log of one replica: batches in segments of its own, and which of them are scheduled.

`expected` says by the definition what `Schedule` has to know of such a log: a walk over all of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from raftmq.model import NO_PRODUCER_ID
from raftmq.partition.scheduling.columns import (
    NOT_SETTLED,
    RowState,
    ScheduledBatch,
    ScheduledEntry,
    Settlement,
)
from raftmq.partition.scheduling.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator


class Kind(Enum):
    PLAIN = auto()
    SCHEDULED = auto()
    DELIVERY = auto()
    CANCEL = auto()
    COPY = auto()
    COMMIT = auto()
    ABORT = auto()


class Batch(NamedTuple):
    """Attributes:
    ids: the records that its chunks hold; of a cancel those that the client means.
    named: of a settlement the offset that it names; of a cancel those of records.
    transaction: number of the producer's transaction.
    clock_ms: of the leader that appended it.
    """

    kind: Kind
    epoch: int
    length: int
    base_offset: int = 0
    record_count: int = 1
    due_ms: int = 0
    producer_id: int = NO_PRODUCER_ID
    transaction: int = 0
    ids: tuple[int, ...] = ()
    named: tuple[int, ...] = ()
    first_offset: int = -1
    left_out: tuple[int, ...] = ()
    clock_ms: int = 0

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.record_count


class Log:
    """Attributes:
    start: the log start offset; a segment may begin before it.
    batches, bases: what is there, and the base offset of each.
    positions: of each in its segment.
    segments: their base offsets; the last one is active.
    """

    def __init__(self, start: int, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.reset(start)

    def reset(self, start: int) -> None:
        self.start = self.end = start
        self.batches: list[Batch] = []
        self.bases: list[int] = []
        self.positions: list[int] = []
        self.segments = [start]

    def append(self, batch: Batch) -> bool:
        """Returns whether a segment begins with it."""
        assert batch.base_offset == self.end, "a gap"
        position = self.positions[-1] + self.batches[-1].length if self._is_begun else 0
        is_roll = position + batch.length > self.segment_bytes and position > 0
        if is_roll:
            self.segments.append(batch.base_offset)
            position = 0
        self.batches.append(batch)
        self.bases.append(batch.base_offset)
        self.positions.append(position)
        self.end = batch.end_offset
        return is_roll

    @property
    def _is_begun(self) -> bool:
        return bool(self.bases) and self.bases[-1] >= self.segments[-1]

    @property
    def first(self) -> int:
        return self.segments[0]

    def cut(self, offset: int) -> None:
        """At a batch's beginning."""
        place = bisect_left(self.bases, offset)
        del self.batches[place:], self.bases[place:], self.positions[place:]
        self.end = offset
        self.start = min(self.start, offset)
        while self.segments[-1] > offset and len(self.segments) > 1:
            self.segments.pop()

    def delete_before(self, offset: int) -> None:
        """Whole segments, but for the active one."""
        while len(self.segments) > 1 and self.segments[1] <= offset:
            self.segments.pop(0)
        place = bisect_left(self.bases, self.first)
        del self.batches[:place], self.bases[:place], self.positions[:place]
        self.start = max(self.start, self.first)

    def at(self, offset: int) -> Batch | None:
        """The batch that has a record of that offset."""
        place = bisect_right(self.bases, offset) - 1
        return self.batches[place] if place >= 0 and offset < self.end else None

    def read(self, segment_offset: int, position: int) -> Batch:
        """What stands at these bytes."""
        for batch, segment, found in self.placed():
            if (segment, found) == (segment_offset, position):
                return batch
        raise AssertionError(f"no batch at {position} of segment {segment_offset}")

    def size(self, begin: int, end: int) -> int:
        return sum(each.length for each in self.batches if begin <= each.base_offset < end)

    def placed(self) -> Iterator[tuple[Batch, int, int]]:
        """Each batch with its segment and its position in it."""
        number = 0
        for batch, position in zip(self.batches, self.positions, strict=True):
            while number + 1 < len(self.segments) and self.segments[number + 1] <= batch[3]:
                number += 1
            yield batch, self.segments[number], position


def note(schedule: Schedule, batch: Batch, position: int, *, is_roll: bool) -> None:
    """Tell the rules of one more batch of the log."""
    if is_roll:
        schedule.on_roll(batch.base_offset)
    if batch.kind is Kind.SCHEDULED:
        schedule.on_scheduled(scheduled(batch, position))
    elif batch.kind is Kind.DELIVERY:
        schedule.on_delivery(batch.base_offset, batch.named[0])
    elif batch.kind is Kind.CANCEL:
        schedule.on_cancel(batch.base_offset, batch.named)
    elif batch.kind is Kind.COPY:
        schedule.on_copy(
            scheduled(batch, position),
            replaced=batch.named[0],
            first_offset=batch.first_offset,
            left_out=batch.left_out,
        )
    elif batch.kind in (Kind.COMMIT, Kind.ABORT):
        schedule.on_marker(
            batch.base_offset, batch.producer_id, is_commit=batch.kind is Kind.COMMIT
        )


def scheduled(batch: Batch, position: int) -> ScheduledBatch:
    return ScheduledBatch(
        batch.base_offset,
        batch.record_count,
        batch.due_ms,
        position,
        batch.length,
        batch.producer_id,
    )


def rebuilt(log: Log, unread: int | None = None) -> Schedule:
    """As after a restart; `unread`: base offset of a batch that cannot be read."""
    schedule, segment = Schedule(log.first), log.first
    for batch, segment_offset, position in log.placed():
        is_roll, segment = segment_offset > segment, segment_offset
        if batch.base_offset != unread:
            note(schedule, batch, position, is_roll=is_roll)
            continue
        if is_roll:
            schedule.on_roll(batch.base_offset)
        schedule.on_unread(batch.base_offset, batch.end_offset)
    schedule.on_roll(log.segments[-1])  # which may be empty
    return schedule


class Expected:
    """A scheduled batch, as the walk has it."""

    def __init__(self, batch: Batch, segment_offset: int, position: int) -> None:
        self.batch, self.segment_offset, self.position = batch, segment_offset, position
        self.left_out = set(batch.left_out)
        self.is_undecided = batch.producer_id != NO_PRODUCER_ID
        self.settled_by, self.settled_at = Settlement.NONE, NOT_SETTLED

    def settle(self, offset: int, kind: Settlement) -> None:
        if self.settled_by is Settlement.NONE:
            self.settled_by, self.settled_at = kind, offset

    def entry(self) -> ScheduledEntry:
        batch = self.batch
        return ScheduledEntry(
            self.segment_offset,
            batch.base_offset,
            batch.first_offset if batch.kind is Kind.COPY else batch.base_offset,
            batch.record_count,
            batch.due_ms,
            self.position,
            batch.length,
            tuple(sorted(self.left_out)),
            RowState.UNDECIDED if self.is_undecided else RowState.WAITING,
            self.settled_by,
            self.settled_at,
        )


def expected(log: Log) -> list[ScheduledEntry]:
    """Of each scheduled batch of the log what has become of it, by the definition."""
    found: dict[int, Expected] = {}
    for batch, segment_offset, position in log.placed():
        offset = batch.base_offset
        if batch.kind in (Kind.SCHEDULED, Kind.COPY):
            found[offset] = Expected(batch, segment_offset, position)
        if batch.kind is Kind.COPY and batch.named[0] in found:
            found[batch.named[0]].settle(offset, Settlement.CARRIED)
        elif batch.kind is Kind.DELIVERY and batch.named[0] in found:
            found[batch.named[0]].settle(offset, Settlement.DELIVERED)
        elif batch.kind is Kind.CANCEL:
            _cancel(found, batch)
        elif batch.kind in (Kind.COMMIT, Kind.ABORT):
            _decide(found, batch)
    return [each.entry() for each in found.values()]


def _cancel(found: dict[int, Expected], cancel: Batch) -> None:
    for record in cancel.named:
        for each in found.values():
            batch = each.batch
            is_in = batch.base_offset <= record < batch.end_offset
            if is_in and each.settled_by is Settlement.NONE:
                each.left_out.add(record - batch.base_offset)
                if len(each.left_out) == batch.record_count:
                    each.settle(cancel.base_offset, Settlement.CANCELLED)


def _decide(found: dict[int, Expected], marker: Batch) -> None:
    for each in found.values():
        if each.is_undecided and each.batch.producer_id == marker.producer_id:
            each.is_undecided = False
            if marker.kind is Kind.ABORT:
                each.settle(marker.base_offset, Settlement.ABORTED)
