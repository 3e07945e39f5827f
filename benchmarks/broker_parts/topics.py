"""Topics of a benchmark, three replicas each, and the batches that go into them."""

from __future__ import annotations

import os
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import trio

from raftmq.client.administration.topics import create_topic, delete_topic, wait_leaders
from raftmq.wire.batch.records import encode_batch
from tests.producing import produce

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq.client.routing.cluster import Cluster

BATCH_BYTES = 64 << 10
REPLICAS, MIN_IN_SYNC = 3, 2
TIMEOUT_SECONDS = 180.0
FIRSTS_IN_FLIGHT = 64
FIRST_OFFSET = 1  # of what a benchmark writes

_numbers = count(1)


class Batch(NamedTuple):
    """Encoded, of `records` records."""

    data: bytes
    records: int


@dataclass(frozen=True, kw_only=True)
class Case:
    """One load on a topic of its own. `is_single`: one record a batch, otherwise about 64 KiB."""

    record_bytes: int = 1024
    acks: int = -1
    durability: str = "page_cache"
    partitions: int = 12
    in_flight: int = 24
    is_single: bool = False

    @property
    def acks_name(self) -> str:
        return "all" if self.acks < 0 else str(self.acks)

    def batch(self) -> Batch:
        records = 1 if self.is_single else max(1, BATCH_BYTES // self.record_bytes)
        values = [os.urandom(self.record_bytes)] * records
        return Batch(bytes(encode_batch(values=values, timestamp=int(time.time() * 1000))), records)


async def make_topic(client: Cluster, *, partitions: int, durability: str) -> str:
    """Its name, once all of it can be used."""
    name = await create(client, partitions=partitions, durability=durability)
    await write_first(client, name, partitions=partitions)
    return name


async def create(client: Cluster, *, partitions: int, durability: str) -> str:
    """Its name, once all of it is led: the brokers may still have its folders to make."""
    name = f"topic-{next(_numbers)}"
    configs = {"durability": durability, "min.insync.replicas": str(MIN_IN_SYNC)}
    await create_topic(
        client,
        name,
        partition_count=partitions,
        replication_factor=REPLICAS,
        configs=configs,
        deadline=trio.current_time() + TIMEOUT_SECONDS,
    )
    await wait_leaders(client, name, deadline=trio.current_time() + TIMEOUT_SECONDS)
    return name


async def write_first(client: Cluster, name: str, *, partitions: int) -> None:
    """A record into each partition, acks=all: then all replicas are there, and copy."""
    data, waiting = Case(is_single=True).batch().data, iter(range(partitions))

    async def write() -> None:
        for partition in waiting:
            await produce(
                client,
                name,
                partition,
                data,
                timeout_seconds=TIMEOUT_SECONDS,
                retries_unknown=True,  # brokers that make thousands of folders may lose some
            )

    async with trio.open_nursery() as nursery:
        for _ in range(FIRSTS_IN_FLIGHT):
            nursery.start_soon(write)


@asynccontextmanager
async def topic_for(client: Cluster, case: Case) -> AsyncIterator[str]:
    """Deleted afterwards, so that the disk has nothing left to write."""
    name = await make_topic(client, partitions=case.partitions, durability=case.durability)
    yield name
    await delete_topic(client, name, deadline=trio.current_time() + TIMEOUT_SECONDS)
