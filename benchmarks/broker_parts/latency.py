"""How long one record takes at a load that brokers can bear, counted from when it was due."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.broker_parts.cluster import open_brokers, open_client
from benchmarks.broker_parts.load import scaled, scheduled_load
from benchmarks.broker_parts.topics import Case, topic_for
from benchmarks.quorum_parts.figures import percentile, rounded_ms

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.report import Report

SECONDS = 12.0
PER_SECOND = 1000
CASES = [
    Case(durability=durability, partitions=partitions, acks=acks, is_single=True)
    for durability in ("page_cache", "fsync")
    for partitions in (12, 1)
    for acks in (-1, 1)
]


async def bench_latency(report: Report, root: Path, scale: float) -> None:
    async with open_brokers(root) as brokers, open_client(brokers) as client:
        for case in CASES:
            async with topic_for(client, case) as topic:
                latencies = await scheduled_load(
                    client, topic, case, per_second=PER_SECOND, seconds=scaled(SECONDS, scale)
                )
            report.row(
                durability=case.durability,
                partitions=case.partitions,
                acks=case.acks_name,
                requests_s=PER_SECOND,
                **percentiles(latencies),
            )


def percentiles(latencies: Sequence[float]) -> dict[str, Any]:
    return {
        "requests": len(latencies),
        "p50_ms": rounded_ms(median(latencies)),
        "p99_ms": rounded_ms(percentile(latencies, 99)),
        "p99_9_ms": rounded_ms(percentile(latencies, 99.9)),
        "max_ms": rounded_ms(max(latencies)),
    }
