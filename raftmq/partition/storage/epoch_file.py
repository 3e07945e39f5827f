"""The leader epochs of a log on disk: `leader-epochs`, a history that is only ever appended to.

Owns the file and its meaning: entry (start offset, epoch) for an assignment, and for a cut
(offset, epoch then latest). Never rewritten in place, so that no crash can leave half a table;
replaced whole, atomically, when the history has grown much longer than the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.disk.checkpoint import replace_file
from raftmq.partition.epochs import UNDEFINED_EPOCH, EpochStart, LeaderEpochs
from raftmq.partition.storage.entries import DamagedEntries, EntryFile, pack_entry

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.disk.files import File, Files

EPOCH_FILE = "leader-epochs"
VOID_ENTRIES_MAX = 1024  # entries that later ones made void
_UNDEFINED = 0xFFFF_FFFF


class EpochFile:
    """Appends wait in memory until `write_pending`, and are durable after a sync of `file`."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files, self._path = files, folder / EPOCH_FILE
        self._entries = EntryFile(files, self._path)

    @property
    def file(self) -> File:
        return self._entries.file

    def exists(self) -> bool:
        return self._files.exists(self._path)

    def append(self, leader_epoch: int, start_offset: int) -> None:
        self._entries.append(start_offset, _value(leader_epoch))

    def write_pending(self) -> None:
        self._entries.write_pending()

    def release(self) -> None:
        self._entries.release()

    def read(self) -> LeaderEpochs:
        """The table. Raises DamagedEntries; the table can then be had by walking the log."""
        return LeaderEpochs.replay(
            EpochStart(UNDEFINED_EPOCH if value == _UNDEFINED else value, start_offset)
            for start_offset, value in self._entries.all()
        )

    def update(self, epochs: LeaderEpochs) -> None:
        """Make the file lead to `epochs`."""
        try:
            if self.read().entries != epochs.entries:
                self.replace(epochs)
        except DamagedEntries:
            self.replace(epochs)

    def compact(self, epochs: LeaderEpochs) -> None:
        """Shorten a history that holds much more than `epochs`, which it leads to."""
        if self._entries.count > len(epochs.entries) + VOID_ENTRIES_MAX:
            self.replace(epochs)

    def replace(self, epochs: LeaderEpochs) -> None:
        """Put the table in place of its history, or of a damaged file. Waits for the disk."""
        entries = [pack_entry(start, epoch) for epoch, start in epochs.entries]
        replace_file(self._files, self._path, b"".join(entries))
        self._entries = EntryFile(self._files, self._path)


def _value(leader_epoch: int) -> int:
    return _UNDEFINED if leader_epoch == UNDEFINED_EPOCH else leader_epoch
