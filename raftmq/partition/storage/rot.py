"""Bytes of a log that changed after they were written, found by a look at one batch of it.

Owns the look, and the mark that remembers what it found: recovery does not look below the recovery
point (docs/decisions/0006). A log with rot is whole but for that: it goes on, and refuses to serve
the offsets in question. Waits for the disk: runs in a worker thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from raftmq.disk.checkpoint import read_checkpoint, write_checkpoint
from raftmq.partition.storage.inspect import BadBytes, inspect_batches
from raftmq.partition.storage.segment import BatchStart

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.partition.epochs import LeaderEpochs
    from raftmq.partition.storage.segment import Segment


ROT_MARK = "rotten"  # the file that remembers where rot was found
ROTTEN_MAX = 1000  # places that one log remembers; others are found again by whoever reads there


class Rot(NamedTuple):
    """Offsets that cannot be read: from the batch that is wrong to the next that is right.

    Attributes:
        begin, end: of the bytes; `end` is the segment's where nothing sound follows in it.
    """

    begin: BatchStart
    end: BatchStart
    path: Path
    what: str

    @property
    def offset(self) -> int:
        return self.begin.offset

    @property
    def end_offset(self) -> int:
        return self.end.offset

    def __str__(self) -> str:
        return (
            f"offsets {self.offset} to {self.end_offset - 1} have changed on the disk since they"
            f" were written, {self.end_offset} comes after them: {self.what} at byte"
            f" {self.begin.position} of {self.path}"
        )


class BatchCheck(NamedTuple):
    """What to read, with all that the log's own thread must say about it.

    Attributes:
        end: of what the segment held when the look was planned.
        epochs: who wrote which offsets; no checksum covers that in the batches themselves.
    """

    segment: Segment
    offset: int
    end: BatchStart
    epochs: LeaderEpochs
    log_start_offset: int

    def find(self) -> Rot | None:
        """What is wrong with the batch that holds the offset, or on the way to it. Raises
        StorageError.

        Where only the page cache is wrong it is given up, and readers get what the disk holds.
        """
        found = self._find()
        if found is not None:
            self.segment.file.evict()
            found = self._find()
        return found

    def _find(self) -> Rot | None:
        file, bad = self.segment.file, None
        for found in inspect_batches(file, self.segment.start_near(self.offset), self.end.position):
            if isinstance(found, BadBytes):
                bad = bad or found
                continue
            header, begin = found.header, BatchStart(found.header.base_offset, found.position)
            if bad is not None:
                if begin.position > bad.position and begin.offset > bad.offset:
                    return self._rot(bad, begin)
            elif problem := self._problem_of_epoch(header.base_offset, header.leader_epoch):
                end = BatchStart(header.end_offset, begin.position + header.size)
                return Rot(begin, end, file.path, problem)
            elif header.end_offset > self.offset:
                return None
        return None if bad is None else self._rot(bad, self.end)

    def _rot(self, bad: BadBytes, end: BatchStart) -> Rot:
        begin = BatchStart(bad.offset, bad.position)
        return Rot(begin, end, self.segment.path, bad.what)

    def _problem_of_epoch(self, base_offset: int, leader_epoch: int) -> str:
        known = self.epochs.epoch_at(max(base_offset, self.log_start_offset))
        return "" if known == leader_epoch else f"leader epoch {leader_epoch}, {known} wrote it"


# -- what is remembered --------------------------------------------------------------------


def write_mark(files: Files, folder: Path, rotten: Iterable[Rot]) -> None:
    """Durable, so that every later opening looks there, and nowhere else: what was cut and written
    again is like any other. Raises StorageError.
    """
    places = {str(rot.offset): rot.end_offset for rot in rotten}
    if places:
        write_checkpoint(files, folder / ROT_MARK, places)
    else:
        files.remove(folder / ROT_MARK)


def read_mark(files: Files, folder: Path) -> list[tuple[int, int]]:
    """Where rot was found: its first offset, and the one behind it, in order."""
    places = read_checkpoint(files, folder / ROT_MARK) or {}
    return sorted((int(name), end_offset) for name, end_offset in places.items())
