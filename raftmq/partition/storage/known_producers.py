"""Producer snapshots of a log: when they are taken, written, voided, and read in recovery.

Owns the producer state of one log through append, roll, truncation, trim and close, and its files
`<end offset>.producers` (Kafka: ProducerStateManager's snapshots). `KnownProducers` never waits:
files are written by objects (`SnapshotWrite`, `ProducersCut`) that a worker thread performs.

Invariants:
1. No snapshot exists, or waits to be written, of offsets that the log does not hold: those beyond a
   cut are removed before the log is cut.
2. Producers whose batches a trim removes are in a snapshot, unless the disk refuses to write it.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from raftmq.disk.checkpoint import TEMPORARY_SUFFIX, read_file, replace_file
from raftmq.errors import CorruptRecord, StorageError, without_frames
from raftmq.partition.producer_format import pack_snapshot, read_snapshot
from raftmq.partition.producers import Producers
from raftmq.partition.scheduling.lists import (
    FoundSchedule,
    KnownSchedule,
    SegmentBatches,
    find_lists,
    find_schedule,
    nothing_scheduled,
    remove_void_lists,
)
from raftmq.partition.storage.segment import BatchStart, walk
from raftmq.partition.transactions import ALL_READ
from raftmq.wire.batch.header import SCHEDULED_BIT, is_named
from raftmq.wire.batch.records import account_length, account_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from raftmq.disk.files import File, Files
    from raftmq.partition.producers import ProducerLimits, ProducersSnapshot, SavedProducers
    from raftmq.partition.storage.segment import FoundBatch, Segment
    from raftmq.wire.batch.header import Account, BatchHeader


logger = logging.getLogger("raftmq.partition")


# -- Producer files -------------------------------------------------------------------------------
# Snapshots of the producer state of a log: `<end offset, 20 digits>.producers`.
#
# Owns these files, and how the state is restored: from the newest sound snapshot and the headers of
# the batches behind it; of named producers also from a few bytes behind the header. Waits for the
# disk. A snapshot saves time, and keeps producers whose batches were trimmed; if it cannot be read
# or written, the log does without it.


_NAME = re.compile(r"[0-9]{20}\.producers")  # exactly: temporary and foreign files do not count


def snapshot_path(folder: Path, end_offset: int) -> Path:
    return folder / f"{end_offset:020d}.producers"


def list_snapshots(files: Files, folder: Path) -> list[int]:
    """End offsets of the existing snapshots, lowest first."""
    return [int(name[:20]) for name in files.names(folder) if _NAME.fullmatch(name)]


def load_snapshot(files: Files, folder: Path, end_offset: int) -> SavedProducers:
    """
    Raises:
        CorruptRecord: damaged, or gone.
        StorageError: the disk refused.
    """
    return read_snapshot(read_file(files, snapshot_path(folder, end_offset)) or b"", end_offset)


def remove_snapshots(files: Files, folder: Path, is_void: Callable[[int], bool]) -> int:
    """Returns how many were removed; durable once the folder is synced."""
    void = [offset for offset in list_snapshots(files, folder) if is_void(offset)]
    for offset in void:
        files.remove(snapshot_path(folder, offset))
    return len(void)


class PendingProducerSnapshot(NamedTuple):
    """A snapshot that waits to be written."""

    end_offset: int
    picture: ProducersSnapshot


@dataclass(slots=True)
class SnapshotWrite:
    """Snapshots of one log to write, and those that they replace.

    Attributes:
        is_durable: whether to sync them; without, a power cut may leave a torn, useless file.
        written, removed: end offsets of those for which it succeeded.
    """

    folder: Path
    snapshots: list[PendingProducerSnapshot]
    void: list[int]
    is_durable: bool = True
    written: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)

    def perform(self, files: Files) -> None:
        """Errors of the disk are only logged: nothing waits for a snapshot."""
        try:
            for snapshot in self.snapshots:
                self._write(files, snapshot)
                self.written.append(snapshot.end_offset)
            for offset in self.void:
                files.remove(snapshot_path(self.folder, offset))
                self.removed.append(offset)
        except StorageError as error:  # a full disk: the next opening walks more
            logger.warning("producers not written down: folder=%s reason=%s", self.folder, error)

    def _write(self, files: Files, snapshot: PendingProducerSnapshot) -> None:
        path = snapshot_path(self.folder, snapshot.end_offset)
        data = pack_snapshot(snapshot.end_offset, *snapshot.picture.saved())
        if self.is_durable:
            replace_file(files, path, data)
            return
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        file = files.open(temporary, create=True)
        file.truncate(0)
        file.write(0, [data])
        files.rename(temporary, path)


class FoundProducers(NamedTuple):
    """Attributes:
    snapshots: end offsets of the files that can be used, at the next opening or for a cut.
    beginning: of the walk; batches before it did not have to be read.
    unread: what the walk met that does not decode, with the offset: it may have rotted.
    event_segments: base offsets of the segments that have events of the schedule before the
        beginning of the walk.
    has_scheduled: the walk has met scheduled batches. What settles others follows them, so that
        their segment is an event segment, or they are deleted.
    """

    producers: Producers
    snapshots: list[int]
    beginning: int
    unread: list[CorruptRecord]
    event_segments: tuple[int, ...] = ()
    has_scheduled: bool = False


def find_producers(
    files: Files,
    folder: Path,
    segments: Sequence[Segment],
    limits: ProducerLimits | None = None,
    pictures: Sequence[PendingProducerSnapshot] = (),
) -> FoundProducers:
    """The producer state at the end of `segments`. `pictures`: snapshots that are not written yet.

    A snapshot below the first segment is not used: batches between the two were trimmed, and with
    an old sequence the state would answer wrongly (decision 0020). One that says of what the log
    still has that it could not be read is the last resort: it may have been put right since.

    Raises:
        StorageError: the disk refused to show the log.
    """
    first, end = segments[0].base_offset, segments[-1].end_offset
    snapshots = [offset for offset in list_snapshots(files, folder) if first <= offset <= end]
    waiting = {
        each.end_offset: each.picture for each in pictures if first <= each.end_offset <= end
    }
    last_resort: FoundProducers | None = None
    for offset in sorted({*snapshots, *waiting}, reverse=True):
        known = _known_at(files, folder, offset, waiting.get(offset))
        # No sound one: try the next older snapshot.
        if known is not None:
            producers, met = known.restored(limits), _Met()
            producers.transactions.on_log_start(first)
            says_all = producers.transactions.unread == ALL_READ
            if _note_from(files, segments, offset, producers, met):
                found = FoundProducers(
                    producers,
                    snapshots,
                    offset,
                    met.unread,
                    known.event_segments,
                    met.has_scheduled,
                )
                if says_all:
                    return found
                last_resort = last_resort or found
        snapshots = [each for each in snapshots if each != offset]
    producers, met = Producers(limits=limits), _Met()
    _note_from(files, segments, first, producers, met)
    if last_resort is not None and met.unread:
        return last_resort._replace(unread=met.unread)
    return FoundProducers(producers, snapshots, first, met.unread, (), met.has_scheduled)


@dataclass(slots=True)
class _Met:
    """What a walk has met; see `FoundProducers`."""

    unread: list[CorruptRecord] = field(default_factory=list)
    has_scheduled: bool = False


def _known_at(
    files: Files, folder: Path, offset: int, picture: ProducersSnapshot | None
) -> SavedProducers | None:
    if picture is not None:  # newer than any file, and needs no read
        return picture.saved()
    try:
        return load_snapshot(files, folder, offset)
    except (CorruptRecord, StorageError) as error:  # the caller takes an older one
        path = snapshot_path(folder, offset)
        logger.warning("snapshot of producers useless: path=%s reason=%s", path, error)
        return None


def _note_from(
    files: Files,
    segments: Sequence[Segment],
    offset: int,
    producers: Producers,
    met: _Met,
) -> bool:
    """Note all batches from `offset` on; False if none begins there. Errors go to `met`."""
    for segment in segments:
        if segment.end_offset <= offset:  # the snapshot covers the whole segment
            continue
        try:
            start = _start_in(segment, offset)
            if start.offset < offset:  # inside a batch: the snapshot does not fit this log
                return False
            file = files.open(segment.path)
            for found in walk(file, start, segment.size):
                offset = found.header.base_offset
                has_name = is_named(found.header.producer_id)
                if found.header.attributes & SCHEDULED_BIT:
                    met.has_scheduled = True
                producers.note(found.header, account=account_in(file, found) if has_name else None)
        except CorruptRecord as error:
            logger.warning("producers forgotten: segment=%s reason=%s", segment.path, error)
            if error.offset is None:  # inside of the batch at `offset`
                error.offset = offset
            producers.on_unread(error.offset, segment.end_offset)
            met.unread.append(without_frames(error))
        offset = segment.end_offset
    return True


def account_in(file: File, found: FoundBatch) -> Account | None:
    """Generation and digest in the batch, if it is of a named producer.

    Raises:
        CorruptRecord: a fence that is not sound.
    """
    length = account_length(found.header)
    return account_of(file.read(found.position, length), 0, found.header) if length else None


def _start_in(segment: Segment, offset: int) -> BatchStart:
    if offset <= segment.base_offset:
        return BatchStart(segment.base_offset, 0)
    return segment.start_of(offset)


# -- Known producers ------------------------------------------------------------------------------


def read_schedule(
    files: Files, folder: Path, segments: Sequence[Segment], found: FoundProducers
) -> FoundSchedule:
    """The schedule of the log, behind the producers; nothing is read where nothing was ever
    scheduled. Raises StorageError."""
    if not (found.event_segments or found.has_scheduled or find_lists(files, folder)):
        return nothing_scheduled(segments[-1].base_offset)
    batches = [_batches_of(files, segment) for segment in segments]
    return find_schedule(files, folder, batches, found.event_segments, found.beginning)


def _batches_of(files: Files, segment: Segment) -> SegmentBatches:
    def walked(offset: int) -> Iterator[tuple[int, BatchHeader]]:
        start = _start_in(segment, offset)
        if start.offset != offset:
            raise CorruptRecord(f"no batch begins at offset {offset}", offset=offset)
        return walk(files.open(segment.path), start, segment.size)

    base_offset, path = segment.base_offset, segment.path
    return SegmentBatches(base_offset, segment.end_offset, lambda: files.open(path), walked)


@dataclass(slots=True)
class ProducersCut:
    """Restores the producer state of a log that is cut, in a worker thread.

    Attributes:
        rereads_schedule: part of the schedule could not be read before.
    """

    folder: Path
    segments: list[Segment]
    end_offset: int
    limits: ProducerLimits
    waiting: list[PendingProducerSnapshot]
    rereads_schedule: bool = False
    found: FoundProducers | None = None
    schedule: FoundSchedule | None = None

    def forget(self, files: Files) -> None:
        """Remove snapshots beyond the cut, before anything else is cut (invariant 1); durable with
        the next sync of the folder."""
        remove_snapshots(files, self.folder, lambda offset: offset > self.end_offset)

    def perform(self, files: Files) -> None:
        """Read the state again, once the log is cut."""
        self.found = find_producers(files, self.folder, self.segments, self.limits, self.waiting)
        if self.rereads_schedule:
            self.schedule = read_schedule(files, self.folder, self.segments, self.found)


class KnownProducers:
    """`now`: the state at the log's end. `event_segments()`: as `FoundProducers` has them."""

    def __init__(
        self,
        folder: Path,
        found: FoundProducers,
        *,
        durable: Collection[int],
        event_segments: Callable[[], tuple[int, ...]] = tuple,
    ) -> None:
        self._folder, self.now, self._event_segments = folder, found.producers, event_segments
        # End offset of each existing snapshot, and whether it will survive a power cut.
        self._snapshots = {offset: offset in durable for offset in found.snapshots}
        self._waiting: list[PendingProducerSnapshot] = []
        self._cut: ProducersCut | None = None
        self._unread = found.unread

    def take_unread(self) -> list[CorruptRecord]:
        """What did not decode when the batches were last read, each with its offset; once."""
        unread, self._unread = self._unread, []
        return unread

    # -- snapshots -------------------------------------------------------------------------

    def take(self, end_offset: int) -> None:
        """Have a snapshot written at the log's end, unless a durable one exists there.

        None while batches could not be read: once they are repaired, an opening has to walk them.
        """
        if self.now.transactions.unread == ALL_READ:
            self._take(end_offset)

    def _take(self, end_offset: int) -> None:
        if not self._snapshots.get(end_offset):
            self._waiting = [each for each in self._waiting if each.end_offset != end_offset]
            picture = self.now.picture()._replace(event_segments=self._event_segments())
            self._waiting.append(PendingProducerSnapshot(end_offset, picture))

    def take_last(self, end_offset: int) -> None:
        """At shutdown: have one written that saves the next opening a walk."""
        if end_offset not in self._snapshots:  # nothing was appended since the last one
            self.take(end_offset)

    def cover(self, first_offset: int, end_offset: int) -> int:
        """Make sure of a snapshot from which an opening can start if the log, which ends at
        `end_offset` now, begins at `first_offset`. Returns its offset, up to which the log must be
        durable before it is trimmed: a snapshot beyond the log's end is void.
        """
        offsets = [each.end_offset for each in self._waiting]
        offsets += [offset for offset, is_durable in self._snapshots.items() if is_durable]
        covering = min((each for each in offsets if each >= first_offset), default=None)
        if covering is None:  # none survives the trim: write one
            self._take(covering := end_offset)
        return covering

    def begin_write(
        self, segments: Sequence[Segment], *, is_durable: bool = True
    ) -> SnapshotWrite | None:
        """The snapshots that are due; then `complete_write`. One at a time, and not while the log
        is cut.

        Existing ones are kept at the beginning of each segment, where the walk after a cut in that
        segment can start, and the newest.
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

    def begin_cut(
        self, segments: Sequence[Segment], end_offset: int, *, rereads_schedule: bool = False
    ) -> ProducersCut:
        """The log is cut there; then `end_cut`."""
        self._waiting = [each for each in self._waiting if each.end_offset <= end_offset]
        limits, waiting = self.now.limits, list(self._waiting)
        self._cut = ProducersCut(
            self._folder, list(segments), end_offset, limits, waiting, rereads_schedule
        )
        return self._cut

    def end_cut(self) -> FoundSchedule | None:
        """The cut has ended, or failed, and the log is offline. Returns the schedule, if it was
        read again."""
        schedule = None if self._cut is None else self._cut.schedule
        if self._cut is not None and self._cut.found is not None:  # else the cut failed
            self.now, found = self._cut.found.producers, self._cut.found.snapshots
            self._unread = self._cut.found.unread
            self._snapshots = {offset: self._snapshots.get(offset, False) for offset in found}
        self._cut = None
        return schedule

    def start_over(self) -> None:
        """The log is empty: no producer is known."""
        self.now = Producers(limits=self.now.limits)
        self._snapshots, self._waiting = {}, []


def recover_producers(
    files: Files, folder: Path, segments: Sequence[Segment], *, is_damaged: bool
) -> tuple[KnownProducers, KnownSchedule]:
    """The producer state of a log that is being opened, and its schedule. Waits for the disk.

    Unusable snapshots are removed before the log grows beyond their offsets (invariant 1); a
    damaged log keeps everything as it is.

    Raises:
        StorageError: the disk refused.
    """
    end = segments[-1].end_offset
    found = find_producers(files, folder, segments)
    scheduled = KnownSchedule(folder, read_schedule(files, folder, segments, found))
    if not is_damaged:
        remove_void_lists(files, folder, {one.base_offset: one.end_offset for one in segments})
    sound = frozenset(found.snapshots)
    if not is_damaged and remove_snapshots(files, folder, lambda offset: offset not in sound):
        files.sync_directory(folder)
    # Only snapshots at a roll were synced; the one of the last shutdown may not be durable.
    bases = {segment.base_offset for segment in segments}
    known = KnownProducers(folder, found, durable=bases, event_segments=scheduled.event_segments)
    if found.beginning < segments[-1].base_offset:
        known.take(end)  # the walk covered more than one segment: spare the next opening that
    return known, scheduled
