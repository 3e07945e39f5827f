"""Planted bugs below the logs: forgotten syncs, CRCs that are not checked.

Each is a function that patches the code through a `Patch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jepsen_like.nodes.controlled_files import ControlledFile, ControlledFiles
from raftmq.partition.storage import segment
from raftmq.partition.storage.inspect import TOPICS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from jepsen_like.planted.patch import Patch
    from raftmq.disk.files import File


def no_fsync(patch: Patch) -> None:
    """Logs of partitions are acknowledged from the page cache; the quorum is as ever."""
    sync = ControlledFile.sync

    def sync_others(file: ControlledFile) -> None:
        if TOPICS_FOLDER not in file.path.parts:
            sync(file)

    def sync_no_file_system(_: ControlledFiles, path: Path) -> None:
        """Say that it is done."""

    def begin_nothing(_: ControlledFiles, files: Sequence[File]) -> None:
        """Not even that."""

    patch.setattr(ControlledFile, "sync", sync_others)
    patch.setattr(ControlledFiles, "sync_file_system", sync_no_file_system)
    patch.setattr(ControlledFiles, "begin_sync", begin_nothing)


def damage_is_not_looked_for(patch: Patch) -> None:
    """What lies on the disk is what was written there."""
    patch.setattr(segment, "check_batch", lambda *_, **__: None)
