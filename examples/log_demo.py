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
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from operator import itemgetter, ne
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from raftmq.partition.storage.directory import open_log_directory, wall_clock_ms
from raftmq.partition.storage.log import plan_slice
from raftmq.wire.batch.records import RecordBatch, encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.partition.storage.log import PartitionLog

TOPIC = "stdlib-source"
PARTITIONS = 6
BATCH_RECORDS = 500
PIECE_BYTES = 1 << 20  # of a log, read at once
BATCHES_IN_FLIGHT = 4  # of each partition: appended, but not durable yet
MB = 1e6
NOT_STANDARD = {"site-packages", "dist-packages", "__pycache__"}

INTRODUCTION = """\
This shows the partition log of raftmq alone; flights_demo.py shows a cluster.

1. A process writes {:,} records into {} partitions. A record counts as acknowledged
   once it is fsynced. Halfway the process is killed with SIGKILL.
2. Another process recovers the log and writes the rest.
3. Every record is read back and compared with what was written, key by key.
4. One bit is flipped in a copy, and `raftmq log verify` must find it.
"""


class Line(NamedTuple):
    """One record: a line of a module."""

    key: bytes
    value: bytes


# -- the data ----------------------------------------------------------------------------------


def read_lines(records_max: int) -> Iterator[Line]:
    """The same lines in the same order every time, so that two processes agree about them."""
    root = Path(sysconfig.get_path("stdlib"))
    return islice(chain.from_iterable(map(partial(_lines_of, root), _modules(root))), records_max)


