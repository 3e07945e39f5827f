"""Tasks and threads behind an open node of the quorum, and its hold on the directory.

Owns how they end: tasks with the body that they serve, an error that comes alone as itself and
not in a group, the directory when every task has come home.
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, TypeVar

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


# -- Retired --------------------------------------------------------------------------------------
# A directory that must not come back: the others refused it as an older copy.
#
# Owns one small file with the reason. Without it a supervisor that starts the voter again and again
# would have it counted as new in the end: each start raises the count by which copies are told
# apart.


REFUSED_NAME = "REFUSED"


def retire(files: Files, directory: Path, reason: str) -> None:
    """From now on every start says why not. Waits for the disk: the voter ends anyhow."""
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


# -- Directory names ------------------------------------------------------------------------------
# What may lie in a directory of the quorum: nothing that a node of it did not write.
#
# Owns the list of names. Whatever else is found shows that the directory serves something else, or
# that somebody keeps there what would go with it one day. Reads names and opens no file.
#
#     .lock  journal/<number>.journal  snapshot-<index>-<term>.snapshot  REFUSED


JOURNAL_FOLDER = "journal"
NAMES_TOLD_MAX = 3

_TEMPORARY = f"({re.escape(TEMPORARY_SUFFIX)})?"
_UNFINISHED = f"({re.escape(PART_SUFFIX)}|{re.escape(INCOMING_SUFFIX)})?"
# File systems put these there: at the top of a mount, or for a file removed while it is open.
_SYSTEM = r"lost\+found|\.nfs\w+|\.fuse_hidden\w+"
_OURS = re.compile(
    rf"\.lock|{JOURNAL_FOLDER}|{REFUSED_NAME}{_TEMPORARY}"
    rf"|snapshot-\d{{20}}-\d{{10}}\.snapshot{_UNFINISHED}|{_SYSTEM}"
)
_OURS_IN_JOURNAL = re.compile(rf"\d{{20}}\.journal{_TEMPORARY}|{_SYSTEM}")
_OF_LOGS = {"topics", "checkpoints", "clean-shutdown"}


def hold_own_directory(
    files: Files, directory: Path, run_sync: RunSync
) -> AbstractAsyncContextManager[None]:
    """`hold_directory`, once its names were looked at: in a foreign one not even a lock is made.

    Raises:
        InvalidConfig: see `check_names`.
        DirectoryInUse: another process has it.
    """

    def look_first(lock: Callable[[], object]) -> object:
        check_names(files, directory)
        return lock()

    return hold_directory(files, directory, lambda lock: run_sync(partial(look_first, lock)))


def check_names(files: Files, directory: Path) -> None:
    """Before the first file is made there.

    Raises:
        InvalidConfig: something else lies there; nothing was changed.
        StorageError: it cannot be read.
    """
    names = files.names(directory)
    foreign = [name for name in names if not _OURS.fullmatch(name)]
    if JOURNAL_FOLDER in names:
        inner = files.names(directory / JOURNAL_FOLDER)
        found = [name for name in inner if not _OURS_IN_JOURNAL.fullmatch(name)]
        foreign += [f"{JOURNAL_FOLDER}/{name}" for name in found]
    if foreign:
        raise InvalidConfig([f"directory = {directory}: {_told(foreign)}"])


def check_no_journal(files: Files, directory: Path) -> None:
    """An observer replaces snapshots; the one of a voter belongs to the journal beside it.

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


def _told(foreign: list[str]) -> str:
    names = ", ".join(map(brief, foreign[:NAMES_TOLD_MAX]))
    more = f" and {len(foreign) - NAMES_TOLD_MAX} more" if len(foreign) > NAMES_TOLD_MAX else ""
    what = "a broker keeps its logs there" if _OF_LOGS & set(foreign) else "not of the quorum"
    return f"holds {names}{more}, {what}: give the node a directory of its own, or move them away"
