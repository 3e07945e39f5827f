"""What replication costs beside moving and writing the same bytes: a ratio, round by round.

While the bare pipeline runs the brokers rest, with no topic but the empty one of the last round.
"""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import trio

from benchmarks.broker_parts.bare import bare_megabytes_per_second
from benchmarks.broker_parts.cluster import open_brokers, open_client
from benchmarks.broker_parts.load import WARM_UP_SHARE, produce_load, scaled
from benchmarks.broker_parts.topics import Case, topic_for

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.report import Report
    from raftmq.client.routing.cluster import Cluster

ROUNDS = 5
SECONDS = 4.0
DURABILITIES = ("page_cache", "fsync")


async def bench_pipeline(report: Report, root: Path, scale: float) -> None:
    async with open_brokers(root) as brokers, open_client(brokers) as client:
        for durability in DURABILITIES:
            case = Case(durability=durability)
            await compare(report, client, brokers, case, scaled(SECONDS, scale))


async def compare(
    report: Report, client: Cluster, brokers: Brokers, case: Case, seconds: float
) -> None:
    ours, bare = [], []
    for _ in range(ROUNDS):
        async with topic_for(client, case) as topic:
            load = await produce_load(client, brokers, topic, case, seconds=seconds)
        ours.append(load.megabytes_per_second)
        bare.append(await trio.to_thread.run_sync(partial(bare_round, brokers, case, seconds)))
    report.row(
        durability=case.durability,
        batch_bytes=len(case.batch().data),
        in_flight=case.in_flight,
        rounds=ROUNDS,
        raftmq_mb_s=round(median(ours), 1),
        bare_mb_s=round(median(bare), 1),
        ratio=round(median(one / other for one, other in zip(ours, bare, strict=True)), 3),
    )


def bare_round(brokers: Brokers, case: Case, seconds: float) -> float:
    return bare_megabytes_per_second(
        brokers.root,
        case.batch().data,
        in_flight=case.in_flight,
        warm_up=WARM_UP_SHARE * seconds,
        seconds=seconds,
        sync=case.durability == "fsync",
    )
