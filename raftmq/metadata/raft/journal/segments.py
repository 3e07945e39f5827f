"""Segment files of the journal: atomic begin, append with fdatasync, removal from the oldest on.

    journal/00000000000000000007.journal

Owns the order of disk operations, not the content. A segment begins by an atomic replacement: a
file of this name always has a whole first batch. Each batch is synced before the next is written,
and before the next segment begins. The oldest segments are removed first, so that the remaining
ones are contiguous. Runs in worker threads: one write at a time, and at most one removal in
parallel.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from raftmq.disk.checkpoint import TEMPORARY_SUFFIX, prepare_file, put_in_place
from raftmq.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from raftmq.disk.files import File, Files

# A segment of this length takes no more batches. Space is freed by whole segments; smaller ones
# would repeat the state in their first batch more often.
SEGMENT_BYTES = 16 << 20
_NAME = re.compile(r"(\d{20})\.journal")


def segment_path(directory: Path, number: int) -> Path:
    return directory / f"{number:020d}.journal"


def segment_numbers(names: Sequence[str]) -> list[int]:
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)


class SegmentWriter:
    """Writes batches to the last segment. After an error it accepts no more writes.

    After a failed write or sync the page cache may differ from the disk: only a new start, which
    reads and rewrites the end of the journal, can continue from there.
    """

    def __init__(self, files: Files, directory: Path, *, sync: bool = True) -> None:
        self.files, self.directory, self._sync = files, directory, sync
        self.failure: BaseException | None = None
        self._file: File | None = None
        self._position = 0

    def check(self) -> None:
        """
        Raises:
            StorageError: a write failed before.
        """
        if self.failure:  # see the class: only a new start can continue
            raise StorageError(
                f"the journal {self.directory} takes no more writes until a restart,"
                f" because one failed: {self.failure}"
            ) from self.failure

    def begin(self, number: int, data: bytes) -> None:
        """Replace the segment of this number, or create it, with `data`."""
        try:
            self._begin(segment_path(self.directory, number), data)
        except BaseException as error:  # also an interrupt: how much was written is unknown
            self.failure = error
            raise

    def _begin(self, path: Path, data: bytes) -> None:
        self.check()
        prepare_file(self.files, path, data)
        put_in_place(self.files, path)
        self._file, self._position = self.files.open(path), len(data)

    def append(self, data: bytes) -> None:
        try:
            self._append(data)
        except BaseException as error:  # also an interrupt: the position on disk is unknown
            self.failure = error
            raise

    def _append(self, data: bytes) -> None:
        self.check()
        assert self._file, "no segment was begun"
        self._file.write(self._position, [data])
        self._position += len(data)
        if self._sync:  # False only in benchmarks
            self._file.sync()

    def close(self) -> None:
        self._file = None
        self.failure = self.failure or StorageError(f"the journal {self.directory} is closed")


class JournalWrite:
    """One write: `write` in a worker thread, then `Journal.complete` on the loop."""

    def __init__(
        self,
        writer: SegmentWriter,
        data: bytes,
        *,
        new_segment: int | None,
        last_index: int,
        first_live_segment: int,
    ) -> None:
        self._writer, self._new_segment = writer, new_segment
        self.data, self.last_index = data, last_index
        self.first_live_segment = first_live_segment

    def write(self) -> None:
        """All of it is durable when this returns.

        Raises:
            StorageError: no more writes until a restart, which may find this batch or not.
        """
        if self._new_segment is None:  # the last segment has room
            self._writer.append(self.data)
        else:
            self._writer.begin(self._new_segment, self.data)


class Removal:
    """Removal of old segments: `run` in a worker thread, then `Journal.removed`."""

    def __init__(self, files: Files, directory: Path, numbers: Sequence[int]) -> None:
        self._files, self._directory, self.numbers = files, directory, tuple(numbers)

    def run(self) -> None:
        """Remove them one by one, each synced: a crash leaves no gap between segments.

        Raises:
            StorageError: some are left; they are harmless, and the next start tries again.
        """
        for number in self.numbers:
            self._files.remove(segment_path(self._directory, number))
            self._files.sync_directory(self._directory)


def remove_leftovers(files: Files, directory: Path) -> None:
    """Remove temporary files of segments whose replacement a crash interrupted."""
    for name in files.names(directory):
        if _NAME.fullmatch(name.removesuffix(TEMPORARY_SUFFIX)) and name.endswith(TEMPORARY_SUFFIX):
            files.remove(directory / name)
