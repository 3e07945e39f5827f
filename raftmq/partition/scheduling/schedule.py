"""Scheduled records of one partition: which are pending, and which the leader delivers next. Pure.

A scheduled batch stands in the log and is settled by a later batch that names its offset: a
delivery, a cancel, a copy that is carried forward, or the abort marker of its transaction
(docs/decisions/0041). A copy is a scheduled batch, too. Pending is what is scheduled, decided and
not settled. Decides nothing about time: the clock is the leader's, and an argument.

Invariants:
1. All but what is taken follows from the batches of the log that is there, in their order: a cut or
   a start in a later segment leaves what reading the rest anew would give.
2. The first settlement counts. It stands behind what it settles, so that a cut takes it first.
3. What is taken is not handed out again until it is given back, or the log is cut.
4. While part of the log could not be read, nothing is handed out, cancelled, carried forward or
   called settled: a settlement may stand there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from enum import Enum
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from raftmq.model import NO_PRODUCER_ID
from raftmq.partition.scheduling.columns import (
    NOT_SETTLED,
    HiddenRun,
    NotedDecision,
    RowPlace,
    RowState,
    ScheduledColumns,
    ScheduleSegment,
    Settlement,
    base_of,
    bits_of,
    entry_of,
    segment_base,
    stretch_base,
)
from raftmq.partition.scheduling.events import (
    Cancelled,
    Copied,
    Decided,
    Delivered,
    Scheduled,
)
from raftmq.partition.transactions import ALL_READ, UnreadPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from raftmq.partition.scheduling.columns import ScheduledBatch, ScheduledEntry
    from raftmq.partition.scheduling.events import ScheduleEvent

RUN_MAX = 3_000  # scheduled batches that one look passes over: a millisecond
# What is pending is carried forward if it is less than this part of what is deleted.
CARRIED_PART = 4


class CancelRefusal(Enum):
    """Why a record cannot be cancelled."""

    UNKNOWN = "no such scheduled record, or it was settled and deleted since"
    DELIVERED = "it was delivered"
    CANCELLED = "it was cancelled before"
    ABORTED = "its transaction was aborted"
    UNREAD = "part of the log could not be read: ask again when it is repaired"


class CancelCheck(NamedTuple):
    """`offset`: of the record that a cancel has to name now, where nothing refuses it."""

    offset: int
    refusal: CancelRefusal | None = None


class Schedule:
    """Attributes:
    pending_count, pending_bytes: of the batches that are pending.
    """

    def __init__(self, log_start_offset: int = 0) -> None:
        self.pending_count = self.pending_bytes = 0
        self._segments = [ScheduleSegment(log_start_offset)]
        self._undecided: dict[int, array[int]] = {}  # base offsets, by producer id
        self._taken: set[int] = set()
        self._unread = ALL_READ
        # The first of each stretch that waits, or one that did; None: nobody has asked yet.
        self._heads: list[tuple[int, int]] | None = None

    # -- the log ---------------------------------------------------------------------------

    def on_roll(self, base_offset: int) -> None:
        """A segment begins there."""
        last = self._segments[-1]
        if base_offset <= last.base_offset:
            return
        if last.is_empty:  # nearly all: one stands for many
            last.base_offset = base_offset
        else:
            last.end_offset = base_offset
            self._segments.append(ScheduleSegment(base_offset))

    def note(self, event: ScheduleEvent) -> bool:
        """A batch follows that says so; False: the marker of a transaction that has scheduled
        nothing, which need not be kept."""
        match event:
            case Scheduled(batch):
                self.on_scheduled(batch)
            case Delivered(offset, original):
                self.on_delivery(offset, original)
            case Cancelled(offset, records):
                self.on_cancel(offset, records)
            case Copied(batch, replaced, first_offset, left_out):
                self.on_copy(batch, replaced=replaced, first_offset=first_offset, left_out=left_out)
            case Decided(offset, producer_id, is_commit):
                if producer_id not in self._undecided:
                    return False
                self.on_marker(offset, producer_id, is_commit=is_commit)
        return True

    def on_scheduled(self, batch: ScheduledBatch) -> None:
        self._append(batch)
        if batch.producer_id != NO_PRODUCER_ID:
            self._undecided.setdefault(batch.producer_id, array("q")).append(batch.base_offset)

    def on_delivery(self, offset: int, original: int) -> None:
        """Of the scheduled batch with base offset `original`."""
        self._settle(offset, original, Settlement.DELIVERED)

    def on_cancel(self, offset: int, records: Iterable[int]) -> None:
        """`records`: their offsets in the batch that was pending then."""
        for record in records:
            place = self._place_of(record)
            if place is not None and not place.columns.settled_by[place.row]:
                self._leave_out(offset, place, record)

    def on_copy(
        self, batch: ScheduledBatch, *, replaced: int, first_offset: int, left_out: Iterable[int]
    ) -> None:
        """A copy of the scheduled batch with base offset `replaced`, without the cancelled records
        `left_out`: the batches that have cancelled them may be deleted before the copy is."""
        self._settle(batch.base_offset, replaced, Settlement.CARRIED)
        place = self._append(batch, first_offset)
        bits = bits_of(left_out, batch.record_count)
        if bits:
            place.columns.left_out[batch.base_offset] = bits

    def on_marker(self, offset: int, producer_id: int, *, is_commit: bool) -> None:
        """What the producer's transaction has scheduled is pending now, or settled."""
        base_offsets = self._undecided.pop(producer_id, None)
        if base_offsets is None:
            return
        self._segments[-1].decisions.append(NotedDecision(offset, producer_id, base_offsets))
        for columns, rows in self._rows_of(base_offsets):
            for row in rows:
                self._count(columns, row, -1)
                columns.states[row] = RowState.WAITING
                if not is_commit and not columns.settled_by[row]:
                    self._note_settled(offset, columns.base_offsets[row])
                    columns.settled_by[row], columns.settled_at[row] = Settlement.ABORTED, offset
                self._count(columns, row, 1)
            columns.rewind()
            self._queue(columns)

    def on_unread(self, begin: int, end: int) -> None:
        """A walk, which goes from the log's beginning to its end, could not read all of these."""
        self._unread = UnreadPart(self._unread.begin if self._unread.end else begin, end)

    def accept_unread(self) -> None:
        """No replica has what could not be read."""
        self._unread = ALL_READ

    def cut(self, offset: int, active_base: int) -> None:
        """The log ends there now, in the segment that begins at `active_base`: what was settled
        behind it is pending again."""
        self.stop_leading()
        for segment in reversed(self._segments):
            self._undo_settlements(segment, offset)
            self._undo_decisions(segment, offset)
        while self._segments[-1].base_offset >= offset and len(self._segments) > 1:
            self._forget_rows(self._segments.pop(), offset)
        last = self._segments[-1]
        self._cut_segment(last, offset)
        if last.is_empty:
            last.base_offset = active_base
        if last.base_offset == active_base:
            last.end_offset = None
        else:  # the segments between the two have no events
            self._segments.append(ScheduleSegment(active_base))
        for producer_id, base_offsets in [*self._undecided.items()]:
            kept = array("q", (each for each in base_offsets if each < offset))
            if kept:
                self._undecided[producer_id] = kept
            else:
                del self._undecided[producer_id]
        begin, end = self._unread
        self._unread = UnreadPart(begin, min(end, offset)) if begin < offset else ALL_READ

    def trim(self, offset: int) -> None:
        """Segments that end at or before it are deleted."""
        count = sum(
            each.end_offset is not None and each.end_offset <= offset for each in self._segments
        )
        for segment in self._segments[:count]:
            self._forget_rows(segment, segment.base_offset)
        if count:
            del self._segments[:count]
            self._taken = {each for each in self._taken if each >= offset}
            self._heads = None
        if self._unread.end <= offset:
            self._unread = ALL_READ

    # -- what is there ---------------------------------------------------------------------

    @property
    def is_unread(self) -> bool:
        """Part of the log could not be read."""
        return bool(self._unread.end)

    @property
    def active_base(self) -> int:
        """Base offset of the last segment."""
        return self._segments[-1].base_offset

    @property
    def bases(self) -> tuple[int, ...]:
        """Base offsets of the segments that schedule, settle or decide anything."""
        return tuple(segment.base_offset for segment in self._segments if not segment.is_empty)

    def is_undecided(self, producer_id: int) -> bool:
        """Its open transaction has scheduled something."""
        return producer_id in self._undecided

    @property
    def is_empty(self) -> bool:
        """Nothing in the log was scheduled, nor settles anything: nothing is hidden."""
        return len(self._segments) == 1 and self._segments[0].is_empty

    def hidden_runs(self, offset: int, end: int, *, runs_max: int) -> tuple[list[HiddenRun], int]:
        """The scheduled batches of one segment from the offset on that end at or before `end`, and
        up to where these are all: to `end`, or less far where there are many."""
        runs: list[HiddenRun] = []
        # Where the last run begins, and ends: plain numbers, as there may be many batches.
        first, last, position, end_position = -1, -1, 0, 0
        for count, place in enumerate(self._hidden_from(offset)):
            if place[1] > end:
                break
            if place[0] != last or count >= RUN_MAX:
                if count:
                    runs.append(HiddenRun(first, last, position, end_position))
                if count >= RUN_MAX or len(runs) >= runs_max:
                    return runs, last
                first, _, position, _ = place
            _, last, _, end_position = place
        if last >= 0:
            runs.append(HiddenRun(first, last, position, end_position))
        return runs, end

    def _hidden_from(self, offset: int) -> Iterator[tuple[int, int, int, int]]:
        number = max(bisect_right(self._segments, offset, key=segment_base) - 1, 0)
        for segment in self._segments[number:]:
            number = max(bisect_right(segment.stretches, offset, key=stretch_base) - 1, 0)
            for columns in segment.stretches[number:]:
                yield from columns.places_from(offset)

    # -- the leader ------------------------------------------------------------------------

    def next_due(self) -> int | None:
        """When `take_due` has something next."""
        head = self._head()
        return None if head is None else head[0]

    def take_due(self, now_ms: int, limit: int) -> list[ScheduledEntry]:
        """At most `limit` of what is due, in order of due time and offset.

        The leader asks `pending_at`, and its clock, when it appends the delivery: in between a
        batch may be cancelled or carried forward, and a clock may go back (`give_back`).
        """
        taken: list[ScheduledEntry] = []
        while len(taken) < limit:
            head = self._head()
            if head is None or head[0] > now_ms:
                break
            place = self._place_of(head[1])
            assert place is not None, "a head is there"
            self._change(place, state=RowState.TAKEN)
            self._taken.add(head[1])
            taken.append(entry_of(place))
        return taken

    def pending_at(self, base_offset: int) -> ScheduledEntry | None:
        """That batch as it is now; None: it is not pending any more."""
        place = self._place_of(base_offset)
        if place is None or not place.columns.is_pending(place.row):
            return None
        return entry_of(place)

    def is_taken(self, base_offset: int) -> bool:
        return base_offset in self._taken

    def give_back(self, base_offset: int) -> None:
        """What was taken could not be delivered."""
        if base_offset in self._taken:
            self._taken.discard(base_offset)
            place = self._place_of(base_offset)
            if place is not None:
                self._change(place, state=RowState.WAITING)

    def stop_leading(self) -> None:
        """Give back all, and keep no order of due."""
        for base_offset in sorted(self._taken):
            self.give_back(base_offset)
        self._heads = None

    def check_cancel(self, handle: int) -> CancelCheck:
        """Whether the record may be cancelled that had this offset at first.

        A refusal holds once the log that it follows from is committed: before that, the settlement
        may be cut.
        """
        if self._unread.end:
            return CancelCheck(handle, CancelRefusal.UNREAD)
        place = self._current(handle)
        if place is None:
            return CancelCheck(handle, CancelRefusal.UNKNOWN)
        columns, row = place.columns, place.row
        base_offset = columns.base_offsets[row]
        delta = handle - columns.first_offset(row)
        refusal = None
        if columns.left_out.get(base_offset, 0) >> delta & 1:
            refusal = CancelRefusal.CANCELLED
        elif columns.settled_by[row]:
            refusal = CancelRefusal[Settlement(columns.settled_by[row]).name]
        return CancelCheck(base_offset + delta, refusal)

    def check_cancels(self, handles: Sequence[int]) -> tuple[list[CancelCheck], list[int]]:
        """Each of them, and the offsets that one cancel of all has to name, rising."""
        checks: list[CancelCheck] = []
        records: set[int] = set()
        for handle in handles:
            check = self.check_cancel(handle)
            if check.refusal is None and check.offset in records:  # the same record twice
                check = check._replace(refusal=CancelRefusal.CANCELLED)
            elif check.refusal is None:
                records.add(check.offset)
            checks.append(check)
        return checks, sorted(records)

    def entries(self, begin: int = 0, end: int | None = None) -> Iterator[ScheduledEntry]:
        """What was scheduled in [begin, end), settled or not, by offset."""
        for segment in self._segments:
            for columns in segment.stretches:
                rows = range(len(columns)) if end is None else columns.rows_before(end)
                for row in rows[len(columns.rows_before(begin)) :]:
                    yield entry_of(RowPlace(segment, columns, row))

    # -- retention -------------------------------------------------------------------------

    def is_settled_before(self, end_offset: int, high_watermark: int) -> bool:
        """Whether the log may begin at `end_offset`: all that was scheduled before is settled by
        what is committed, as far as this replica knows itself."""
        return not self._unread.end and all(
            columns.is_settled(columns.rows_before(end_offset), high_watermark)
            for columns in self._stretches_before(end_offset)
        )

    def deletable_start(self, start: int, high_watermark: int) -> int:
        """Where the log may begin in place of `start`, so that nothing is lost that is not settled
        by what is committed."""
        if self.is_empty or self.is_settled_before(start, high_watermark):
            return start
        settled = self.settled_end(high_watermark)
        return start if settled is None else min(start, settled)

    def settled_end(self, high_watermark: int) -> int | None:
        """The first segment that the log has to keep, as what it schedules is not all settled by
        what is committed; None: no segment has to stay for that."""
        if self._unread.end:
            return self._segments[0].base_offset
        for segment in self._segments:
            for columns in segment.stretches:
                if not columns.is_settled(range(len(columns)), high_watermark):
                    return segment.base_offset
        return None

    def has_undecided(self, end_offset: int) -> bool:
        """Whether something scheduled before it is of a transaction that is open, or cannot be
        read: it can be neither delivered nor carried forward yet."""
        if self._unread.end:
            return True
        for columns in self._stretches_before(end_offset):
            if columns.undecided_count and any(
                map(columns.is_undecided, columns.rows_before(end_offset))
            ):
                return True
        return False

    def is_worth_carrying(self, end_offset: int, size: int) -> bool:
        """Whether retention, which would delete the segments before `end_offset`, of `size` bytes
        together, has what is pending there carried forward.

        Together: else one segment that is full of pending batches would keep all behind it.
        """
        if self.has_undecided(end_offset):
            return False
        length = 0
        for columns in self._stretches_before(end_offset):
            if columns.is_whole_before(end_offset):
                length += columns.pending_bytes
            else:
                rows = columns.rows_before(end_offset)
                length += sum(columns.lengths[row] for row in rows if columns.is_pending(row))
        return 0 < CARRIED_PART * length < size

    def pending_from(self, begin: int, end: int, limit: int) -> list[ScheduledEntry]:
        """At most `limit` of what is pending in [begin, end), by offset."""
        found: list[ScheduledEntry] = []
        for segment in self._segments:
            for columns in segment.stretches:
                if not columns.pending_count or columns.base_offsets[-1] < begin:
                    continue
                for row in columns.rows_before(end)[len(columns.rows_before(begin)) :]:
                    if columns.is_pending(row):
                        found.append(entry_of(RowPlace(segment, columns, row)))
                        if len(found) >= limit:
                            return found
        return found

    def _stretches_before(self, end_offset: int) -> Iterator[ScheduledColumns]:
        for segment in self._segments:
            if segment.base_offset >= end_offset:
                break
            yield from segment.stretches

    # -- rows ------------------------------------------------------------------------------

    def _append(self, batch: ScheduledBatch, first_offset: int | None = None) -> RowPlace:
        segment = self._segments[-1]
        if not segment.stretches or segment.stretches[-1].is_full:
            segment.stretches.append(ScheduledColumns())
        columns = segment.stretches[-1]
        row = columns.append(batch, first_offset)
        if columns.is_pending(row):
            self._tally(1, batch.length)
        self._queue(columns)
        return RowPlace(segment, columns, row)

    def _place_of(self, offset: int) -> RowPlace | None:
        """Of the scheduled batch that has a record of that offset."""
        number = bisect_right(self._segments, offset, key=segment_base) - 1
        if number < 0:
            return None
        segment = self._segments[number]
        number = bisect_right(segment.stretches, offset, key=stretch_base) - 1
        if number < 0:
            return None
        columns = segment.stretches[number]
        row = columns.row_of(offset)
        return None if row is None else RowPlace(segment, columns, row)

    def _current(self, handle: int) -> RowPlace | None:
        """The batch that stands in for the one that had the record of that offset at first."""
        place = self._place_of(handle)
        if place is None or place.columns.first_offset(place.row) != base_of(place):
            place = self._newest_copy(handle)
        while place is not None and place.columns.settled_by[place.row] == Settlement.CARRIED:
            place = self._place_of(place.columns.settled_at[place.row])
        return place

    def _newest_copy(self, handle: int) -> RowPlace | None:
        for segment in reversed(self._segments):
            for columns in reversed(segment.stretches):
                if not columns.has_copies:
                    continue
                row = columns.copy_of(handle)
                if row is not None:
                    return RowPlace(segment, columns, row)
        return None

    def _settle(self, offset: int, base_offset: int, kind: Settlement) -> None:
        place = self._place_of(base_offset)
        if place is None or base_of(place) != base_offset:
            return  # it stood in a part that is deleted
        if place.columns.settled_by[place.row]:
            return
        self._note_settled(offset, base_offset)
        self._settle_row(offset, place, kind)

    def _note_settled(self, offset: int, record: int) -> None:
        self._segments[-1].settled_at.append(offset)
        self._segments[-1].settled.append(record)

    def _settle_row(self, offset: int, place: RowPlace, kind: Settlement) -> None:
        state = None
        if base_of(place) in self._taken:
            self._taken.discard(base_of(place))
            state = RowState.WAITING  # a cut makes it pending, and nobody has it any more
        self._change(place, state=state, settled_by=kind, settled_at=offset)

    def _leave_out(self, offset: int, place: RowPlace, record: int) -> None:
        columns, base_offset = place.columns, base_of(place)
        bits = columns.left_out.get(base_offset, 0)
        if bits >> (record - base_offset) & 1:
            return
        bits |= 1 << (record - base_offset)
        columns.left_out[base_offset] = bits
        self._note_settled(offset, record)
        if bits.bit_count() == columns.record_counts[place.row]:
            self._settle_row(offset, place, Settlement.CANCELLED)

    def _change(
        self,
        place: RowPlace,
        *,
        state: RowState | None = None,
        settled_by: Settlement | None = None,
        settled_at: int = NOT_SETTLED,
    ) -> None:
        columns, row = place.columns, place.row
        self._count(columns, row, -1)
        if state is not None:
            columns.states[row] = state
        if settled_by is not None:
            columns.settled_by[row], columns.settled_at[row] = settled_by, settled_at
        self._count(columns, row, 1)
        if not columns.is_waiting(row):
            return
        if self._heads is None:  # no order of due is kept
            columns.rewind()
        else:
            columns.on_waiting(row)
            self._queue(columns)

    def _count(self, columns: ScheduledColumns, row: int, by: int) -> None:
        """Take a row out before it changes, and in again afterwards."""
        columns.count(row, by)
        if columns.is_pending(row):
            self._tally(by, by * columns.lengths[row])

    def _tally(self, count: int, length: int) -> None:
        self.pending_count += count
        self.pending_bytes += length

    def _rows_of(self, base_offsets: Sequence[int]) -> Iterator[tuple[ScheduledColumns, list[int]]]:
        """The rows of these batches, which rise, for each stretch, but for what is trimmed."""
        place = 0
        while place < len(base_offsets):
            found = self._place_of(base_offsets[place])
            if found is None:
                place += 1
                continue
            columns = found.columns
            end = bisect_right(base_offsets, columns.base_offsets[-1], lo=place)
            yield columns, [columns.row_at(each) for each in base_offsets[place:end]]
            place = end

    # -- what a cut undoes -----------------------------------------------------------------

    def _undo_settlements(self, segment: ScheduleSegment, offset: int) -> None:
        while segment.settled_at and segment.settled_at[-1] >= offset:
            settled_at, record = segment.settled_at.pop(), segment.settled.pop()
            place = self._place_of(record)
            if place is None:
                continue
            columns, base_offset = place.columns, base_of(place)
            is_cancel = columns.settled_by[place.row] in (Settlement.NONE, Settlement.CANCELLED)
            if columns.settled_at[place.row] == settled_at:
                self._change(place, settled_by=Settlement.NONE)
            if is_cancel:
                columns.left_out[base_offset] ^= 1 << (record - base_offset)
                if not columns.left_out[base_offset]:
                    del columns.left_out[base_offset]

    def _undo_decisions(self, segment: ScheduleSegment, offset: int) -> None:
        while segment.decisions and segment.decisions[-1].offset >= offset:
            _, producer_id, base_offsets = segment.decisions.pop()
            self._undecided[producer_id] = base_offsets
            for columns, rows in self._rows_of(base_offsets):
                for row in rows:
                    self._count(columns, row, -1)
                    columns.states[row] = RowState.UNDECIDED
                    self._count(columns, row, 1)

    def _cut_segment(self, segment: ScheduleSegment, offset: int) -> None:
        self._forget_rows(segment, offset)
        for columns in segment.stretches:
            columns.cut(offset)
        segment.stretches = [each for each in segment.stretches if len(each)]

    def _forget_rows(self, segment: ScheduleSegment, offset: int) -> None:
        """Those at or after it count no more."""
        for columns in segment.stretches:
            for row in range(len(columns.rows_before(offset)), len(columns)):
                self._count(columns, row, -1)

    # -- order of due ----------------------------------------------------------------------

    def _queue(self, columns: ScheduledColumns) -> None:
        """A stretch may have another head now."""
        head = columns.first_waiting() if self._heads is not None else None
        if head is not None and (columns.queued is None or head < columns.queued):
            assert self._heads is not None
            heappush(self._heads, head)
            columns.queued = head

    def _head(self) -> tuple[int, int] | None:
        """Due time and offset of what is to be delivered first."""
        if self._unread.end:
            return None
        heads = self._heads = self._all_heads() if self._heads is None else self._heads
        while heads:
            place = self._place_of(heads[0][1])
            assert place is not None, "cuts and trims forget all heads"
            columns = place.columns
            if columns.queued != heads[0]:  # it was there twice
                heappop(heads)
                continue
            head = columns.first_waiting()
            if head == heads[0]:
                return head
            columns.queued = head
            if head is None:
                heappop(heads)
            else:
                heapreplace(heads, head)
        return None

    def _all_heads(self) -> list[tuple[int, int]]:
        heads = []
        for segment in self._segments:
            for columns in segment.stretches:
                columns.queued = columns.first_waiting()
                if columns.queued is not None:
                    heads.append(columns.queued)
        heapify(heads)
        return heads
