"""What a data directory remembers of how its logs were left.

    checkpoints/recovery-points   every offset below is durable
    checkpoints/boots             under which boot of the machine the log was last opened
    clean-shutdown                where each log ended that was closed in order; gone while in use

Owns these three files. Its `write_*` methods wait for the disk.

Invariants: a recovery point rises with what is durable and is lowered only for a truncation, before
that is performed; nothing is remembered in memory that was not on disk first, except a lowered
point, which no later write may raise again. Of a log that is deleted nothing is remembered, from
before its folder goes: else it would be missed like one that was removed by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

from raftmq.disk.checkpoint import read_checkpoint, write_checkpoint
from raftmq.partition.storage.recovery import Past

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from raftmq.disk.files import Files

CHECKPOINTS_FOLDER = "checkpoints"
CLEAN_MARK = "clean-shutdown"


class KnownPast:
    """Logs are named `<topic folder>/Partition-<n>`."""

    def __init__(self, files: Files, root: Path) -> None:
        self._files, self._root = files, root
        folder = root / CHECKPOINTS_FOLDER
        self._points_path, self._boots_path = folder / "recovery-points", folder / "boots"
        self._clean_path = root / CLEAN_MARK
        files.make_directory(folder)
        self._boot = crc32c(files.boot_id().encode())
        self.points = read_checkpoint(files, self._points_path) or {}
        self._boots = read_checkpoint(files, self._boots_path) or {}
        self._clean_ends = read_checkpoint(files, self._clean_path) or {}

    def forget_clean_mark(self) -> None:
        """Must be durable before any log takes its first byte."""
        if self._files.exists(self._clean_path):
            self._files.remove(self._clean_path)
            self._files.sync_directory(self._root)

    def of(self, name: str) -> Past:
        point = self.points.get(name)
        return Past(
            recovery_point=point or 0,
            was_clean=point is not None and self._clean_ends.get(name) == point,
            # Without a recovery point nothing may be taken for unsynced but the very end.
            page_cache_survived=point is None or self._boots.get(name) == self._boot,
        )

    def write_opened(self, names: Iterable[str]) -> None:
        """These logs are checked: until the machine restarts, the page cache keeps them whole."""
        boots = self._boots | dict.fromkeys(names, self._boot)
        if boots != self._boots:
            write_checkpoint(self._files, self._boots_path, boots)
            self._boots = boots

    def write_points(self, risen: Mapping[str, int]) -> None:
        """Remember what has become durable; a point that is higher already stays."""
        points = self.points | {
            name: point for name, point in risen.items() if point >= self.points.get(name, 0)
        }
        if points != self.points:
            write_checkpoint(self._files, self._points_path, points)
            self.points = points

    def lower(self, name: str, end_offset: int) -> None:
        """A log will be cut at `end_offset`; `write_lowered` must come before the cut."""
        self.points = self.points | {name: min(self.points.get(name, 0), end_offset)}

    def forget(self, name: str) -> None:
        """A log will be deleted, and may begin anew one day; `write_lowered` must come before.

        Under which boot it was opened says nothing without a point: that goes with the next write.
        """
        for known in (self.points, self._boots, self._clean_ends):
            known.pop(name, None)

    def forget_missing(self, folders: Iterable[tuple[str, str]]) -> None:
        """Whatever is not among the folders, those of topics and partitions that are there.

        A log that held something durable, and whose folder is missing, was removed by hand: that
        is remembered until it is made good, or its topic is deleted.
        """
        kept = {f"{topic}/{partition}" for topic, partition in folders}
        kept |= {name for name, point in self.points.items() if point}
        self._clean_ends = _of(kept, self._clean_ends)
        points, boots = _of(kept, self.points), _of(kept, self._boots)
        if boots != self._boots:
            write_checkpoint(self._files, self._boots_path, boots)
            self._boots = boots
        if points != self.points:
            write_checkpoint(self._files, self._points_path, points)
            self.points = points

    def write_lowered(self) -> None:
        write_checkpoint(self._files, self._points_path, self.points)

    def write_clean(self, ends: Mapping[str, int], opened: Iterable[str]) -> None:
        """Logs that were not opened are still as they were when last closed."""
        untouched = {name: end for name, end in self._clean_ends.items() if name not in set(opened)}
        write_checkpoint(self._files, self._clean_path, {**untouched, **ends})


def _of(names: set[str], known: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in known.items() if name in names}
