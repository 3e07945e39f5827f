"""Files whose syncs obey the control page: late, failing, or killing the process.

Owns what happens before a sync, of any kind and for any file: logs, the quorum's journal,
checkpoints, directories. Writes, and a disk that is full, are the kernel's own.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from threading import Lock
from typing import TYPE_CHECKING

from raftmq.disk.files import OsFile, OsFiles
from raftmq.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

    from jepsen_like.nodes.control_page import ControlPage


class Syncs:
    """Stands before every sync of one process."""

    def __init__(self, page: ControlPage) -> None:
        self._page, self._lock = page, Lock()

    def begin(self, operation: str, path: Path) -> None:
        """Raises StorageError, as a disk does that has failed."""
        with self._lock:
            is_last = self._page.count_sync()
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._page.sync_delay_seconds:
            time.sleep(self._page.sync_delay_seconds)
        if self._page.fail_syncs:
            error = OSError(errno.EIO, os.strerror(errno.EIO))
            raise StorageError(f"{operation} {path}: {error.strerror}") from error


class ControlledFile(OsFile):
    def __init__(self, path: Path, descriptor: int, syncs: Syncs) -> None:
        super().__init__(path, descriptor)
        self._syncs = syncs

    def sync(self) -> None:
        self._syncs.begin("fdatasync", self.path)
        super().sync()


class ControlledFiles(OsFiles):
    """Its boot id counts power cuts: the kernel's does not change with them."""

    def __init__(self, page: ControlPage) -> None:
        super().__init__()
        self._page, self._syncs = page, Syncs(page)

    def open(self, path: Path, *, create: bool = False) -> ControlledFile:
        found = super().open(path, create=create)  # it closes when the name goes
        return ControlledFile(path, os.dup(found.fileno()), self._syncs)

    def sync_directory(self, path: Path) -> None:
        self._syncs.begin("fsync", path)
        super().sync_directory(path)

    def sync_file_system(self, path: Path) -> None:
        self._syncs.begin("syncfs", path)
        super().sync_file_system(path)

    def boot_id(self) -> str:
        return f"after {self._page.power_cuts} power cuts"
