"""Filtered reads of a log: which batches and chunks a reader gets, by a filter of tags or without.

Owns what may be left out. By header and directory alone, never a chunk: a batch none of whose tag
sets passes is left out, of others the chunks that pass are sent, with the mixed one, whose records
the reader filters (Kafka has no counterpart). Scheduled batches are left out for every reader;
without a filter by what the log's schedule knows of them, unread. Reads files only through the
`read` that it is given, as `log.SlicePlan` does.

Invariants:
  1. Every offset from the start of the read to its end lies in a batch that is sent or in a range
     that is said to be left out.
  2. Nothing is left out of a batch unless the CRC of its head vouches for its tags, and batches
     follow each other without a gap. One that cannot be believed is sent whole: the reader checks
     it as any batch, and damage takes the way that it always takes.
  3. Control batches are sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.disk.files import FileSlice
from raftmq.errors import CorruptRecord
from raftmq.partition.storage.entries import read_waiting
from raftmq.partition.storage.log import check_range, plan_slice
from raftmq.partition.storage.segment import WALK_BLOCK_BYTES, ReadWindow, SeenTags, walk
from raftmq.wire.batch.head import believed_directory, head_length, partial_head

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raftmq.disk.files import File
    from raftmq.partition.storage.entries import ReadBytes
    from raftmq.partition.storage.log import PartitionLog, SlicePlan
    from raftmq.partition.storage.segment import BatchStart, FoundBatch
    from raftmq.tag_filter import TagFilter
    from raftmq.wire.batch.directory import Directory, Tags
    from raftmq.wire.batch.header import BatchHeader

# Longer pieces are sent out of the file; shorter ones cost less if they are read and joined.
SENT_FROM_FILE_BYTES_MIN = 64 << 10
COPIED_BYTES_MAX = 128 << 10  # of one look, which ends behind so many: it may run on the loop
HEAD_BYTES_USUAL = 512  # of most heads, so that one look at the window is enough
VERDICTS_MAX = 500  # tag sets of which a filter remembers whether they pass
# The work of a look, in units of about 2 us: of a batch, and of TERMS_PER_UNIT terms of the filter
# for each tag set that is met first. Each entry of a directory is one more.
BATCH_UNITS, TERMS_PER_UNIT = 8, 8


class Verdicts:
    """A filter, which is evaluated once for each tag set. None: the mixed chunk, which passes.

    Attributes:
        units: the work that it has taken so far, beyond looking up what is known.
    """

    def __init__(self, asked: TagFilter) -> None:
        self._asked = asked
        self._cost = 1 + sum(clause.size for clause in asked.clauses) // TERMS_PER_UNIT
        self._known: dict[Tags | None, bool] = {None: True}
        self.units = 0

    def passes(self, tags: Tags | None) -> bool:
        known = self._known.get(tags)
        if known is None:
            assert tags is not None, "known from the beginning"
            if len(self._known) > VERDICTS_MAX:
                self._known = {None: True}
            known = self._known[tags] = self._asked.matches(tags)
            self.units += self._cost
        return known


class FilterLimits(NamedTuple):
    """Of one look.

    Attributes:
        bytes_max: of what is sent.
        units_max: of the work, so that a look takes little time.
        ranges_max: that are left out.
        is_first: nothing has been found yet: a first batch is sent beyond `bytes_max`.
    """

    bytes_max: int
    units_max: int
    ranges_max: int
    is_first: bool = True


class FilteredSlice(NamedTuple):
    """What one look has found.

    Attributes:
        end_offset: where the next look goes on.
        is_full: it ended because nothing more fits, not for want of batches.
        pieces: of `length` bytes together.
        left_out: ranges of offsets.
        units: the work that it has taken.
        seen: the tags that it has met, for `Segment.note_tags`.
    """

    start_offset: int
    end_offset: int
    is_full: bool
    pieces: Sequence[bytes | FileSlice]
    length: int
    left_out: Sequence[tuple[int, int]]
    batch_count: int
    units: int
    seen: SeenTags | None = None


class FilteredPlan(NamedTuple):
    """A look into one segment that may run in a worker thread; see `SlicePlan`."""

    plan: SlicePlan
    verdicts: Verdicts
    limits: FilterLimits
    known: SeenTags | None

    def find(self, read: ReadBytes = read_waiting) -> FilteredSlice:
        """
        Raises:
            CorruptRecord: a header on the way is damaged.
        """
        plan, seen = self.plan, self.known
        if plan.offset >= plan.end_offset:
            return FilteredSlice(plan.offset, plan.offset, False, (), 0, (), 0, 0)
        is_known = seen is not None and plan.offset < seen.end_offset <= plan.end_offset
        # The whole segment is known, and nothing of it passes: it is passed over unread.
        if seen is not None and is_known and not any(map(self.verdicts.passes, seen.tag_sets)):
            end_offset, units = seen.end_offset, BATCH_UNITS + len(seen.tag_sets)
            passed = ((plan.offset, end_offset),)
            return FilteredSlice(plan.offset, end_offset, False, (), 0, passed, 1, units)
        return _Look(self, read).run()


class HiddenPlan(NamedTuple):
    """Scheduled batches, which no reader gets: nothing has to be read for them."""

    offset: int
    end_offset: int

    def find(self, _read: ReadBytes = read_waiting) -> FilteredSlice:
        left_out = ((self.offset, self.end_offset),) if self.offset < self.end_offset else ()
        count = len(left_out)
        return FilteredSlice(
            self.offset, self.end_offset, False, (), 0, left_out, count, BATCH_UNITS
        )


class VisiblePlan(NamedTuple):
    """A look into one segment up to the next scheduled batch; see `SlicePlan`."""

    plan: SlicePlan
    limits: FilterLimits

    def find(self, read: ReadBytes = read_waiting) -> FilteredSlice:
        """
        Raises:
            CorruptRecord: a header on the way is damaged.
        """
        plan, limits = self.plan, self.limits
        part = plan.find(read)
        end_offset, length = max(part.end_offset, plan.offset), part.bytes.length
        # The first batch is sent in any case.
        if not length or (not limits.is_first and length > limits.bytes_max):
            is_full = length > 0
            return FilteredSlice(plan.offset, plan.offset, is_full, (), 0, (), 0, BATCH_UNITS)
        # Between two scheduled batches little may stand, and many such pieces are one answer.
        is_short = length < SENT_FROM_FILE_BYTES_MIN
        piece = read(*part.bytes) if is_short else part.bytes
        return FilteredSlice(
            part.start_offset, end_offset, False, (piece,), length, (), 1, BATCH_UNITS
        )


class _Look:
    """One pass over batches, from the one that holds the offset."""

    def __init__(self, wish: FilteredPlan, read: ReadBytes) -> None:
        self._plan, self._verdicts, self._limits = wish.plan, wish.verdicts, wish.limits
        self._read, self._file = read, wish.plan.segment.file
        self._window = ReadWindow(self._file, WALK_BLOCK_BYTES, read)
        self._pieces = _Pieces(self._file)
        self._left_out: list[tuple[int, int]] = []
        self._units, self._units_before = 0, wish.verdicts.units
        self._tag_sets: set[Tags] = set()
        self._is_tagged = True  # `_tag_sets` is all that stands there, so far

    def run(self) -> FilteredSlice:
        plan = self._plan
        start = plan.segment.start_of(plan.offset, self._read)
        last, count, is_full = self._walk(start)
        end_offset = start.offset if last is None else last.end_offset
        pieces = self._pieces.finish(self._read)
        seen = None
        if last is not None and self._is_tagged:
            tag_sets = frozenset(self._tag_sets)
            seen = SeenTags(start.offset, end_offset, tag_sets)
        end_offset = max(end_offset, plan.offset)  # a batch may begin before the offset
        length, left_out = self._pieces.length, self._left_out
        return FilteredSlice(
            start.offset, end_offset, is_full, pieces, length, left_out, count, self._spent, seen
        )

    def _walk(self, start: BatchStart) -> tuple[BatchHeader | None, int, bool]:
        """The last batch that was taken, how many, and whether nothing more fits."""
        plan, last, count = self._plan, None, 0
        batches = walk(self._file, start, plan.end.position, self._read, self._window)
        try:
            for found in batches:
                is_beyond = found.header.end_offset > plan.end_offset
                is_long = self._spent >= self._limits.units_max or self._pieces.is_long
                if is_beyond or is_long:
                    break
                if not self._take(found):
                    return last, count, True
                last, count = found.header, count + 1
        except CorruptRecord:
            if last is None:  # else what is before the damage is answered first
                raise
        return last, count, False

    @property
    def _spent(self) -> int:
        return self._units + self._verdicts.units - self._units_before

    def _take(self, found: FoundBatch) -> bool:
        """False if it does not fit any more."""
        position, header = found
        self._units += BATCH_UNITS
        length, directory = self._directory_of(found)
        if directory is None:
            self._is_tagged = False
            return self._send([(position, header.size)])
        entries, at = directory.entries, position + directory.chunks_position
        self._units += len(entries)
        if header.is_scheduled:
            return self._leave_out(found)
        verdicts, kept = self._verdicts, list[tuple[int, int]]()
        for entry in entries:
            self._meet(entry.tags)
            if verdicts.passes(entry.tags):
                kept.append((at, entry.byte_length))
            at += entry.byte_length
        if len(kept) == len(entries):
            return self._send([(position, header.size)])
        if not kept:
            return self._leave_out(found)
        head = partial_head(
            self._window.at(position, length), header, sum([size for _, size in kept])
        )
        return self._send(kept, head)

    def _directory_of(self, found: FoundBatch) -> tuple[int, Directory | None]:
        """The length of its head, and the directory; None if nothing may be left out of it."""
        position, header = found
        if not header.is_columns or header.is_control:
            return 0, None
        beginning = self._window.at(position, min(header.size, HEAD_BYTES_USUAL))
        length = head_length(beginning, 0, header)
        if not length:
            return 0, None
        # A directory cannot be longer than its batch, which has a limit of bytes.
        if length > len(beginning):
            beginning = self._window.at(position, length)
        return length, believed_directory(beginning, 0, header)

    def _meet(self, tags: Tags | None) -> None:
        if tags is None:
            self._is_tagged = False
        else:
            self._tag_sets.add(tags)

    def _send(self, kept: list[tuple[int, int]], head: bytes = b"") -> bool:
        length = len(head) + sum([size for _, size in kept])
        sent, limits = self._pieces.length, self._limits
        is_first = limits.is_first and not sent
        if not is_first and sent + length > limits.bytes_max:
            return False
        self._pieces.add(head, kept)
        return True

    def _leave_out(self, found: FoundBatch) -> bool:
        begin, end, ranges = found.header.base_offset, found.header.end_offset, self._left_out
        if ranges and ranges[-1][1] == begin:
            begin = ranges.pop()[0]
        elif len(ranges) >= self._limits.ranges_max:
            return False
        ranges.append((begin, end))
        return True


class _Pieces:
    """Bytes in memory and ranges of one file, in the order in which they are sent."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._parts: list[bytes | FileSlice] = []
        self.length = self._copied_bytes = 0

    @property
    def is_long(self) -> bool:
        """So much has to be copied that a look should end."""
        return self._copied_bytes >= COPIED_BYTES_MAX

    def add(self, head: bytes, kept: list[tuple[int, int]]) -> None:
        if head:
            self._parts.append(head)
            self.length += len(head)
        for position, length in kept:
            self.length += length
            last = self._parts[-1] if self._parts else None
            if isinstance(last, FileSlice) and last.position + last.length == position:
                self._parts.pop()
                self._copied_bytes -= _copied(last.length)
                position, length = last.position, last.length + length
            self._parts.append(FileSlice(self._file, position, length))
            self._copied_bytes += _copied(length)

    def finish(self, read: ReadBytes) -> list[bytes | FileSlice]:
        """Short ranges are read, and joined with their neighbours."""
        return list(_joined(self._parts, read))


