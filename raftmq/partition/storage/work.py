"""Crash-safe file work of a log: flush, truncation, trim, start over, for a worker thread.

Owns the order of syncs, removals and renames that makes each change safe against a crash at any
instant. The log prepares an object on the loop, which holds all that it needs; a worker thread
performs it. A Flush and a Trim touch nothing that appends and reads use; while a Truncation is
performed nothing may be appended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from raftmq.disk.checkpoint import (
    pack_checkpoint,
    prepare_file,
    put_in_place,
    write_checkpoint,
)
from raftmq.partition.epochs import LeaderEpochs
from raftmq.partition.storage.known_producers import remove_snapshots
from raftmq.partition.storage.rot import write_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from raftmq.disk.files import File, Files
    from raftmq.partition.scheduling.lists import KnownSchedule
    from raftmq.partition.storage.durability import FlushMark
    from raftmq.partition.storage.entries import EpochFile
    from raftmq.partition.storage.known_producers import KnownProducers, ProducersCut
    from raftmq.partition.storage.rot import Rot
    from raftmq.partition.storage.segment import Segment

# Absent: nothing was ever trimmed, the log starts at 0.
LOG_START_FILE = "log-start-offset"
LOG_START_KEY = "log_start_offset"


@dataclass(slots=True)
class Flush:
    """What one log has to sync in a flush round."""

    mark: FlushMark
    files: list[File]
    unsynced_names: Path | None  # the folder, if files were created in it since the last round

    def perform(self, files: Files) -> None:
        for file in self.files:  # in their order: older segments first (decision 0002)
            file.sync()
        if self.unsynced_names is not None:  # without its directory a new file may vanish
            files.sync_directory(self.unsynced_names)


@dataclass(slots=True)
class Truncation:
    """Cut the log's end. The newest segments are removed first, so that a crash leaves no gap.

    The recovery point must be lowered, durably, before this is performed: only then does an
    opening after a crash check what the cut may have left half done.
    """

    folder: Path
    removed: list[Segment]
    cut: Segment
    length: int
    epochs: EpochFile
    producers: ProducersCut
    marks: list[Path]
    log_start_offset: int | None = None  # if the cut removes the batch that the log starts in
    rotten: tuple[Rot, ...] = ()  # known rot below the cut
    # Last: reads from what is left which transactions are open again, or were aborted.
    learn: Callable[[], None] = lambda: None

    def perform(self, files: Files) -> None:
        if self.log_start_offset is not None:  # first: a log must not start behind its end
            write_log_start(files, self.folder, self.log_start_offset)
        self.producers.forget(files)  # first: no snapshot may know more than the log holds
        for segment in reversed(self.removed):
            segment.remove()
        # They may have entries of what is cut.
        files.remove(self.cut.aborted.path)
        files.remove(self.cut.list_path)
        files.sync_directory(self.folder)
        self.cut.file.truncate(self.length)
        self.epochs.write_pending()
        for file in [*self.cut.data_files(), self.epochs.file]:
            file.sync()
        for mark in self.marks:  # last: until the cut is durable, the damage is still there
            files.remove(mark)
        if self.rotten:  # the mark names only places that are still there
            write_mark(files, self.folder, self.rotten)
        files.sync_directory(self.folder)
        self.producers.perform(files)
        self.learn()


@dataclass(slots=True)
class LogStartOver:
    """Remove everything and begin at another offset. The recovery point is lowered before this.

    A crash finds a shorter log, then an empty one at the old start, then one at the new start.
    """

    folder: Path
    removed: list[Segment]
    first: Segment
    epochs: EpochFile
    marks: list[Path]

    def perform(self, files: Files) -> None:
        remove_snapshots(files, self.folder, lambda _offset: True)
        remove_all(files, self.folder, reversed(self.removed))
        write_log_start(files, self.folder, self.first.base_offset)
        self.first.make()
        self.epochs.replace(LeaderEpochs())
        for file in self.first.data_files():
            file.sync()
        for mark in self.marks:
            files.remove(mark)
        files.sync_directory(self.folder)


@dataclass(slots=True)
class LogTrim:
    """Raise the log's start. The offset is durable before the first byte disappears."""

    folder: Path
    log_start_offset: int
    removed: list[Segment] = field(default_factory=list)
    first_offset: int = 0  # of the first segment that stays

    def prepare(self, files: Files) -> None:
        """Write the new start beside the old one: on a full disk this fails, and nothing has
        changed."""
        start = pack_checkpoint({LOG_START_KEY: self.log_start_offset})
        prepare_file(files, self.folder / LOG_START_FILE, start)

    def perform(self, files: Files) -> None:
        put_in_place(files, self.folder / LOG_START_FILE)

    def remove(self, files: Files) -> None:
        """After the log has its new start; what a crash leaves, the next opening removes."""
        remove_snapshots(files, self.folder, lambda offset: offset < self.first_offset)
        remove_all(files, self.folder, self.removed)


def write_log_start(files: Files, folder: Path, log_start_offset: int) -> None:
    write_checkpoint(files, folder / LOG_START_FILE, {LOG_START_KEY: log_start_offset})


def remove_all(files: Files, folder: Path, segments: Iterable[Segment]) -> None:
    for segment in segments:
        segment.remove()
    files.sync_directory(folder)


# -- Recovery result ------------------------------------------------------------------------------
# The found segments, offsets, damage and a report, which recovery, in a worker thread, hands to the
# log. Value types only: they stand here so that the log need not import recovery.


DAMAGE_MARK = "damaged"  # the file that makes every later opening find the damage, too


class Damage(NamedTuple):
    """The first byte that recovery found wrong although something sound follows it."""

    offset: int
    what: str
    behind: tuple[Segment, ...] = ()  # segments that cannot be reached across the damage

    def __str__(self) -> str:
        return f"damaged from offset {self.offset} on: {self.what}"


class RecoveryReport(NamedTuple):
    """How the log was found. `lost_durable`: it ends below its recovery point."""

    clean: bool = True
    scanned_bytes: int = 0
    cut_bytes: int = 0
    lost_durable: bool = False


class FoundLog(NamedTuple):
    """A log, opened."""

    segments: list[Segment]
    epochs: LeaderEpochs
    epoch_file: EpochFile
    producers: KnownProducers
    scheduled: KnownSchedule
    log_start_offset: int
    durable_end_offset: int
    damage: Damage | None
    report: RecoveryReport
