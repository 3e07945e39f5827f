"""What filters by tags cost and save.

    python -m benchmarks.tags [look consume] [--scale 0.1] [--rounds 5] [--root DIR]

One record in a hundred is tagged "rare", the others "common". `look`: a log alone, in files that
the page cache has: bytes that are sent for "rare", as a share of the log, and of the log less the
heads of its batches (header and directory); records looked at in a second, for "rare" and for a tag
that no record has, and again once the tags of the segments are known. `consume`: a consumer of
"rare" beside one that reads everything and drops the others itself, with three brokers in processes
of their own on 127.0.0.1, in turns; ratios are those of a round.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import trio

from benchmarks.broker_parts.cluster import open_brokers, open_client
from benchmarks.broker_parts.load import Load, Meter
from benchmarks.broker_parts.topics import Case, topic_for
from benchmarks.log import folder
from benchmarks.report import Report
from raftmq.broker.requests.fetched_records import LOOK_UNITS
from raftmq.client.client import Client
from raftmq.disk.files import OsFiles, WouldBlock
from raftmq.model import Compression
from raftmq.partition.filtered_read import FilterLimits, Verdicts, plan_filtered
from raftmq.partition.storage.lookups import look_filtered_now
from raftmq.partition.storage.recovery import open_log
from raftmq.tag_filter import parse
from raftmq.topic_config import TopicConfig
from raftmq.wire.batch.head import head_length
from raftmq.wire.batch.header import check_batch
from raftmq.wire.batch.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.broker_parts.cluster import Brokers
    from raftmq.partition.storage.log import PartitionLog

ROUNDS = 5
RARE_EACH = 100  # one record of so many
LIMITS = FilterLimits(1 << 30, LOOK_UNITS, 1_000)


class Shape(NamedTuple):
    records: int  # of a batch
    value_bytes: int
    batches: int


SHAPES = [Shape(1_000, 100, 4_000), Shape(100, 10_240, 400), Shape(1, 100, 200_000)]


def batch_of(shape: Shape, number: int) -> bytes:
    first = number * shape.records
    tags = [["common" if (first + index) % RARE_EACH else "rare"] for index in range(shape.records)]
    # Half random, so that compression has something to do and something to leave.
    values = [os.urandom(shape.value_bytes // 2) * 2 for _ in range(shape.records)]
    return bytes(encode_batch(values=values, tags=tags, timestamp=1, compression=Compression.ZSTD))


# -- a log alone ----------------------------------------------------------------------------------


async def bench_look(report: Report, options: argparse.Namespace) -> None:
    await trio.lowlevel.checkpoint()
    for shape in SHAPES:
        with folder(options.root) as path:
            log, heads = fill(path, shape, max(20, int(shape.batches * options.scale)))
            records = log.log_end_offset
            for name, tags in (("rare", "rare"), ("nobody's", "nothing"), ("again", "nothing")):
                times = []
                for _ in range(ROUNDS):
                    if name != "again":
                        for segment in log.segments:
                            segment._seen_tags = None
                    began = time.perf_counter()
                    sent = read(log, tags)
                    times.append(time.perf_counter() - began)
                report.row(
                    filter=name,
                    batch_records=shape.records,
                    value_bytes=shape.value_bytes,
                    log_mib=round(log.size / 2**20),
                    sent_share=round(sent / log.size, 4),
                    sent_share_without_heads=round(max(0, sent - heads) / (log.size - heads), 4),
                    records_s=round(records / median(times)),
                    batches_s=round(records / shape.records / median(times)),
                )


def fill(path: Path, shape: Shape, batches: int) -> tuple[PartitionLog, int]:
    """The log, and how many bytes of it are heads of batches."""
    log = open_log(OsFiles(), path / "log", "log", TopicConfig(segment_bytes=64 << 20))
    heads, some = 0, [batch_of(shape, number) for number in range(min(batches, RARE_EACH))]
    for number in range(batches):
        data = some[number % len(some)]
        heads += head_length(data, 0, check_batch(data))
        log.append(data, leader_epoch=0, now_ms=1, now=0.0)
    return log, heads


def read(log: PartitionLog, tags: str) -> int:
    """Bytes that are sent to a reader from the beginning to the end."""
    verdicts, offset, sent = Verdicts(parse(tags)), 0, 0
    while offset < log.log_end_offset:
        try:
            found = look_filtered_now(log, offset, verdicts, LIMITS, end_offset=None)
        except WouldBlock:  # a broker does it in a thread
            found = plan_filtered(log, offset, verdicts, LIMITS).find()
        offset, sent = found.end_offset, sent + found.length
    return sent


# -- consumers ------------------------------------------------------------------------------------

RECORDS = 2_000_000
VALUE_BYTES = 100
CASE = Case(durability="page_cache", partitions=4)


async def bench_consume(report: Report, options: argparse.Namespace) -> None:
    kinds: dict[str, Callable[[Client, str, int], Awaitable[int]]] = {
        "everything": read_everything,
        "filtered": read_filtered,
    }
    loads: dict[str, list[Load]] = {name: [] for name in kinds}
    async with (
        open_brokers(options.root) as brokers,
        Client(brokers.addresses()) as client,
        open_client(brokers) as cluster,
        topic_for(cluster, CASE) as topic,
    ):
        count = max(100_000, int(RECORDS * options.scale))
        await send(client, topic, count)
        for number in range(options.rounds):
            for name in sorted(kinds, reverse=bool(number % 2)):
                loads[name].append(await measure(brokers, kinds[name], client, topic, count))
    for name, all_of_it in loads.items():
        report.row(
            consumer=name,
            records=count,
            seconds=round(median(load.seconds for load in all_of_it), 3),
            time_ratio=ratio([load.seconds for load in all_of_it], loads["everything"]),
            client_cpu_seconds=round(median(load.client_cpu_seconds for load in all_of_it), 2),
            brokers_cpu_seconds=round(median(load.brokers_cpu_seconds for load in all_of_it), 2),
        )


def ratio(these: list[float], those: list[Load]) -> float:
    pairs = zip(these, those, strict=True)
    return round(median(seconds / load.seconds for seconds, load in pairs), 3)


async def send(client: Client, topic: str, count: int) -> None:
    rows = range(count)
    async with client.producer() as producer:
        await producer.send_many(
            topic,
            rows,
            value=lambda number: b"%09d" % number * (VALUE_BYTES // 9),
            tags=lambda number: ["common" if number % RARE_EACH else "rare"],
        )


async def measure(
    brokers: Brokers,
    consume: Callable[[Client, str, int], Awaitable[int]],
    client: Client,
    topic: str,
    count: int,
) -> Load:
    load, meter, began = Load(), Meter(brokers), time.monotonic()
    found = await consume(client, topic, count // RARE_EACH)
    assert found == count // RARE_EACH, f"{found} records"
    load.seconds = time.monotonic() - began
    meter.note(load)
    return load


async def read_everything(client: Client, topic: str, count: int) -> int:
    found = 0
    async with client.consumer(topic, start="earliest", max_poll_records=10_000) as consumer:
        async for batch in consumer.batches():
            found += sum(tags == ("rare",) for tags in batch.tags)
            if found >= count:
                break
    return found


async def read_filtered(client: Client, topic: str, count: int) -> int:
    found = 0
    async with client.consumer(topic, start="earliest", tags="rare") as consumer:
        async for batch in consumer.batches():
            found += len(batch)
            if found >= count:
                break
    return found


SECTIONS = {"look": bench_look, "consume": bench_consume}


async def run(name: str, options: argparse.Namespace) -> None:
    report = Report(f"tags-{name}")
    await SECTIONS[name](report, options)
    report.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="section", help=", ".join(SECTIONS))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--root", type=lambda text: Path(text).resolve(), default=Path.cwd())
    options = parser.parse_args()
    if unknown := set(options.sections) - SECTIONS.keys():
        parser.error(f"no section {', '.join(sorted(unknown))}")
    for name in options.sections or SECTIONS:
        trio.run(run, name, options)


if __name__ == "__main__":
    main()
