"""What scheduled records cost: memory, opening, taking office, reading past them, delivering them.

    python -m benchmarks.scheduled [pending deliver] [--scale 0.1] [--root DIR]

`pending`: a log alone, in files that the page cache has, of batches of one record of 100 bytes,
each due at another time: bytes of memory for each that is pending; seconds to open it with the
lists of its segments, and without them; seconds until a leader knows what is due first; batches in
a second that are taken, read and delivered, one append for 256; and batches in a second that a
reader without a filter passes over, and that it gets where every other one is hidden.
`deliver`: three brokers in processes of their own on 127.0.0.1, one partition: records that are all
due in one second, until the last of them is read; and the latency of single records with acks=all
on another topic of the same leaders, while nothing is delivered and while 2,000 records a second
fall due.
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import trio

from benchmarks.broker_parts.cluster import open_brokers
from benchmarks.log import folder
from benchmarks.report import Report
from raftmq.broker.requests.fetched_records import LOOK_UNITS
from raftmq.client.client import Client
from raftmq.disk.files import OsFiles
from raftmq.partition.filtered_read import FilterLimits, plan_filtered
from raftmq.partition.storage.recovery import Past, open_log
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.batch.scheduling import delivery_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.partition.storage.log import PartitionLog

PENDING = 1_000_000
DELIVERED = 20_000
MIXED = 20_000
AT_ONCE = 256
NOW_MS, HOUR_MS = 1_700_000_000_000, 3_600_000
CONFIG = TopicConfig(segment_bytes=64 << 20)
LIMITS = FilterLimits(1 << 20, LOOK_UNITS, 1_000)


async def bench_pending(report: Report, options: argparse.Namespace) -> None:
    await trio.lowlevel.checkpoint()
    count = max(1_000, round(PENDING * options.scale))
    with folder(options.root) as path:
        fill(path, count)
        report.row(what="opened by the batches", seconds=timed_opening(path, is_clean=False)[0])
        gc.collect()
        tracemalloc.start()
        log = opened(path)
        report.row(
            what="memory for each that is pending",
            bytes=round(tracemalloc.get_traced_memory()[0] / count, 1),
        )
        tracemalloc.stop()
        close(log)
        seconds, log = timed_opening(path, is_clean=True)
        report.row(what="opened by the lists", seconds=seconds)
        report.row(what="until what is due first is known", seconds=timed(log.schedule.next_due))
        passed = timed(lambda: read_past(log))
        report.row(what="passed over by a reader", batches_s=round(count / passed))
        report.row(what="read, with one scheduled between two", batches_s=round(read_mixed(path)))
        delivered = min(DELIVERED, count)
        seconds = timed(lambda: deliver(log, delivered))
        report.row(what="taken, read and delivered", batches_s=round(delivered / seconds))


def fill(path: Path, count: int) -> None:
    log, random = open_log(OsFiles(), path / "log", "log", CONFIG), Random(1)
    for first in range(0, count, 1_000):
        data = bytearray()
        for _ in range(min(1_000, count - first)):
            due_ms = NOW_MS + random.randrange(HOUR_MS)
            data += encode_batch(values=[b"x" * 100], timestamp=NOW_MS, due_ms=due_ms)
        log.append(bytes(data), leader_epoch=0, now_ms=NOW_MS, now=0.0)
    close(log)


def close(log: PartitionLog) -> None:
    """In order, with the lists of the segments."""
    log.write_indexes()
    log.close_aborted()
    log.producers.take_last(log.log_end_offset)
    log.scheduled.take_last(log.log_end_offset)
    for work in (log.scheduled.begin_write(), log.producers.begin_write(log.segments)):
        if work is not None:
            work.perform(log.files)
    log.close()


def opened(path: Path) -> PartitionLog:
    end_offset = open_log(OsFiles(), path / "log", "log", CONFIG).log_end_offset
    return open_log(OsFiles(), path / "log", "log", CONFIG, Past(end_offset, was_clean=True))


def timed_opening(path: Path, *, is_clean: bool) -> tuple[float, PartitionLog]:
    end_offset = open_log(OsFiles(), path / "log", "log", CONFIG).log_end_offset
    if not is_clean:
        for pattern in ("*.scheduled", "*.producers"):
            for file in (path / "log").glob(pattern):
                file.unlink()
    past = Past(end_offset, was_clean=is_clean)
    began = time.perf_counter()
    log = open_log(OsFiles(), path / "log", "log", CONFIG, past)
    seconds = round(time.perf_counter() - began, 3)
    if not is_clean:
        close(log)
    return seconds, log


def timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return round(time.perf_counter() - began, 4)


def read_past(log: PartitionLog) -> None:
    offset = 0
    while offset < log.log_end_offset:
        offset = plan_filtered(log, offset, None, LIMITS).find().end_offset


def read_mixed(path: Path) -> float:
    """Batches that a reader gets in a second."""
    log = open_log(OsFiles(), path / "mixed", "mixed", CONFIG)
    for number in range(2 * MIXED):
        due_ms = NOW_MS + HOUR_MS if number % 2 else None
        data = bytes(encode_batch(values=[b"x" * 100], timestamp=NOW_MS, due_ms=due_ms))
        log.append(data, leader_epoch=0, now_ms=NOW_MS, now=0.0)
    seconds = timed(lambda: read_past(log))
    log.close()
    return MIXED / seconds


def deliver(log: PartitionLog, count: int) -> None:
    for _ in range(0, count, AT_ONCE):
        made = []
        for entry in log.schedule.take_due(NOW_MS + HOUR_MS, AT_ONCE):
            data, offset = log.slice_of(entry).read(), entry.base_offset
            made.append(delivery_of(data, original_offset=offset, now_ms=NOW_MS))
        log.append_settling(made, leader_epoch=0, now_ms=NOW_MS, now=0.0)


# -- brokers ---------------------------------------------------------------------------------------

BURST = 30_000
STEADY_A_SECOND, STEADY_SECONDS = 2_000, 10
PARTITIONS = 3


async def bench_deliver(report: Report, options: argparse.Namespace) -> None:
    async with open_brokers(options.root) as brokers, Client(brokers.addresses()) as client:
        for topic, partitions in (("burst", 1), ("steady", PARTITIONS), ("plain", PARTITIONS)):
            await client.admin.create_topic(topic, partitions=partitions)
        count = max(1_000, round(BURST * options.scale))
        due_at = await schedule(client, "burst", count, spread_seconds=1.0)
        seconds = await read_until(client, "burst", count, due_at)
        report.row(what="due within a second", records=count, deliveries_s=round(count / seconds))
        alone = await latencies(client)
        steady = STEADY_A_SECOND * STEADY_SECONDS
        due_at = await schedule(client, "steady", steady, spread_seconds=STEADY_SECONDS)
        await trio.sleep(max(0.0, due_at - time.time()))
        beside = await latencies(client)
        for what, found in (("alone", alone), ("beside deliveries", beside)):
            report.row(
                produce=what,
                requests=len(found),
                p50_ms=round(found[len(found) // 2] * 1000, 2),
                p99_ms=round(found[len(found) * 99 // 100] * 1000, 2),
            )


async def schedule(client: Client, topic: str, count: int, *, spread_seconds: float) -> float:
    """Returns when the first of them is due: 20 seconds from now, or when all are sent."""
    due_at = time.time() + 20
    random = Random(2)
    async with client.producer() as producer, trio.open_nursery() as nursery:
        room = trio.CapacityLimiter(500)

        async def send(due: float) -> None:
            async with room:
                await producer.send(topic, b"x" * 100, deliver_at=round(due * 1000))

        for _ in range(count):
            nursery.start_soon(send, due_at + random.random() * spread_seconds)
    return max(due_at, time.time())


async def read_until(client: Client, topic: str, count: int, due_at: float) -> float:
    found = 0
    async with client.consumer(topic, start="earliest", max_poll_records=10_000) as consumer:
        async for batch in consumer.batches():
            found += len(batch)
            if found >= count:
                break
    return time.time() - due_at


async def latencies(client: Client) -> list[float]:
    """Of records that are sent one after the other, sorted."""
    found = []
    async with client.producer(linger_ms=0) as producer:
        until = time.monotonic() + STEADY_SECONDS - 1
        while time.monotonic() < until:
            began = time.monotonic()
            await producer.send("plain", b"x" * 100)
            found.append(time.monotonic() - began)
    return sorted(found)


SECTIONS = {"pending": bench_pending, "deliver": bench_deliver}


async def run(name: str, options: argparse.Namespace) -> None:
    report = Report(f"scheduled-{name}")
    await SECTIONS[name](report, options)
    report.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="section", help=", ".join(SECTIONS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--root", type=lambda text: Path(text).resolve(), default=Path.cwd())
    options = parser.parse_args()
    if unknown := set(options.sections) - SECTIONS.keys():
        parser.error(f"no section {', '.join(sorted(unknown))}")
    for name in options.sections or SECTIONS:
        trio.run(run, name, options)


if __name__ == "__main__":
    main()
