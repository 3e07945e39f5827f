"""Advice after an error of the operating system: disk full, port taken, no permission, lock held.

Owns what follows such an error in the messages of `raftmq broker`. Reads the machine's state (which
process holds a lock), changes nothing.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from raftmq.broker.node_config_keys import DIRECTORY
from raftmq.errors import DirectoryInUse, StorageError, Unreachable
from raftmq.rpc.network import TcpNetwork

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.broker.settings import BrokerSettings
    from raftmq.model import Address

LOCKS = Path("/proc/locks")
# One line of /proc/locks: process id, major and minor device number in hexadecimal, inode.
_LOCK = re.compile(r"FLOCK +ADVISORY +WRITE +(\d+) +([0-9a-f]+):([0-9a-f]+):(\d+) ")

_DISK_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space on it and start again, nothing is lost",
    errno.EDQUOT: "the quota is used up: raise it and start again, nothing is lost",
    errno.EROFS: "the file system is read-only: if it was not meant to be, its disk has failed"
    " (see the kernel's log)",
    errno.EIO: "the disk has failed (see the kernel's log): give the node another one, empty,"
    " and start it once with -o quorum.replace=true",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n, LimitNOFILE)",
}
_NO_THREAD = "can't start new thread"
_MEMORY_ADVICE = (
    "not enough memory: give the node more (MemoryMax of systemd, the container's limit, ulimit -v)"
    ", or lower limits.unhandled_bytes_max and limits.connections_max"
)
_THREAD_ADVICE = (
    "the system starts no more threads for this process: raise TasksMax of systemd, the container's"
    " limit of processes, or ulimit -u (and ulimit -v, as each thread takes memory)"
)
_ADDRESS_ADVICE = {
    errno.EADDRINUSE: "another process listens there: stop it (`ss -ltnp` names it), or choose"
    " another port",
    errno.EADDRNOTAVAIL: "this machine has no such address: name one of its own, or 0.0.0.0",
    errno.EACCES: "ports below 1024 are for root: choose a higher one",
    # Of the resolver; negative, so that they meet no number of the system's.
    trio.socket.EAI_NONAME: "no such host name: check the spelling, or write an IP address",
    trio.socket.EAI_AGAIN: "the name server does not answer: try again, or write an IP address",
}


class ListeningNetwork(TcpNetwork):
    """Says which setting names an address that cannot be listened on."""

    def __init__(self, settings: BrokerSettings) -> None:
        super().__init__()
        self._settings = settings

    async def open_listeners(self, address: Address) -> list[trio.SocketListener]:
        try:
            return await super().open_listeners(address)
        except Unreachable as error:
            key, advice = self._settings.key_of(address), _advice(error, _ADDRESS_ADVICE)
            raise Unreachable(f"{key}: cannot {error}{advice}") from error


def is_lack(error: BaseException) -> bool:
    """Whether the machine gave this process too little memory, or no more threads."""
    # Python has no class of its own for threads.
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and str(error) == _NO_THREAD
    )


def told(error: BaseException, settings: BrokerSettings | None) -> str:
    """The error and the way out, in one line."""
    if is_lack(error):
        return _THREAD_ADVICE if isinstance(error, RuntimeError) else _MEMORY_ADVICE
    line = " ".join(str(error).split())
    # The settings themselves could not be read: there is no directory to advise about.
    if settings is None:
        return line
    # Most often a broker that still stops: its pid helps more than advice.
    if isinstance(error, DirectoryInUse):
        holder = lock_holder(settings.directory / ".lock")
        return f"{line}; it is held by {holder}" if holder else line
    if isinstance(error, Unreachable):  # `ListeningNetwork` has added its advice already
        return line
    advice = disk_advice(error, settings.directory)
    # All that a node reads and writes is there.
    return f"{DIRECTORY.name}: {line}{advice}" if isinstance(error, StorageError) else line + advice


def disk_advice(error: BaseException, found: Path, *, is_new: bool = False) -> str:
    """
    Args:
        found: the data directory, or with `is_new` the one in which it is to be made.
    """
    user = f"the user that runs this (uid {os.getuid()})"
    rights = f"may not write to {found}" if is_new else f"must own {found} and what is in it"
    advice = f"{user} {rights}, see `ls -ld {found}`"
    return _advice(error, _DISK_ADVICE | {errno.EACCES: advice, errno.EPERM: advice})


def _advice(error: BaseException, known: dict[int, str]) -> str:
    found = (known[number] for number in _numbers(error) if number in known)
    return next((f"; {advice}" for advice in found), "")


def _numbers(error: BaseException | None) -> Iterator[int]:
    """The `errno` values of this error and of those that caused it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            yield error.errno
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from _numbers(each)
        error = error.__cause__


def lock_holder(path: Path, locks: Path = LOCKS) -> str:
    """Which process holds the lock, for a person to find; "" if the system does not show it."""
    with suppress(OSError, ValueError):
        status = path.stat()
        for found in _LOCK.finditer(locks.read_text()):
            device = os.makedev(int(found[2], 16), int(found[3], 16))
            if (device, int(found[4])) == (status.st_dev, status.st_ino):
                return _process_named(int(found[1]))
    return ""


def _process_named(pid: int) -> str:
    if pid <= 0:
        return ""  # Linux shows processes of other containers as 0 or less
    command = ""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        command = " ".join(words).strip()
    return f"process {pid}" + (f" ({command})" if command else "")
