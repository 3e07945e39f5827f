"""Background nursery, worker threads and directory lock of a quorum node.

Owns how they end: tasks with the body that they serve, a single error unwrapped from its exception
group, the directory lock when every task has ended. Also owns the check that a directory holds
nothing but files of a quorum node, and the mark REFUSED of an older copy.
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

import trio

from raftmq.disk.checkpoint import TEMPORARY_SUFFIX, read_file, replace_file
from raftmq.disk.thread import DiskThread
from raftmq.errors import CorruptJournal, InvalidConfig
from raftmq.metadata.raft.gc_control import COLLECTOR
from raftmq.metadata.raft.settings import brief
from raftmq.metadata.raft.snapshot.store import INCOMING_SUFFIX, PART_SUFFIX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from raftmq.disk.files import Files
    from raftmq.disk.thread import RunSync


# -- Retired --------------------------------------------------------------------------------------
# A directory that must not be used again: the other voters refused it as an older copy.
#
# Owns one small file with the reason (decision 0012). Each start raises the durable start count by
# which copies are told apart. Without the file a supervisor that restarts the voter again and again
# would raise it until the copy passed for the newest.


REFUSED_NAME = "REFUSED"  # in the voter's directory, for its operator


def retire(files: Files, directory: Path, reason: str) -> None:
    """Make every later start fail with `reason`. Blocks on the disk: the voter is stopping."""
    replace_file(files, directory / REFUSED_NAME, reason.encode())


def check_not_retired(files: Files, directory: Path) -> None:
    """
    Raises:
        CorruptJournal: it was refused in an earlier run.
    """
    reason = read_file(files, directory / REFUSED_NAME)
    if reason is not None:
        raise CorruptJournal(
            f"{directory}: refused by another voter in an earlier run ({REFUSED_NAME}):"
            f" {reason.decode(errors='replace')}"
        )


# -- Background -----------------------------------------------------------------------------------


T = TypeVar("T")
# Of the quorum in this process: one for each thing that may wait for the disk at once (snapshot
# written, received, read for peers), and some to spare. The journal has a thread of its own.
THREADS_MAX = 8

_limiters: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("raft_limiter")


async def run_in_thread(function: Callable[[], T], /) -> T:
    """Run in the quorum's own threads: blocked threads of other parts of the broker, up to trio's
    default limit, must not delay the quorum.
    """
    # Waits for `function`, which cannot be cancelled: the caller gets the disk's final result.
    return await trio.to_thread.run_sync(function, limiter=_limiter())


def _limiter() -> trio.CapacityLimiter:
    try:
        return _limiters.get()
    except LookupError:  # the first call in this trio run; a limiter belongs to one run
        _limiters.set(trio.CapacityLimiter(THREADS_MAX))
        return _limiters.get()


class Threads(NamedTuple):
    """Functions that run blocking disk operations outside of the event loop."""

    run_sync: RunSync
    write_journal: RunSync  # one caller at a time


@contextmanager
def open_threads(run_sync: RunSync | None) -> Iterator[Threads]:
    """Real threads, or the caller's `run_sync`."""
    if run_sync is not None:  # of a simulation, which has no threads
        yield Threads(run_sync, run_sync)
        return
    with DiskThread("raftmq-journal") as journal:
        yield Threads(run_in_thread, journal.run)


@asynccontextmanager
async def hold_directory(files: Files, directory: Path, run_sync: RunSync) -> AsyncIterator[None]:
    """Create and lock `directory`, and bound garbage collections in this process meanwhile.

    Raises:
        DirectoryInUse: another process has it.
    """

    def lock() -> list[object]:
        files.make_directory(directory)
        return [files.lock(directory / ".lock")]

    # Created and locked by one call in a thread; fails at once if another process has the lock.
    held = await run_sync(lock)
    try:
        with COLLECTOR.bounded():
            yield
    finally:
        held.clear()  # a traceback kept by the caller holds this frame, and must not hold the lock


