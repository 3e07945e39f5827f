"""Brokers that answer clients: models of them, and whole ones on simulated disks.

With `autojump_clock`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from raftmq.client.routing.cluster import Cluster
from raftmq.model import Address
from raftmq.rpc.reply import Reply
from raftmq.wire.messages.groups import (
    CoordinatorRow,
    FindCoordinator,
    FindCoordinatorReply,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
)
from raftmq.wire.messages.metadata import Metadata
from raftmq.wire.messages.topics import CreateTopics, NewTopic
from tests.simulation.client_network import ClientNetwork
from tests.simulation.groups.whole_brokers import CLIENTS, NODES, Whole, whole_brokers
from tests.unit.client.administration.bureau import Bureau
from tests.unit.client.administration.groups.registry import Registry
from tests.unit.client.conformance.harness import PATIENCE_SECONDS, Harness
from tests.unit.client.group.coordinator_model import CoordinatorModel
from tests.unit.client.world import World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from raftmq.rpc.reply import Answer
    from raftmq.rpc.server import Handler
    from raftmq.wire.bodies import Request

Opener: TypeAlias = "Callable[[], AbstractAsyncContextManager[Harness]]"

TICK_SECONDS = 0.05


class Asking:
    """The part that all share: a client's connections."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def ask(self, broker_id: int, request: Request, *payload: bytes) -> Answer:
        deadline = trio.current_time() + PATIENCE_SECONDS
        return await self._cluster.ask(broker_id, request, payload, deadline=deadline)


class Lists(Asking):
    """Logs in lists, on two brokers."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.world = world

    async def add_topic(self, name: str, partition_count: int) -> None:
        leaders = [1 + number % 2 for number in range(partition_count)]
        self.world.add_topic(name, *leaders)

    async def move_leader(self, name: str) -> None:
        self.world.lead(name, 0, 3 - self.world.topics[name].partitions[0].leader)


class Coordinator:
    """The model of a coordinator, as brokers ask it."""

    def __init__(self, model: CoordinatorModel) -> None:
        self._model = model
        self._answered = trio.Event()
        self._answers: dict[object, Any] = {}

    def handlers(self) -> dict[type[Request], Handler]:
        kinds = (JoinGroup, SyncGroup, Heartbeat, LeaveGroup)
        return {FindCoordinator: self._find, **dict.fromkeys(kinds, self._answer)}

    async def run(self) -> None:
        """Time passes, and plans are saved."""
        while True:
            self._look()
            await trio.sleep(TICK_SECONDS)

    def _find(self, _context: Any, body: FindCoordinator, _payload: Any) -> Reply:
        rows = tuple(CoordinatorRow(group, broker_id=1) for group in body.groups)
        return Reply(FindCoordinatorReply(rows))

    async def _answer(self, _context: Any, body: Any, _payload: Any) -> Reply:
        token = object()
        self._model.on_request(body, token, trio.current_time())
        self._look()
        while token not in self._answers:
            await self._answered.wait()
        return Reply(self._answers.pop(token))

    def _look(self) -> None:
        now = trio.current_time()
        self._model.tick(now)
        if self._model.plan is not None:
            self._model.on_saved(now)
        self._answers |= self._model.answers
        self._model.answers.clear()
        self._answered.set()
        self._answered = trio.Event()


class WholeBrokers(Asking):
    """Three, all of which have all of each topic."""

    def __init__(self, brokers: Whole, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._brokers = brokers

    async def add_topic(self, name: str, partition_count: int) -> None:
        answer = await self.ask(1, CreateTopics((NewTopic(name, partition_count, 3),)))
        assert not answer.body.topics[0].error, answer
        for number in NODES:
            await self._wait(number, name, lambda leaders: all(each > 0 for each in leaders))

    async def move_leader(self, name: str) -> None:
        """The broker that leads is killed."""
        (topic,) = (await self.ask(1, Metadata((name,)))).body.topics
        leader = topic.partitions[0].leader
        self._brokers.nodes[leader].kill()
        for number in set(NODES) - {leader}:
            await self._wait(number, name, lambda leaders: leaders[0] not in (-1, leader))

    async def _wait(self, number: int, name: str, is_so: Callable[[list[int]], bool]) -> None:
        """Until that broker says so of the leaders."""
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                (topic,) = (await self.ask(number, Metadata((name,)))).body.topics
                if topic.partitions and is_so([one.leader for one in topic.partitions]):
                    return
                await trio.sleep(0.05)


def lists() -> AbstractAsyncContextManager[Harness]:
    """A `World`."""
    return _lists(lambda _world: None)


def bureau() -> AbstractAsyncContextManager[Harness]:
    return _lists(Bureau)


def registry() -> AbstractAsyncContextManager[Harness]:
    return _lists(lambda world: Registry(Bureau(world)))


@asynccontextmanager
async def coordinating() -> AsyncIterator[Harness]:
    """A `CoordinatorModel` in broker 1."""
    world = World(2)
    coordinator = Coordinator(CoordinatorModel(f"member-{number}" for number in count()))
    for broker in world.brokers.values():
        broker.handlers |= coordinator.handlers()
    async with trio.open_nursery() as nursery, opened(world) as here:
        nursery.start_soon(coordinator.run)
        yield here
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _lists(prepare: Callable[[World], object]) -> AsyncIterator[Harness]:
    world = World(2)
    world.gives_hints = True
    prepare(world)
    async with opened(world) as here:
        yield here


@asynccontextmanager
async def opened(world: World) -> AsyncIterator[Harness]:
    async with trio.open_nursery() as nursery:
        for broker in world.brokers.values():
            await nursery.start(broker.run)
        async with world.client() as cluster:
            await cluster.refresh(None, deadline=trio.current_time() + PATIENCE_SECONDS)
            yield Lists(world, cluster)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def whole() -> AsyncIterator[Harness]:
    async with whole_brokers() as brokers:
        addresses = [Address(f"n{number}", CLIENTS) for number in NODES]
        network = ClientNetwork(brokers.network.node("client"))
        async with Cluster(addresses, network, random=Random(1), client_id="test") as cluster:
            await cluster.refresh(None, deadline=trio.current_time() + PATIENCE_SECONDS)
            yield WholeBrokers(brokers, cluster)
