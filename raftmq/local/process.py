"""Processes as pid and start time: recognise, signal and wait for one, safe against reused pids.

Owns how processes are recognised, signalled and waited for. A process is its pid and its start
(boot and clock tick), so that a record of yesterday never hits another process. It has ended when
none of its threads is left, that is, when nothing of it has a file or a port any more.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 19  # of /proc/<pid>/stat, counted from behind the name: field 22 of proc(5)


class Process(msgspec.Struct, frozen=True):
    """Attributes:
    started: `boot/tick`, to be compared only.
    """

    pid: int
    started: str


def this_process() -> Process:
    return process_of(os.getpid())


def process_of(pid: int) -> Process:
    """Of a process that runs, or of a child that was not waited for yet (a zombie)."""
    started = _started(pid)
    assert started is not None, f"no process {pid}"
    return Process(pid, started)


def has_ended(process: Process) -> bool:
    return wait_end(process, 0.0)


def wait_end(process: Process, seconds_max: float | None = None) -> bool:
    """Whether it has ended by then; None: no limit."""
    with _hold(process) as descriptor:
        if descriptor is None:
            return True
        ended = _wait_ended(descriptor, seconds_max)
        if ended:
            with suppress(ChildProcessError):  # not our child: its parent waits for it
                os.waitpid(process.pid, os.WNOHANG)
        return ended


def send(process: Process, number: signal.Signals) -> bool:
    """Send a signal; False: the process has ended."""
    with _hold(process) as descriptor:
        if descriptor is None or _wait_ended(descriptor, 0.0):
            return False
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)
            return True
        return False


def _wait_ended(descriptor: int, seconds_max: float | None) -> bool:
    """By pidfd, which is readable when the process has ended, also as a zombie."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if seconds_max is None else seconds_max * 1000))


@contextmanager
def _hold(process: Process) -> Iterator[int | None]:
    """A descriptor that means this very process even if it ends now; None if it is gone.

    The start is read after the descriptor was made: if it is the right one, no other process can
    have had the pid in between.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    # No such pid: it has ended, and its parent has waited for it.
    except ProcessLookupError:
        yield None
        return
    try:
        yield descriptor if _started(process.pid) == process.started else None
    finally:
        os.close(descriptor)


def _started(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    # It has ended between the two calls.
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name may have spaces, and parentheses, in it
    return f"{_BOOT_ID.read_text().strip()}/{fields[_START_FIELD]}"


# -- Node log -------------------------------------------------------------------------------------
# A node's log: whether it is ready, and its last lines.
#
# Reads the log from where the node's process began; writes nothing.


LINES_MAX = 15  # of a log, in the note of an error: a screenful beside the message
_TAIL_BYTES_MAX = 16_384  # 1,000 bytes for each of these lines
_CHUNK_BYTES = 1 << 20  # a log of days is searched without being held in memory
_READY = b"ready: node "  # as `raftmq broker` begins its line on stdout


def is_ready(log: Path, position: int) -> bool:
    """Whether the process whose log begins at `position` has printed that it is ready."""
    try:
        with log.open("rb") as file:
            file.seek(position)
            before = b"\n"
            while chunk := file.read(_CHUNK_BYTES):
                text = before + chunk
                if b"\n" + _READY in text:
                    return True
                # The words may be cut by the end of a chunk.
                before = text[-len(_READY) :]
    except FileNotFoundError:
        pass
    return False


def last_lines(log: Path, position: int) -> list[str]:
    """The last lines of the process whose log begins at `position`."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(position, size - _TAIL_BYTES_MAX))
            data = file.read()
    except FileNotFoundError:
        return []
    return data.decode(errors="replace").splitlines()[-LINES_MAX:]
