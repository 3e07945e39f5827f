"""Brokers that copy from each other over a simulated network, told by hand who leads what.

No metadata: a test says what the cluster has decided. Everything else is real, under a MockClock.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import trio

from raftmq.broker.replication.copy_budget import CopyBudget
from raftmq.broker.replication.fetchers import Fetchers
from raftmq.broker.requests.fetch import FetchRequests, ReplicaFetchRequests
from raftmq.broker.requests.fetch_sessions import FetchPurgatory
from raftmq.disk.files import FileSlice
from raftmq.errors import UnknownTopicOrPartition
from raftmq.model import Address
from raftmq.partition.replica import Replica
from raftmq.partition.replica_environment import PartitionKey, ReplicaEnvironment
from raftmq.rpc.context import RequestContext, ServerIdentity
from raftmq.rpc.peers import Peers
from raftmq.rpc.reply import PendingReply, Reply
from raftmq.rpc.server import RpcServer
from raftmq.rpc.trio_channel import TrioConnector
from raftmq.wire.messages.fetch import FetchPartition
from raftmq.wire.messages.hello import Hello
from tests.simulation.disk import SimulatedFiles
from tests.simulation.network import SimulatedNetwork
from tests.simulation.network_pipe import Latency
from tests.unit.partition.replica_world import TOPIC_ID, broker_epoch
from tests.unit.rpc.talk import BROKERS, allow
from tests.unit.storage.directories import Disk, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from raftmq.broker.replication.fetch_exchange import FetchSettings
    from raftmq.partition.leader import Assignment, ProposeIsr
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.rpc.server import HandlerResult
    from raftmq.topic_config import TopicConfig
    from raftmq.wire.messages.fetch import FetchReply, PartitionFetched
    from raftmq.wire.messages.replicate import ReplicaFetch, ReplicaProgress

CLIENT = RequestContext("alice", BROKERS, "test", 1, "here")
CLUSTER = "cluster-a"


def key_of(partition: int = 0) -> PartitionKey:
    return PartitionKey(TOPIC_ID, partition)


def want(offset: int = 0, partition: int = 0, **fields: int) -> FetchPartition:
    return FetchPartition(TOPIC_ID, partition, offset, **fields)


class Hosted:
    """The replicas of one broker, and who leads the others."""

    def __init__(self) -> None:
        self.replicas: dict[PartitionKey, Replica] = {}
        self.leaders: dict[PartitionKey, tuple[int, int]] = {}

    def get(self, topic_id: bytes, partition: int) -> Replica:
        found = self.replicas.get(PartitionKey(topic_id, partition))
        if found is None:
            raise UnknownTopicOrPartition(f"there is no partition {partition}")
        return found

    def leader_of(self, topic_id: bytes, partition: int) -> tuple[int, int]:
        return self.leaders.get(PartitionKey(topic_id, partition), (-1, -1))


class Copier:
    """A broker that knows nothing but how to lead, to follow and to be read from.

    Attributes:
        epochs: under which brokers are registered, as this one knows.
        fetches, progresses: requests that came here, in order.
    """

    def __init__(
        self,
        broker_id: int,
        directory: LogDirectory,
        files: SimulatedFiles,
        disk: Disk,
        *,
        network: SimulatedNetwork,
        settings: FetchSettings | None,
        bytes_per_second: int = 0,
    ) -> None:
        self.broker_id, self.directory, self.files, self.disk = broker_id, directory, files, disk
        self.hosted, self.epoch = Hosted(), broker_epoch(broker_id)
        self.epochs = {other: broker_epoch(other) for other in (1, 2, 3)}
        self.wishes: list[tuple[PartitionKey, ProposeIsr]] = []
        self.fetches: list[ReplicaFetch] = []
        self.progresses: list[ReplicaProgress] = []
        self.network = network.node(f"b{broker_id}")
        hello = Hello(CLUSTER, broker_id)
        random = Random(broker_id)
        connector = TrioConnector(self.network, lambda: hello)
        self.peers, self.copy_peers = (Peers(connector, random=random) for _ in range(2))
        self.fetchers = Fetchers(
            broker_id,
            self.peers,
            broker_epoch=lambda: self.epoch,
            random=random,
            copy_peers=self.copy_peers,
            copy_budget=CopyBudget(bytes_per_second),
            settings=settings,
        )
        self.waiting = FetchPurgatory()
        self.fetching = FetchRequests(self.hosted, directory, self.waiting, random)
        self.replicating = ReplicaFetchRequests(
            self.hosted, directory, self.waiting, random, registered_epoch=self.epochs.get
        )
        self.around = ReplicaEnvironment(
            broker_id,
            self.epochs.get,
            lambda key, proposal: self.wishes.append((key, proposal)),
            self.fetchers.on_held,
        )

    async def take_up(
        self,
        assignment: Assignment,
        partition: int = 0,
        config: TopicConfig | None = None,
        *,
        added: tuple[int, ...] = (),
    ) -> Replica:
        key = key_of(partition)
        replica = self.hosted.replicas.get(key)
        if replica is None:
            log = await self.directory.open_log(TOPIC_ID.hex(), partition, config)
            replica = Replica(key, log, self.directory, self.around, high_watermark=0)
            self.hosted.replicas[key] = replica
        self.hosted.leaders[key] = (assignment.leader, assignment.leader_epoch)
        await replica.take_up(assignment)
        if replica.follower is not None:
            is_added = self.broker_id in {*added} - {*assignment.isr}
            self.fetchers.follow(key, replica, is_added=is_added)
        else:
            self.fetchers.unfollow(key)
        return replica

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        handlers = {**self.fetching.handlers(), **self.replicating.handlers()}
        noted = {key: partial(self._note, handler) for key, handler in handlers.items()}
        server = RpcServer(
            ServerIdentity(CLUSTER, self.broker_id), noted, authorize=allow, run_sync=self.disk
        )
        async with trio.open_nursery() as nursery:
            address = Address(f"b{self.broker_id}", 9000)
            serve = partial(server.serve_stream, listener=BROKERS)
            await nursery.start(self.network.serve, serve, address)
            await nursery.start(self.waiting.run)
            await nursery.start(self.peers.run)
            await nursery.start(self.copy_peers.run)
            await nursery.start(self.fetchers.run)
            nursery.start_soon(self._tick)
            task_status.started()

    def _note(
        self, handler: object, context: RequestContext, body: object, payload: bytes
    ) -> object:
        noted = self.progresses if type(body).__name__ == "ReplicaProgress" else self.fetches
        noted.append(body)  # type: ignore[arg-type]
        return handler(context, body, payload)  # type: ignore[operator]

    async def _tick(self) -> None:
        while True:
            await trio.sleep(0.5)
            for replica in self.hosted.replicas.values():
                replica.tick(trio.current_time())


class World:
    """Attributes:
    brokers: by id.
    """

    def __init__(self, network: SimulatedNetwork, brokers: Mapping[int, Copier]) -> None:
        self.network, self.brokers = network, brokers

    async def assign(
        self,
        assignment: Assignment,
        partition: int = 0,
        config: TopicConfig | None = None,
        *,
        added: tuple[int, ...] = (),
    ) -> list[Replica]:
        """Everybody among the replicas learns of it. `added`: by a reassignment in progress."""
        return [
            await self.brokers[broker_id].take_up(assignment, partition, config, added=added)
            for broker_id in sorted(self.brokers.keys() & {*assignment.replicas})
        ]


@asynccontextmanager
async def world(
    *broker_ids: int, settings: FetchSettings | None = None, bytes_per_second: int = 0
) -> AsyncIterator[World]:
    """`bytes_per_second`: of the copy lanes of each broker."""
    network = SimulatedNetwork(Random(0), latency=Latency(tail_probability=0.0))
    brokers = {}
    async with AsyncExitStack() as stack:
        for broker_id in broker_ids:
            files, disk = SimulatedFiles(Random(broker_id)), Disk()
            directory = await stack.enter_async_context(opened(files, disk))
            brokers[broker_id] = Copier(
                broker_id,
                directory,
                files,
                disk,
                network=network,
                settings=settings,
                bytes_per_second=bytes_per_second,
            )
        addresses = {broker_id: Address(f"b{broker_id}", 9000) for broker_id in broker_ids}
        async with trio.open_nursery() as nursery:
            for broker in brokers.values():
                broker.peers.set_addresses(addresses)
                broker.copy_peers.set_addresses(addresses)
                await nursery.start(broker.run)
            yield World(network, brokers)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def alone(broker_id: int = 1) -> AsyncIterator[Copier]:
    """One broker whose handlers are called directly."""
    async with world(broker_id) as found:
        yield found.brokers[broker_id]


async def answered(result: HandlerResult) -> Reply:
    """What a handler's result leads to; whoever is cancelled meanwhile has hung up."""
    if isinstance(result, Reply):
        return result
    assert isinstance(result, PendingReply), f"{result}"
    outcomes: list[Reply | Exception] = []
    told = trio.Event()
    result.attach(lambda outcome: (outcomes.append(outcome), told.set()))  # type: ignore[func-returns-value]
    try:
        await told.wait()
    finally:
        result.drop()
    if isinstance(outcomes[0], Exception):
        raise outcomes[0]
    return outcomes[0]


def body_of(reply: Reply) -> FetchReply:
    body: FetchReply = reply.body  # type: ignore[assignment]
    return body


def payload_of(reply: Reply) -> bytes:
    return b"".join(
        piece.read() if isinstance(piece, FileSlice) else bytes(piece) for piece in reply.payload
    )


def told_of(reply: Reply) -> dict[int, PartitionFetched]:
    return {told.partition: told for told in body_of(reply).partitions}
