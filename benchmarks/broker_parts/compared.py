"""The few loads by which two commits are compared: one record alone, on a schedule, many, bulk.

Short enough to take turns with another commit several times: see `benchmarks/paired.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.broker_parts.cluster import open_brokers, open_client
from benchmarks.broker_parts.latency import SINGLE, add_row, loop_row, schedule_row
from benchmarks.broker_parts.load import produce_load, scaled
from benchmarks.broker_parts.topics import Case, topic_for

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.report import Report

BULK_SECONDS = 6.0
ON_FSYNC = replace(SINGLE, durability="fsync")


async def bench_compared(report: Report, root: Path, scale: float) -> None:
    async with open_brokers(root) as brokers, open_client(brokers) as client:
        for case in (
            SINGLE,
            ON_FSYNC,
            *[replace(SINGLE, in_flight=64, partitions=p) for p in (1, 12)],
        ):
            await loop_row(report, client, brokers, case, scale)
        for per_second, case in (
            (100, SINGLE),
            (1000, SINGLE),
            (100, replace(ON_FSYNC, partitions=12)),
            (1000, ON_FSYNC),
        ):
            await schedule_row(report, client, brokers, case, per_second, scale)
        bulk = Case()
        async with topic_for(client, bulk) as topic:
            load = await produce_load(
                client, brokers, topic, bulk, seconds=scaled(BULK_SECONDS, scale)
            )
        add_row(report, "bulk", bulk, load)
