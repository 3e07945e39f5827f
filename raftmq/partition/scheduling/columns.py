"""What stretches of a log have scheduled: up to 4,096 batches each, in columns, in order of due.

Owns where each batch stands, its due time and what has become of it, in arrays: 40 bytes for each,
as a partition may have a million. Knows nothing of the log, nor of the batches that settle others;
`schedule` does. Pure.

Invariants:
1. Rows are in the order of their offsets. `_by_due` has each row once, by due time, then offset.
2. Before `_first_waiting` in `_by_due` no row waits.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from raftmq.model import NO_PRODUCER_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROWS_MAX = 4096  # so that a row is put into its place by moving 8 KiB at most
NOT_SETTLED = -1


class ScheduledBatch(NamedTuple):
    """As it stands in the log.

    Attributes:
        position: in the file of its segment.
        producer_id: of its transaction, if it is one's.
    """

    base_offset: int
    record_count: int
    due_ms: int
    position: int
    length: int
    producer_id: int = NO_PRODUCER_ID


class Settlement(IntEnum):
    """What has become of a scheduled batch."""

    NONE = 0
    DELIVERED = 1
    CANCELLED = 2  # all of its records
    CARRIED = 3  # a copy stands in for it
    ABORTED = 4


class RowState(IntEnum):
    """Whether a batch that is not settled may be delivered."""

    WAITING = 0
    UNDECIDED = 1  # its transaction is open
    TAKEN = 2  # handed out for its delivery, which is not in the log yet


class HiddenRun(NamedTuple):
    """Scheduled batches that follow each other: offsets, and bytes in the file of their segment."""

    offset: int
    end_offset: int
    position: int
    end_position: int


class ScheduledColumns:
    """Attributes:
    pending_count, pending_bytes: of those that are pending.
    undecided_count: of those whose transaction is open, and that are not settled.
    queued: the due time and offset under which the leader's heap has this stretch, if it does.
    left_out: by base offset, the records that are cancelled, as bits by their delta.
    """

    __slots__ = (
        "_by_due", "_copies", "_copies_by_first", "_first_offsets", "_first_waiting",
        "base_offsets", "due_times", "left_out", "lengths", "pending_bytes", "pending_count",
        "positions", "queued", "record_counts", "settled_at", "settled_by", "states",
        "undecided_count",
    )  # fmt: skip

    def __init__(self) -> None:
        self.base_offsets, self.due_times = array("q"), array("q")
        self.positions, self.lengths, self.record_counts = array("I"), array("I"), array("I")
        self.states, self.settled_by, self.settled_at = bytearray(), bytearray(), array("q")
        self._by_due, self._first_waiting = array("H"), 0
        # Copies only: their rows, the first originals, and places in these two by first original.
        self._copies, self._first_offsets = array("H"), array("q")
        self._copies_by_first = array("H")
        self.pending_count = self.pending_bytes = self.undecided_count = 0
        self.queued: tuple[int, int] | None = None
        self.left_out: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.base_offsets)

    @property
    def is_full(self) -> bool:
        return len(self) >= ROWS_MAX

    def append(self, batch: ScheduledBatch, first_offset: int | None = None) -> int:
        """Returns the row. `first_offset`: it is a copy, and that is the first original's."""
        row = len(self)
        assert not row or batch.base_offset > self.base_offsets[-1], "offsets rise"
        self.base_offsets.append(batch.base_offset)
        self.due_times.append(batch.due_ms)
        self.positions.append(batch.position)
        self.lengths.append(batch.length)
        self.record_counts.append(batch.record_count)
        self.states.append(
            RowState.WAITING if batch.producer_id == NO_PRODUCER_ID else RowState.UNDECIDED
        )
        self.settled_by.append(Settlement.NONE)
        self.settled_at.append(NOT_SETTLED)
        self.count(row, 1)
        place = bisect_right(self._by_due, batch.due_ms, key=self.due_times.__getitem__)
        self._by_due.insert(place, row)
        self._first_waiting = min(self._first_waiting, place)
        if first_offset is not None:
            self._append_copy(row, first_offset)
        return row

    def _append_copy(self, row: int, first_offset: int) -> None:
        place = bisect_right(
            self._copies_by_first, first_offset, key=self._first_offsets.__getitem__
        )
        self._copies_by_first.insert(place, len(self._copies))
        self._copies.append(row)
        self._first_offsets.append(first_offset)

    def cut(self, offset: int) -> None:
        """Forget what stands at or after it."""
        rows = bisect_left(self.base_offsets, offset)
        columns = (
            self.base_offsets, self.due_times, self.positions, self.lengths, self.record_counts,
            self.states, self.settled_by, self.settled_at,
        )  # fmt: skip
        for column in columns:
            del column[rows:]
        self._by_due = array("H", (row for row in self._by_due if row < rows))
        self._first_waiting = 0
        copies = bisect_left(self._copies, rows)
        del self._copies[copies:], self._first_offsets[copies:]
        self._copies_by_first = array(
            "H", (each for each in self._copies_by_first if each < copies)
        )
        self.left_out = {base: bits for base, bits in self.left_out.items() if base < offset}

    # -- rows ------------------------------------------------------------------------------

    def row_of(self, offset: int) -> int | None:
        """The row of the batch that has a record of that offset."""
        row = bisect_right(self.base_offsets, offset) - 1
        if row < 0 or offset >= self.base_offsets[row] + self.record_counts[row]:
            return None
        return row

    def places_from(self, offset: int) -> Iterator[tuple[int, int, int, int]]:
        """Of each batch at or behind the offset, as in `HiddenRun`; the first may begin before."""
        for row in range(max(bisect_right(self.base_offsets, offset) - 1, 0), len(self)):
            base_offset, position = self.base_offsets[row], self.positions[row]
            end_offset = base_offset + self.record_counts[row]
            if end_offset > offset:
                yield base_offset, end_offset, position, position + self.lengths[row]

    def row_at(self, base_offset: int) -> int:
        """Of the batch that begins there, which there is."""
        return bisect_left(self.base_offsets, base_offset)

    @property
    def has_copies(self) -> bool:
        return bool(self._copies)

    def is_whole_before(self, offset: int) -> bool:
        return self.base_offsets[-1] < offset

    def is_undecided(self, row: int) -> bool:
        return not self.settled_by[row] and self.states[row] == RowState.UNDECIDED

    def rows_before(self, offset: int) -> range:
        return range(bisect_left(self.base_offsets, offset))

    def first_offset(self, row: int) -> int:
        """Base offset of the first original: its own, but for a copy."""
        place = bisect_left(self._copies, row)
        is_copy = place < len(self._copies) and self._copies[place] == row
        return self._first_offsets[place] if is_copy else self.base_offsets[row]

    def copy_of(self, first_record: int) -> int | None:
        """The row of the last copy of the batch that had that record's offset at first."""
        place = bisect_right(
            self._copies_by_first, first_record, key=self._first_offsets.__getitem__
        )
        if not place:
            return None
        copy = self._copies_by_first[place - 1]  # later copies stand behind earlier ones
        row = self._copies[copy]
        is_record = first_record < self._first_offsets[copy] + self.record_counts[row]
        return row if is_record else None

    def is_pending(self, row: int) -> bool:
        return not self.settled_by[row] and self.states[row] != RowState.UNDECIDED

    def is_waiting(self, row: int) -> bool:
        """Pending, and nobody has taken it."""
        return not (self.settled_by[row] or self.states[row])

    def is_settled(self, rows: range, high_watermark: int) -> bool:
        """Each of them, below the high watermark."""
        if self.settled_by.find(Settlement.NONE, rows.start, rows.stop) >= 0:
            return False
        return max(self.settled_at[rows.start : rows.stop], default=NOT_SETTLED) < high_watermark

    def count(self, row: int, by: int) -> None:
        """Add it to what is pending or undecided, or take it away, before it changes."""
        if self.settled_by[row]:
            return
        if self.states[row] == RowState.UNDECIDED:
            self.undecided_count += by
        else:
            self.pending_count += by
            self.pending_bytes += by * self.lengths[row]

    # -- order of due ----------------------------------------------------------------------

    def key_of(self, row: int) -> tuple[int, int]:
        return self.due_times[row], self.base_offsets[row]

    def first_waiting(self) -> tuple[int, int] | None:
        """Due time and offset of the first one that waits."""
        if not self.pending_count:
            return None
        rows, place = self._by_due, self._first_waiting
        while place < len(rows) and not self.is_waiting(rows[place]):
            place += 1
        self._first_waiting = place
        return self.key_of(rows[place]) if place < len(rows) else None

    def rewind(self) -> None:
        """Any of them may wait again."""
        self._first_waiting = 0

    def on_waiting(self, row: int) -> None:
        """It waits again, as after a cut."""
        place = bisect_left(self._by_due, self.key_of(row), key=self.key_of)
        self._first_waiting = min(self._first_waiting, place)


