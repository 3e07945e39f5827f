"""A cluster that keeps its logs in lists: real servers over the simulated network, no disks.

Owns the truth: topics, leaders, logs. Every broker knows all of it at once, unless a test leaves
one `behind`. What goes wrong is scripted: `Broker.produces` and `Broker.fetches` hold a step for
each of the next requests, which decides whether the request is carried out and what is answered.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import trio

from raftmq.client.cluster import Cluster
from raftmq.errors import ErrorCode
from raftmq.model import Address
from raftmq.rpc.context import Identity, Listener, RequestContext
from raftmq.rpc.reply import Reply
from raftmq.rpc.server import Server
from raftmq.wire.apis import ApiKey
from raftmq.wire.header import iter_batches, pack_prefix
from raftmq.wire.messages import metadata as wire
from raftmq.wire.messages.fetch import Fetch, FetchReply, PartitionFetched
from raftmq.wire.messages.offsets import (
    EARLIEST,
    LATEST,
    FoundOffset,
    ListOffsets,
    ListOffsetsReply,
)
from raftmq.wire.messages.produce import PartitionProduced, Produce, ProduceReply
from raftmq.wire.records import encode_batch
from tests.simulation.network import SimulatedNetwork
from tests.simulation.network_pipe import Latency

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from raftmq.rpc.service import Handler
    from raftmq.wire.bodies import Request

CLIENTS = Listener("clients")
CLUSTER = "cluster-a"
LATENCY = Latency(0.0005, 0.002, tail_probability=0.0)  # so that tests can tell what took long
Step: TypeAlias = "Callable[[Turn], Reply | Awaitable[Reply]]"


class Turn(NamedTuple):
    """What a broker can do with a request. `carry_out` refuses where a real broker would."""

    carry_out: Callable[[], Reply]
    refuse: Callable[..., Reply]
    hang_up: Callable[[], None]


def batch(*values: str) -> bytes:
    return bytes(encode_batch(values=[value.encode() for value in values], timestamp=1000))


class Partition:
    """Its log is one for all replicas: nothing is lost when the leader changes."""

    def __init__(self, leader: int) -> None:
        self.leader, self.leader_epoch = leader, 0
        self.log_start_offset = self.end_offset = 0
        self.batches: list[tuple[int, int, bytes]] = []  # base offset, end offset, bytes

    def append(self, data: bytes | memoryview) -> int:
        first = self.end_offset
        for position, header in iter_batches(data):
            prefix = pack_prefix(
                header, base_offset=self.end_offset, leader_epoch=self.leader_epoch
            )
            rest = bytes(data[position + len(prefix) : position + header.size])
            end_offset = self.end_offset + header.last_offset_delta + 1
            self.batches.append((self.end_offset, end_offset, prefix + rest))
            self.end_offset = end_offset
        return first

    def read(self, offset: int) -> bytes:
        return b"".join(data for _, end_offset, data in self.batches if end_offset > offset)


class Topic:
    def __init__(self, number: int, leaders: Sequence[int]) -> None:
        self.topic_id = number.to_bytes(16, "big")
        self.partitions = [Partition(leader) for leader in leaders]


class Broker:
    """Attributes:
    asked: every request that a handler got, in order.
    produces, fetches: steps for the next requests; without one they are carried out.
    behind: what it says of the metadata in place of the truth.
    """

    def __init__(self, world: World, broker_id: int, *, cluster_id: str = CLUSTER) -> None:
        self.world, self.broker_id, self._cluster_id = world, broker_id, cluster_id
        self.address = Address(f"b{broker_id}", 9000)
        self.asked: list[Request] = []
        self.produces: list[Step] = []
        self.fetches: list[Step] = []
        self.behind: wire.MetadataReply | None = None
        self.handlers: dict[ApiKey, Handler] = {
            ApiKey.METADATA: self._on_metadata,
            ApiKey.PRODUCE: self._on_produce,
            ApiKey.FETCH: self._on_fetch,
            ApiKey.LIST_OFFSETS: self._on_list_offsets,
        }
        self._connections: list[trio.CancelScope] = []
        self._life = trio.CancelScope()

    def hang_up(self) -> None:
        """End every connection, and listen on."""
        for scope in self._connections:
            scope.cancel()

    def stop(self) -> None:
        self._life.cancel()

    def count(self, kind: type[Request]) -> int:
        return sum(isinstance(body, kind) for body in self.asked)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until stopped."""
        server = Server(
            Identity(self._cluster_id, self.broker_id),
            self.handlers,
            authorize=self._note,
            metadata_version=lambda: self._metadata(None).metadata_version,
        )
        self._life = trio.CancelScope()
        with self._life:
            async with trio.open_nursery() as nursery:
                network = self.world.network.node(self.address.host)
                await nursery.start(network.serve, partial(self._serve, server), self.address)
                task_status.started()

    async def _serve(self, server: Server, stream: trio.abc.Stream) -> None:
        with trio.CancelScope() as scope:
            self._connections.append(scope)
            await server.serve_stream(stream, CLIENTS)
        self._connections.remove(scope)

    def _note(self, _context: RequestContext, body: Request) -> None:
        self.asked.append(body)

    def _metadata(self, names: Sequence[str] | None) -> wire.MetadataReply:
        if self.behind is not None:
            return self.behind
        return self.world.metadata(names)

    def _on_metadata(self, _context: Any, body: wire.Metadata, _payload: Any) -> Reply:
        return Reply(self._metadata(body.topics))

    def _on_produce(self, _context: Any, body: Produce, payload: Any) -> Any:
        def carry_out() -> Reply:
            (wanted,) = body.partitions
            error = self._refusal(wanted)
            if error:
                return self.produced(wanted, error)
            partition = self.world.find(wanted.topic_id, wanted.partition)
            assert partition is not None, "led, and not there"
            return self.produced(wanted, base_offset=partition.append(payload))

        refuse = partial(self.produced, body.partitions[0])
        reply = self._take_turn(self.produces, carry_out, refuse)
        return None if body.acks == 0 else reply

    def _on_fetch(self, _context: Any, body: Fetch, _payload: Any) -> Any:
        def carry_out() -> Reply:
            (wanted,) = body.partitions
            error = self._refusal(wanted)
            partition = self.world.find(wanted.topic_id, wanted.partition)
            if error or partition is None:
                return self.fetched(wanted, error)
            if not partition.log_start_offset <= wanted.fetch_offset <= partition.end_offset:
                return self.fetched(wanted, ErrorCode.OFFSET_OUT_OF_RANGE)
            return self.fetched(wanted, data=partition.read(wanted.fetch_offset))

        refuse = partial(self.fetched, body.partitions[0])
        return self._take_turn(self.fetches, carry_out, refuse)

    def _take_turn(
        self, steps: list[Step], carry_out: Callable[[], Reply], refuse: Callable[..., Reply]
    ) -> Any:
        turn = Turn(carry_out, refuse, self.hang_up)
        return steps.pop(0)(turn) if steps else carry_out()

    def _on_list_offsets(self, _context: Any, body: ListOffsets, _payload: Any) -> Reply:
        (wanted,) = body.partitions
        error = self._refusal(wanted)
        partition = self.world.find(wanted.topic_id, wanted.partition)
        offset = -1
        if partition is not None:
            known = {EARLIEST: partition.log_start_offset, LATEST: partition.end_offset}
            offset = known.get(wanted.timestamp, -1)
        found = FoundOffset(wanted.topic_id, wanted.partition, error, offset=offset)
        return Reply(ListOffsetsReply((found,)))

    def _refusal(self, wanted: Any) -> ErrorCode:
        partition = self.world.find(wanted.topic_id, wanted.partition)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if wanted.leader_epoch < partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if partition.leader != self.broker_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def produced(
        self, wanted: Any, error: ErrorCode = ErrorCode.NONE, *, base_offset: int = -1
    ) -> Reply:
        produced = PartitionProduced(
            wanted.topic_id,
            wanted.partition,
            error,
            error.name if error else "",
            base_offset,
            **self.world.hint(wanted),
        )
        return Reply(ProduceReply((produced,)))

    def fetched(self, wanted: Any, error: ErrorCode = ErrorCode.NONE, data: bytes = b"") -> Reply:
        partition = self.world.find(wanted.topic_id, wanted.partition)
        fetched = PartitionFetched(
            wanted.topic_id,
            wanted.partition,
            error,
            high_watermark=partition.end_offset if partition else -1,
            log_start_offset=partition.log_start_offset if partition else -1,
            length=len(data),
            **self.world.hint(wanted),
        )
        return Reply(FetchReply(partitions=(fetched,)), (data,) if data else ())


