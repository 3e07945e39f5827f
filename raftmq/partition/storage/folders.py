"""The folders of a data directory's logs: which there are, and that their names survive.

Owns the walk through topics and partitions. Opens no log; waits for the disk.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from raftmq.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from raftmq.disk.files import Files

TOPICS_FOLDER = "topics"


def find_folders(
    files: Files, root: Path, recovery_points: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Of topics and partitions, whoever may know them: on the disk, or known to have held records
    that were durable.
    """
    topics = root / TOPICS_FOLDER
    there = {
        (topic, partition)
        for topic in files.names(topics)
        for partition in files.names(topics / topic)
    }
    held = (name.partition("/") for name, point in recovery_points.items() if point)
    return sorted(there | {(topic, partition) for topic, _, partition in held})


def sync_names(files: Files, root: Path, folders: Iterable[Path]) -> None:
    """Whoever made these folders of partitions may have died before the names were durable."""
    topics = sorted({folder.parent for folder in folders})
    if not topics:
        return
    for folder in [*topics, root / TOPICS_FOLDER, root]:
        files.sync_directory(folder)
    with suppress(StorageError):  # may belong to somebody else
        files.sync_directory(root.parent)
