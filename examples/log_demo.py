"""See the partition log work: write real data, kill the writer, recover, read everything back.

    python examples/log_demo.py [--records 400000] [--directory demo-data] [--keep]

The data are the source lines of Python's standard library, which every machine has, keyed by
module. A child process appends them to six partitions and reports what is durable; it is killed
with SIGKILL halfway. A second child recovers and goes on. Then every record is read back and
compared, and one flipped bit in a copy must be found. Exit code 1 if anything was lost.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from raftmq.partition.storage.directory import LogDirectory, open_log_directory, wall_clock_ms
from raftmq.wire.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.partition.storage.log import PartitionLog

TOPIC = "stdlib-source"
PARTITIONS = 6
BATCH_RECORDS = 500
BATCHES_IN_FLIGHT = 4  # of each partition: appended, but not durable yet
MB = 1e6

INTRODUCTION = f"""\
This demo shows the partition log of raftmq on one machine; the cluster comes later.
  1. A process writes {{records:,}} records into {PARTITIONS} partitions, every batch fsynced before
     it counts as acknowledged. Halfway it is killed with SIGKILL.
  2. Another process recovers the log and writes the rest.
  3. Everything is read back and compared, record by record, with the data and with what was
     acknowledged. One bit is flipped in a copy, and `raftmq log verify` must find it.
"""


class Line(NamedTuple):
    """One record: a line of a module."""

    key: bytes
    value: bytes


# -- the data ----------------------------------------------------------------------------------


def read_lines(records_max: int) -> Iterator[Line]:
    """The same lines in the same order every time, so that two processes agree about them."""
    root = Path(sysconfig.get_path("stdlib"))
    return islice(_lines_below(root), records_max)


def _lines_below(root: Path) -> Iterator[Line]:
    for path in sorted(root.rglob("*.py")):
        if "site-packages" not in path.parts and "dist-packages" not in path.parts:
            key = ".".join(path.relative_to(root).with_suffix("").parts).encode()
            for line in path.read_bytes().splitlines():
                yield Line(key, line)


def deal_out(lines: Iterator[Line]) -> list[list[Line]]:
    """By key, so that the lines of one module stay in order."""
    partitions: list[list[Line]] = [[] for _ in range(PARTITIONS)]
    for line in lines:
        partitions[crc32(line.key) % PARTITIONS].append(line)
    return partitions


# -- the writer, a process of its own ----------------------------------------------------------


async def write(root: Path, records_max: int) -> None:
    """Write what is not in the log yet, and report on stdout what is durable."""
    partitions = deal_out(read_lines(records_max))
    opened_at = time.perf_counter()
    async with open_log_directory(root) as directory:
        logs = [await directory.open_log(TOPIC, number) for number in range(PARTITIONS)]
        report(
            recovered_in=time.perf_counter() - opened_at,
            ends=[log.log_end_offset for log in logs],
            scanned_bytes=sum(log.report.scanned_bytes for log in logs),
            cut_bytes=sum(log.report.cut_bytes for log in logs),
        )
        async with trio.open_nursery() as nursery:
            for number, log in enumerate(logs):
                log.assign_epoch(log.epochs.latest + 1)
                nursery.start_soon(_write_partition, directory, log, number, partitions[number])
    report(done=True)


async def _write_partition(
    directory: LogDirectory, log: PartitionLog, number: int, lines: list[Line]
) -> None:
    """Goes on where the log ends: offset n is line n."""
    waiting: list[int] = []
    for start in range(log.log_end_offset, len(lines), BATCH_RECORDS):
        waiting.append(_append(log, lines[start : start + BATCH_RECORDS]))
        if len(waiting) >= BATCHES_IN_FLIGHT:
            await _acknowledge(directory, log, number, waiting.pop(0))
    for end_offset in waiting:
        await _acknowledge(directory, log, number, end_offset)


def _append(log: PartitionLog, lines: list[Line]) -> int:
    now_ms = wall_clock_ms()
    keys, values = zip(*lines, strict=True)
    batch = encode_batch(keys=keys, values=values, timestamp=now_ms)
    epoch = log.epochs.latest
    appended = log.append(batch, leader_epoch=epoch, now_ms=now_ms, now=trio.current_time())
    return appended.end_offset


async def _acknowledge(
    directory: LogDirectory, log: PartitionLog, number: int, end_offset: int
) -> None:
    await directory.wait_held(log, end_offset)
    report(partition=number, end=end_offset, size=log.size)


def report(**what: object) -> None:
    """One line to whoever started this process."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


# -- the one who starts it, kills it and checks ------------------------------------------------


class Acknowledged:
    """What the writers said, so that it can be held against what is read."""

    def __init__(self) -> None:
        self.ends = [0] * PARTITIONS
        self.sizes = [0] * PARTITIONS

    def note(self, said: dict[str, int]) -> None:
        number = said["partition"]
        assert said["end"] >= self.ends[number], "acknowledgements come in order"
        self.ends[number], self.sizes[number] = said["end"], said["size"]

    @property
    def records(self) -> int:
        return sum(self.ends)

    @property
    def bytes(self) -> int:
        return sum(self.sizes)


class Written(NamedTuple):
    """One run of a writer. Seconds of writing count from the first append on."""

    seconds: float
    records: int
    bytes: int
    recovery: dict[str, float]
    first_ends: list[int]


class Demo:
    """The course of events, and what is to be told about them."""

    def __init__(self, root: Path, records_max: int, console: Console) -> None:
        self.root, self.records_max, self.console = root, records_max, console
        self.acknowledged = Acknowledged()
        self.problems: list[str] = []

    def run(self) -> int:
        self.console.print(INTRODUCTION.format(records=self.records_max), highlight=False)
        partitions = deal_out(read_lines(self.records_max))
        total = sum(map(len, partitions))
        first = self._write("write", total, kill_at=total // 2)
        promised = list(self.acknowledged.ends)
        self._say(f"killed with SIGKILL after {sum(promised):,} acknowledged records")
        second = self._write("write on", total, kill_at=None)
        self._check_survivors(promised, second)
        read_seconds = self._read_back(partitions)
        self._check_verify()
        self._print_result(total, first, second, read_seconds)
        for problem in self.problems:
            self.console.print(f"FAILED: {problem}", style="bold red", markup=False)
        return 1 if self.problems else 0

    def _say(self, what: str) -> None:
        self.console.print(f"  {what}", highlight=False, markup=False)

    # -- writing -------------------------------------------------------------------------------

    def _write(self, title: str, total: int, *, kill_at: int | None) -> Written:
        command = [sys.executable, __file__, "--write", str(self.root)]
        command += ["--records", str(self.records_max)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            said = map(json.loads, writer.stdout)
            recovery = next(said)
            started, records = time.perf_counter(), self.acknowledged.records
            size = self.acknowledged.bytes
            with self._progress(title, total) as progress:
                task = progress.add_task(title, total=total, completed=records)
                finished = False
                for each in said:
                    if each.get("done"):
                        finished = True
                        continue
                    self.acknowledged.note(each)
                    progress.update(task, completed=self.acknowledged.records)
                    if kill_at is not None and self.acknowledged.records >= kill_at:
                        writer.send_signal(signal.SIGKILL)
                        kill_at = None
"""""
