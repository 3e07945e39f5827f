"""The disk as the command line sees it: for reading only.

Owns the promise that no command that reads a log can change it: descriptors are opened read-only
by the kernel, so a read-only mount or somebody else's folder is enough to work on.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from raftmq.errors import StorageError
from raftmq.partition.storage.files import OsFile, OsFiles

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.partition.storage.files import File

# Without O_NONBLOCK, opening a named pipe in place of a file would wait for ever.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class ReadOnlyFiles(OsFiles):
    """Files that exist already; `create` is not honoured."""

    def open(self, path: Path, *, create: bool = False) -> File:
        try:
            return OsFile(path, os.open(path, _FLAGS))
        except OSError as error:
            raise StorageError(f"open {path}: {error.strerror}") from error
