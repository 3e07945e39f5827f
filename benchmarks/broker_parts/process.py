"""One `raftmq broker` process, as the one who starts and kills it sees it.

Owns the process, its pipe and the file with its log. It never outlives this one. `read` fails,
with the end of that log, if the process ends without having been told to.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

READY = b"ready: "
LOG_BYTES_SHOWN = 4000
PR_SET_PDEATHSIG = 1
RAFTMQ = ("-m", "raftmq")  # what Python is started with, before the command
CPU_CLOCK = 2  # what a clock of a process counts: as clock_getcpuclockid(3) makes its number
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_LIBC = ctypes.CDLL(None)


class BrokerFailed(Exception):
    """A process ended that should not, or has not done in time what it was to do."""


class Usage(NamedTuple):
    """Of a process with all of its threads, so far; `waited`: for a core, with something to do."""

    cpu_seconds: float
    waited_seconds: float
    resident_mib: float


def start_child(
    command: Sequence[str], *, stderr: IO[bytes] | None = None, descriptors: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Python with these arguments; killed when the thread that calls this ends."""
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        start_new_session=True,
        stderr=stderr,
        pass_fds=descriptors,
    )


def usage_of(process_id: int) -> Usage:
    """CPU time is of the process's own clock, to the nanosecond, with threads that have ended.

    Those take with them how long they waited, so that this is rather too little; brokers end
    threads that had nothing to do for ten seconds.
    """
    process = Path("/proc") / str(process_id)
    cpu_seconds = time.clock_gettime((~process_id << 3) | CPU_CLOCK)
    waited_ns = sum(map(_waited_ns, (process / "task").iterdir()))
    resident_pages = int((process / "statm").read_text().split()[1])
    return Usage(cpu_seconds, waited_ns / 1e9, resident_pages * PAGE_BYTES / (1 << 20))


def _waited_ns(thread: Path) -> int:
    try:
        return int((thread / "schedstat").read_text().split()[1])  # running, waiting, turns
    except (FileNotFoundError, ProcessLookupError):  # ended since it was listed
        return 0


class BrokerProcess:
    """Attributes:
    began_at: of `time.monotonic`, just before it was started; `ready_at`: once it has said so.
    """

    def __init__(self, node_id: int, config: Path, entry: Sequence[str] = RAFTMQ) -> None:
        self.node_id, self._log = node_id, config.with_suffix(".log")
        self._may_end, self._ready = False, trio.Event()
        self.ready_at = 0.0
        with self._log.open("ab") as log:
            self.began_at = time.monotonic()
            command = [*entry, "broker", "--config", str(config)]
            self._process = start_child(command, stderr=log)

    async def read(self) -> None:
        """What it says, until it ends."""
        assert self._process.stdout is not None
        said = b""
        async with trio.lowlevel.FdStream(os.dup(self._process.stdout.fileno())) as stream:
            async for data in stream:
                said += data
                if not self._ready.is_set() and said.startswith(READY) and b"\n" in said:
                    self.ready_at = time.monotonic()
                    self._ready.set()
        if not self._may_end:
            raise BrokerFailed(f"broker {self.node_id} has ended: {self.last_words()}")

    async def wait_ready(self) -> float:
        """Seconds since it was started."""
        await self._ready.wait()
        return self.ready_at - self.began_at

    @property
    def process_id(self) -> int:
        return self._process.pid

    def usage(self) -> Usage:
        return usage_of(self._process.pid)

    def kill(self) -> float:
        """Returns when that was, once nothing of it is left."""
        self._may_end, at = True, time.monotonic()
        self._process.kill()
        self._bury()
        return at

    async def stop(self) -> None:
        """In order."""
        self._may_end = True
        self._process.terminate()
        while self._process.poll() is None:  # noqa: ASYNC110  # a process has no event
            await trio.sleep(0.01)
        if self._process.returncode:
            raise BrokerFailed(f"broker {self.node_id} did not stop: {self.last_words()}")
        self._bury()

    def last_words(self) -> str:
        return self._log.read_bytes()[-LOG_BYTES_SHOWN:].decode(errors="replace")

    def _bury(self) -> None:
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