class NotedDecision(NamedTuple):
    """A marker, and the batches whose transaction it has ended."""

    offset: int
    producer_id: int
    base_offsets: array[int]


class ScheduleSegment:
    """Attributes:
    base_offset, end_offset: of the segment; None: it is the last one.
    stretches: what the segment schedules.
    settled_at, settled: what it settles: offset of the batch that does, and a record's offset.
    decisions: the markers in it.
    """

    __slots__ = (
        "base_offset", "decisions", "end_offset", "settled", "settled_at", "stretches"
    )  # fmt: skip

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.end_offset: int | None = None
        self.stretches: list[ScheduledColumns] = []
        self.settled_at, self.settled = array("q"), array("q")
        self.decisions: list[NotedDecision] = []

    @property
    def is_empty(self) -> bool:
        """It schedules, settles and decides nothing."""
        return not (self.stretches or self.settled or self.decisions)


class RowPlace(NamedTuple):
    """Where a scheduled batch stands."""

    segment: ScheduleSegment
    columns: ScheduledColumns
    row: int


class ScheduledEntry(NamedTuple):
    """A scheduled batch, and what has become of it.

    Attributes:
        segment_offset: the base offset of its segment, in whose file `position` is.
        first_offset: base offset of the first original, from which handles are counted.
        left_out: the records that are cancelled, as deltas of their offsets.
        settled_at: offset of the batch that has settled it, or NOT_SETTLED.
    """

    segment_offset: int
    base_offset: int
    first_offset: int
    record_count: int
    due_ms: int
    position: int
    length: int
    left_out: tuple[int, ...]
    state: RowState
    settled_by: Settlement
    settled_at: int


