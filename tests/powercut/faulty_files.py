"""Files of this machine with one thing changed: what boot id they tell, or what they forget.

`RebootedFiles` counts power cuts as restarts of the machine, because after the ioctl the page
cache is lost but the kernel's boot id stays. `ForgetfulFiles` is a planted bug.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from raftmq.disk.files import OsFile, OsFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from raftmq.disk.files import File


class RebootedFiles(OsFiles):
    def __init__(self, power_cuts: int) -> None:
        super().__init__()
        self._power_cuts = power_cuts

    def boot_id(self) -> str:
        return f"after {self._power_cuts} power cuts"


class ForgetfulFile(OsFile):
    def sync(self) -> None:
        """Say that it is done."""

    def write_back(self, position: int, length: int) -> None:
        """Not even that."""


class ForgetfulFiles(RebootedFiles):
    """The bug that the power cuts must find: no file is ever synced."""

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        file = super().open(path, create=create)
        return ForgetfulFile(path, os.dup(file.fileno()))

    def begin_sync(self, files: Sequence[File]) -> None:
        """Not even that."""

    def sync_file_system(self, path: Path) -> None:
        """Say that it is done."""