def _copied(length: int) -> int:
    return length if length < SENT_FROM_FILE_BYTES_MIN else 0


def _joined(parts: list[bytes | FileSlice], read: ReadBytes) -> Iterator[bytes | FileSlice]:
    short: list[bytes] = []
    for part in parts:
        if isinstance(part, FileSlice) and not _copied(part.length):
            if short:
                yield b"".join(short)
            short = []
            yield part
        else:
            short.append(part if isinstance(part, bytes) else read(*part))
    if short:
        yield b"".join(short)


def plan_filtered(
    log: PartitionLog,
    offset: int,
    verdicts: Verdicts | None,
    limits: FilterLimits,
    *,
    end_offset: int | None = None,
) -> FilteredPlan | VisiblePlan | HiddenPlan:
    """Batches from the one that holds `offset`, in one segment, as far as `limits` and `end_offset`
    go. `verdicts`: None: all but scheduled ones.

    Raises:
        OffsetOutOfRange, CorruptRecord: as `plan_slice`.
    """
    if verdicts is None:
        return _plan_visible(log, offset, limits, end_offset)
    plan = plan_slice(log, offset, bytes_max=limits.bytes_max, end_offset=end_offset)
    known = plan.segment.seen_tags if plan.segment is not log.active else None
    return FilteredPlan(plan, verdicts, limits, known)


def _plan_visible(
    log: PartitionLog, offset: int, limits: FilterLimits, end_offset: int | None
) -> VisiblePlan | HiddenPlan:
    check_range(log, offset)
    end = log.log_end_offset if end_offset is None else min(end_offset, log.log_end_offset)
    run = log.schedule.hidden_run(offset, end)
    if run is not None and run[0] <= offset:
        # In rot, too: what no reader gets needs not be readable for them.
        return HiddenPlan(offset, run[1]) if limits.ranges_max > 0 else HiddenPlan(offset, offset)
    before = end if run is None else run[0]
    plan = plan_slice(log, offset, bytes_max=limits.bytes_max, end_offset=before)
    return VisiblePlan(plan, limits)
