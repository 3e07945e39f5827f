"""A log segment: one file of batches, its offset index and time index, walking and scanning.

Owns `<20-digit base offset>.log`: writing at its end, finding the batch of an offset or timestamp,
cutting (Kafka: LogSegment). Does not know its neighbours, nor what is durable, nor what belongs
into its file of aborted transactions (`aborted_index`).

Invariants: batches follow each other without a gap in offsets or bytes; bytes from `size` on are
not part of the log.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, NamedTuple

from raftmq.errors import CorruptRecord
from raftmq.model import NO_TIMESTAMP
from raftmq.partition.scheduling.lists import list_path
from raftmq.partition.storage.entries import AbortedFile, DamagedEntries, EntryFile, read_waiting
from raftmq.wire.batch.header import (
    HEADER_SIZE,
    RECORDS_MAX,
    BatchHeader,
    check_batch,
    compute_crc,
    read_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from raftmq.disk.files import File, Files
    from raftmq.partition.storage.entries import IndexEntry, ReadBytes
    from raftmq.wire.batch.header import Buffer


logger = logging.getLogger("raftmq.partition")


# -- Segment index --------------------------------------------------------------------------------
# The two sparse indexes of a segment: from offset to byte, and from timestamp to offset.
#
# Owns the files `.index` and `.timeindex` of one segment. An entry of the first, (offset, byte),
# says where the batch with that base offset starts. An entry of the second, (timestamp, batch),
# says that no batch up to and including that one is younger. Entries come every `interval_bytes`.
#
# The log is the truth, the indexes are hints: a lookup gives a place from which to walk, at worst
# the start of the segment, and the walk checks that the promised batch is there. A damaged entry
# makes the index `is_damaged`, which costs speed until it is rebuilt (docs/decisions/0007).


class BatchStart(NamedTuple):
    """At byte `position` of the segment the batch with base offset `offset` should start."""

    offset: int
    position: int


class SegmentIndex:
    """Keys and values of both files never fall."""

    def __init__(self, files: Files, log_path: Path, base_offset: int, interval_bytes: int) -> None:
        self._offsets = EntryFile(files, log_path.with_suffix(".index"))
        self._times = EntryFile(files, log_path.with_suffix(".timeindex"))
        self._start = BatchStart(base_offset, 0)
        self._interval_bytes = interval_bytes
        self._unindexed_bytes = 0
        self._indexed_timestamp = NO_TIMESTAMP
        self.is_damaged = False

    # -- growing ---------------------------------------------------------------------------

    def note(self, found: FoundBatch, max_timestamp: int) -> None:
        """A batch was appended; `max_timestamp` is the largest of the segment including it."""
        # Byte 0 needs no entry: it is where every lookup without one starts.
        if self._unindexed_bytes >= self._interval_bytes and found.position > 0:
            self._offsets.append(found.header.base_offset, found.position)
            self._unindexed_bytes = 0
            if max_timestamp > self._indexed_timestamp:  # keys of the time index must not fall
                self._note_time(found.header.base_offset, max_timestamp)
        self._unindexed_bytes += found.header.size

    def _note_time(self, base_offset: int, max_timestamp: int) -> None:
        self._times.append(max_timestamp, base_offset - self._start.offset)
        self._indexed_timestamp = max_timestamp

    def seal(self, last_base_offset: int, max_timestamp: int) -> None:
        """End the time index with an entry for the last batch: an index without it is cut short."""
        self._note_time(last_base_offset, max_timestamp)
        self.write_pending()

    @property
    def pending_count(self) -> int:
        return self._offsets.pending_count

    def write_pending(self) -> None:
        self._offsets.write_pending()
        self._times.write_pending()

    def files(self) -> list[File]:
        return [self._offsets.file, self._times.file]

    def paths(self) -> list[Path]:
        return [self._offsets.path, self._times.path]

    def release(self) -> None:
        self._offsets.release()
        self._times.release()

    # -- looking up ------------------------------------------------------------------------

    def floor(self, offset: int, read: ReadBytes = read_waiting) -> BatchStart:
        """The nearest indexed batch start at or before `offset`."""
        count = self._offsets.count_up_to
        return self._start_at(self._lookup(self._offsets, lambda: count(offset, read), read))

    def floor_of_position(self, position: int, read: ReadBytes = read_waiting) -> BatchStart:
        """The nearest indexed batch start at or before byte `position`."""
        count_up_to = self._offsets.count_up_to_value
        return self._start_at(
            self._lookup(self._offsets, lambda: count_up_to(position, read), read)
        )

    def floor_of_time(self, timestamp: int, read: ReadBytes = read_waiting) -> int:
        """Base offset of a batch before which all timestamps are below `timestamp`."""
        count = self._times.count_up_to
        entry = self._lookup(self._times, lambda: count(timestamp - 1, read), read)
        return self._start.offset + (entry.value if entry else 0)

    def sealed_timestamp(self, last_base_offset: int, read: ReadBytes) -> int:
        """The largest timestamp of a sealed segment; NO_TIMESTAMP if the index cannot say."""
        entry = self._lookup(self._times, lambda: self._times.count, read)
        # An index without an entry for the last batch was cut short, and may lack the largest.
        if entry and self._start.offset + entry.value == last_base_offset:
            return entry.key
        self.distrust()
        return NO_TIMESTAMP

    def _start_at(self, entry: IndexEntry | None) -> BatchStart:
        return BatchStart(entry.key, entry.value) if entry else self._start

    def _lookup(
        self, entries: EntryFile, count: Callable[[], int], read: ReadBytes
    ) -> IndexEntry | None:
        """The last of the first `count()` entries; None if there is none or it is damaged."""
        try:
            found = count()
            return entries.at(found - 1, read) if found else None
        except DamagedEntries:  # the caller walks from the segment's start instead
            self.distrust()
            return None

    def distrust(self) -> None:
        """An entry is damaged, or does not lead to its batch: rebuild the index later."""
        if not self.is_damaged:
            logger.warning("index damaged, walking instead: path=%s", self._offsets.path)
        self.is_damaged = True

    # -- cutting ---------------------------------------------------------------------------

    def resume(self, start: BatchStart) -> int:
        """Remove the entries from `start` on: batches from there will be noted again.

        Returns the largest timestamp up to and including the batch at `start`, as far as the
        index knows it.
        """
        kept = self._offsets.count_up_to(start.offset - 1) if start.position else 0
        times = self._times_up_to(start) if start.position else 0
        self._offsets.truncate(kept)
        self._times.truncate(times)
        last = self._times.last()
        self._indexed_timestamp = last.key if last else NO_TIMESTAMP
        # `start` had an entry, which was removed: due again at once.
        self._unindexed_bytes = self._interval_bytes if start.position else 0
        return self._indexed_timestamp

    def _times_up_to(self, start: BatchStart) -> int:
        return self._times.count_up_to_value(start.offset - self._start.offset)

    def clear(self) -> int:
        """Remove all entries, damaged or not."""
        self._offsets.truncate(0)
        self._times.truncate(0)
        self.is_damaged = False
        return self.resume(self._start)


# -- Walk -----------------------------------------------------------------------------------------
# From batch to batch through a segment file, without an index.
#
# Owns the two ways to do it: `walk` trusts lengths and reads headers only, `scan` checks every CRC.
# Both read in blocks and name file and byte in every CorruptRecord.


WALK_BLOCK_BYTES = 4096  # one page; about the distance of two index entries, so mostly one read
SCAN_BLOCK_BYTES = 1 << 20  # a scan reads every byte: few system calls, and little memory
# Bytes of candidates that a search for a sound batch checks, as a multiple of the searched bytes:
# bounds the time that hostile data can cost (see `find_sound_batch`).
CHECKED_BYTES_FACTOR = 4
# A header as a regular expression: magic 2 at byte 16, no unknown attribute bit, small positive
# last offset delta and record count. Only a filter, so that Python decodes few positions.
_HEADER_LIKE = re.compile(
    rb"(?s)(?=[\x00-\x7f].{7}[\x00-\x3f].{7}\x02.{4}[\x00\x40][\x00-\x3f][\x00-\x7f].{33}\x00[\x00\x01])"
)


class FoundBatch(NamedTuple):
    position: int
    header: BatchHeader


class ReadWindow:
    """The block of a file that was read last; moves forward with the reads."""

    def __init__(self, file: File, block_bytes: int, read: ReadBytes = read_waiting) -> None:
        self._file, self._block_bytes, self._read = file, block_bytes, read
        self._start, self._block = 0, memoryview(b"")

    def at(self, position: int, length: int) -> memoryview:
        """`length` bytes from `position`; fewer only at the end of the file."""
        first = position - self._start
        # Outside of the block: read another one from there.
        if first < 0 or first + length > len(self._block):
            data = self._read(self._file, position, max(length, self._block_bytes))
            self._start, self._block, first = position, memoryview(data), 0
        return self._block[first : first + length]


def walk(
    file: File,
    start: BatchStart,
    end: int,
    read: ReadBytes = read_waiting,
    window: ReadWindow | None = None,
) -> Iterator[FoundBatch]:
    """Every batch from `start` up to byte `end`, by its header alone. `window`: of the caller, who
    reads more of the batches.

    Raises:
        CorruptRecord: an impossible header, a batch that reaches beyond `end`, or an offset that
            does not follow from the one before. Its offset is that of the batch to check for rot.
    """
    window = window or ReadWindow(file, WALK_BLOCK_BYTES, read)
    offset, position = start
    found: FoundBatch | None = None
    while position < end:
        try:
            header = _header_at(window, offset, position, file)
            _check_place(header, offset, position, end, file)
        except CorruptRecord as error:
            # A wrong length or count leads to a place where nothing begins.
            if found is not None and not _is_sound(file, found, read):
                error.offset = found.header.base_offset
            raise
        found = FoundBatch(position, header)
        yield found
        offset, position = header.end_offset, position + header.size


def _check_place(header: BatchHeader, offset: int, position: int, end: int, file: File) -> None:
    problem = ""
    if header.base_offset != offset:
        problem = f"base offset {header.base_offset}, expected {offset}"
    elif position + header.size > end:  # a torn write, or a length that has rotted
        problem = f"batch of {header.size} bytes, {position + header.size - end} are missing"
    if problem:
        raise CorruptRecord(problem, position=position, where=str(file.path), offset=offset)


def _header_at(window: ReadWindow, offset: int, position: int, file: File) -> BatchHeader:
    try:
        return read_header(window.at(position, HEADER_SIZE))
    except CorruptRecord as error:  # again, with the place in the file
        where = str(file.path)
        raise CorruptRecord(error.what, position=position, where=where, offset=offset) from None


def scan(file: File, start: BatchStart, end: int, leader_epoch: int) -> Iterator[FoundBatch]:
    """Every batch from `start` up to byte `end`, its CRC checked, epochs never falling.

    Raises:
        CorruptRecord: at the first batch that is not whole, sound and in its place.
    """
    window = ReadWindow(file, SCAN_BLOCK_BYTES)
    offset, position = start
    while position < end:
        header = _header_at(window, offset, position, file)
        _check_place(header, offset, position, end, file)
        _check_bytes(window, position, header, file)
        if header.leader_epoch < leader_epoch:  # outside the CRC, so only the order can be checked
            what = f"leader epoch {header.leader_epoch} after {leader_epoch}"
            raise CorruptRecord(what, position=position, where=str(file.path))
        yield FoundBatch(position, header)
        leader_epoch = header.leader_epoch
        offset, position = header.end_offset, position + header.size


def _check_bytes(window: ReadWindow, position: int, header: BatchHeader, file: File) -> None:
    try:
        check_batch(window.at(position, header.size))
    except CorruptRecord as error:  # again, with the place in the file
        raise CorruptRecord(error.what, position=position, where=str(file.path)) from None


def find_sound_batch(file: File, position: int, end: int, offset: int) -> FoundBatch | None:
    """The first sound batch at or after `position` whose base offset is plausible behind `offset`.

    Tries every byte, because the lengths of damaged batches cannot be trusted. A producer can fill
    its values with bytes that look like batches: after more bytes were checked than honest data
    ever needs, the search ends, and the last candidate counts as sound, as nothing is cut then.
    """
    # The batches in between cannot have had more records than that.
    furthest = offset + RECORDS_MAX * ((end - position) // HEADER_SIZE + 1)
    left = CHECKED_BYTES_FACTOR * (end - position) + SCAN_BLOCK_BYTES
    window = ReadWindow(file, SCAN_BLOCK_BYTES)
    while end - position >= HEADER_SIZE:
        block = window.at(position, min(SCAN_BLOCK_BYTES, end - position))
        for match in _HEADER_LIKE.finditer(block):
            found = _likely_batch_at(window, position + match.start(), end)
            # A header-like value of a producer.
            if found is None or not offset <= found.header.base_offset <= furthest:
                continue
            left -= found.header.size
            if left < 0 or _is_sound(file, found):  # negative: too many candidates, see above
                return found
        position += max(len(block) - HEADER_SIZE + 1, 1)  # a header may span two blocks
    return None


def _likely_batch_at(window: ReadWindow, position: int, end: int) -> FoundBatch | None:
    try:
        header = read_header(window.at(position, HEADER_SIZE))
    except CorruptRecord:
        return None
    return FoundBatch(position, header) if position + header.size <= end else None


def _is_sound(file: File, found: FoundBatch, read: ReadBytes = read_waiting) -> bool:
    data = read(file, found.position, found.header.size)
    return len(data) == found.header.size and compute_crc(data) == found.header.crc


# -- Segment --------------------------------------------------------------------------------------


LOG_SUFFIX = ".log"
# Batch starts that a segment caches, some 50 KB; the cache is cleared when it is full.
KNOWN_STARTS_MAX = 512
# Of the tag sets of one segment that are remembered, some 30 KB in memory; each tag costs more than
# its characters.
TAG_CHARS_MAX, TAG_COST = 16_000, 50
# Index entries in memory: 1 MiB of log at the default interval, one write instead of 256.
PENDING_ENTRIES_MAX = 256


def log_path(folder: Path, base_offset: int) -> Path:
    return folder / f"{base_offset:020d}{LOG_SUFFIX}"


class SeenTags(NamedTuple):
    """The tag sets of all batches at offsets [start_offset, end_offset) of a segment, each of which
    could be left out."""

    start_offset: int
    end_offset: int
    tag_sets: frozenset[tuple[str, ...]]


class Segment:
    """Made by `create` or `load`; the last one of a log is its active segment."""

    def __init__(self, files: Files, path: Path, *, index_interval_bytes: int) -> None:
        self._files, self.path = files, path
        self.base_offset = int(path.stem)
        self.index = SegmentIndex(files, path, self.base_offset, index_interval_bytes)
        self.aborted = AbortedFile(files, path)
        self.list_path = list_path(path.parent, self.base_offset)  # `scheduling.lists`
        # One tuple, replaced at once: a reader in a worker thread sees both numbers or neither.
        self.end = BatchStart(self.base_offset, 0)
        self.max_timestamp = NO_TIMESTAMP
        self._first_timestamp = NO_TIMESTAMP
        self._last_base_offset = self.base_offset
        self._file: File | None = None
        self._was_used = True
        # Batch starts met lately, so that a fetch that continues the one before needs no index.
        self._known: dict[int, int] = {}
        self._beside_rot: dict[int, int] = {}  # begin and end of rot: no walk gets across it
        self._rotten: dict[BatchStart, BatchStart] = {}  # where rot begins, and where it ends
        self._seen_tags: SeenTags | None = None

    @classmethod
    def create(
        cls, files: Files, folder: Path, base_offset: int, *, index_interval_bytes: int
    ) -> Segment:
        segment = cls(
            files, log_path(folder, base_offset), index_interval_bytes=index_interval_bytes
        )
        segment.make()
        return segment

    def make(self) -> None:
        """Its files, empty. Waits for the disk."""
        self._file = self._files.open(self.path, create=True)
        self._file.truncate(0)  # a failed attempt or a crash may have left bytes
        self.index.clear()
        self._files.remove(self.aborted.path)
        self._files.remove(self.list_path)
        self.aborted.begin()

    @classmethod
    def load(cls, files: Files, path: Path, *, index_interval_bytes: int) -> Segment:
        """A segment found on disk: all its bytes, none noted. `resume` or `trust` comes next."""
        segment = cls(files, path, index_interval_bytes=index_interval_bytes)
        segment.end = BatchStart(segment.base_offset, files.size(path))
        return segment

    def trust(self, end_offset: int) -> None:
        """Take a sealed segment as it is, unread; readers check the CRC of what they get."""
        self.end = BatchStart(end_offset, self.size)

    @property
    def end_offset(self) -> int:
        return self.end.offset

    @property
    def size(self) -> int:
        """Bytes of batches."""
        return self.end.position

    @property
    def file(self) -> File:
        self._was_used = True
        file = self._file
        if file is None:  # closed while idle, or not opened yet
            file = self._file = self._files.open(self.path)
        return file

    def release_idle(self) -> None:
        """Close the file if it was not used since the last call; slices that are being sent keep
        it open."""
        if not self._was_used:  # no read or append since the last call
            self._file = None
            self._known.clear()
        self.index.release()
        self.aborted.release()
        self._was_used = False

    def release(self) -> None:
        """Close all files; slices that are being sent keep theirs open."""
        self._file = None
        self.index.release()
        self.aborted.release()

    # -- writing ---------------------------------------------------------------------------

    def append(self, buffers: Sequence[Buffer], batches: Sequence[FoundBatch]) -> None:
        """Write `buffers`, which hold exactly `batches`, at the end."""
        self.file.write(self.size, buffers)
        for found in batches:
            self.note(found)
        # Buffered, as each write is a system call.
        if self.index.pending_count >= PENDING_ENTRIES_MAX:
            self.index.write_pending()

    def note(self, found: FoundBatch) -> None:
        """Move the end behind `found`, which follows the last noted batch."""
        position, header = found
        base_offset = header.base_offset
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
        if not position:  # the first batch: `segment.ms` counts from it
            self._first_timestamp = header.max_timestamp
        self.index.note(found, self.max_timestamp)
        self._know(base_offset, position)
        self._last_base_offset = base_offset
        self.end = BatchStart(header.end_offset, position + header.size)

    def seal(self) -> None:
        """Nothing more will be appended."""
        self.index.seal(self._last_base_offset, self.max_timestamp)

    def data_files(self) -> list[File]:
        """What to sync so that a sealed segment never needs a scan."""
        return [self.file, *self.index.files(), *self.aborted.files()]

    def rebuild_index(self) -> None:
        """Of a sealed segment, from its headers; readers may go on meanwhile, only slower.

        Raises:
            CorruptRecord: not all of them are sound; the entries stay as they are.
        """
        for _ in self.walk_all():
            pass  # first without a change: behind rot only the old index leads to a batch
        self.index.clear()
        timestamp, last = NO_TIMESTAMP, self.base_offset
        for found in self.walk_all():
            timestamp = max(timestamp, found.header.max_timestamp)
            self.index.note(found, timestamp)
            last = found.header.base_offset
        self.index.seal(last, timestamp)

    def remove(self) -> None:
        for path in [*self.index.paths(), self.aborted.path, self.list_path, self.path]:
            self._files.remove(path)

    def write_pending(self) -> None:
        """Buffered entries of all indexes."""
        self.index.write_pending()
        self.aborted.write_pending()

    # -- finding ---------------------------------------------------------------------------

    def locate(self, offset: int, read: ReadBytes = read_waiting) -> FoundBatch:
        """The batch that holds `offset`, which must lie in this segment.

        Raises:
            CorruptRecord: the way to it, or the batch's header, is damaged.
        """
        for found in self._walk_from(self.start_near(offset, read), read):
            if found.header.end_offset > offset:
                self._know(found.header.base_offset, found.position)
                return found
        where = str(self.path)
        raise CorruptRecord(
            f"offset {offset} is missing", position=self.size, where=where, offset=offset
        )

    def start_of(self, offset: int, read: ReadBytes = read_waiting) -> BatchStart:
        """Where the batch that holds `offset` starts; the segment's end for its end offset."""
        # For a reader at the log's end, or a cut that removes nothing.
        if offset >= self.end_offset:
            return self.end
        known = self._known_start(offset)
        if known is not None:  # met lately: the usual case of a consumer that keeps up
            return known
        found = self.locate(offset, read)
        return BatchStart(found.header.base_offset, found.position)

    def start_before(self, position: int, read: ReadBytes = read_waiting) -> BatchStart:
        """Some batch start at or before byte `position`, near it where the index is sound."""
        return self._checked(self.index.floor_of_position(position, read), read)

    def batches_since(self, timestamp: int, read: ReadBytes = read_waiting) -> Iterator[FoundBatch]:
        """The batches that, by their headers, have a record at or after `timestamp`. Control
        batches have no records of a producer, and their timestamp is the broker's.
        """
        start = self.start_of(self.index.floor_of_time(timestamp, read), read)
        for found in self._walk_from(start, read):
            if found.header.max_timestamp >= timestamp and not found.header.is_control:
                yield found

    def last_batch(self, read: ReadBytes = read_waiting) -> FoundBatch | None:
        return self.locate(self.end_offset - 1, read) if self.size else None

    def largest_timestamp(self, read: ReadBytes = read_waiting) -> int:
        """Of a sealed segment; from the index, or by walking where that is damaged."""
        if self.max_timestamp == NO_TIMESTAMP and (last := self.last_batch(read)):
            known = self.index.sealed_timestamp(last.header.base_offset, read)
            self.max_timestamp = self._walked_timestamp(read) if known == NO_TIMESTAMP else known
        return self.max_timestamp

    def first_timestamp(self) -> int:
        """Of the first batch: from then on the segment's age counts."""
        # Not noted by this process: read it from the file.
        if self._first_timestamp == NO_TIMESTAMP and self.size:
            self._first_timestamp = next(self.walk_all()).header.max_timestamp
        return self._first_timestamp

    @property
    def _beginning(self) -> BatchStart:
        return BatchStart(self.base_offset, 0)

    def walk_all(self, read: ReadBytes = read_waiting) -> Iterator[FoundBatch]:
        """Every batch, by its header."""
        return self._walk_from(self._beginning, read)

    def _walked_timestamp(self, read: ReadBytes) -> int:
        return max(found.header.max_timestamp for found in self.walk_all(read))

    def _walk_from(self, start: BatchStart, read: ReadBytes = read_waiting) -> Iterator[FoundBatch]:
        return walk(self.file, start, self.size, read)

    def start_near(self, offset: int, read: ReadBytes = read_waiting) -> BatchStart:
        """A batch start at or before `offset`, from which it can be walked to."""
        known = self._known_start(offset)
        if known is not None:
            return known
        start = self._checked(self.index.floor(offset, read), read)
        # Sound batches right behind rot cannot be reached by walking from the index entry.
        nearest = max((each for each in self._beside_rot if each <= offset), default=-1)
        if nearest <= start.offset:  # the index leads closer than the rot's edge
            return start
        return BatchStart(nearest, self._beside_rot[nearest])

    def _known_start(self, offset: int) -> BatchStart | None:
        position = self._known.get(offset, self._beside_rot.get(offset))
        return None if position is None else BatchStart(offset, position)

    def note_rot(self, begin: BatchStart, end: BatchStart) -> None:
        """Between these two no header can be trusted."""
        self._rotten[begin] = end
        self._beside_rot |= {start.offset: start.position for start in (begin, end)}

    def forget_rot(self, begin: BatchStart) -> None:
        """It was repaired: batches there can be walked again."""
        rotten, self._rotten, self._beside_rot = self._rotten, {}, {}
        for other, end in rotten.items():
            if other != begin:
                self.note_rot(other, end)

    def _checked(self, start: BatchStart, read: ReadBytes) -> BatchStart:
        """`start` if its batch is there; else the segment's beginning, where a walk finds all."""
        try:
            if start.position < self.size and next(self._walk_from(start, read)):
                return start
        except CorruptRecord:
            if start.position:  # at byte 0 the batch is wrong, not the index
                self.index.distrust()
        return self._beginning

    def _know(self, offset: int, position: int) -> None:
        if len(self._known) >= KNOWN_STARTS_MAX:
            self._known.clear()  # readers at the end of the log fill it again at once
        self._known[offset] = position

    # -- tags ------------------------------------------------------------------------------

    @property
    def seen_tags(self) -> SeenTags | None:
        """The tag sets of the whole sealed segment; None: not known, or some batch of it can never
        be left out."""
        seen = self._seen_tags
        return seen if seen is not None and seen.end_offset == self.end_offset else None

    def note_tags(self, seen: SeenTags) -> None:
        """A reader has met these; what follows from the segment's beginning on is put together, so
        that the next reader can pass over the segment as a whole. Kept in memory only: the first
        reader after a start looks again."""
        before = self._seen_tags or SeenTags(self.base_offset, self.base_offset, frozenset())
        if seen.start_offset <= before.end_offset < seen.end_offset:
            tag_sets = before.tag_sets | seen.tag_sets
            # Too many to be of use: such segments are walked each time.
            if sum(len(tag) + TAG_COST for tags in tag_sets for tag in tags) <= TAG_CHARS_MAX:
                self._seen_tags = SeenTags(self.base_offset, seen.end_offset, tag_sets)

    # -- cutting ---------------------------------------------------------------------------

    def resume(self, offset: int) -> BatchStart:
        """Step back to an indexed batch before `offset`: notes start again there."""
        # Not the batch at `offset` itself: it may be cut, and its timestamps with it.
        start = self._checked(self.index.floor(offset - 1), read_waiting)
        try:
            self.max_timestamp = self.index.resume(start)
        except DamagedEntries:  # note all batches again, which makes a new index
            start = self._beginning
            self.max_timestamp = self.index.clear()
        self.aborted.void()
        self._known.clear()
        self._seen_tags = None
        rotten, self._rotten, self._beside_rot = self._rotten, {}, {}
        for begin, end in rotten.items():
            if end.offset <= offset:  # rot behind is cut, or checked again
                self.note_rot(begin, end)
        self._first_timestamp = NO_TIMESTAMP
        self.end = start
        self._last_base_offset = start.offset
        return start

    def renote(self, start: BatchStart, end: BatchStart) -> None:
        """After `resume`: note the batches from `start` up to `end` again, by their headers."""
        # Across rot there are no headers to walk: note up to it, and go on behind it.
        for begin in sorted(begin for begin in self._rotten if begin >= start):
            for found in walk(self.file, start, begin.position):
                self.note(found)
            self.end = start = self._rotten[begin]
        for found in walk(self.file, start, end.position):
            self.note(found)
        assert self.end_offset == end.offset, "the cut falls between batches"
