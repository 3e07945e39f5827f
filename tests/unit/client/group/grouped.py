"""Members of groups, whole consumers each, on a cluster whose coordinators are the real ones.

Logs are lists (`tests/unit/client/world.py`), the quorum is a fake; requests cross a simulated
network from a machine of each program to brokers. Time is virtual: tests take `autojump_clock`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import chain, count
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from raftmq.broker.broker import table_of
from raftmq.broker.groups.coordinator import GroupCoordinator
from raftmq.broker.groups.group_requests import GroupRequests, MemberRequests
from raftmq.broker.groups.offset_requests import OffsetRequests
from raftmq.broker.metadata_changes import MetadataChanges
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.routing.cluster import Cluster
from raftmq.metadata.commands import AssignSlot, CreateTopic, FeatureLevel, PartitionId
from raftmq.metadata.image import slot_of
from tests.simulation.client_network import ClientNetwork
from tests.unit.broker.asking import cluster_of, said
from tests.unit.broker.groups.coordinating import NOW_MS, QUICK, GroupLink
from tests.unit.client.world import World, batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from raftmq.client.consumer.record import ConsumerRecord
    from raftmq.client.group.effects import Rebalance
    from raftmq.metadata.image import GroupState
    from tests.simulation.quorum_fake import FakeCluster

    Key = tuple[str, int]

BROKERS = (1, 2, 3)
HOME = 2  # coordinates at first
GROUP = "billing"
SESSION_SECONDS, REBALANCE_SECONDS = 6.0, 10.0
PATIENCE_SECONDS = 60.0
MEMBER = {
    "group": GROUP,
    "start": "earliest",
    "session_timeout_ms": int(SESSION_SECONDS * 1000),
    "heartbeat_interval_ms": 500,
    "rebalance_timeout_ms": int(REBALANCE_SECONDS * 1000),
}


class Grouped:
    """Attributes:
    world: topics and their logs.
    told: what programs were told, all of them, in order.
    """

    def __init__(self, world: World, cluster: FakeCluster, nursery: trio.Nursery) -> None:
        self.world, self._cluster, self.nursery = world, cluster, nursery
        self._coordinators: dict[int, trio.CancelScope] = {}
        self.told: list[tuple[str, Rebalance]] = []

    # The cluster

    async def start(self, prepare: Callable[[World], None]) -> None:
        for broker_id in BROKERS:
            self._add_coordinator(broker_id)
        prepare(self.world)
        for broker in self.world.brokers.values():
            await self.nursery.start(broker.run)
        await self.give(HOME)

    def _add_coordinator(self, broker_id: int) -> None:
        quorum, link = self._cluster.nodes[broker_id], GroupLink(self._cluster)
        epoch = self._cluster.leader.image.brokers[broker_id].broker_epoch
        coordinator = GroupCoordinator(
            broker_id,
            quorum,
            link,
            MetadataChanges(quorum, link),
            QUICK,
            broker_epoch=lambda: epoch,
            sequences=chain(count(1)),
            now_ms=lambda: NOW_MS + int(trio.current_time() * 1000),
        )
        parts = [
            MemberRequests(coordinator, Random(broker_id), voters=self._cluster.nodes),
            OffsetRequests(coordinator),
            GroupRequests(coordinator),
        ]
        self.world.brokers[broker_id].handlers.update(table_of(parts))
        self._coordinators[broker_id] = trio.CancelScope()
        self.nursery.start_soon(self._coordinate, broker_id, coordinator)

    async def _coordinate(self, broker_id: int, coordinator: GroupCoordinator) -> None:
        with self._coordinators[broker_id]:
            await coordinator.run()

    async def give(self, broker_id: int, group: str = GROUP) -> None:
        """A group to a broker, as the controller does it."""
        number = slot_of(group)
        epoch = self._cluster.leader.image.slots[number].epoch
        await said(self._cluster, AssignSlot(number, epoch, broker_id))

    async def tell_metadata(self, name: str) -> None:
        """That a topic exists, for coordinators that need to know."""
        topic = self.world.topics[name]
        assignments = tuple((one.leader,) for one in topic.partitions)
        await said(self._cluster, CreateTopic(topic.topic_id, name, assignments))

    def crashes(self, partition: int, *, topic: str = "orders") -> int:
        """That are counted."""
        key = PartitionId(self.world.topics[topic].topic_id, partition)
        found = self._cluster.leader.image.offsets.get(GROUP, {}).get(key)
        return found.crashes.count if found is not None and found.crashes else 0

    def kill(self, broker_id: int) -> None:
        """It answers nobody any more, and its connections end."""
        self._coordinators[broker_id].cancel()
        self.world.brokers[broker_id].stop()

    def delay_quorum(self, seconds: float) -> None:
        """So long it takes from now on until a change is applied."""
        self._cluster.delay_seconds = seconds

    # What it knows

    def append(self, partition: int, *values: str, topic: str = "orders") -> None:
        self.world.topics[topic].partitions[partition].append(batch(*values))

    def committed(self, partition: int, *, topic: str = "orders", group: str = GROUP) -> int | None:
        key = PartitionId(self.world.topics[topic].topic_id, partition)
        found = self._cluster.leader.image.offsets.get(group, {}).get(key)
        return None if found is None else found.offset

    def asked(self, kind: type[Any]) -> list[Any]:
        """What came to the coordinators, those in turn; of each in its order."""
        bodies = [body for broker in self.world.brokers.values() for body in broker.asked]
        return [body for body in bodies if isinstance(body, kind)]

    def saved(self, group: str = GROUP) -> GroupState:
        return self._cluster.leader.image.groups[group]

    # Programs

    @asynccontextmanager
    async def consumer(self, name: str, *topics: str, **options: Any) -> AsyncIterator[Consumer]:
        """On a machine of that name."""
        async with self.connected(name) as cluster:
            names = () if {"assign", "pattern"} & options.keys() else topics or ("orders",)
            async with Consumer(cluster, names, MEMBER | options, random=Random(name)) as c:
                yield c

    @asynccontextmanager
    async def connected(self, name: str) -> AsyncIterator[Cluster]:
        addresses = [broker.address for broker in self.world.brokers.values()]
        network = ClientNetwork(self.world.network.node(name))
        async with Cluster(addresses, network, random=Random(name), client_id=name) as cluster:
            yield cluster

    def begin(self, name: str, *topics: str, **options: Any) -> Reading:
        """A program that reads whatever it gets."""
        reading = Reading(self, name, topics, options)
        self.nursery.start_soon(reading.run)
        return reading


class Reading:
    """A program that reads all that it gets, until it is told to end.

    Attributes:
        consumer: while it runs.
        records: what was handed out, in order.
        rebalances: what it was told.
        error: that has ended it.
    """

    consumer: Consumer

    def __init__(
        self, grouped: Grouped, name: str, topics: tuple[str, ...], options: dict[str, Any]
    ) -> None:
        self._grouped, self.name, self._topics = grouped, name, topics
        self.rebalances: list[Rebalance] = []
        self._work: Callable[[ConsumerRecord], Awaitable[None]] | None = options.pop("work", None)
        self._options = {"on_rebalance": self._note, **options}
        self.records: list[ConsumerRecord] = []
        self.error: Exception | None = None
        self.ended, self._scope = trio.Event(), trio.CancelScope()
        self._leaving = trio.Event()
        self._reading = trio.CancelScope()

    def _note(self, rebalance: Rebalance) -> None:
        self.rebalances.append(rebalance)
        self._grouped.told.append((self.name, rebalance))

    async def run(self) -> None:
        try:
            with self._scope:
                async with self._grouped.consumer(
                    self.name, *self._topics, **self._options
                ) as self.consumer:
                    with self._reading:
                        await self._read()
        except Exception as error:  # the test looks at it
            self.error = error
        finally:
            self.ended.set()

    async def _read(self) -> None:
        async for record in self.consumer:
            self.records.append(record)
            if self._work is not None:
                await self._work(record)

    async def leave(self) -> None:
        """In order: the block ends without an error."""
        self._reading.cancel()
        await self.ended.wait()

    async def cancel(self) -> None:
        """The whole block."""
        self._scope.cancel()
        await self.ended.wait()

    async def crash(self) -> None:
        """Nobody hears of it."""
        self._grouped.world.network.isolate(self.name)
        self._scope.cancel()
        await self.ended.wait()

    @property
    def values(self) -> list[str]:
        return [(record.value or b"").decode() for record in self.records]

    @property
    def held(self) -> set[Key]:
        return set(self.consumer.assignment) if hasattr(self, "consumer") else set()

    @property
    def assigned(self) -> list[tuple[Key, ...]]:
        return [one.assigned for one in self.rebalances if one.assigned]

    @property
    def revoked(self) -> list[tuple[Key, ...]]:
        return [one.revoked for one in self.rebalances if one.revoked]

    @property
    def lost(self) -> list[tuple[Key, ...]]:
        return [one.lost for one in self.rebalances if one.lost]


@asynccontextmanager
async def grouped(
    partition_count: int = 4,
    *,
    prepare: Callable[[World], None] = lambda _: None,
    level: int = FeatureLevel.FIRST,
    **topics: int,
) -> AsyncIterator[Grouped]:
    """Topic "orders", with so many partitions, and others by name and number. `prepare`: called
    before brokers listen.
    """
    world = World(len(BROKERS))
    for name, partitions in {"orders": partition_count, **topics}.items():
        world.add_topic(name, *(BROKERS[number % 3] for number in range(partitions)))
    cluster = await cluster_of(None, None, None, level=level)
    async with trio.open_nursery() as nursery:
        here = Grouped(world, cluster, nursery)
        await here.start(prepare)
        yield here
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object], *, seconds: float = PATIENCE_SECONDS) -> None:
    with trio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110  # what is looked at has no event
            await trio.sleep(0.05)


def keys(*partitions: int, topic: str = "orders") -> set[Key]:
    return {(topic, partition) for partition in partitions}


def parted(readings: Iterable[Reading], *partitions: int, topic: str = "orders") -> bool:
    """Whether each of them has something, each partition somebody, and none more than one."""
    parts = [reading.held for reading in readings]
    is_all = set().union(*parts) == keys(*partitions, topic=topic)
    return is_all and all(parts) and sum(map(len, parts)) == len(partitions)
