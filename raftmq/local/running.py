"""`running.json`: the processes of a local cluster, shared by start and stop commands.

Owns that file. It is read and replaced as a whole, under a lock of its own, so that two commands at
the same moment do not lose each other's changes. What it says of a process may be outdated: whether
that still runs, `process.py` knows. A copy of the directory has no processes: the file's records
are those of the original, and are ignored by the inode of the directory.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from raftmq.errors import StorageError
from raftmq.local.process import Process  # noqa: TC001  # msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from raftmq.local.plan import Layout


class NodeProcess(msgspec.Struct, frozen=True):
    """Attributes:
    log_position: bytes of the node's log that are not its own, but of processes before it.
    is_stopping: SIGTERM was sent, so that its end is no crash.
    """

    process: Process
    log_position: int
    is_stopping: bool = False


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes:
    is_started: the cluster was started, and not stopped since.
    owner: the nodes end with it; None: they keep running (detached).
    nodes: by node id, those that were started and not stopped in order since.
    """

    is_started: bool = False
    owner: Process | None = None
    nodes: dict[int, NodeProcess] = {}  # msgspec copies it


class _Kept(msgspec.Struct):
    """Attributes:
    inode: of the directory, which keeps it when it is moved.
    """

    inode: int
    running: Running


def read_running(layout: Layout) -> Running:
    """Raises StorageError if it exists and is not readable."""
    try:
        kept = msgspec.json.decode(layout.running.read_bytes(), type=_Kept)
        return kept.running if kept.inode == layout.root.stat().st_ino else Running()
    # No cluster was ever started here, or this is an old directory.
    except FileNotFoundError:
        return Running()
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise StorageError(
            f"{layout.running} is not readable: {error}: remove it once no broker of it runs"
        ) from error


@contextmanager
def changing(layout: Layout) -> Iterator[None]:
    """Lock `running.json`; to be held for moments only."""
    descriptor = os.open(layout.running_lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_running(layout: Layout, running: Running) -> None:
    """Replace the file; to be called within `changing`."""
    replace_json(layout.running, _Kept(layout.root.stat().st_ino, running))


def replace_json(path: Path, value: msgspec.Struct) -> None:
    """Write whole or not at all, should this process be killed meanwhile. Raises StorageError."""
    temporary = path.with_name(f"{path.name}.tmp")
    write_file(temporary, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    temporary.replace(path)


def write_file(path: Path, data: bytes) -> None:
    """Raises StorageError, which names the file: the system's message may not."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