class World:
    """Attributes:
    gives_hints: errors say who leads, so that a client need not ask.
    """

    def __init__(self, broker_count: int) -> None:
        self.network = SimulatedNetwork(Random(0), latency=LATENCY)
        self.version = 1
        self.topics: dict[str, Topic] = {}
        self.brokers = {number: Broker(self, number) for number in range(1, broker_count + 1)}
        self.gives_hints = False

    @property
    def metadata_requests(self) -> int:
        return sum(broker.count(wire.Metadata) for broker in self.brokers.values())

    def add_topic(self, name: str, *leaders: int) -> Topic:
        self.version += 1
        self.topics[name] = Topic(self.version, leaders)
        return self.topics[name]

    def lead(self, topic: str, partition: int, leader: int) -> None:
        """Another broker leads from now on; -1: nobody."""
        self.version += 1
        found = self.topics[topic].partitions[partition]
        found.leader, found.leader_epoch = leader, found.leader_epoch + 1

    def find(self, topic_id: bytes, partition: int) -> Partition | None:
        for topic in self.topics.values():
            if topic.topic_id == topic_id and partition < len(topic.partitions):
                return topic.partitions[partition]
        return None

    def hint(self, wanted: Any) -> Mapping[str, int]:
        partition = self.find(wanted.topic_id, wanted.partition)
        if not self.gives_hints or partition is None:
            return {}
        return {"leader": partition.leader, "leader_epoch": partition.leader_epoch}

    def metadata(self, names: Sequence[str] | None) -> wire.MetadataReply:
        wanted = self.topics if names is None else names
        return wire.MetadataReply(
            self.version,
            CLUSTER,
            brokers=tuple(
                wire.Broker(broker.broker_id, *broker.address) for broker in self.brokers.values()
            ),
            topics=tuple(self._topic_metadata(name) for name in wanted),
        )

    def _topic_metadata(self, name: str) -> wire.TopicMetadata:
        topic = self.topics.get(name)
        if topic is None:
            return wire.TopicMetadata(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
        partitions = tuple(
            wire.PartitionMetadata(ErrorCode.NONE, number, found.leader, found.leader_epoch)
            for number, found in enumerate(topic.partitions)
        )
        return wire.TopicMetadata(ErrorCode.NONE, name, topic.topic_id, partitions)

    def client(self, *bootstrap: Address) -> Cluster:
        addresses = bootstrap or [broker.address for broker in self.brokers.values()]
        network = self.network.node("client")
        return Cluster(addresses, network, random=Random(1), client_id="test")


@asynccontextmanager
async def open_world(world: World | None = None) -> AsyncIterator[tuple[World, trio.Nursery]]:
    """Two brokers, unless told; with topic "t", whose partition 0 broker 1 leads."""
    world = world or World(2)
    world.add_topic("t", 1)
    async with trio.open_nursery() as nursery:
        for broker in world.brokers.values():
            await nursery.start(broker.run)
        yield world, nursery
        nursery.cancel_scope.cancel()


# Steps


async def never() -> Reply:
    await trio.sleep_forever()
    raise AssertionError("woken")


def refused(error: ErrorCode) -> Step:
    """Nothing is done."""
    return lambda turn: turn.refuse(error)


def done_but(error: ErrorCode) -> Step:
    """It is done, and nobody may say so."""

    def step(turn: Turn) -> Reply:
        [done] = turn.carry_out().body.partitions  # type: ignore[union-attr]
        return turn.refuse(error, base_offset=done.base_offset)

    return step


def lost(turn: Turn) -> Awaitable[Reply]:
    """The connection ends before anything is done."""
    turn.hang_up()
    return never()


def done_and_lost(turn: Turn) -> Awaitable[Reply]:
    turn.carry_out()
    turn.hang_up()
    return never()


def silent(_turn: Turn) -> Awaitable[Reply]:
    return never()
