"""Opening a data directory on a simulated disk, under a MockClock, for tests of it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import trio

from raftmq.partition.storage.directory import open_log_directory
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import PartitionLog
    from tests.simulation.disk import SimulatedFiles

T = TypeVar("T")
ROOT = Path("/data")


class Disk:
    """Runs what waits for the disk inline, after `seconds` of virtual time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0

    async def __call__(self, function: Callable[[], T], /) -> T:
        self.calls += 1
        await trio.sleep(self.seconds)
        return function()


@asynccontextmanager
async def opened(files: SimulatedFiles, disk: Disk | None = None) -> AsyncIterator[LogDirectory]:
    async with open_log_directory(
        ROOT, files=files, run_sync=disk or Disk(), now_ms=lambda: NOW_MS
    ) as directory:
        yield directory


def retirable(log: PartitionLog) -> PartitionLog:
    """All of it, as if it were led here and committed."""
    log.retirable_end = lambda: log.log_end_offset
    return log


def synced(files: SimulatedFiles, suffix: str) -> int:
    """How many times a file with this suffix was synced."""
    return sum(" sync " in line and line.endswith(suffix) for line in files.trace)
