"""Opening a data directory: what runs as long as it is open, and where its disk is waited for.

Owns the life of a `LogDirectory`: its upkeep, its threads, and the order in which it ends.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TypeVar

import trio

from raftmq.disk.files import OsFiles, allow_many_files
from raftmq.disk.thread import DiskThread
from raftmq.partition.storage.directory import LogDirectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.partition.storage.flusher import RunSync

T = TypeVar("T")


async def run_in_thread(function: Callable[[], T], /) -> T:
    return await trio.to_thread.run_sync(function)


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def open_log_directory(
    root: Path,
    *,
    files: Files | None = None,
    run_sync: RunSync | None = None,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> AsyncIterator[LogDirectory]:
    """Hold the directory, flush and write checkpoints, and close it cleanly at the end. Retention
    is for whoever knows what time it is to run (`LogDirectory.run_retention`).

    Args:
        run_sync: runs what waits for the disk; threads, one of them for flushes alone, if None.
        now_ms: the wall clock.

    Raises:
        DirectoryInUse: another process holds it.
        StorageError: the disk refused.
    """
    if files is None:
        files = OsFiles()
        allow_many_files()
    with _flushing_by(run_sync) as flush_sync:
        directory = LogDirectory(files, root, run_sync or run_in_thread, now_ms, flush_sync)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(directory.flusher.run)
                nursery.start_soon(directory.run_checkpoints)
                try:
                    yield directory
                    nursery.cancel_scope.cancel()
                finally:
                    with trio.CancelScope(shield=True):
                        await directory.close()
        except BaseExceptionGroup as group:
            if len(group.exceptions) > 1:
                raise
            error = group.exceptions[0]  # what the caller's own code raised, as it was
            raise error from error.__cause__
        finally:
            directory.unlock()  # only now has every worker thread come home


@contextmanager
def _flushing_by(run_sync: RunSync | None) -> Iterator[RunSync]:
    """Acknowledgements wait for flushes: they have a thread that waits for nothing else."""
    if run_sync is not None:
        yield run_sync
        return
    with DiskThread("raftmq-flusher") as thread:
        yield thread.run
