"""Processes of servers and loads on this machine: start, watch and kill them, and what they use.

None of them outlives this process, however it ends. The figures come from `/proc`: they are sums
over processes, with all of their threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.peers.environment import inherited
from benchmarks.peers.peer import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

START_SECONDS_MAX = 90.0
LOOK_SECONDS = 0.05
LOG_BYTES_SHOWN = 1500
PR_SET_PDEATHSIG = 1
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
BUSY_FIELDS = (0, 1, 2, 5, 6, 7)  # of /proc/stat: user, nice, system, irq, softirq, steal

_LIBC = ctypes.CDLL(None)


class ServerFailed(Exception):
    """A process ended that should not, or does not listen in time."""


class Usage(NamedTuple):
    """Of processes, so far. `waited_seconds`: for a core, by the threads that still run."""

    cpu_seconds: float
    waited_seconds: float
    resident_mib: float


class Servers:
    """Attributes:
    process_ids: in the order in which they were started.
    """

    def __init__(self) -> None:
        self._started: list[tuple[subprocess.Popen[bytes], Path]] = []

    @property
    def process_ids(self) -> list[int]:
        return [process.pid for process, _ in self._started]

    def start(
        self,
        *command: str | Path,
        log: Path,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**inherited(), **(variables or {})},
                cwd=log.parent,
                preexec_fn=die_with_parent,
                start_new_session=True,
            )
        self._started.append((process, log))

    def wait_listening(self, ports: Iterable[int]) -> None:
        """Until there is a listener at each."""
        deadline = time.monotonic() + START_SECONDS_MAX
        for port in ports:
            while not is_listening(port):
                self._check()
                if time.monotonic() > deadline:
                    raise ServerFailed(f"port {port}: nobody listens. {self._last_words()}")
                time.sleep(LOOK_SECONDS)

    def wait_ended(self) -> None:
        """Until all have ended, and well."""
        for process, log in self._started:
            if process.wait(START_SECONDS_MAX):
                raise ServerFailed(f"ended with {process.returncode}: {said(log)}")

    def _check(self) -> None:
        for process, log in self._started:
            if process.poll() is not None:
                raise ServerFailed(f"ended with {process.returncode}: {said(log)}")

    def _last_words(self) -> str:
        return "\n".join(said(log) for _, log in self._started)

    def kill(self) -> None:
        for process, _ in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        for process, _ in self._started:
            process.wait()


@contextmanager
def open_servers() -> Iterator[Servers]:
    """None yet; all are killed at the end."""
    servers = Servers()
    try:
        yield servers
    finally:
        servers.kill()


def die_with_parent() -> None:
    """Called in a child: it is killed when the thread ends that started it."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def free_ports(count: int) -> list[int]:
    """Free now, and below those that the system gives to whoever connects."""
    from raftmq.local.ports import keep_any_ports  # not in the environments of peers

    with keep_any_ports(count) as ports:
        return ports


def said(log: Path) -> str:
    return log.read_bytes()[-LOG_BYTES_SHOWN:].decode(errors="replace")


# -- what they use -----------------------------------------------------------------------------


def usage_of(process_ids: Sequence[int]) -> Usage:
    """Of all of them together."""
    each = [_usage(Path("/proc") / str(one)) for one in process_ids]
    return Usage(*(sum(figures) for figures in zip(*each, strict=True)))


def _usage(process: Path) -> Usage:
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])  # utime, stime; also of threads that have ended
    resident_pages = int((process / "statm").read_text().split()[1])
    waited_ns = 0
    for task in (process / "task").iterdir():
        with suppress(OSError):  # the thread has ended
            waited_ns += int((task / "schedstat").read_text().split()[1])
    return Usage(ticks / TICKS_PER_SECOND, waited_ns / 1e9, resident_pages * PAGE_BYTES / (1 << 20))


def tree_cpu_seconds(root: int) -> float:
    """Of a process and all below it, so far; also of those that have ended and were waited for."""
    parents, ticks = dict[int, int](), dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            one, fields = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
            parents[one] = int(fields[1])
            ticks[one] = sum(map(int, fields[11:15]))  # utime, stime, and those of children
    return sum(ticks[one] for one in ticks if _is_below(one, root, parents)) / TICKS_PER_SECOND


def _is_below(process: int, root: int, parents: Mapping[int, int]) -> bool:
    while process != root and process in parents:
        process = parents[process]
    return process == root


def machine_cpu_seconds() -> float:
    """Of all cores and processes, so far."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(fields[at]) for at in BUSY_FIELDS) / TICKS_PER_SECOND


def load_average() -> float:
    """Of the last minute."""
    return os.getloadavg()[0]
