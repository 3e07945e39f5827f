"""What 75,000 transaction ids at rest cost each broker: memory, and time to start again.

Ids that have committed once each: their rows know the last decision. All brokers are started again
before and after, so that memory is what metadata take, without garbage. 75,000, as from 80,000 on
(80 % of the most) ids at rest are forgotten; 100,000 cost a third more.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import trio

from benchmarks.broker_parts.cluster import NODES, open_brokers, open_client
from benchmarks.transaction_parts.raw_ids import RawId, for_all

if TYPE_CHECKING:
    import argparse

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.report import Report

IDS = 75_000
CALM_SECONDS = 5.0
PER = 100_000
AIM = "+ 60 MiB, + 0.3 s for 100,000"


async def bench_ids(report: Report, options: argparse.Namespace) -> None:
    ids = max(1_000, int(IDS * options.scale))
    async with open_brokers(options.root) as brokers:
        mib, seconds = await restart(brokers, options.rounds)
        row(report, 0, mib, seconds)
        began = trio.current_time()
        async with open_client(brokers) as cluster:
            await for_all((RawId(cluster, f"service-{n:06}") for n in range(ids)), open_and_end)
        made = trio.current_time() - began
        more_mib, more_seconds = await restart(brokers, options.rounds)
        row(report, ids, more_mib, more_seconds)
        report.row(
            made_in_s=round(made, 1),
            mib_per_100_000=round((more_mib - mib) * PER / ids, 1),
            seconds_per_100_000=round((more_seconds - seconds) * PER / ids, 2),
            aim=AIM,
        )


async def open_and_end(one: RawId) -> None:
    await one.open()
    await one.commit()


async def restart(brokers: Brokers, rounds: int) -> tuple[float, float]:
    """One after the other, each as often: medians of memory in MiB, and of seconds until ready."""
    mib, seconds = [], []
    for _ in range(rounds):
        for node in NODES:
            await brokers.stop(node)
            seconds += await brokers.start([node])
            await brokers.wait_members()
    await trio.sleep(CALM_SECONDS)
    mib = [usage.resident_mib for usage in brokers.usage().values()]
    return median(mib), median(seconds)


def row(report: Report, ids: int, mib: float, seconds: float) -> None:
    report.row(ids=ids, mib=round(mib, 1), ready_s=round(seconds, 2))
