"""Places in a stopped node's logs where damage must be detected and repaired.

Reads only. Avoids damage that is not promised to be survived (docs/GUARANTEES.md):

* the last batch of a log: wrong, it looks like a write that was torn, and is cut;
* the end of a log above its recovery point: what is missing there looks like a crash;
* the bytes of a batch that no checksum covers; `log-start-offset`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.nemesis.wounds import Place
from raftmq.disk.files import OsFiles
from raftmq.errors import CorruptRecord
from raftmq.partition.storage.entries import EPOCH_FILE
from raftmq.partition.storage.inspect import (
    CHECKPOINTS,
    CHECKPOINTS_FOLDER,
    find_partition_folders,
    list_indexes,
    list_segments,
    read_recovery_point,
)
from raftmq.partition.storage.known_producers import list_snapshots, snapshot_path
from raftmq.partition.storage.segment import BatchStart, walk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The leader epoch of a batch: the only field that neither the CRC nor its neighbours check.
UNCHECKED_BYTES = range(12, 16)
_SUFFIXES = {"index": ".index", "time index": ".timeindex", "aborted index": ".aborted"}
_CUT_BYTES_MAX = 64 << 10  # some batches, but not the whole of a small segment


class BatchPlace(NamedTuple):
    """A whole batch in a segment. `is_last`: of its log."""

    place: Place
    base_offset: int
    end_offset: int
    recovery_point: int
    is_last: bool


def partition_folders(root: Path) -> list[Path]:
    return find_partition_folders(OsFiles(), root)


def batches_of(folder: Path) -> list[BatchPlace]:
    """All of a log, from the front to the first that is not whole."""
    point = read_recovery_point(OsFiles(), folder) or 0
    found = list(_walk(folder))
    return [
        BatchPlace(place, base, end, point, is_last=number == len(found))
        for number, (place, base, end) in enumerate(found, 1)
    ]


def _walk(folder: Path) -> Iterator[tuple[Place, int, int]]:
    files = OsFiles()
    offset: int | None = None
    for path, base_offset, size in list_segments(files, folder):
        if offset not in (None, base_offset):
            return
        offset = base_offset
        with suppress(CorruptRecord):  # where a write was torn
            for position, header in walk(files.open(path), BatchStart(base_offset, 0), size):
                offset = header.end_offset
                yield Place(path, position, position + header.size), header.base_offset, offset


def flippable(folder: Path) -> list[BatchPlace]:
    """Batches below the recovery point, with sound ones behind them: recovery does not read them
    again, except the last few.
    """
    return [
        batch
        for batch in batches_of(folder)
        if not batch.is_last and batch.end_offset <= batch.recovery_point
    ]


def shortened(folder: Path) -> Place | None:
    """The range in which a log may be cut: it ends below its recovery point then, in the segment
    where recovery begins to read. None: there is none."""
    point = read_recovery_point(OsFiles(), folder) or 0
    segments = list_segments(OsFiles(), folder)
    begun = [segment for segment in segments if segment.base_offset <= point]
    if not begun or begun[-1].base_offset == point:
        return None
    path = begun[-1].path
    durable = [
        batch.place
        for batch in batches_of(folder)
        if batch.place.path == path and batch.end_offset <= point
    ]
    if not durable:
        return None
    end = durable[-1].end
    return Place(path, max(0, end - _CUT_BYTES_MAX), end)


def small_files(root: Path, what: str) -> list[Path]:
    """Indexes, snapshots, checkpoints, none of them empty: all can be had from the records."""
    files, folders = OsFiles(), partition_folders(root)
    if what == "checkpoint":
        found = [root / CHECKPOINTS_FOLDER / name for name in CHECKPOINTS]
    elif what == "leader epochs":
        found = [folder / EPOCH_FILE for folder in folders]
    elif what == "producers":
        found = [
            snapshot_path(folder, end_offset)
            for folder in folders
            for end_offset in list_snapshots(files, folder)
        ]
    else:
        indexes = [path for folder in folders for path in list_indexes(files, folder)]
        found = [path for path in indexes if path.suffix == _SUFFIXES[what]]
    return [path for path in found if path.exists() and path.stat().st_size]
