"""How fast the partition log is, as a share of what the bare system calls reach on this machine.

    python -m benchmarks.log [SECTION ...] [--scale 0.1] [--root DIR]

Sections: append, sendfile, recovery, open, flush, mixed, commit. Ratios compare the log with a bare
loop over the same bytes, in turn, round by round, in one process; medians. The directory must
be on the disk that is to be measured; `flush` uses one `syncfs` only where DIR is a mount point.
`mixed` times records of fsync topics beside bulk on page_cache topics, from when each was due.
`commit` makes commands of a quorum durable in turn in its journal, and as records in a partition
log, as if the journal stood on one (decision 0032).
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import trio

from benchmarks.report import Report
from raftmq.disk.files import OsFiles
from raftmq.metadata.raft.journal.journal import start_journal
from raftmq.model import Durability
from raftmq.partition.storage.directory import LogId, open_log_directory
from raftmq.partition.storage.recovery import Past, open_log
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.records import encode_batch
from tests.log_reading import read_slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raftmq.partition.storage.log import PartitionLog

NOW_MS = 1_700_000_000_000
MIB = 1 << 20
SIZES = (1024, 4096, 16_384, 65_536, 262_144, MIB)
ROUNDS = 5


def batch_of(size: int) -> bytes:
    """A batch of about `size` bytes, in records of 1 KiB."""
    count = max(1, size // 1024)
    value = os.urandom(max(64, size // count - 24))
    return bytes(encode_batch(values=[value] * count, timestamp=NOW_MS))


@contextmanager
def folder(root: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="raftmq-bench-", dir=root))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def seconds(function: Callable[..., object], *arguments: object, **named: object) -> float:
    start = time.perf_counter()
    function(*arguments, **named)
    return time.perf_counter() - start


def config(durability: Durability = Durability.FSYNC) -> TopicConfig:
    return TopicConfig(max_message_bytes=2 * MIB, durability=durability)


def new_log(path: Path) -> PartitionLog:
    return open_log(OsFiles(), path, path.name, config())


# -- append --------------------------------------------------------------------------------


def bare_writes(path: Path, data: bytes, count: int, *, sync: bool = False) -> float:
    """Seconds, without opening the file."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    start = time.perf_counter()
    for _ in range(count):
        os.write(descriptor, data)
        if sync:
            os.fdatasync(descriptor)
    spent = time.perf_counter() - start
    os.close(descriptor)
    return spent


def appends(path: Path, data: bytes, count: int) -> float:
    """Seconds, without opening the log."""
    log = new_log(path)
    start = time.perf_counter()
    for _ in range(count):
        log.append(data, leader_epoch=0, now_ms=NOW_MS, now=0.0)
    return time.perf_counter() - start


def make_durable(path: Path) -> None:
    """What the flush rounds and checkpoints of a directory would have done meanwhile."""
    log = new_log(path)
    flush = log.begin_flush(0.0)
    flush.perform(log.files)
    log.complete_flush(flush)
    log.write_indexes()


