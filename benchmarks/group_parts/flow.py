"""Data that flows through the brokers at a steady rate, while something else is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from benchmarks.broker_parts.topics import Case
from tests.producing import produce

if TYPE_CHECKING:
    from raftmq.client.client import Client


async def flow(
    client: Client, topic: str, *, partitions: int, megabytes_per_second: float, seconds: float
) -> dict[str, Any]:
    """Batches of 64 KiB, acks=all; what was reached. What is late is not made up for."""
    case = Case(partitions=partitions)
    data = case.batch().data
    period = len(data) / (megabytes_per_second * 1e6)
    begin = next_due = trio.current_time()
    count = 0

    async def work(partition: int) -> None:
        nonlocal next_due, count
        while (now := trio.current_time()) < begin + seconds:
            due, next_due = max(next_due, now), max(next_due, now) + period
            await trio.sleep_until(due)
            await produce(client._cluster, topic, partition, data)
            count += 1

    async with trio.open_nursery() as nursery:
        for worker in range(case.in_flight):
            nursery.start_soon(work, worker % partitions)
    return {"mb_s": count * len(data) / (trio.current_time() - begin) / 1e6}
