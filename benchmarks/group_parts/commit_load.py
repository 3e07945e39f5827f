"""Members that commit each record as fast as they can, one commit of each under way at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from raftmq.client.client import Client
    from raftmq.client.consumer.consumer import Consumer


async def commit_load(client: Client, consumers: list[Consumer], seconds: float) -> dict[str, Any]:
    """How long each commit took, and what it came to in the metadata.

    Every answer tells the version of the metadata, which rises by one with each command.
    """
    latencies: list[float] = []
    end = trio.current_time() + seconds

    async def work(consumer: Consumer) -> None:
        async for batch in consumer.batches(max_records=1):
            begin = trio.current_time()
            await consumer.commit(batch)
            if (now := trio.current_time()) >= end:
                return
            latencies.append(now - begin)

    version, cpu, begin = client._cluster.newest_version, time.process_time(), trio.current_time()
    async with trio.open_nursery() as nursery:
        for consumer in consumers:
            nursery.start_soon(work, consumer)
    return {
        "latencies": latencies,
        "seconds": trio.current_time() - begin,
        "commands": client._cluster.newest_version - version,
        "cpu_seconds": time.process_time() - cpu,
    }
