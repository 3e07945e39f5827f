"""Bit rot: checks one batch on the disk, and the mark of offsets that have rotted.

Owns the check, and the file `rotten` that remembers its findings: recovery reads nothing below the
recovery point (docs/decisions/0006). A log with rot goes on, and refuses only the rotten offsets
(decision 0027). Waits for the disk: runs in a worker thread. Changes no batch.
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
# Places that one log remembers, to bound the mark's size: a disk with more is failing. Others are
# found again by the next reader there.
ROTTEN_MAX = 1000


class Rot(NamedTuple):
    """Offsets that cannot be read: from the first wrong batch to the next sound one.

    Attributes:
        begin, end: of the bytes; `end` is the segment's end if nothing sound follows in it.
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
    """A check that may run in a worker thread: holds all that it needs of the log's state.

    Attributes:
        end: of the segment when the check was planned.
        epochs: the log's table; the CRC does not cover the epoch in a batch.
    """

    segment: Segment
    offset: int
    end: BatchStart
    epochs: LeaderEpochs
    log_start_offset: int

    def find(self) -> Rot | None:
        """What is wrong with the batch that holds the offset, or on the way to it. Raises
        StorageError.
        """
        found = self._find()
        if found is not None:
            # If only the page cache is wrong, dropping it repairs it: readers get the disk's bytes.
            self.segment.file.evict()
            found = self._find()
        return found

    def _find(self) -> Rot | None:
        file, bad = self.segment.file, None
        for found in inspect_batches(file, self.segment.start_near(self.offset), self.end.position):
            if isinstance(found, BadBytes):
                bad = bad or found  # several in a row are one place, up to the next sound batch
                continue
            header, begin = found.header, BatchStart(found.header.base_offset, found.position)
            if bad is not None:
                # A batch out of its place does not end the rot: its offset must be higher, too.
                if begin.position > bad.position and begin.offset > bad.offset:
                    return self._rot(bad, begin)
            # No checksum covers it: our own table decides.
            elif problem := self._problem_of_epoch(header.base_offset, header.leader_epoch):
                end = BatchStart(header.end_offset, begin.position + header.size)
                return Rot(begin, end, file.path, problem)
            elif header.end_offset > self.offset:  # the batch in question, and it is sound
                return None
        return None if bad is None else self._rot(bad, self.end)

    def _rot(self, bad: BadBytes, end: BatchStart) -> Rot:
        begin = BatchStart(bad.offset, bad.position)
        return Rot(begin, end, self.segment.path, bad.what)

    def _problem_of_epoch(self, base_offset: int, leader_epoch: int) -> str:
        known = self.epochs.epoch_at(max(base_offset, self.log_start_offset))
        return "" if known == leader_epoch else f"leader epoch {leader_epoch}, {known} wrote it"


# -- the mark ------------------------------------------------------------------------------


def write_mark(files: Files, folder: Path, rotten: Iterable[Rot]) -> None:
    """Replace the mark, durably: every later opening checks these places and no others, as what
    was cut and written again is sound. Raises StorageError.
    """
    places = {str(rot.offset): rot.end_offset for rot in rotten}
    if places:  # an empty mark would have every opening check nothing
        write_checkpoint(files, folder / ROT_MARK, places)
    else:
        files.remove(folder / ROT_MARK)


def read_mark(files: Files, folder: Path) -> list[tuple[int, int]]:
    """Pairs (first rotten offset, offset behind the rot), in order."""
    places = read_checkpoint(files, folder / ROT_MARK) or {}
    return sorted((int(name), end_offset) for name, end_offset in places.items())
