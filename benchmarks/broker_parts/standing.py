"""What a cluster costs that has nothing to do, how fast it is there, and what partitions cost."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import trio

from benchmarks.broker_parts.cluster import NODES, open_brokers, open_client, open_nowhere
from benchmarks.broker_parts.latency import percentiles
from benchmarks.broker_parts.load import fill, scaled, scheduled_load
from benchmarks.broker_parts.topics import Case, create, make_topic, write_first

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.report import Report
    from raftmq.client.routing.cluster import Cluster

REST_SECONDS, IDLE_SECONDS = 10.0, 20.0
IDLE_PARTITIONS = (0, 12)
STARTS = 5
START_CASE = Case()
START_FILL_BYTES = 8 << 20  # of each partition
PARTITION_COUNTS = (10, 1000, 5000)
LOAD_SECONDS, LOAD_PER_SECOND = 10.0, 200


# -- idle ----------------------------------------------------------------------------------


async def bench_idle(report: Report, root: Path, scale: float) -> None:
    async with open_brokers(root) as brokers:
        for partitions in IDLE_PARTITIONS:
            if partitions:
                async with open_client(brokers) as client:
                    await make_topic(client, partitions=partitions, durability="fsync")
            percents = await idle_percents(brokers, scale)
            controller = (await brokers.describe()).controller_id
            for node, usage in brokers.usage().items():
                report.row(
                    partitions=partitions,
                    broker=f"{node}, controller" if node == controller else str(node),
                    cpu_percent=round(percents[node], 2),
                    resident_mib=round(usage.resident_mib),
                )


async def idle_percents(brokers: Brokers, scale: float) -> dict[int, float]:
    """Of a core, by node id, after a rest."""
    await trio.sleep(REST_SECONDS * scale)
    before, begin = brokers.usage(), time.monotonic()
    await trio.sleep(IDLE_SECONDS * scale)
    seconds = time.monotonic() - begin
    return {
        node: (usage.cpu_seconds - before[node].cpu_seconds) / seconds * 100
        for node, usage in brokers.usage().items()
    }


# -- ready ---------------------------------------------------------------------------------


async def bench_ready(report: Report, root: Path, scale: float) -> None:
    times: dict[str, list[float]] = {}
    starts = max(1, int(STARTS * scale))
    for _ in range(starts):
        async with open_nowhere(root) as brokers:
            await time_fresh(brokers, times)
    async with open_brokers(root) as brokers, open_client(brokers) as client:
        topic = await make_topic(
            client, partitions=START_CASE.partitions, durability=START_CASE.durability
        )
        await fill(
            client,
            topic,
            START_CASE.batch(),
            partitions=START_CASE.partitions,
            bytes_per_partition=int(START_FILL_BYTES * min(1.0, scale)),
        )
        for number in range(starts):
            await time_restarts(brokers, topic, NODES[number % len(NODES)], times)
    for what, seconds in times.items():
        report.row(
            what=what,
            times=len(seconds),
            p50_s=round(median(seconds), 2),
            max_s=round(max(seconds), 2),
        )


async def time_fresh(brokers: Brokers, times: dict[str, list[float]]) -> None:
    begin = time.monotonic()
    note(times, "three, no data: the last is ready", max(await brokers.start()))
    await brokers.wait_members()
    async with open_client(brokers) as client:
        await make_topic(client, partitions=START_CASE.partitions, durability=START_CASE.durability)
    note(
        times,
        "three, no data: each of 12 new partitions has taken a record",
        time.monotonic() - begin,
    )


async def time_restarts(
    brokers: Brokers, topic: str, node: int, times: dict[str, list[float]]
) -> None:
    await brokers.stop(node)
    await time_restart(brokers, topic, [node], "one, stopped in order", times)
    brokers.kill(node)
    await time_restart(brokers, topic, [node], "one, killed", times)
    brokers.kill_all()
    begin = time.monotonic()
    await time_restart(brokers, topic, list(NODES), "three, killed", times)
    async with open_client(brokers) as client:  # what the metadata says may be of before
        await write_first(client, topic, partitions=START_CASE.partitions)
    seconds = time.monotonic() - begin
    note(times, "three, killed: each of 12 partitions has taken a record", seconds)


async def time_restart(
    brokers: Brokers, topic: str, nodes: list[int], what: str, times: dict[str, list[float]]
) -> None:
    begin = time.monotonic()
    note(times, f"{what}: ready", max(await brokers.start(nodes)))
    in_sync = await brokers.wait_whole(topic) - begin
    note(times, f"{what}: all replicas in sync", in_sync)


def note(times: dict[str, list[float]], what: str, seconds: float) -> None:
    times.setdefault(what, []).append(seconds)


# -- partitions ----------------------------------------------------------------------------


async def bench_partitions(report: Report, root: Path, scale: float) -> None:
    for count in PARTITION_COUNTS:
        partitions = max(min(PARTITION_COUNTS), int(count * scale))
        async with open_brokers(root) as brokers, open_client(brokers) as client:
            await partitions_row(report, client, brokers, partitions, scale)


async def partitions_row(
    report: Report, client: Cluster, brokers: Brokers, partitions: int, scale: float
) -> None:
    case, begin = Case(is_single=True, partitions=1, durability="fsync"), time.monotonic()
    topic = await create(client, partitions=partitions, durability=case.durability)
    led = time.monotonic() - begin
    await write_first(client, topic, partitions=partitions)
    usable = time.monotonic() - begin
    described = (await brokers.describe((topic,))).topics[0].partitions
    percents = await idle_percents(brokers, scale)
    resident = [usage.resident_mib for usage in brokers.usage().values()]
    load = await scheduled_load(
        client,
        brokers,
        topic,
        case,
        per_second=LOAD_PER_SECOND,
        seconds=scaled(LOAD_SECONDS, scale),
    )
    timed = percentiles(load.latencies)
    await brokers.stop(NODES[-1])
    begin = time.monotonic()
    (restarted,) = await brokers.start([NODES[-1]])
    report.row(
        partitions=partitions,
        led_s=round(led, 2),
        usable_s=round(usable, 2),
        moved=sum(one.leader_epoch > 0 for one in described),  # led by another one meanwhile
        resident_mib_max=round(max(resident)),
        idle_cpu_percent_max=round(max(percents.values()), 2),
        p50_ms=timed["p50_ms"],
        p99_ms=timed["p99_ms"],
        restart_s=round(restarted, 2),
        in_sync_s=round(await brokers.wait_whole(topic) - begin, 2),
    )
