"""A world with a topic to read, and consumers for it; for tests of the whole consumer."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from raftmq.client.consumer.consumer import Consumer
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.records import encode_batch, encode_control_batch
from raftmq.wire.bodies import ABSENT
from tests.unit.client.world import World, batch, open_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from raftmq.client.consumer.record import ConsumerRecord
    from raftmq.client.routing.cluster import Cluster


@asynccontextmanager
async def reading(*leaders: int, brokers: int = 2) -> AsyncIterator[tuple[World, Cluster]]:
    """Topic "u", whose partitions these brokers lead."""
    world = World(brokers)
    world.add_topic("u", *leaders)
    async with open_world(world), world.client() as client:
        yield world, client


def consumer(client: Cluster, *topics: str, **options: Any) -> Consumer:
    options = {"start": "earliest", **options}
    names = () if "assign" in options else topics or ("u",)
    return Consumer(client, names, options, random=Random(2))


def append(world: World, partition: int, *values: str, topic: str = "u") -> None:
    """One batch of `values`."""
    world.topics[topic].partitions[partition].append(batch(*values))


def append_control(world: World, partition: int, *, topic: str = "u") -> None:
    """A batch that takes an offset, and is never handed out."""
    data = encode_control_batch(
        kind=ControlType.COMMIT,
        coordinator_epoch=0,
        producer_id=ABSENT,
        producer_epoch=ABSENT,
        timestamp=1,
    )
    world.topics[topic].partitions[partition].append(bytes(data))


def append_at(world: World, partition: int, *timestamps: int) -> None:
    """One batch of records with these timestamps, which are their values, too."""
    values = [str(each).encode() for each in timestamps]
    data = bytes(encode_batch(values=values, timestamps=timestamps))
    world.topics["u"].partitions[partition].append(data)


def texts(records: Sequence[ConsumerRecord]) -> list[str]:
    return [(record.value or b"").decode() for record in records]


async def take(c: Consumer, count: int, *, seconds: float = 30) -> list[str]:
    """The values of so many records, which must come in time."""
    with trio.fail_after(seconds):
        return texts([await anext(c) for _ in range(count)])


async def take_all(c: Consumer, *, seconds: float = 1) -> list[str]:
    """The values of what comes in that time."""
    found = []
    with trio.move_on_after(seconds):
        async for record in c:
            found.append(record)  # noqa: PERF401 (it may be cancelled)
    return texts(found)
