"""How long small syncs take while other files are written back, by the way in which that is done.

    python -m benchmarks.write_back [--rounds 4] [--seconds 10] [--root DIR]

The system calls of a flusher, without it. One process appends a record and syncs it 100 times a
second. Another one lets 12 files grow by 96 MiB/s in all, and makes them durable after every three
seconds. The ways come in turn. What a process waited for a core is subtracted. `flush_ms` is what a
record would wait for if both stood in one flush round (docs/decisions/0035).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from multiprocessing import Event, Process, SimpleQueue
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.log import MIB, folder
from benchmarks.quorum_parts.figures import percentile, rounded_ms
from benchmarks.report import Report

if TYPE_CHECKING:
    from multiprocessing import queues, synchronize

    Answers = queues.SimpleQueue[list[float]]

FILES, STEP_SECONDS, STEPS = 12, 0.125, 24  # each file grows by 1 MiB a step, then comes a flush
RECORD_BYTES, RECORD_SECONDS = 1100, 0.01
FILE_BYTES_MAX = 100 * MIB
WRITE, WRITE_AND_WAIT = 2, 7  # flags of sync_file_range
REST_SECONDS_MAX = 0.2

_LIBC = ctypes.CDLL(None)
_LIBC.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class Way(NamedTuple):
    """`piece`: bytes that are written at one go before the sync, all if 0. `busy_share`: what part
    of the time. `comes`: all is written as it comes."""

    piece: int = 0
    busy_share: float = 1.0
    comes: bool = False


WAYS = {
    "file by file": Way(),
    "16 MiB": Way(16 * MIB),
    "4 MiB": Way(4 * MIB),
    "4 MiB, half of the time": Way(4 * MIB, 0.5),
    "4 MiB, a quarter of the time": Way(4 * MIB, 0.25),
    "as it comes": Way(comes=True),
}


class Stopwatch:
    """Seconds of this thread, without those in which it waited for a core."""

    def __init__(self) -> None:
        self._began = self._now()

    def seconds(self) -> float:
        return max(0.0, self._now() - self._began)

    @staticmethod
    def _now() -> float:
        no_core = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
        return time.monotonic() - no_core / 1e9


def append_records(path: Path, ended: synchronize.Event, answers: Answers) -> None:
    times, data, due = list[float](), os.urandom(RECORD_BYTES), time.monotonic()
    with path.open("wb", buffering=0) as file:
        while not ended.is_set():
            due = max(due + RECORD_SECONDS, now := time.monotonic())
            time.sleep(due - now)
            watch = Stopwatch()
            file.write(data)
            os.fdatasync(file.fileno())
            times.append(watch.seconds())
    answers.put(times)


class Growing:
    """The other files."""

    def __init__(self, path: Path, way: Way) -> None:
        self._way, self._data = way, os.urandom(MIB)
        self._files = [(path / str(number)).open("wb", buffering=0) for number in range(FILES)]
        self._size = self._flushed = 0

    def grow(self) -> None:
        for file in self._files:
            os.pwrite(file.fileno(), self._data, self._size)
            if self._way.comes:
                _LIBC.sync_file_range(file.fileno(), self._size, MIB, WRITE)
        self._size += MIB

    def flush(self) -> None:
        for file in self._files:
            for position in range(self._flushed, self._size, self._way.piece or self._size):
                if self._way.piece:
                    self._write_piece(file.fileno(), position)
            os.fdatasync(file.fileno())
        self._flushed = self._size
        if self._size > FILE_BYTES_MAX:
            for file in self._files:
                file.truncate(0)
            self._size = self._flushed = 0

    def _write_piece(self, descriptor: int, position: int) -> None:
        watch, length = Stopwatch(), min(self._way.piece, self._size - position)
        _LIBC.sync_file_range(descriptor, position, length, WRITE_AND_WAIT)
        time.sleep(min(REST_SECONDS_MAX, watch.seconds() * (1 / self._way.busy_share - 1)))


def write_bulk(path: Path, way: Way, duration: float, answers: Answers) -> None:
    growing, end, times = Growing(path, way), time.monotonic() + duration, list[float]()
    while time.monotonic() < end:
        for _ in range(STEPS):
            growing.grow()
            time.sleep(STEP_SECONDS)
        watch = Stopwatch()
        growing.flush()
        times.append(watch.seconds())
    answers.put(times)


def measure(root: Path, way: Way, duration: float) -> tuple[list[float], list[float]]:
    """Seconds of the syncs of records, and of flushes."""
    ended = Event()
    records: Answers = SimpleQueue()
    flushes: Answers = SimpleQueue()
    with folder(root) as path:
        appending = Process(target=append_records, args=(path / "records", ended, records))
        growing = Process(target=write_bulk, args=(path, way, duration, flushes))
        appending.start()
        growing.start()
        growing.join()
        ended.set()
        found = records.get(), flushes.get()
        appending.join()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--root", type=Path, default=Path())
    arguments = parser.parse_args()
    found = dict[str, list[tuple[list[float], list[float]]]]()
    for _ in range(arguments.rounds):
        for name, way in WAYS.items():
            measured = measure(arguments.root.resolve(), way, arguments.seconds)
            found.setdefault(name, []).append(measured)
    report = Report("write-back")
    for name, rounds in found.items():
        report.row(
            way=name,
            p50_ms=rounded_ms(median(median(records) for records, _ in rounds)),
            p99_ms=rounded_ms(median(percentile(records, 99) for records, _ in rounds)),
            max_ms=rounded_ms(median(max(records) for records, _ in rounds)),
            worst_ms=rounded_ms(max(max(records) for records, _ in rounds)),
            flush_ms=rounded_ms(median(median(flushes) for _, flushes in rounds)),
        )
    report.finish()


if __name__ == "__main__":
    main()
