"""The producers of one log as the log goes on: appended, rolled, cut, trimmed, closed.

Owns the state in memory, and when which snapshot of it is written and which is void; the files are
written elsewhere, by work that is handed out (`producer_files.py`). Never waits.

Invariants:
1. No snapshot is there, or waits to be written, of what the log does not hold: those beyond a cut
   are removed before the log is cut.
2. What a trim removes is known by a snapshot, as far as the disk lets itself be written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raftmq.partition.producers import Admission, Producers
from raftmq.partition.storage.producer_files import (
    Snapshot,
    SnapshotWrite,
    find_producers,
    remove_snapshots,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.partition.producers import ProducerLimits
    from raftmq.partition.storage.producer_files import FoundProducers
    from raftmq.partition.storage.segment import Segment


@dataclass(slots=True)
class ProducersCut:
    """To know what a log says of its producers that is being cut."""

    folder: Path
    segments: list[Segment]
    end_offset: int
    limits: ProducerLimits
    waiting: list[Snapshot]
    found: FoundProducers | None = None

    def forget(self, files: Files) -> None:
        """Before anything else is cut; durable with the next sync of the folder."""
        remove_snapshots(files, self.folder, lambda offset: offset > self.end_offset)

    def perform(self, files: Files) -> None:
        """Once the log is cut."""
        self.found = find_producers(files, self.folder, self.segments, self.limits, self.waiting)


class KnownProducers:
    """`now` holds what is known now."""

    def __init__(self, folder: Path, found: FoundProducers, *, durable: Collection[int]) -> None:
        self._folder, self.now = folder, found.producers
        # End offsets of the snapshots that there are, and whether they will survive a power cut.
        self._snapshots = {offset: offset in durable for offset in found.snapshots}
        self._waiting: list[Snapshot] = []
        self._cut: ProducersCut | None = None

    def admission(self, now: float) -> Admission:
        return Admission(self.now, now)

    # -- snapshots -------------------------------------------------------------------------

    def take(self, end_offset: int) -> None:
        """Have a snapshot written, where the log ends, if there is none that is durable."""
        if not self._snapshots.get(end_offset):
            self._waiting = [each for each in self._waiting if each.end_offset != end_offset]
            self._waiting.append(Snapshot(end_offset, self.now.picture()))

    def take_last(self, end_offset: int) -> None:
        """Have one written that saves time at the next opening."""
        if end_offset not in self._snapshots:
            self.take(end_offset)

    def cover(self, first_offset: int, end_offset: int) -> int:
        """Have a snapshot from which an opening could start if the log, which ends at `end_offset`
        now, began at `first_offset`. Returns where it stands: if the log loses what is before
        that, it is of no use.
        """
        offsets = [each.end_offset for each in self._waiting]
        offsets += [offset for offset, is_durable in self._snapshots.items() if is_durable]
        covering = min((each for each in offsets if each >= first_offset), default=None)
        if covering is None:
            self.take(covering := end_offset)
        return covering

    def begin_write(
        self, segments: Sequence[Segment], *, is_durable: bool = True
    ) -> SnapshotWrite | None:
        """What waits to be written; then `complete_write`. One at a time, and not while the log is
        cut.

        Kept are those at the beginning of a segment, from which a cut within it can start, and the
        newest.
        """
        if not self._waiting:
            return None
        waiting, self._waiting = self._waiting, []
        kept = {waiting[-1].end_offset, *(segment.base_offset for segment in segments)}
        void = [offset for offset in self._snapshots if offset not in kept] if is_durable else []
        return SnapshotWrite(self._folder, waiting, void, is_durable)

    def complete_write(self, work: SnapshotWrite) -> None:
        for offset in work.removed:
            self._snapshots.pop(offset, None)
        self._snapshots |= dict.fromkeys(work.written, work.is_durable)

    def on_trimmed(self, first_offset: int) -> None:
        """The log's first segment begins there now."""
        self._snapshots = {
            offset: is_durable
            for offset, is_durable in self._snapshots.items()
            if offset >= first_offset
        }

    # -- cutting ---------------------------------------------------------------------------

    def begin_cut(self, segments: Sequence[Segment], end_offset: int) -> ProducersCut:
        """The log is cut there; then `end_cut`."""
        self._waiting = [each for each in self._waiting if each.end_offset <= end_offset]
        limits, waiting = self.now.limits, list(self._waiting)
        self._cut = ProducersCut(self._folder, list(segments), end_offset, limits, waiting)
        return self._cut

    def end_cut(self) -> None:
        """Whether it came to an end or not: if not, the log is offline."""
        if self._cut is not None and self._cut.found is not None:
            self.now, found = self._cut.found.producers, self._cut.found.snapshots
            self._snapshots = {offset: self._snapshots.get(offset, False) for offset in found}
        self._cut = None

    def start_over(self) -> None:
        """The log says nothing any more."""
        self.now = Producers(limits=self.now.limits)
        self._snapshots, self._waiting = {}, []


def recover_producers(
    files: Files, folder: Path, segments: Sequence[Segment], *, is_damaged: bool
) -> KnownProducers:
    """What a log knows that is being opened. Waits for the disk.

    Snapshots of what the log has lost must be gone before it grows again; a damaged log keeps
    everything as it is. What was written when the log was closed may not be durable yet.

    Raises:
        StorageError: the disk refused.
    """
    end = segments[-1].end_offset
    found = find_producers(files, folder, segments)
    sound = frozenset(found.snapshots)
    if not is_damaged and remove_snapshots(files, folder, lambda offset: offset not in sound):
        files.sync_directory(folder)
    bases = {segment.base_offset for segment in segments}
    known = KnownProducers(folder, found, durable=bases)
    if found.beginning < segments[-1].base_offset:
        known.take(end)  # so that the next opening has less to do
    return known
