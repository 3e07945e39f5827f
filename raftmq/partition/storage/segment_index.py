"""The two indexes of a segment: where offsets are, and what was the time.

Owns the files `.index` and `.timeindex` of one segment. An entry of the first, (offset, byte),
says where the batch with that base offset starts. An entry of the second, (timestamp, batch),
says that no batch up to and including that one is younger. Entries come every `interval_bytes`.

Both are help and not truth: a lookup gives a place from which to walk, at worst the start of the
segment, and whoever walks checks that the promised batch is there. A damaged entry makes the
index `is_damaged`, which costs speed until it is rebuilt (docs/decisions/0007).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from raftmq.model import NO_TIMESTAMP
from raftmq.partition.storage.entries import DamagedEntries, EntryFile, read_waiting

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from raftmq.disk.files import File, Files
    from raftmq.partition.storage.entries import Entry, ReadBytes
    from raftmq.partition.storage.walk import FoundBatch

logger = logging.getLogger(__name__)


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
        if self._unindexed_bytes >= self._interval_bytes and found.position > 0:
            self._offsets.append(found.header.base_offset, found.position)
            self._unindexed_bytes = 0
            if max_timestamp > self._indexed_timestamp:
                self._note_time(found.header.base_offset, max_timestamp)
        self._unindexed_bytes += found.header.size

    def _note_time(self, base_offset: int, max_timestamp: int) -> None:
        self._times.append(max_timestamp, base_offset - self._start.offset)
        self._indexed_timestamp = max_timestamp

    def seal(self, last_base_offset: int, max_timestamp: int) -> None:
        """Close the time index with an entry for the last batch: one without it was cut."""
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
        """Base offset of a batch before which nothing is as young as `timestamp`."""
        count = self._times.count_up_to
        entry = self._lookup(self._times, lambda: count(timestamp - 1, read), read)
        return self._start.offset + (entry.value if entry else 0)

    def sealed_timestamp(self, last_base_offset: int, read: ReadBytes) -> int:
        """The largest timestamp of a sealed segment; NO_TIMESTAMP if the index cannot say."""
        entry = self._lookup(self._times, lambda: self._times.count, read)
        if entry and self._start.offset + entry.value == last_base_offset:
            return entry.key
        self.distrust()
        return NO_TIMESTAMP

    def _start_at(self, entry: Entry | None) -> BatchStart:
        return BatchStart(entry.key, entry.value) if entry else self._start

    def _lookup(
        self, entries: EntryFile, count: Callable[[], int], read: ReadBytes
    ) -> Entry | None:
        """The last of the first `count()` entries; None if there is none or it is damaged."""
        try:
            found = count()
            return entries.at(found - 1, read) if found else None
        except DamagedEntries:
            self.distrust()
            return None

    def distrust(self) -> None:
        """Somebody followed an entry and found something else."""
        if not self.is_damaged:
            logger.warning("index damaged, walking instead: path=%s", self._offsets.path)
        self.is_damaged = True

    # -- cutting ---------------------------------------------------------------------------

    def resume(self, start: BatchStart) -> int:
        """Forget the entries from `start` on: batches from there will be noted again.

        Returns the largest timestamp up to and including the batch at `start`, as far as the
        index knows it.
        """
        kept = self._offsets.count_up_to(start.offset - 1) if start.position else 0
        times = self._times_up_to(start) if start.position else 0
        self._offsets.truncate(kept)
        self._times.truncate(times)
        last = self._times.last()
        self._indexed_timestamp = last.key if last else NO_TIMESTAMP
        self._unindexed_bytes = self._interval_bytes if start.position else 0
        return self._indexed_timestamp

    def _times_up_to(self, start: BatchStart) -> int:
        return self._times.count_up_to_value(start.offset - self._start.offset)

    def clear(self) -> int:
        """Forget everything, damaged or not."""
        self._offsets.truncate(0)
        self._times.truncate(0)
        self.is_damaged = False
        return self.resume(self._start)
