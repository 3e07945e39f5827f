"""The high watermarks of this broker's logs on disk, for the next start.

Owns the file `checkpoints/high-watermarks`. A lower one than the true one is harmless: it rises
again with the first answer of the leader, or of the followers. A log cannot start below what
was committed once, so it matters only for what may be read in the meantime.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from raftmq.disk.checkpoint import read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.partition.storage.flusher import RunSync


class HighWatermarks:
    """By the names of logs."""

    def __init__(self, files: Files, root: Path, run_sync: RunSync) -> None:
        self._files, self._path, self._run_sync = (
            files,
            root / "checkpoints/high-watermarks",
            run_sync,
        )
        self._known: dict[str, int] = {}
        self._written: dict[str, int] = {}

    async def load(self) -> None:
        """Once, before anything is asked."""
        known = await self._run_sync(lambda: read_checkpoint(self._files, self._path))
        self._known, self._written = known or {}, known or {}

    def of(self, name: str) -> int:
        """0 where nothing is known."""
        return self._known.get(name, 0)

    def keep(self, names: Iterable[str]) -> None:
        """Of these logs; there are no others."""
        self._known = {name: self._known[name] for name in names if name in self._known}

    def forget(self, name: str) -> None:
        """The log is deleted."""
        self._known.pop(name, None)

    async def write(self, high_watermarks: Mapping[str, int]) -> None:
        """Raises StorageError."""
        self._known = {**self._known, **high_watermarks}
        known = dict(self._known)
        if known != self._written:
            await self._run_sync(partial(write_checkpoint, self._files, self._path, known))
            self._written = known
