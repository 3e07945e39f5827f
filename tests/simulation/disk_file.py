"""One open file of the simulated disk.

Owns the way from a call of `File` to a change of a FileState; counting, crashing and failing
is the disk's. Keeps its bytes when its name is removed, as a descriptor does.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from raftmq.disk.files import WouldBlock
from tests.simulation.disk_faults import translated
from tests.simulation.disk_state import Truncate, Write

if TYPE_CHECKING:
    from collections.abc import Container, Sequence
    from pathlib import Path

    from raftmq.wire.batch.header import Buffer
    from tests.simulation.disk import SimulatedFiles
    from tests.simulation.disk_state import FileState


class SimulatedFile:
    """A File of SimulatedFiles."""

    def __init__(self, disk: SimulatedFiles, path: Path, state: FileState) -> None:
        self.path, self._disk, self._state = path, disk, state

    def is_any_of(self, states: Container[int]) -> bool:
        """Whether its bytes are among those with these ids."""
        return id(self._state) in states

    def size(self) -> int:
        self._disk.check_alive()
        return len(self._state.cached)

    def read(self, position: int, length: int) -> bytes:
        self._disk.check_alive()
        with translated("read", self.path):
            self._disk.maybe_fail("read", self.path)
        return bytes(memoryview(self._state.cached)[position : position + length])

    def read_now(self, position: int, length: int) -> bytes:
        if self._disk.cold:
            raise WouldBlock
        return self.read(position, length)

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        if not data:
            return
        middle = self._disk.random.randrange(len(data)) if self._disk.interrupt else len(data) // 2
        first, second = Write(position, data[:middle]), Write(position + middle, data[middle:])
        self._disk.perform(
            "write",
            self.path,
            lambda: self._state.change(first),
            lambda: self._state.change(second),
            broken=lambda: self._state.change(first),
            detail=f" {position}+{len(data)}",
        )

    def truncate(self, length: int) -> None:
        change = Truncate(length)
        detail = f" to {length}"
        self._disk.perform("truncate", self.path, lambda: self._state.change(change), detail=detail)

    def sync(self) -> None:
        self._maybe_report("sync")
        self._disk.perform("sync", self.path, self._state.sync, broken=self._state.lose_dirty)

    def write_back(self, position: int, length: int) -> None:
        """What of it survives a crash is drawn when one comes, as for all that is not synced."""
        self._maybe_report("write_back")
        self._disk.perform(
            "write_back",
            self.path,
            broken=self._state.lose_dirty,
            detail=f" {position}+{length}",
        )

    def _maybe_report(self, operation: str) -> None:
        """A failure that nobody has heard of is told by the next one that asks, once."""
        if self._state.owes_error:
            self._state.owes_error = False
            self._disk.fail(operation, str(self.path))

    def evict(self) -> None:
        self._disk.check_alive()
        self._state.evict()

    def fileno(self) -> int:
        raise io.UnsupportedOperation("a simulated file has no descriptor")
