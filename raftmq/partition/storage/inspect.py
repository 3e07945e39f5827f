"""Read-only inspection of partition folders: lists files, walks batches past damaged bytes.

Owns finding partition folders, listing their files, and a walk over batches that gets past damage.
Never writes, cuts, repairs or creates anything. A broker may be using the folder at the same time,
so sizes are taken once, and what is appended later is ignored. Judges nothing: that is `verify`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from raftmq.disk.checkpoint import read_checkpoint
from raftmq.errors import CorruptRecord, StorageError
from raftmq.partition.epochs import UNDEFINED_EPOCH
from raftmq.partition.storage.entries import ENTRY_SIZE, DamagedEntries, EntryFile, IndexEntry
from raftmq.partition.storage.segment import BatchStart, FoundBatch, Segment, find_sound_batch, scan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from raftmq.disk.files import File, Files

TOPICS_FOLDER = "topics"
CHECKPOINTS_FOLDER = "checkpoints"
RECOVERY_POINTS = "recovery-points"
CHECKPOINTS = (RECOVERY_POINTS, "boots")

_SEGMENT_NAME = re.compile(r"[0-9]{20}\.log")
_INDEX_NAME = re.compile(r"[0-9]{20}\.(index|timeindex|aborted|scheduled)")
_PARTITION_NAME = re.compile(r"Partition-([0-9]+)")


class SegmentFile(NamedTuple):
    """`size`: bytes when it was listed."""

    path: Path
    base_offset: int
    size: int


class BadBytes(NamedTuple):
    """Bytes [position, end) hold no batch that could follow the one before.

    Attributes:
        end: where a sound batch follows, or the end of the file. Equal to `position` if a batch
            is sound in itself, but not in its place: that batch comes next.
        offset: the offset that was expected there.
    """

    position: int
    end: int
    offset: int
    what: str
    sound_follows: bool


class EntriesFound(NamedTuple):
    """A file of entries: None in place of each damaged one; bytes of a torn last one."""

    entries: list[IndexEntry | None]
    torn_bytes: int


# -- folders -----------------------------------------------------------------------------------


def find_partition_folders(files: Files, path: Path) -> list[Path]:
    """`path` itself, or the partition folders of the topic folder or data directory `path`."""
    if _PARTITION_NAME.fullmatch(path.resolve().name) or list_segments(files, path):
        return [path]
    topics = [path, *_folders(files, path), *_folders(files, path / TOPICS_FOLDER)]
    return [folder for topic in topics for folder in _partitions(files, topic)]


def _folders(files: Files, path: Path) -> list[Path]:
    return [path / name for name in files.names(path) if (path / name).is_dir()]


def _partitions(files: Files, topic: Path) -> list[Path]:
    numbered = [
        (int(match[1]), folder)
        for folder in _folders(files, topic)
        if (match := _PARTITION_NAME.fullmatch(folder.name))
    ]
    return [folder for _, folder in sorted(numbered)]


def data_directory_of(folder: Path) -> Path | None:
    """The data directory that a partition folder lies in; None for a copy elsewhere."""
    parents = folder.resolve().parents
    return parents[2] if len(parents) > 2 and parents[1].name == TOPICS_FOLDER else None


def read_recovery_point(files: Files, folder: Path) -> int | None:
    """Every offset below it was durable once; None if no checkpoint has it."""
    root = data_directory_of(folder)
    if root is None:  # a copy of the folder, outside of a data directory
        return None
    points = read_small_file(files, root / CHECKPOINTS_FOLDER / RECOVERY_POINTS)
    where = folder.resolve()
    return (points or {}).get(f"{where.parent.name}/{where.name}")


def read_small_file(files: Files, path: Path) -> dict[str, int] | None:
    """A checkpoint; None if it is missing or damaged in any way."""
    try:
        return read_checkpoint(files, path)
    except ValueError:  # sound by its CRC, and still no numbers
        return None


# -- files -------------------------------------------------------------------------------------


def list_segments(files: Files, folder: Path) -> list[SegmentFile]:
    """In the order of their offsets."""
    found = []
    for path in [folder / name for name in files.names(folder) if _SEGMENT_NAME.fullmatch(name)]:
        try:
            found.append(SegmentFile(path, int(path.stem), files.size(path)))
        except StorageError:
            if files.exists(path):  # else the broker's retention has removed it just now
                raise
    return found


def list_indexes(files: Files, folder: Path) -> list[Path]:
    return [folder / name for name in files.names(folder) if _INDEX_NAME.fullmatch(name)]


def read_entries(files: Files, path: Path) -> EntriesFound:
    """Every entry of an index or of the epoch file, which must exist."""
    reader = EntryFile(files, path)
    entries = [_entry_at(reader, index) for index in range(reader.count)]
    return EntriesFound(entries, files.size(path) % ENTRY_SIZE)


def _entry_at(reader: EntryFile, index: int) -> IndexEntry | None:
    try:
        return reader.at(index)
    except DamagedEntries:
        return None


def start_near(files: Files, segment: SegmentFile, offset: int) -> BatchStart:
    """The batch that holds `offset`, by the index; the segment's beginning if that is damaged."""
    beginning = BatchStart(segment.base_offset, 0)
    if offset <= segment.base_offset:
        return beginning
    try:
        found = Segment.load(files, segment.path, index_interval_bytes=0).locate(offset)
    except CorruptRecord:
        return beginning
    return BatchStart(found.header.base_offset, found.position)


# -- batches -----------------------------------------------------------------------------------


def inspect_batches(
    file: File, start: BatchStart, end: int, leader_epoch: int = UNDEFINED_EPOCH
) -> Iterator[FoundBatch | BadBytes]:
    """Every batch from `start` up to byte `end`, checked by its CRC, and the bad bytes in between.

    After bad bytes it continues with the first sound batch behind them. `leader_epoch` is that of
    the batch before.
    """
    while start.position < end:
        try:
            for found in scan(file, start, end, leader_epoch):
                start, leader_epoch = _end_of(found), found.header.leader_epoch
                yield found
        except CorruptRecord as error:
            sound = find_sound_batch(file, start.position, end, start.offset)
            until = end if sound is None else sound.position
            yield BadBytes(start.position, until, start.offset, error.what, sound is not None)
            if sound is None:  # the rest of the file has no sound batch
                return
            # Also if it is lower: then only this batch is reported, not all that follow it.
            leader_epoch = sound.header.leader_epoch
            # Damage in between; else the batch itself is out of its place.
            if sound.position > start.position:
                start = BatchStart(sound.header.base_offset, sound.position)
            else:
                yield sound
                start = _after_misplaced(file, sound, start.offset, end)


def _end_of(found: FoundBatch) -> BatchStart:
    return BatchStart(found.header.end_offset, found.position + found.header.size)


def _after_misplaced(file: File, sound: FoundBatch, expected: int, end: int) -> BatchStart:
    """Where to continue behind a batch that is out of its place: with the offset of the sound
    batch right behind it, if there is one, as that may be out of place by as much."""
    position = _end_of(sound).position
    following = find_sound_batch(file, position, end, expected)
    if following is None or following.position > position:
        return BatchStart(expected, position)
    return BatchStart(following.header.base_offset, position)