def entry_of(place: RowPlace) -> ScheduledEntry:
    columns, row = place.columns, place.row
    bits = columns.left_out.get(columns.base_offsets[row], 0)
    return ScheduledEntry(
        place.segment.base_offset,
        columns.base_offsets[row],
        columns.first_offset(row),
        columns.record_counts[row],
        columns.due_times[row],
        columns.positions[row],
        columns.lengths[row],
        deltas_of(bits) if bits else (),
        RowState(columns.states[row]),
        Settlement(columns.settled_by[row]),
        columns.settled_at[row],
    )


_FEW = 100  # so many are found faster one by one
_BITS = [tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256)]


def deltas_of(bits: int) -> tuple[int, ...]:
    """The places of the bits that are set, rising; a batch may have 65,536."""
    if bits.bit_count() <= _FEW:
        found = []
        while bits:
            found.append((bits & -bits).bit_length() - 1)
            bits &= bits - 1
        return tuple(found)
    packed = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    return tuple(
        [8 * place + bit for place, byte in enumerate(packed) if byte for bit in _BITS[byte]]
    )


def bits_of(deltas: Iterable[int], count: int) -> int:
    """The other way round; all below `count`."""
    packed = bytearray((count + 7) // 8)
    for delta in deltas:
        packed[delta >> 3] |= 1 << (delta & 7)
    return int.from_bytes(packed, "little")


def base_of(place: RowPlace) -> int:
    return place.columns.base_offsets[place.row]


def segment_base(segment: ScheduleSegment) -> int:
    return segment.base_offset


def stretch_base(columns: ScheduledColumns) -> int:
    return columns.base_offsets[0]
