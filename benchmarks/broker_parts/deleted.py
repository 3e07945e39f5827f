"""What topics cost that are deleted: latencies just after that, and the place that stays taken."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from benchmarks.broker_parts.cluster import open_brokers, open_client
from benchmarks.broker_parts.latency import percentiles
from benchmarks.broker_parts.load import fill, scaled, scheduled_load
from benchmarks.broker_parts.topics import TIMEOUT_SECONDS, Case, make_topic
from raftmq.client.administration.topics import delete_topic

if TYPE_CHECKING:
    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.report import Report

TOPICS, TOPIC_BYTES = 3, 300 << 20
PER_SECOND, SECONDS = 100, 20.0
LATER_SECONDS = 60.0
MEASURED = Case(durability="fsync", is_single=True)
DELETED = Case(durability="fsync")


async def bench_deleted(report: Report, root: Path, scale: float) -> None:
    """Before and after, the same load on a topic that stays."""
    size = int(TOPIC_BYTES * min(scale, 1.0))
    async with open_brokers(root) as brokers, open_client(brokers) as client:
        stays = await make_topic(client, partitions=12, durability=MEASURED.durability)
        for round_number in range(3):
            names = [
                await make_topic(client, partitions=12, durability=DELETED.durability)
                for _ in range(TOPICS)
            ]
            for name in names:
                await fill(
                    client, name, DELETED.batch(), partitions=12, bytes_per_partition=size // 12
                )
            for name in names:
                await delete_topic(client, name, deadline=trio.current_time() + TIMEOUT_SECONDS)
            load = await scheduled_load(
                client,
                brokers,
                stays,
                MEASURED,
                per_second=PER_SECOND,
                seconds=scaled(SECONDS, scale),
            )
            report.row(
                round=round_number + 1,
                deleted_mib=TOPICS * size >> 20,
                requests_s=PER_SECOND,
                **percentiles(load.latencies),
            )
        await trio.sleep(LATER_SECONDS)
        for node, (count, kept) in removed_open(brokers).items():
            report.row(broker=node, removed_files_open=count, their_mib=kept >> 20)


def removed_open(brokers: Brokers) -> dict[int, tuple[int, int]]:
    """By node: files without a name that it keeps open, and their bytes."""
    found = {}
    for node, process in brokers.running.items():
        folder = Path("/proc") / str(process.process_id) / "fd"
        kept = [link for link in folder.iterdir() if str(_target(link)).endswith(" (deleted)")]
        found[node] = (len(kept), sum(link.stat().st_size for link in kept))
    return found


def _target(link: Path) -> Path:
    try:
        return link.readlink()
    except FileNotFoundError:  # closed since it was listed
        return Path(os.devnull)
