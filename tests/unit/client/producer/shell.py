"""A producer on the simulated world, and what its tests look at."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from raftmq.client.client import Client
from raftmq.wire.batch.records import RecordBatch
from raftmq.wire.messages.produce import Produce
from tests.simulation.client_network import ClientNetwork
from tests.unit.client.world import World, open_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import trio

    from raftmq.client.producer.dispatcher import Dispatcher
    from raftmq.client.producer.producer import Producer

NOW_MS = 1_700_000_000_000


class Stage(NamedTuple):
    world: World
    tasks: trio.Nursery
    client: Client


@asynccontextmanager
async def open_stage(world: World | None = None) -> AsyncIterator[Stage]:
    """See `open_world`: two brokers, topic "t" with partition 0 at broker 1; and a client."""
    async with open_world(world) as (opened, tasks):
        addresses = [broker.address for broker in opened.brokers.values()]
        network = ClientNetwork(opened.network.node("client"))
        client = Client(addresses, network=network, random=Random(1), now_ms=lambda: NOW_MS)
        async with client:
            yield Stage(opened, tasks, client)


@asynccontextmanager
async def open_producer(
    world: World | None = None, **options: Any
) -> AsyncIterator[tuple[World, Producer]]:
    async with open_stage(world) as stage, stage.client.producer(**options) as producer:
        yield stage.world, producer


def in_log(world: World, partition: int = 0, topic: str = "t") -> list[str]:
    """Values, in order."""
    batches = world.topics[topic].partitions[partition].batches
    decoded = [RecordBatch.decode(data) for _, _, data in batches]
    return [
        (value or b"").decode()
        for batch in decoded
        if not batch.is_control
        for value in batch.values
    ]


def requests(world: World) -> list[Produce]:
    """Produce requests that any broker got."""
    return [
        body
        for broker in world.brokers.values()
        for body in broker.asked
        if isinstance(body, Produce)
    ]


def dispatcher_of(producer: Producer) -> Dispatcher:
    return producer._dispatcher


def used_bytes(producer: Producer) -> int:
    return dispatcher_of(producer).buffer_pool.used_bytes