def durable_appends(path: Path, data: bytes, count: int, in_flight: int) -> float:
    """Seconds for `count` appends, each waited for, `in_flight` at a time."""

    async def main() -> float:
        async with open_log_directory(path) as directory:
            log = await directory.open_log("bench", 0, config())

            async def produce() -> None:
                for _ in range(count // in_flight):
                    now = trio.current_time()
                    done = log.append(data, leader_epoch=0, now_ms=NOW_MS, now=now)
                    await directory.flusher.wait_held(log, done.end_offset)

            start = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for _ in range(in_flight):
                    nursery.start_soon(produce)
            return time.perf_counter() - start

    return trio.run(main)


def bench_append(report: Report, root: Path, scale: float) -> None:
    for size in SIZES:
        data = batch_of(size)
        count = max(16, int(scale * min(20_000, 256 * MIB // size)))
        log_times, bare_times = [], []
        for number in range(ROUNDS):
            with folder(root) as path:
                pair = [
                    (log_times, appends, path / "log"),
                    (bare_times, bare_writes, path / "bare"),
                ]
                for times, run, target in pair if number % 2 else pair[::-1]:
                    times.append(run(target, data, count))
        append_row(report, "append, page_cache", data, count, log_times, bare_times)
    for size in SIZES[2:]:
        bench_durable(report, root, scale, size)


def bench_durable(report: Report, root: Path, scale: float, size: int) -> None:
    data = batch_of(size)
    count = max(16, int(scale * 320) // 16 * 16)
    times: dict[str, list[float]] = {"bare": [], "1": [], "16": []}
    for _ in range(ROUNDS):
        with folder(root) as path:
            times["bare"].append(bare_writes(path / "b", data, count, sync=True))
            times["1"].append(durable_appends(path / "one", data, count, 1))
            times["16"].append(durable_appends(path / "many", data, count, 16))
    append_row(report, "append, fsync, 1 in flight", data, count, times["1"], times["bare"])
    append_row(report, "append, fsync, 16 in flight", data, count, times["16"], times["bare"])


def append_row(
    report: Report, mode: str, data: bytes, count: int, log: list[float], bare: list[float]
) -> None:
    total = len(data) * count / 1e6
    ratio = median(b / a for a, b in zip(log, bare, strict=True))
    report.row(
        what=mode,
        batch_bytes=len(data),
        log_mb_s=round(total / median(log)),
        bare_mb_s=round(total / median(bare)),
        ratio=round(ratio, 2),
        log_us=round(median(log) / count * 1e6, 1),
    )


# -- sendfile ------------------------------------------------------------------------------


@contextmanager
def draining_socket() -> Iterator[socket.socket]:
    sender, receiver = socket.socketpair()
    buffer = bytearray(MIB)

    def drain() -> None:
        while receiver.recv_into(buffer):
            pass

    thread = threading.Thread(target=drain)
    thread.start()
    try:
        yield sender
    finally:
        sender.close()
        thread.join()
        receiver.close()


def send(out: int, descriptor: int, position: int, length: int) -> None:
    while length:
        sent = os.sendfile(out, descriptor, position, length)
        position, length = position + sent, length - sent


def send_log(log: PartitionLog, out: int) -> None:
    offset = 0
    while offset < log.log_end_offset:
        piece = read_slice(log, offset, bytes_max=MIB)
        send(out, piece.bytes.file.fileno(), piece.bytes.position, piece.bytes.length)
        offset = piece.end_offset


def send_files(log: PartitionLog, out: int) -> None:
    for segment in log.segments:
        for position in range(0, segment.size, MIB):
            send(out, segment.file.fileno(), position, min(MIB, segment.size - position))


def bench_sendfile(report: Report, root: Path, scale: float) -> None:
    for size in (1024, 65_536):
        data = batch_of(size)
        count = max(16, int(scale * 512 * MIB // size / (8 if size < 4096 else 1)))
        with folder(root) as path, draining_socket() as sender:
            appends(path / "log", data, count)
            log = open_log(OsFiles(), path / "log", "log", config())
            log_times, bare_times = [], []
            for _ in range(ROUNDS):
                log_times.append(seconds(send_log, log, sender.fileno()))
                bare_times.append(seconds(send_files, log, sender.fileno()))
        append_row(report, "sendfile of 1 MiB slices", data, count, log_times, bare_times)


# -- recovery, opening, rounds -------------------------------------------------------------


def bench_recovery(report: Report, root: Path, scale: float) -> None:
    for size in (1024, 65_536):
        data = batch_of(size)
        count = int(scale * (1 << 30) / (8 if size < 4096 else 1)) // len(data)
        with folder(root) as path:
            appends(path / "log", data, count)
            make_durable(path / "log")
            for what, point in (("from the checkpoint", None), ("everything", 0)):
                end = count * max(1, size // 1024)
                past = Past(end - end // 1000 if point is None else point)
                spent = seconds(open_log, OsFiles(), path / "log", "log", config(), past)
                report.row(
                    what=f"recovery after a kill, {what}",
                    batch_bytes=len(data),
                    log_mib=count * len(data) >> 20,
                    seconds=round(spent, 3),
                    seconds_per_gib=round(spent * (1 << 30) / (count * len(data)), 2),
                )


def bench_open(report: Report, root: Path, scale: float) -> None:
    count = int(2000 * scale)
    wanted = [(LogId("bench", number), config()) for number in range(count)]

    async def fill(path: Path) -> float:
        async with open_log_directory(path) as directory:
            spent = time.perf_counter()
            logs = await directory.open_logs(wanted)
            spent = time.perf_counter() - spent
            for log in logs:
                if not log.log_end_offset:
                    log.append(batch_of(4096), leader_epoch=0, now_ms=NOW_MS, now=0.0)
            return spent

    with folder(root) as path:
        created = trio.run(fill, path)
        clean = trio.run(fill, path)
        (path / "clean-shutdown").unlink()
        killed = trio.run(fill, path)
    for what, spent in (("create", created), ("open, clean", clean), ("open, killed", killed)):
        report.row(what=f"{what}", partitions=count, seconds=round(spent, 2))


def bench_flush(report: Report, root: Path, scale: float) -> None:
    for count in (1, 12, 100, 500):
        rounds = max(3, int(30 * scale))

        async def measure(path: Path, count: int = count, rounds: int = rounds) -> list[float]:
            async with open_log_directory(path) as directory:
                wanted = [(LogId("bench", number), config()) for number in range(count)]
                logs = await directory.open_logs(wanted)
                data, times = batch_of(4096), []
                for _ in range(rounds):
                    for log in logs:
                        log.append(data, leader_epoch=0, now_ms=NOW_MS, now=0.0)
                    start = time.perf_counter()
                    for log in logs:
                        await directory.flusher.wait_held(log, log.log_end_offset)
                    times.append(time.perf_counter() - start)
                return times

        with folder(root) as path:
            times = trio.run(measure, path)
        report.row(
            what="flush round",
            partitions=count,
            p50_ms=round(median(times) * 1e3, 1),
            max_ms=round(max(times) * 1e3, 1),
        )


# -- records that wait for the disk, beside bulk that does not -------------------------------------


MIXED_LOGS = 12  # of each kind
MIXED_SECONDS, MIXED_PER_SECOND = 60.0, 100
MIXED_BULK = (0, 30, 90)  # MB/s


def bench_mixed(report: Report, root: Path, scale: float) -> None:
    for bulk in MIXED_BULK:
        with folder(root) as path:
            waits = trio.run(mixed_waits, path, bulk, max(12.0, MIXED_SECONDS * scale))
        report.row(
            what="fsync record beside page_cache bulk",
            bulk_mb_s=bulk,
            records=len(waits),
            p50_ms=round(median(waits) * 1e3, 2),
            p99_ms=round(sorted(waits)[len(waits) * 99 // 100] * 1e3, 2),
            max_ms=round(max(waits) * 1e3, 2),
        )


async def mixed_waits(path: Path, bulk: int, duration: float) -> list[float]:
    """Seconds from when each record was due until it was held."""
    waits, retained = list[float](), TopicConfig(segment_bytes=64 * MIB, retention_bytes=64 * MIB)
    lazy = replace(retained, durability=Durability.PAGE_CACHE)
    async with open_log_directory(path) as directory, trio.open_nursery() as nursery:
        logs = await directory.open_logs([(LogId("fsync", n), config()) for n in range(MIXED_LOGS)])
        names = [(LogId("lazy", n), lazy) for n in range(MIXED_LOGS)] if bulk else []
        lazy_logs = await directory.open_logs(names)

        async def wait(log: PartitionLog, due: float) -> None:
            done = log.append(batch_of(1024), leader_epoch=0, now_ms=NOW_MS, now=due)
            await directory.flusher.wait_held(log, done.end_offset)
            waits.append(trio.current_time() - due)

        async def write_bulk() -> None:
            data, due = batch_of(256 << 10), trio.current_time()
            for log in cycle(lazy_logs):
                await trio.sleep_until(due := due + len(data) / bulk / 1e6)
                log.append(data, leader_epoch=0, now_ms=NOW_MS, now=due)

        async def retain() -> None:
            for log in lazy_logs:
                log.retirable_end = partial(getattr, log, "log_end_offset")
            while True:
                await trio.sleep(3)
                await directory.enforce_retention(None)

        if bulk:
            nursery.start_soon(write_bulk)
            nursery.start_soon(retain)
        begin = trio.current_time()
        async with trio.open_nursery() as senders:
            for number in range(int(duration * MIXED_PER_SECOND)):
                due = begin + number / MIXED_PER_SECOND
                await trio.sleep_until(due)
                senders.start_soon(wait, logs[number % MIXED_LOGS], due)
        nursery.cancel_scope.cancel()
    return waits


# -- commit --------------------------------------------------------------------------------


COMMAND = os.urandom(100)


class Commits:
    """Each call commits `count` commands, and returns the CPU and wall seconds that it took."""

    def __init__(self, path: Path, *, sync: bool) -> None:
        self._sync = sync
        self._journal = start_journal(
            OsFiles(), path / "journal", cluster_id="bench", node_id=1, new_disk_id=b"d" * 16,
            voters=(1,), sync=sync,
        )  # fmt: skip
        self._journal.setCurrentTerm(1, 1)
        self._log = new_log(path / "log")

    def in_journal(self, count: int) -> tuple[float, float]:
        began = time.process_time(), time.perf_counter()
        first = self._journal.last_index + 1
        for index in range(first, first + count):
            self._journal.add(COMMAND, index, 1)
        write = self._journal.prepare()
        assert write is not None
        write.write()
        self._journal.complete(write)
        return time.process_time() - began[0], time.perf_counter() - began[1]

    def in_log(self, count: int) -> tuple[float, float]:
        began = time.process_time(), time.perf_counter()
        batch = encode_batch(values=[COMMAND] * count, timestamp=NOW_MS)
        self._log.append(batch, leader_epoch=1, now_ms=NOW_MS, now=0.0)
        flush = self._log.begin_flush(0.0)
        if self._sync:
            flush.perform(self._log.files)
        self._log.complete_flush(flush)
        return time.process_time() - began[0], time.perf_counter() - began[1]


def bench_commit(report: Report, root: Path, scale: float) -> None:
    for sync in (False, True):
        for count in (1, 8, 64, 256):
            with folder(root) as path:
                commits = Commits(path, sync=sync)
                rounds = range(max(10, int(1000 * scale)))
                taken = [(commits.in_journal(count), commits.in_log(count)) for _ in rounds]
            for number, what in enumerate(("journal", "log")):
                report.row(
                    what=what,
                    sync=sync,
                    commands=count,
                    cpu_us=round(median(each[number][0] for each in taken) * 1e6),
                    wall_us=round(median(each[number][1] for each in taken) * 1e6),
                )


SECTIONS = {
    "append": bench_append,
    "sendfile": bench_sendfile,
    "recovery": bench_recovery,
    "open": bench_open,
    "flush": bench_flush,
    "mixed": bench_mixed,
    "commit": bench_commit,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], default=[])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--root", type=Path, default=Path())
    arguments = parser.parse_args()
    for name in arguments.sections or SECTIONS:
        report = Report(f"log-{name}")
        SECTIONS[name](report, arguments.root.resolve(), arguments.scale)
        report.finish()


if __name__ == "__main__":
    main()
