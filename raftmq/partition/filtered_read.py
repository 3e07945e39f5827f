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
from raftmq.partition.storage.log import SlicePlan, check_range, plan_slice
from raftmq.partition.storage.segment import (
    WALK_BLOCK_BYTES,
    BatchStart,
    ReadWindow,
    SeenTags,
    walk,
)
from raftmq.wire.batch.head import believed_directory, head_length, partial_head

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raftmq.disk.files import File
    from raftmq.partition.scheduling.columns import HiddenRun
    from raftmq.partition.storage.entries import ReadBytes
    from raftmq.partition.storage.log import PartitionLog
    from raftmq.partition.storage.segment import FoundBatch
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
STEP_UNITS = 2  # without a filter: of a run of scheduled batches, of what stands between two


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


class VisiblePlan(NamedTuple):
    """A look into one segment for a reader without a filter; see `SlicePlan`.

    Attributes:
        runs: scheduled batches, which are passed over unread. `plan` ends where it is not known
            what is scheduled.
    """

    plan: SlicePlan
    runs: Sequence[HiddenRun]
    limits: FilterLimits

    def find(self, read: ReadBytes = read_waiting) -> FilteredSlice:
        """
        Raises:
            CorruptRecord: a header on the way is damaged.
        """
        return _Passing(self, read).run()


class _Passing:
    """One pass over scheduled batches, and over what stands between them."""

    def __init__(self, wish: VisiblePlan, read: ReadBytes) -> None:
        self._plan, self._runs, self._limits = wish
        self._read, self._pieces = read, _Pieces(self._plan.segment.file)
        self._left_out: list[tuple[int, int]] = []
        self._begin_offset = self._offset = self._plan.offset
        self._start: BatchStart | None = None  # of the batch at `_offset`, once that is known
        self._steps, self._is_full = 0, False

    def run(self) -> FilteredSlice:
        plan = self._plan
        try:
            if all(map(self._pass, self._runs)) and self._offset < plan.end_offset:
                self._send(plan.end, plan.end_offset)
        except CorruptRecord:
            if not self._steps:  # else what is before the damage is answered first
                raise
        return FilteredSlice(
            self._begin_offset,
            self._offset,
            self._is_full,
            self._pieces.finish(self._read),
            self._pieces.length,
            self._left_out,
            self._steps,
            self._steps * STEP_UNITS,
        )

    def _pass(self, run: HiddenRun) -> bool:
        """Whether to go on behind the run."""
        is_before = self._offset < run.offset
        if is_before and not self._send(BatchStart(run.offset, run.position), run.offset):
            return False
        if len(self._left_out) >= self._limits.ranges_max:
            self._is_full = True
            return False
        self._left_out.append((self._offset, run.end_offset))
        self._offset, self._start = run.end_offset, BatchStart(run.end_offset, run.end_position)
        self._steps += 1
        return self._steps * STEP_UNITS < self._limits.units_max and not self._pieces.is_long

    def _send(self, end: BatchStart, end_offset: int) -> bool:
        """Whether all up to there is sent."""
        left = self._limits.bytes_max - self._pieces.length
        plan = self._plan._replace(
            offset=self._offset, start=self._start, end=end, end_offset=end_offset, bytes_max=left
        )
        part = plan.find(self._read)
        length = part.bytes.length
        # The first batch is sent in any case.
        is_first = self._limits.is_first and not self._pieces.length
        self._is_full = length > left and not is_first
        if not length or self._is_full:
            return False
        if not self._steps:  # a batch may begin before the offset
            self._begin_offset = part.start_offset
        self._pieces.add(b"", [(part.bytes.position, length)])
        self._offset = max(self._offset, part.end_offset)
        self._steps += 1
        return self._offset >= end_offset


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
) -> FilteredPlan | VisiblePlan:
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
) -> VisiblePlan:
    check_range(log, offset)
    end = log.log_end_offset if end_offset is None else min(end_offset, log.log_end_offset)
    segment = log.segment_of(offset)
    runs_max = min(limits.ranges_max, 1 + limits.units_max // STEP_UNITS)
    runs, known_end = log.schedule.hidden_runs(
        offset, min(end, segment.end.offset), runs_max=runs_max
    )
    if log.rotten:
        # What no reader gets needs not be readable for them; the rest is looked at by itself.
        if not runs or runs[0].offset > offset:
            known_end = runs[0].offset if runs else known_end
            plan = plan_slice(log, offset, bytes_max=limits.bytes_max, end_offset=known_end)
            return VisiblePlan(plan, (), limits)
        runs = runs[:1]
        known_end = runs[0].end_offset
    plan = SlicePlan(segment, offset, segment.end, known_end, limits.bytes_max)
    return VisiblePlan(plan, runs, limits)
