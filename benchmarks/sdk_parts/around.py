"""What every section needs: brokers with a client, a topic, records, and a stopwatch."""

from __future__ import annotations

import os
import time
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING

from benchmarks.broker_parts.cluster import open_brokers
from raftmq.client.client import Client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PARTITIONS = 12
_numbers = count()


@asynccontextmanager
async def open_client(root: Path) -> AsyncIterator[Client]:
    """Of three brokers that are ready."""
    async with open_brokers(root) as brokers, Client(brokers.addresses()) as client:
        yield client


@asynccontextmanager
async def topic(client: Client, durability: str = "page_cache") -> AsyncIterator[str]:
    """One of its own, deleted afterwards, so that its bytes are in nobody's way."""
    name = f"bench-{next(_numbers)}"
    config = {"durability": durability, "min.insync.replicas": 2}
    await client.admin.create_topic(
        name, partitions=PARTITIONS, replication_factor=3, config=config
    )
    yield name
    await client.admin.delete_topic(name)


def values_of(size: int, number: int) -> list[bytes]:
    """So many records; a thousand different ones."""
    different = [os.urandom(size) for _ in range(1000)]
    return [different[each % 1000] for each in range(number)]


def keys_of(number: int) -> list[bytes]:
    return [b"key-%05d" % (each % 10_000) for each in range(number)]


class Stopwatch:
    """Since it was made."""

    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def columns(self, records: int, size: int) -> dict[str, float]:
        """Of a report's row."""
        seconds, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu
        return {
            "records_s": round(records / seconds),
            "MB_s": round(records * size / seconds / 1e6, 1),
            "cpu_us_per_record": round(cpu / records * 1e6, 3),
            "records_per_cpu_s": round(records / cpu),
        }
