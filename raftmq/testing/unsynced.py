"""Files that stay in the page cache: whatever would wait for the disk returns at once.

They outlive a node that is killed, as every file does, and no power cut: nor does the directory of
a test, which is removed in any case. All else is as on a disk that never fails.
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
    """Written when the kernel likes."""

    def sync(self) -> None:
        pass


class UnsyncedFiles(OsFiles):
    """The Files of this machine, in a hurry."""

    def open(self, path: Path, *, create: bool = False) -> File:
        found = super().open(path, create=create)  # it closes when the name goes
        return UnsyncedFile(path, os.dup(found.fileno()))

    def sync_directory(self, path: Path) -> None:
        pass

    def begin_sync(self, files: Sequence[File]) -> None:
        pass

    def sync_file_system(self, path: Path) -> None:
        pass
