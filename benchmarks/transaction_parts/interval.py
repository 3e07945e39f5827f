"""`exactly_once` with 100 ms beside the same by hand, at least once, with a commit each 100 ms.

Both read a topic of 1 KiB records from its beginning, and send each record to another one; timed
until the group's offsets say that all of it is done. In turns; ratios are those of a round.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from benchmarks.broker_parts.cluster import open_brokers, open_client
from benchmarks.broker_parts.load import Load, Meter, fill
from benchmarks.broker_parts.topics import Case, topic_for
from raftmq.client.client import Client
from raftmq.client.transactions.exactly_once import exactly_once

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from benchmarks.broker_parts.cluster import Brokers
    from benchmarks.report import Report

MIB_PER_PARTITION = 16
CASE = Case(durability="fsync", is_single=False)
INTERVAL_MS = 100
LOOK_SECONDS = 0.02
AIM_RATE_RATIO = 0.9


class Job(NamedTuple):
    client: Client
    source: str
    target: str
    group: str
    records: int


async def bench_interval(report: Report, options: argparse.Namespace) -> None:
    kinds = {"at least once": at_least_once, "exactly once": exactly_once_helper}
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    cpu: dict[str, list[float]] = {name: [] for name in kinds}
    async with (
        open_brokers(options.root) as brokers,
        Client(brokers.addresses()) as client,
        open_client(brokers) as cluster,
        topic_for(cluster, CASE) as source,
        topic_for(cluster, CASE) as target,
    ):
        records = await fill_source(cluster, source, options.scale)
        for number in range(options.rounds):
            for name in sorted(kinds, reverse=bool(number % 2)):
                group = f"{name.replace(' ', '-')}-{number}"
                job = Job(client, source, target, group, records)
                load = await measure(brokers, kinds[name], job)
                rates[name].append(records / load.seconds)
                spent = load.brokers_cpu_seconds + load.client_cpu_seconds
                cpu[name].append(spent / records)
    for name in kinds:
        report.row(
            delivery=name,
            records=records,
            records_s=round(median(rates[name])),
            rate_ratio=ratio(rates[name], rates["at least once"]),
            cpu_us_per_record=round(median(cpu[name]) * 1e6, 1),
            cpu_ratio=ratio(cpu[name], cpu["at least once"]),
            aim=f"rate_ratio {AIM_RATE_RATIO}" if name == "exactly once" else "",
        )


def ratio(these: list[float], those: list[float]) -> float:
    return round(median(a / b for a, b in zip(these, those, strict=True)), 3)


async def fill_source(cluster: Any, source: str, scale: float) -> int:
    """How many records it has."""
    batch = CASE.batch()
    size = max(1 << 20, int(MIB_PER_PARTITION * scale * (1 << 20)))
    batches = await fill(
        cluster, source, batch, partitions=CASE.partitions, bytes_per_partition=size
    )
    return (batches * batch.records + 1) * CASE.partitions  # with the first of each


async def measure(brokers: Brokers, process: Callable[[Job], Awaitable[None]], job: Job) -> Load:
    load, meter, began = Load(), Meter(brokers), time.monotonic()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process, job)
        while await committed(job) < job.records:  # noqa: ASYNC110  # the brokers' state, not ours
            await trio.sleep(LOOK_SECONDS)
        load.seconds = time.monotonic() - began
        meter.note(load)
        nursery.cancel_scope.cancel()
    return load


async def committed(job: Job) -> int:
    """Records that the group is done with."""
    found = await job.client.admin.group_offsets(job.group)
    return sum(offset.offset for offset in found.values())


async def at_least_once(job: Job) -> None:
    async with (
        job.client.consumer(
            job.source, group=job.group, start="earliest", commit="manual"
        ) as consumer,
        job.client.producer() as producer,
    ):
        left, due = job.records, trio.current_time() + INTERVAL_MS / 1000
        async for batch in consumer.batches():
            for value in batch.values:
                await producer.enqueue(job.target, value)
            left -= len(batch)
            if trio.current_time() >= due or left == 0:
                await producer.flush()
                await consumer.commit()
                due = trio.current_time() + INTERVAL_MS / 1000


async def exactly_once_helper(job: Job) -> None:
    async def transform(batch: Any, tx: Any) -> None:
        for value in batch.values:
            await tx.enqueue(job.target, value)

    async with job.client.consumer(
        job.source, group=job.group, start="earliest", delivery="exactly_once"
    ) as consumer:
        await exactly_once(job.client, consumer, transform, interval_ms=INTERVAL_MS)
