"""Snapshots of what a log knew of its producers: `<end offset, 20 digits>.producers`.

Owns these files, and how the state is had again: from the newest sound snapshot, and the headers of
the batches behind it; of named producers also from a few bytes behind those. Waits for the disk. A
snapshot saves time, and keeps producers whose batches were trimmed; one that cannot be read or
written is done without.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from raftmq.disk.checkpoint import TEMPORARY_SUFFIX, read_file, replace_file
from raftmq.errors import CorruptRecord, StorageError
from raftmq.partition.producer_format import pack_snapshot, read_snapshot
from raftmq.partition.producers import Producers
from raftmq.partition.storage.segment_index import BatchStart
from raftmq.partition.storage.walk import walk
from raftmq.wire.accounts import account_length, account_of
from raftmq.wire.named import is_named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from raftmq.disk.files import File, Files
    from raftmq.partition.producers import Picture, ProducerLimits, Remembered
    from raftmq.partition.storage.segment import Segment
    from raftmq.partition.storage.walk import FoundBatch
    from raftmq.wire.named import Account

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[0-9]{20}\.producers")


def snapshot_path(folder: Path, end_offset: int) -> Path:
    return folder / f"{end_offset:020d}.producers"


def list_snapshots(files: Files, folder: Path) -> list[int]:
    """End offsets of those that there are, lowest first."""
    return [int(name[:20]) for name in files.names(folder) if _NAME.fullmatch(name)]


def load_snapshot(files: Files, folder: Path, end_offset: int) -> list[Remembered]:
    """
    Raises:
        CorruptRecord: damaged, or gone.
        StorageError: the disk refused.
    """
    return read_snapshot(read_file(files, snapshot_path(folder, end_offset)) or b"", end_offset)


def remove_snapshots(files: Files, folder: Path, is_void: Callable[[int], bool]) -> int:
    """Returns how many; durable once the folder is synced."""
    void = [offset for offset in list_snapshots(files, folder) if is_void(offset)]
    for offset in void:
        files.remove(snapshot_path(folder, offset))
    return len(void)


class Snapshot(NamedTuple):
    """To be written."""

    end_offset: int
    picture: Picture


@dataclass(slots=True)
class SnapshotWrite:
    """Snapshots of one log to write, and files that nobody needs once they are there.

    Attributes:
        is_durable: one that is not saves time at the next opening, or is found torn and useless.
        written, removed: end offsets of those for which it was done.
    """

    folder: Path
    snapshots: list[Snapshot]
    void: list[int]
    is_durable: bool = True
    written: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)

    def perform(self, files: Files) -> None:
        """A disk that refuses leaves things as they were: nobody waits for this."""
        try:
            for snapshot in self.snapshots:
                self._write(files, snapshot)
                self.written.append(snapshot.end_offset)
            for offset in self.void:
                files.remove(snapshot_path(self.folder, offset))
                self.removed.append(offset)
        except StorageError as error:
            logger.warning("producers not written down: folder=%s reason=%s", self.folder, error)

    def _write(self, files: Files, snapshot: Snapshot) -> None:
        path = snapshot_path(self.folder, snapshot.end_offset)
        data = pack_snapshot(snapshot.end_offset, snapshot.picture.remembered())
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
    snapshots: end offsets of the files that may be of use, at the next opening or for a cut.
    beginning: of the walk that led here; batches before it did not have to be looked at.
    """

    producers: Producers
    snapshots: list[int]
    beginning: int


def find_producers(
    files: Files,
    folder: Path,
    segments: Sequence[Segment],
    limits: ProducerLimits | None = None,
    pictures: Sequence[Snapshot] = (),
) -> FoundProducers:
    """What `segments` say of their producers. `pictures`: snapshots that are not written yet.

    A snapshot below the first segment lacks what was trimmed, and would lead to wrong answers.

    Raises:
        StorageError: the disk refused to show the log.
    """
    first, end = segments[0].base_offset, segments[-1].end_offset
    snapshots = [offset for offset in list_snapshots(files, folder) if first <= offset <= end]
    waiting = {
        each.end_offset: each.picture for each in pictures if first <= each.end_offset <= end
    }
    for offset in sorted({*snapshots, *waiting}, reverse=True):
        known = _known_at(files, folder, offset, waiting.get(offset))
        producers = None if known is None else Producers(known, limits)
        if producers is not None and _note_from(files, segments, offset, producers):
            return FoundProducers(producers, snapshots, offset)
        snapshots = [each for each in snapshots if each != offset]
    producers = Producers(limits=limits)
    _note_from(files, segments, first, producers)
    return FoundProducers(producers, snapshots, first)


def _known_at(
    files: Files, folder: Path, offset: int, picture: Picture | None
) -> list[Remembered] | None:
    if picture is not None:
        return picture.remembered()
    try:
        return load_snapshot(files, folder, offset)
    except (CorruptRecord, StorageError) as error:
        path = snapshot_path(folder, offset)
        logger.warning("snapshot of producers useless: path=%s reason=%s", path, error)
        return None


def _note_from(
    files: Files, segments: Sequence[Segment], offset: int, producers: Producers
) -> bool:
    """Note all batches from `offset` on; False if none begins there.

    Behind a place that cannot be read nothing is known: a producer whose sequence may have gone on
    there would be told that what stands in the log comes next.
    """
    for segment in segments:
        if segment.end_offset <= offset:
            continue
        try:
            start = _start_in(segment, offset)
            if start.offset < offset:
                return False
            file = files.open(segment.path)
            for found in walk(file, start, segment.size):
                is_said = is_named(found.header.producer_id)
                producers.note(found.header, account=account_in(file, found) if is_said else None)
        except CorruptRecord as error:
            logger.warning("producers forgotten: segment=%s reason=%s", segment.path, error)
            producers.forget_all()
        offset = segment.end_offset
    return True


def account_in(file: File, found: FoundBatch) -> Account | None:
    """What the batch says if it is a named producer's.

    Raises:
        CorruptRecord: a fence that is not sound.
    """
    length = account_length(found.header)
    return account_of(file.read(found.position, length), 0, found.header) if length else None


def _start_in(segment: Segment, offset: int) -> BatchStart:
    if offset <= segment.base_offset:
        return BatchStart(segment.base_offset, 0)
    return segment.start_of(offset)
