"""How long one record of 1 KiB takes, and what it costs: alone, on a schedule, and among others.

`alone`: one request at a time. On a schedule: so many a second, each counted from when it was due,
with how late it was sent. Then 64 requests in flight. CPU and the time that processes waited for a
core are of a record, of brokers and client; where they waited longer than they ran, a row says that
nothing can be judged by it.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.broker_parts.cluster import open_brokers, open_client
from benchmarks.broker_parts.load import produce_load, scaled, scheduled_load
from benchmarks.broker_parts.topics import Case, topic_for
from benchmarks.quorum_parts.figures import percentile, rounded_ms

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.broker_parts.load import Load
    from benchmarks.report import Report
    from raftmq.client.routing.cluster import Cluster

SCHEDULE_SECONDS, LOOP_SECONDS = 12.0, 8.0
RATES = (100, 1000)  # records a second
IN_FLIGHT = 64
DURABILITIES = ("page_cache", "fsync")
SINGLE = Case(is_single=True, partitions=1, in_flight=1)
ALONE = [replace(SINGLE, durability=durability) for durability in DURABILITIES]
SCHEDULED = [
    (per_second, replace(SINGLE, durability=durability, partitions=partitions))
    for per_second in RATES
    for durability in DURABILITIES
    for partitions in (1, 12)
]
SCHEDULED.append((1000, replace(SINGLE, acks=1)))
TOGETHER = [replace(SINGLE, in_flight=IN_FLIGHT, partitions=partitions) for partitions in (1, 12)]


async def bench_latency(report: Report, root: Path, scale: float) -> None:
    async with open_brokers(root) as brokers, open_client(brokers) as client:
        for case in ALONE:
            await loop_row(report, client, brokers, case, scale)
        for per_second, case in SCHEDULED:
            await schedule_row(report, client, brokers, case, per_second, scale)
        for case in TOGETHER:
            await loop_row(report, client, brokers, case, scale)


async def loop_row(
    report: Report, client: Cluster, brokers: Brokers, case: Case, scale: float
) -> None:
    async with topic_for(client, case) as topic:
        seconds = scaled(LOOP_SECONDS, scale)
        load = await produce_load(client, brokers, topic, case, seconds=seconds)
    name = "alone" if case.in_flight == 1 else f"{case.in_flight} in flight"
    add_row(report, name, case, load)


async def schedule_row(
    report: Report, client: Cluster, brokers: Brokers, case: Case, per_second: int, scale: float
) -> None:
    async with topic_for(client, case) as topic:
        seconds = scaled(SCHEDULE_SECONDS, scale)
        load = await scheduled_load(
            client, brokers, topic, case, per_second=per_second, seconds=seconds
        )
    add_row(report, f"{per_second:,}/s", case, load)


def add_row(report: Report, name: str, case: Case, load: Load) -> None:
    late = load.lateness
    report.row(
        load=name,
        durability=case.durability,
        partitions=case.partitions,
        acks=case.acks_name,
        requests_s=round(load.requests_per_second),
        **percentiles(load.latencies),
        late_p50_ms=rounded_ms(median(late)) if late else "",
        late_p99_ms=rounded_ms(percentile(late, 99)) if late else "",
        **costs(load),
    )


def costs(load: Load) -> dict[str, Any]:
    """Milliseconds of one request, and whether the row may be judged by."""
    spent = {
        "brokers_cpu_ms": load.brokers_cpu_seconds,
        "client_cpu_ms": load.client_cpu_seconds,
        "waited_ms": load.waited_seconds,
    }
    each = {name: round(seconds / len(load.latencies) * 1e3, 3) for name, seconds in spent.items()}
    return {**each, "judged": "yes" if load.is_judged else "no: busy machine"}


def percentiles(latencies: Sequence[float]) -> dict[str, Any]:
    return {
        "requests": len(latencies),
        "p50_ms": rounded_ms(median(latencies)),
        "p99_ms": rounded_ms(percentile(latencies, 99)),
        "p99_9_ms": rounded_ms(percentile(latencies, 99.9)),
        "max_ms": rounded_ms(max(latencies)),
    }
