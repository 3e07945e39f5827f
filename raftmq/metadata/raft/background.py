"""Tasks and threads behind an open node of the quorum, and its hold on the directory.

Owns how they end: tasks with the body that they serve, an error that comes alone as itself and
not in a group, the directory when every task has come home.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, TypeVar

import trio

from raftmq.disk.thread import DiskThread
from raftmq.metadata.raft.collector import COLLECTOR

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from raftmq.disk.files import Files

T = TypeVar("T")
RunSync: TypeAlias = "Callable[[Callable[[], Any]], Awaitable[Any]]"
THREADS_MAX = 8

_limiters: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("raft_limiter")


async def run_in_thread(function: Callable[[], T]) -> T:
    """The quorum's own threads: nobody else's work may delay the journal."""
    return await trio.to_thread.run_sync(function, limiter=_limiter())


def _limiter() -> trio.CapacityLimiter:
    try:
        return _limiters.get()
    except LookupError:
        _limiters.set(trio.CapacityLimiter(THREADS_MAX))
        return _limiters.get()


class Threads(NamedTuple):
    """Ways to wait for a disk beside the loop."""

    run_sync: RunSync
    write_journal: RunSync  # one caller at a time


@contextmanager
def open_threads(run_sync: RunSync | None) -> Iterator[Threads]:
    """Real ones, unless somebody brings his own."""
    if run_sync is not None:
        yield Threads(run_sync, run_sync)
        return
    with DiskThread("raftmq-journal") as journal:
        yield Threads(run_in_thread, journal.run)


@asynccontextmanager
async def hold_directory(files: Files, directory: Path, run_sync: RunSync) -> AsyncIterator[None]:
    """Make `directory` and keep other processes out of it, and long collections out of this one.

    Raises:
        DirectoryInUse: another process has it.
    """

    def lock() -> list[object]:
        files.make_directory(directory)
        return [files.lock(directory / ".lock")]

    held = await run_sync(lock)
    try:
        with COLLECTOR.bounded():
            yield
    finally:
        held.clear()  # whoever keeps a traceback must not keep the directory


@asynccontextmanager
async def open_background() -> AsyncIterator[trio.Nursery]:
    """A nursery that is cancelled at the end of its body."""
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        _raise_alone(group)


def _raise_alone(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """What a group of one stands for, with its own cause and context."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if error is group:
        raise group
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
