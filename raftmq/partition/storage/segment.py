"""One segment: a run of batches in one file, with its indexes beside it.

Owns `<20-digit base offset>.log`: writing at its end, finding the batch of an offset or of a
time, cutting. Does not know its neighbours, nor what is durable.

Invariants: batches follow each other without a gap in offsets or bytes; bytes from `size` on are
not part of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import CorruptRecord
from raftmq.model import NO_TIMESTAMP
from raftmq.partition.storage.entries import DamagedEntries, read_waiting
from raftmq.partition.storage.segment_index import BatchStart, SegmentIndex
from raftmq.partition.storage.walk import FoundBatch, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from raftmq.disk.files import File, Files
    from raftmq.partition.storage.entries import ReadBytes
    from raftmq.wire.header import Buffer

LOG_SUFFIX = ".log"
KNOWN_STARTS_MAX = 512
PENDING_ENTRIES_MAX = 256


def log_path(folder: Path, base_offset: int) -> Path:
    return folder / f"{base_offset:020d}{LOG_SUFFIX}"


class Segment:
    """Made by `create` or `load`; the last one of a log is its active segment."""

    def __init__(self, files: Files, path: Path, *, index_interval_bytes: int) -> None:
        self._files, self.path = files, path
        self.base_offset = int(path.stem)
        self.index = SegmentIndex(files, path, self.base_offset, index_interval_bytes)
        # One tuple, replaced at once: a reader in a worker thread sees both numbers or neither.
        self.end = BatchStart(self.base_offset, 0)
        self.max_timestamp = NO_TIMESTAMP
        self._first_timestamp = NO_TIMESTAMP
        self._last_base_offset = self.base_offset
        self._file: File | None = None
        self._was_used = True
        # Batch starts met lately, so that a fetch that goes on where it stopped needs no index.
        self._known: dict[int, int] = {}
        self._beside_rot: dict[int, int] = {}  # ... and those that no walk finds
        self._rotten: dict[BatchStart, BatchStart] = {}  # where rot begins, and where it ends

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
        self._file.truncate(0)
        self.index.clear()

    @classmethod
    def load(cls, files: Files, path: Path, *, index_interval_bytes: int) -> Segment:
        """A segment found on disk: all its bytes, none noted. `resume` or `trust` comes next."""
        segment = cls(files, path, index_interval_bytes=index_interval_bytes)
        segment.end = BatchStart(segment.base_offset, files.size(path))
        return segment

    def trust(self, end_offset: int) -> None:
        """Take a sealed segment as it is; readers check what they get."""
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
        if file is None:
            file = self._file = self._files.open(self.path)
        return file

    def release_idle(self) -> None:
        """Drop what was not used since the last call; slices that are out keep their file."""
        if not self._was_used:
            self._file = None
            self._known.clear()
        self.index.release()
        self._was_used = False

    def release(self) -> None:
        """Drop all descriptors; slices that are out keep their file."""
        self._file = None
        self.index.release()

    # -- writing ---------------------------------------------------------------------------

    def append(self, buffers: Sequence[Buffer], batches: Sequence[FoundBatch]) -> None:
        """Write `buffers`, which hold exactly `batches`, at the end."""
        self.file.write(self.size, buffers)
        for found in batches:
            self.note(found)
        if self.index.pending_count >= PENDING_ENTRIES_MAX:
            self.index.write_pending()

    def note(self, found: FoundBatch) -> None:
        """Take the batch into account that follows the last noted one."""
        position, header = found
        base_offset = header.base_offset
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
        if not position:
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
        return [self.file, *self.index.files()]

    def rebuild_index(self) -> None:
        """Of a sealed segment, from its headers; readers may go on meanwhile, only slower.

        Raises:
            CorruptRecord: not all of them are sound; the entries stay as they are.
        """
        for _ in self.walk_all():
            pass  # behind rot the index is the only way
        self.index.clear()
        timestamp, last = NO_TIMESTAMP, self.base_offset
        for found in self.walk_all():
            timestamp = max(timestamp, found.header.max_timestamp)
            self.index.note(found, timestamp)
            last = found.header.base_offset
        self.index.seal(last, timestamp)

    def remove(self) -> None:
        for path in [*self.index.paths(), self.path]:
            self._files.remove(path)

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
        if offset >= self.end_offset:
            return self.end
        known = self._known_start(offset)
        if known is not None:
            return known
        found = self.locate(offset, read)
        return BatchStart(found.header.base_offset, found.position)

    def start_before(self, position: int, read: ReadBytes = read_waiting) -> BatchStart:
        """Some batch start at or before byte `position`, near it where the index is sound."""
        return self._checked(self.index.floor_of_position(position, read), read)

    def batches_since(self, timestamp: int, read: ReadBytes = read_waiting) -> Iterator[FoundBatch]:
        """The batches that, by their headers, have a record at or after `timestamp`. What is in
        control batches is nobody's record, and their time is that of the broker.
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
        nearest = max((each for each in self._beside_rot if each <= offset), default=-1)
        if nearest <= start.offset:
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
        """It was put right."""
        rotten, self._rotten, self._beside_rot = self._rotten, {}, {}
        for other, end in rotten.items():
            if other != begin:
                self.note_rot(other, end)

    def _checked(self, start: BatchStart, read: ReadBytes) -> BatchStart:
        """`start` if its batch is there; the beginning, from where all can be found, if not."""
        try:
            if start.position < self.size and next(self._walk_from(start, read)):
                return start
        except CorruptRecord:
            if start.position:
                self.index.distrust()
        return self._beginning

    def _know(self, offset: int, position: int) -> None:
        if len(self._known) >= KNOWN_STARTS_MAX:
            self._known.clear()
        self._known[offset] = position

    # -- cutting ---------------------------------------------------------------------------

    def resume(self, offset: int) -> BatchStart:
        """Step back to an indexed batch before `offset`: notes start again there."""
        # The batch at `offset` itself may be about to be cut, and then its times go with it.
        start = self._checked(self.index.floor(offset - 1), read_waiting)
        try:
            self.max_timestamp = self.index.resume(start)
        except DamagedEntries:
            start = self._beginning
            self.max_timestamp = self.index.clear()
        self._known.clear()
        rotten, self._rotten, self._beside_rot = self._rotten, {}, {}
        for begin, end in rotten.items():
            if end.offset <= offset:
                self.note_rot(begin, end)
        self._first_timestamp = NO_TIMESTAMP
        self.end = start
        self._last_base_offset = start.offset
        return start

    def renote(self, start: BatchStart, end: BatchStart) -> None:
        """After `resume`: note the batches from `start` up to `end` again, by their headers; none
        that is rotten has one.
        """
        for begin in sorted(begin for begin in self._rotten if begin >= start):
            for found in walk(self.file, start, begin.position):
                self.note(found)
            self.end = start = self._rotten[begin]
        for found in walk(self.file, start, end.position):
            self.note(found)
        assert self.end_offset == end.offset, "the cut falls between batches"
