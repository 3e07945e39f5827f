"""Counts the system calls of processes, of all their threads, by name: `strace -c`.

Owns the tracers, which never outlive `tracing`. What is traced runs several times slower.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from benchmarks.call_parts.function_calls import Counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

SETTLE_SECONDS = 0.2  # until all threads are traced, and until all is done that was begun


class TracerFailed(Exception):
    """There is no strace, or it may not trace; what it says."""


@asynccontextmanager
async def tracing(root: Path, process_ids: Mapping[int, int]) -> AsyncIterator[dict[int, Counted]]:
    """Yields what is filled in at its end.

    Args:
        root: for the tracers' files.
        process_ids: by the numbers under which they are counted.

    Raises:
        TracerFailed: nothing was counted.
    """
    if shutil.which("strace") is None:
        raise TracerFailed("there is no strace here")
    counted = dict[int, Counted]()
    files = {number: root / f"strace-{number}" for number in process_ids}
    tracers = [_tracer(files[number], process_id) for number, process_id in process_ids.items()]
    try:
        await trio.to_thread.run_sync(_wait_attached, tracers)
        await trio.sleep(SETTLE_SECONDS)
        begin = time.perf_counter()
        yield counted
        await trio.sleep(SETTLE_SECONDS)
        seconds = time.perf_counter() - begin
    finally:
        for tracer in tracers:
            tracer.send_signal(signal.SIGINT)  # it lets go, and writes what it has counted
        for tracer in tracers:
            tracer.communicate()
    for number, file in files.items():
        counted[number] = Counted(seconds, calls_in(file.read_text()))


def _tracer(file: Path, process_id: int) -> subprocess.Popen[bytes]:
    command = ["strace", "-c", "-f", "-o", str(file), "-p", str(process_id)]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def _wait_attached(tracers: list[subprocess.Popen[bytes]]) -> None:
    for tracer in tracers:
        assert tracer.stderr is not None
        said = tracer.stderr.readline()  # at once, either way
        if b"attached" not in said:
            raise TracerFailed(said.decode(errors="replace").strip())


def calls_in(summary: str) -> dict[str, int]:
    """Of the table of `strace -c`: share, seconds, microseconds a call, calls, errors, name."""
    rows = [line.split() for line in summary.splitlines()]
    return {
        row[-1]: int(row[3])
        for row in rows
        if len(row) >= 5 and row[3].isdecimal() and row[-1] != "total"
    }
