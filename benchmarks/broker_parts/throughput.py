"""What three brokers take in and give out: one base case, and one thing varied at a time."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.broker_parts.cluster import open_brokers, open_client
from benchmarks.broker_parts.load import (
    Load,
    fetch_load,
    fill,
    produce_load,
    scaled,
    unanswered_load,
)
from benchmarks.broker_parts.topics import Case, topic_for
from benchmarks.quorum_parts.figures import percentile, rounded_ms

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.report import Report
    from raftmq.client.routing.cluster import Cluster

SECONDS = 4.0
SIZES = (100, 1024, 10_240)
DURABILITIES = ("page_cache", "fsync")
SINGLES_IN_FLIGHT = 64
FILL_BYTES = 16 << 20  # of each partition
SINGLES_FILL_BYTES = 2 << 20


def produce_cases() -> list[Case]:
    cases = []
    for durability in DURABILITIES:
        base = Case(durability=durability)
        single = replace(base, is_single=True, in_flight=SINGLES_IN_FLIGHT)
        alone = replace(base, is_single=True, in_flight=1, partitions=1)
        cases += [
            *[replace(base, record_bytes=size) for size in SIZES],
            *[replace(base, acks=acks) for acks in (0, 1)],
            *[replace(base, partitions=count) for count in (1, 200)],
            *[replace(single, record_bytes=size) for size in SIZES],
            *[replace(single, acks=acks) for acks in (0, 1)],
            *[replace(single, partitions=count) for count in (1, 200)],
            *[replace(alone, acks=acks) for acks in (-1, 1)],
        ]
    return cases


async def bench_produce(report: Report, root: Path, scale: float) -> None:
    async with open_brokers(root) as brokers, open_client(brokers) as client:
        for case in produce_cases():
            async with topic_for(client, case) as topic:
                measure = produce_load if case.acks else unanswered_load
                load = await measure(client, brokers, topic, case, seconds=scaled(SECONDS, scale))
            report.row(acks=case.acks_name, durability=case.durability, **columns(case, load))


def fetch_cases() -> list[Case]:
    return [
        *[Case(record_bytes=size) for size in SIZES],
        *[Case(record_bytes=size, is_single=True) for size in SIZES],
    ]


async def bench_fetch(report: Report, root: Path, scale: float) -> None:
    async with open_brokers(root) as brokers, open_client(brokers) as client:
        for case in fetch_cases():
            async with topic_for(client, case) as topic:
                load = await filled_and_fetched(client, brokers, topic, case, scale)
            report.row(bytes_max="one batch" if case.is_single else "1 MiB", **columns(case, load))


async def filled_and_fetched(
    client: Cluster, brokers: Brokers, topic: str, case: Case, scale: float
) -> Load:
    batch, fill_bytes = case.batch(), SINGLES_FILL_BYTES if case.is_single else FILL_BYTES
    batches = await fill(
        client,
        topic,
        batch,
        partitions=case.partitions,
        bytes_per_partition=int(fill_bytes * min(1.0, scale)),
    )
    return await fetch_load(
        client, brokers, topic, batch, case, batches=batches, seconds=scaled(SECONDS, scale)
    )


def columns(case: Case, load: Load) -> dict[str, Any]:
    batch, count = case.batch(), len(load.latencies)
    is_timed = case.acks != 0
    return {
        "record_bytes": case.record_bytes,
        "batch_records": batch.records,
        "partitions": case.partitions,
        "in_flight": case.in_flight,
        "mb_s": round(load.megabytes_per_second, 1),
        "records_s": round(load.byte_count / len(batch.data) * batch.records / load.seconds),
        "requests_s": round(load.requests_per_second),
        "p50_ms": rounded_ms(median(load.latencies)) if is_timed else "",
        "p99_ms": rounded_ms(percentile(load.latencies, 99)) if is_timed else "",
        "brokers_cpu_us": round(load.brokers_cpu_seconds / count * 1e6),
        "client_cpu_us": round(load.client_cpu_seconds / count * 1e6),
    }
