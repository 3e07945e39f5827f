"""Files without fsync for test clusters: data stays in the page cache.

They survive the kill of a node, as all files do, but no power cut; neither does the directory of a
test, which is removed in any case. All else is as on a disk that never fails.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from raftmq.disk.files import OsFile, OsFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from raftmq.disk.files import File


class UnsyncedFile(OsFile):
    """A file that the kernel writes back when it likes."""

    def sync(self) -> None:
        pass

    def write_back(self, position: int, length: int) -> None:
        pass


class UnsyncedFiles(OsFiles):
    """The files of this machine, without any fsync."""

    def open(self, path: Path, *, create: bool = False) -> File:
        found = super().open(path, create=create)  # it closes when the name goes
        return UnsyncedFile(path, os.dup(found.fileno()))

    def sync_directory(self, path: Path) -> None:
        pass

    def begin_sync(self, files: Sequence[File]) -> None:
        pass

    def sync_file_system(self, path: Path) -> None:
        pass