@asynccontextmanager
async def open_background() -> AsyncIterator[trio.Nursery]:
    """A nursery that is cancelled at the end of its body."""
    try:
        # Ends when all tasks have; they are cancelled after the body.
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:  # a nursery groups even a single error
        _raise_alone(group)


def _raise_alone(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """Raise the single error of a group as itself, with its own cause and context."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if error is group:  # several errors: keep the group
        raise group
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context


# -- Directory names ------------------------------------------------------------------------------
# Which names a directory of the quorum may contain: only those that a quorum node writes.
#
# Owns the list of names. Any other name shows that the directory is used for something else, or
# that an operator keeps files there, which would be lost when the directory is replaced. Reads
# names and opens no file.
#
#     .lock  journal/<number>.journal  snapshot-<index>-<term>.snapshot  REFUSED


JOURNAL_FOLDER = "journal"
NAMES_TOLD_MAX = 3  # foreign names in an error text; the others are counted

_TEMPORARY = f"({re.escape(TEMPORARY_SUFFIX)})?"
_UNFINISHED = f"({re.escape(PART_SUFFIX)}|{re.escape(INCOMING_SUFFIX)})?"
# Created by file systems: at the top of a mount, or for a file that was removed while open.
_SYSTEM = r"lost\+found|\.nfs\w+|\.fuse_hidden\w+"
_OURS = re.compile(
    rf"\.lock|{JOURNAL_FOLDER}|{REFUSED_NAME}{_TEMPORARY}"
    rf"|snapshot-\d{{20}}-\d{{10}}\.snapshot{_UNFINISHED}|{_SYSTEM}"
)
_OURS_IN_JOURNAL = re.compile(rf"\d{{20}}\.journal{_TEMPORARY}|{_SYSTEM}")
# Names that a broker's data directory has: the usual mistake is to give both the same directory.
_BROKER_NAMES = {"topics", "checkpoints", "clean-shutdown"}


def hold_own_directory(
    files: Files, directory: Path, run_sync: RunSync
) -> AbstractAsyncContextManager[None]:
    """`hold_directory`, after a check of its names: in a foreign one not even a lock is created.

    Raises:
        InvalidConfig: see `check_names`.
        DirectoryInUse: another process has it.
    """

    def check_first(lock: Callable[[], T]) -> T:
        check_names(files, directory)
        return lock()

    def run_checked(lock: Callable[[], T], /) -> Awaitable[T]:
        return run_sync(partial(check_first, lock))

    return hold_directory(files, directory, run_checked)


def check_names(files: Files, directory: Path) -> None:
    """Check the names in `directory`, before the first file is created there.

    Raises:
        InvalidConfig: it holds other files; nothing was changed.
        StorageError: it cannot be read.
    """
    names = files.names(directory)
    foreign = [name for name in names if not _OURS.fullmatch(name)]
    if JOURNAL_FOLDER in names:  # a voter's directory; an observer has none
        inner = files.names(directory / JOURNAL_FOLDER)
        found = [name for name in inner if not _OURS_IN_JOURNAL.fullmatch(name)]
        foreign += [f"{JOURNAL_FOLDER}/{name}" for name in found]
    if foreign:
        raise InvalidConfig([f"directory = {directory}: {_foreign_names(foreign)}"])


def check_no_journal(files: Files, directory: Path) -> None:
    """An observer replaces snapshots; a voter's snapshot belongs to the journal beside it.

    Raises:
        InvalidConfig: a voter has been here.
    """
    if files.exists(directory / JOURNAL_FOLDER):
        raise InvalidConfig(
            [
                f"directory = {directory}: holds the {JOURNAL_FOLDER}/ of a voter: give the"
                " observer an empty directory of its own"
            ]
        )


def _foreign_names(foreign: list[str]) -> str:
    names = ", ".join(map(brief, foreign[:NAMES_TOLD_MAX]))
    more = f" and {len(foreign) - NAMES_TOLD_MAX} more" if len(foreign) > NAMES_TOLD_MAX else ""
    what = "a broker keeps its logs there" if _BROKER_NAMES & set(foreign) else "not of the quorum"
    return f"holds {names}{more}, {what}: give the node a directory of its own, or move them away"
