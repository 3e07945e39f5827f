"""The two presets and the defaults, each at what the other is made for."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import trio

from benchmarks.quorum_parts.figures import percentile, rounded_ms
from benchmarks.sdk_parts.around import Stopwatch, keys_of, open_client, topic, values_of

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.report import Report
    from raftmq.client.client import Client

PRESETS = {
    "low_latency": {"preset": "low_latency"},
    "defaults": {},
    "high_throughput": {"preset": "high_throughput"},
}
SIZE = 1024
RECORDS = 200_000
PER_SECOND, SECONDS = 100, 10.0


async def bench_presets(report: Report, root: Path, scale: float) -> None:
    async with open_client(root) as client:
        for durability in ("page_cache", "fsync"):
            for name in PRESETS:
                await _measure(report, client, durability, name, scale)


async def _measure(
    report: Report, client: Client, durability: str, name: str, scale: float
) -> None:
    latencies = await _latencies(client, durability, name, max(1.0, SECONDS * scale))
    number = max(10_000, int(RECORDS * scale))
    values, keys = values_of(SIZE, number), keys_of(number)
    async with (
        topic(client, durability) as topic_name,
        client.producer(**PRESETS[name]) as producer,
    ):
        await producer.send(topic_name, b"first")
        watch = Stopwatch()
        for value, key in zip(values, keys, strict=True):
            await producer.enqueue(topic_name, value, key=key)
        await producer.flush()
        columns = watch.columns(number, SIZE)
        requests = producer.statistics.requests
    report.row(
        preset=name,
        durability=durability,
        p50_ms=rounded_ms(median(latencies)),
        p99_ms=rounded_ms(percentile(latencies, 99)),
        records_s=columns["records_s"],
        MB_s=columns["MB_s"],
        records_per_request=round(number / requests, 1),
        cpu_us_per_record=columns["cpu_us_per_record"],
    )


async def _latencies(client: Client, durability: str, preset: str, seconds: float) -> list[float]:
    """Of single records, so many a second, each awaited; counted from when it was due."""
    found: list[float] = []
    async with (
        topic(client, durability) as name,
        client.producer(**PRESETS[preset]) as producer,
        trio.open_nursery() as nursery,
    ):
        await producer.send(name, b"first")

        async def send(due: float) -> None:
            await producer.send(name, b"x" * SIZE, key=b"%d" % len(found))
            found.append(time.perf_counter() - due)

        begin = time.perf_counter()
        for each in range(int(PER_SECOND * seconds)):
            due = begin + each / PER_SECOND
            await trio.sleep(max(0.0, due - time.perf_counter()))
            nursery.start_soon(send, due)
    return found