def _modules(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in NOT_STANDARD:
            yield from _modules(path)
        elif path.suffix == ".py":
            yield path


def _lines_of(root: Path, path: Path) -> Iterator[Line]:
    key = ".".join(path.relative_to(root).with_suffix("").parts).encode()
    return (Line(key, line) for line in path.read_bytes().splitlines())


def deal_out(lines: Iterator[Line]) -> list[list[Line]]:
    """By key, so that the lines of one module stay in order."""
    partitions: list[list[Line]] = [[] for _ in range(PARTITIONS)]
    for line in lines:
        partitions[crc32(line.key) % PARTITIONS].append(line)
    return partitions


# -- the writer, a process of its own ----------------------------------------------------------


async def write(root: Path, records_max: int, *, until_killed: bool) -> None:
    """Write what is not in the log yet, and report on stdout what is durable.

    `until_killed`: do not close the log, but wait for the end that the parent has in mind.
    """
    partitions = deal_out(read_lines(records_max))
    opened_at = time.perf_counter()
    async with open_log_directory(root) as directory:
        logs = [await directory.open_log(TOPIC, number) for number in range(PARTITIONS)]
        report(
            seconds=time.perf_counter() - opened_at,
            ends=[log.log_end_offset for log in logs],
            scanned_bytes=sum(log.report.scanned_bytes for log in logs),
            cut_bytes=sum(log.report.cut_bytes for log in logs),
        )
        async with trio.open_nursery() as nursery:
            for number, log in enumerate(logs):
                log.assign_epoch(log.epochs.latest + 1)
                nursery.start_soon(_write_partition, directory, log, number, partitions[number])
        if until_killed:
            await trio.to_thread.run_sync(sys.stdin.read)  # returns if the parent goes away


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
    await directory.flusher.wait_held(log, end_offset)
    report(partition=number, end=end_offset, size=log.size)


def report(**what: object) -> None:
    """One line for the process that started this one."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


# -- the one who starts it, kills it and checks ------------------------------------------------


class Run(NamedTuple):
    """One writer. `seconds` and `bytes` are those of writing, without the opening."""

    recovery: dict[str, Any]  # what it reported first
    seconds: float
    bytes: int


class Comparison(NamedTuple):
    """What was read against what was written, key by key."""

    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0

    def plus(self, other: Comparison) -> Comparison:
        return Comparison(*map(sum, zip(self, other, strict=True)))


def compare(written: list[Line], found: list[Line]) -> Comparison:
    if found == written:
        return Comparison()
    lost, doubled = Counter(written) - Counter(found), Counter(found) - Counter(written)
    if lost or doubled:
        return Comparison(lost.total(), doubled.total())
    return Comparison(out_of_order=sum(map(ne, _by_key(written), _by_key(found))))


def _by_key(lines: list[Line]) -> list[Line]:
    """In the order of keys, and for each key in the order of the log."""
    return sorted(lines, key=itemgetter(0))


@contextmanager
def _started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with its parent, and has ended after the block."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


class Demo:
    """The course of events."""

    def __init__(self, root: Path, records_max: int, console: Console) -> None:
        self.root, self.records_max, self.console = root, records_max, console
        self.ends = [0] * PARTITIONS  # acknowledged by the writers
        self.sizes = [0] * PARTITIONS  # bytes up to there
        self.problems: list[str] = []

    def run(self) -> int:
        partitions = deal_out(read_lines(self.records_max))
        total = sum(map(len, partitions))
        self._say(INTRODUCTION.format(total, PARTITIONS))
        first = self._write("writing", total, kill_at=total // 2)
        promised = list(self.ends)
        self._say(f"killed the writer after {sum(promised):,} acknowledged records")
        second = self._write("writing on", total, kill_at=None)
        comparison = self._check_survivors(promised, second.recovery["ends"])
        started = time.perf_counter()
        found = trio.run(read_all, self.root)
        read_seconds = time.perf_counter() - started
        for written, read in zip(partitions, found, strict=True):
            comparison = comparison.plus(compare(written, read))
        self._check(comparison == Comparison(), f"the log is not what was written: {comparison}")
        self._check_verify()
        self.console.print(self._result(total, first, second, read_seconds, comparison))
        return self._conclude()

    def _say(self, what: str) -> None:
        self.console.print(what, highlight=False, markup=False, soft_wrap=True)

    def _check(self, is_good: bool, problem: str) -> None:
        if not is_good:
            self.problems.append(problem)

    # -- writing -----------------------------------------------------------------------------

    def _write(self, title: str, total: int, *, kill_at: int | None) -> Run:
        command = [sys.executable, __file__, "--records", str(self.records_max)]
        command += ["--write", str(self.root), *(["--until-killed"] if kill_at else [])]
        with _started(command) as writer:
            said = map(json.loads, writer.stdout or ())
            recovery = next(said)
            started, size = time.perf_counter(), sum(self.sizes)
            self._follow(writer, said, title, total, kill_at)
            seconds = time.perf_counter() - started
        expected = -signal.SIGKILL if kill_at else 0
        self._check(writer.returncode == expected, f"the writer ended with {writer.returncode}")
        return Run(recovery, seconds, sum(self.sizes) - size)

    def _follow(
        self,
        writer: subprocess.Popen[str],
        said: Iterator[dict[str, int]],
        title: str,
        total: int,
        kill_at: int | None,
    ) -> None:
        """Take its acknowledgements to the last one, and kill it when there are enough."""
        with Progress(
            TextColumn(f"  {title}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
        ) as progress:  # fmt: skip
            task = progress.add_task(title, total=total)
            for each in said:
                self.ends[each["partition"]] = each["end"]
                self.sizes[each["partition"]] = each["size"]
                progress.update(task, completed=sum(self.ends))
                if kill_at and sum(self.ends) >= kill_at:
                    writer.send_signal(signal.SIGKILL)

    def _check_survivors(self, promised: list[int], recovered: list[int]) -> Comparison:
        """Nothing that was acknowledged before the kill may be gone after it."""
        lost = sum(max(0, end - now) for end, now in zip(promised, recovered, strict=True))
        extra = sum(recovered) - sum(promised) + lost
        self._say(f"recovered {sum(recovered):,}: {lost} of the acknowledged ones are missing, and")
        self._say(f"{extra:,} that were written, but not acknowledged yet, are there as well")
        return Comparison(lost=lost)

    # -- verifying ---------------------------------------------------------------------------

    def _check_verify(self) -> None:
        """The log as it is must pass, and a copy with one flipped bit must not."""
        healthy = _verify(self.root)
        self._check(healthy.returncode == 0, f"log verify complains: {healthy.stdout}")
        with tempfile.TemporaryDirectory(dir=self.root.parent) as name:
            copy = Path(name, "Partition-0")
            shutil.copytree(self.root / "topics" / TOPIC / "Partition-0", copy)
            segment = next(copy.glob("*.log"))
            position = segment.stat().st_size // 2
            flip_bit(segment, position)
            damaged = _verify(copy)
        self._say(
            f"flipped one bit of byte {position:,} in a copy of Partition-0; log verify says:"
        )
        for finding in map(json.loads, damaged.stdout.splitlines()):
            if finding["type"] == "finding":
                self._say(f"  {finding['severity']}: byte {finding['position']}: {finding['what']}")
        self._check(damaged.returncode == 7, f"log verify ended with {damaged.returncode}, not 7")

    # -- telling -----------------------------------------------------------------------------

    def _result(
        self, total: int, first: Run, second: Run, read_seconds: float, comparison: Comparison
    ) -> Table:
        size, seconds = first.bytes + second.bytes, first.seconds + second.seconds
        recovery = second.recovery
        rows = {
            "records": f"{total:,}",
            "bytes in the log": f"{sum(self.sizes) / MB:.1f} MB",
            "written, each batch fsynced": f"{size / seconds / MB:.1f} MB/s",
            "read back": f"{sum(self.sizes) / read_seconds / MB:.1f} MB/s",
            "recovery after SIGKILL": f"{recovery['seconds']:.3f} s",
            "   scanned": f"{recovery['scanned_bytes'] / MB:.2f} MB",
            "   torn bytes cut": f"{recovery['cut_bytes']:,}",
        } | {name.replace("_", " "): str(count) for name, count in comparison._asdict().items()}
        table = Table(title="What this machine did", show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for row in rows.items():
            table.add_row(*row)
        return table

    def _conclude(self) -> int:
        for problem in self.problems:
            self.console.print(f"FAILED: {problem}", style="bold red", markup=False)
        return 1 if self.problems else 0


async def read_all(root: Path) -> list[list[Line]]:
    """Every record of every partition, in the order of the log."""
    async with open_log_directory(root) as directory:
        logs = [await directory.open_log(TOPIC, number) for number in range(PARTITIONS)]
        return [_read_log(log) for log in logs]


def _read_log(log: PartitionLog) -> list[Line]:
    lines: list[Line] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = plan_slice(log, offset, bytes_max=PIECE_BYTES).find()
        data, position = piece.bytes.read(), 0
        while offset < piece.end_offset:
            batch = RecordBatch.decode(data, position)  # checks its CRC
            lines += map(Line._make, zip(batch.keys, batch.values, strict=True))
            offset, position = batch.header.end_offset, position + batch.header.size
    return lines


def _verify(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "raftmq", "log", "verify", str(folder), "-o", "json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def flip_bit(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=400_000, help="how many (default 400000)")
    parser.add_argument("--directory", type=Path, default=Path("demo-data"))
    parser.add_argument("--keep", action="store_true", help="leave the log there to look at")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until-killed", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
        until_killed = arguments.until_killed
        trio.run(partial(write, arguments.write, arguments.records, until_killed=until_killed))
        return 0
    arguments.directory.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="log-", dir=arguments.directory))
    try:
        return Demo(root, arguments.records, Console()).run()
    except KeyboardInterrupt:
        return 130
    finally:
        if arguments.keep:
            sys.stdout.write(f"look at it: raftmq log dump {root}/topics/{TOPIC}/Partition-0\n")
        else:
            shutil.rmtree(root)


if __name__ == "__main__":
    sys.exit(main())
