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
from msgspec.structs import replace

from raftmq.client.routing.cluster import Cluster
from raftmq.errors import ErrorCode, RaftmqError
from raftmq.model import Address
from raftmq.rpc.context import Listener, RequestContext, ServerIdentity
from raftmq.rpc.reply import Reply
from raftmq.rpc.server import RpcServer
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.bodies import TOPICS_MAX
from raftmq.wire.messages import metadata as wire
from raftmq.wire.messages.corruption import CorruptionVerdict, ReportCorruption
from raftmq.wire.messages.fetch import Fetch, FetchReply
from raftmq.wire.messages.metadata import Metadata
from raftmq.wire.messages.offsets import (
    EARLIEST,
    LATEST,
    FoundOffset,
    ListOffsets,
    ListOffsetsReply,
)
from raftmq.wire.messages.produce import Produce, split_payload
from raftmq.wire.messages.producers import FenceProducer, InitProducerId, InitProducerIdReply
from tests.simulation.client_network import ClientNetwork
from tests.simulation.network import SimulatedNetwork
from tests.simulation.network_pipe import Latency
from tests.unit.client.logs import Partition, Topic
from tests.unit.client.replies import fenced, fetched, joined, looked, produced

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from raftmq.rpc.server import Handler
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


class Broker:
    """Attributes:
    asked: every request that a handler got, in order.
    produces, fetches, producer_ids, fences: steps for the next requests; without one they are
        carried out.
    look: what its disk shows where somebody reports damage.
    behind: what it says of the metadata in place of the truth.
    """

    def __init__(self, world: World, broker_id: int, *, cluster_id: str = CLUSTER) -> None:
        self.world, self.broker_id, self._cluster_id = world, broker_id, cluster_id
        self.address = Address(f"b{broker_id}", 9000)
        self.asked: list[Request] = []
        self.produces: list[Step] = []
        self.fetches: list[Step] = []
        self.producer_ids: list[Step] = []
        self.fences: list[Step] = []
        self.behind: wire.MetadataReply | None = None
        self.look: Callable[[ReportCorruption], CorruptionVerdict] = lambda _: (
            CorruptionVerdict.WHOLE
        )
        self.handlers: dict[type[Request], Handler] = {
            Metadata: self._on_metadata,
            Produce: self._on_produce,
            Fetch: self._on_fetch,
            ListOffsets: self._on_list_offsets,
            InitProducerId: self._on_init_producer_id,
            FenceProducer: self._on_fence_producer,
            ReportCorruption: lambda _c, body, _p: looked(self.look(body)),
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
        server = RpcServer(
            ServerIdentity(self._cluster_id, self.broker_id),
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

    async def _serve(self, server: RpcServer, stream: trio.abc.Stream) -> None:
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
        told = self._metadata(body.topics)
        return Reply(told if self.behind is not None else page_of(told, body))

    def _on_produce(self, _context: Any, body: Produce, payload: Any) -> Any:
        def carry_out() -> Reply:
            lengths = [wanted.length for wanted in body.partitions]
            parts = split_payload(lengths, payload)
            return joined(
                [self._append(*each) for each in zip(body.partitions, parts, strict=True)]
            )

        def refuse(*arguments: Any, **named: Any) -> Reply:
            return joined(
                [produced(self.world, each, *arguments, **named) for each in body.partitions]
            )

        reply = self._take_turn(self.produces, carry_out, refuse)
        return None if body.acks == 0 else reply

    def _append(self, wanted: Any, data: Any) -> Reply:
        error = self._refusal(wanted)
        partition = self.world.find(wanted.topic_id, wanted.partition)
        if error or partition is None:
            return produced(self.world, wanted, error)
        try:
            appended = partition.append(data)
        except RaftmqError as refusal:
            return produced(self.world, wanted, refusal.code)
        return produced(self.world, wanted, **appended._asdict())

    def _on_fetch(self, _context: Any, body: Fetch, _payload: Any) -> Any:
        def carry_out() -> Reply:
            return self._read(body)

        def refuse(*arguments: Any, **named: Any) -> Reply:
            return joined(
                [fetched(self.world, each, *arguments, **named) for each in body.partitions],
                FetchReply,
            )

        if self.fetches:
            return self._take_turn(self.fetches, carry_out, refuse)
        return self._poll(body)

    async def _poll(self, body: Fetch) -> Reply:
        """Until there is something to tell, or the time is over."""
        deadline = trio.current_time() + body.max_wait_ms / 1000
        while True:
            reply = self._read(body)
            is_told = bool(reply.payload) or any(
                one.error or one.diverging or one.left_out
                for one in reply.body.partitions  # type: ignore[union-attr]
            )
            if is_told or trio.current_time() >= deadline:
                return reply
            with trio.move_on_at(deadline):
                await self.world.appended.wait()

    def _read(self, body: Fetch) -> Reply:
        """In order, until the answer is full: what is behind that is not told of."""
        replies: list[Reply] = []
        used = 0
        for wanted in body.partitions:
            room = max(1, min(wanted.bytes_max, body.bytes_max - used))
            reply = self._read_one(wanted, room, body.isolation_level)
            size = sum(map(len, reply.payload))  # type: ignore[arg-type]
            if used and used + size > body.bytes_max:
                break
            replies.append(reply)
            used += size
            if used >= body.bytes_max:
                break
        return joined(replies, FetchReply)

    def _read_one(self, wanted: Any, bytes_max: int, isolation: int) -> Reply:
        error = self._refusal(wanted)
        partition = self.world.find(wanted.topic_id, wanted.partition)
        if error or partition is None:
            return fetched(self.world, wanted, error)
        if wanted.last_fetched_epoch >= 0 and (
            diverging := partition.divergence(wanted.last_fetched_epoch, wanted.fetch_offset)
        ):
            return fetched(self.world, wanted, diverging=diverging)
        if not partition.log_start_offset <= wanted.fetch_offset <= partition.end_offset:
            return fetched(self.world, wanted, ErrorCode.OFFSET_OUT_OF_RANGE)
        data, left_out = partition.read_with_gaps(
            wanted.fetch_offset, bytes_max, isolation=isolation
        )
        return fetched(self.world, wanted, data=data, isolation=isolation, left_out=left_out)

    def _take_turn(
        self, steps: list[Step], carry_out: Callable[[], Reply], refuse: Callable[..., Reply]
    ) -> Any:
        turn = Turn(carry_out, refuse, self.hang_up)
        return steps.pop(0)(turn) if steps else carry_out()

    def _on_list_offsets(self, _context: Any, body: ListOffsets, _payload: Any) -> Reply:
        isolation = body.isolation_level
        return Reply(
            ListOffsetsReply(tuple(self._find_offset(each, isolation) for each in body.partitions))
        )

    def _on_init_producer_id(self, _context: Any, _body: InitProducerId, _payload: Any) -> Any:
        def carry_out() -> Reply:
            self.world.producer_id += 1
            return Reply(InitProducerIdReply(producer_id=self.world.producer_id))

        def refuse(error: ErrorCode) -> Reply:
            return Reply(InitProducerIdReply(error, error.name))

        return self._take_turn(self.producer_ids, carry_out, refuse)

    def _on_fence_producer(self, _context: Any, body: FenceProducer, _payload: Any) -> Any:
        def carry_out() -> Reply:
            return fenced(self.world, body, self._refusal)

        def refuse(error: ErrorCode) -> Reply:
            return fenced(self.world, body, lambda _wanted: error)

        return self._take_turn(self.fences, carry_out, refuse)

    def _find_offset(self, wanted: Any, isolation: int) -> FoundOffset:
        error = self._refusal(wanted)
        partition = self.world.find(wanted.topic_id, wanted.partition)
        if error or partition is None:
            return FoundOffset(wanted.topic_id, wanted.partition, error)
        end = partition.end_for(isolation)
        ends = {EARLIEST: partition.log_start_offset, LATEST: end}
        timestamp, offset = -1, ends.get(wanted.timestamp, -1)
        if wanted.timestamp >= 0:
            timestamp, offset = partition.find_time(wanted.timestamp)
            if offset >= end:
                timestamp, offset = -1, -1
        return FoundOffset(
            wanted.topic_id,
            wanted.partition,
            timestamp=timestamp,
            offset=offset,
            leader_epoch=partition.epoch_at(offset),
        )

    def _refusal(self, wanted: Any) -> ErrorCode:
        """`leader_epoch` -1: of any leader."""
        partition = self.world.find(wanted.topic_id, wanted.partition)
        if partition is None:
            return self.world.missing(wanted.topic_id)
        if wanted.leader_epoch > partition.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if -1 < wanted.leader_epoch < partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if partition.leader != self.broker_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE


class World:
    """Attributes:
    gives_hints: errors say who leads, so that a client need not ask.
    producer_id: that was given out last.
    """

    def __init__(self, broker_count: int) -> None:
        self.network = SimulatedNetwork(Random(0), latency=LATENCY)
        self.version = 1
        self.topics: dict[str, Topic] = {}
        self.brokers = {number: Broker(self, number) for number in range(1, broker_count + 1)}
        self.gives_hints = False
        self.producer_id = 1000
        self.appended = trio.Event()

    @property
    def metadata_requests(self) -> int:
        return sum(broker.count(wire.Metadata) for broker in self.brokers.values())

    def add_topic(self, name: str, *leaders: int) -> Topic:
        self.version += 1
        self.topics[name] = Topic(self.version, leaders, self._on_append)
        return self.topics[name]

    def add_partition(self, name: str, leader: int) -> Partition:
        self.version += 1
        self.topics[name].partitions.append(Partition(leader, self._on_append))
        return self.topics[name].partitions[-1]

    def _on_append(self) -> None:
        """Whoever waits for records looks again."""
        self.appended.set()
        self.appended = trio.Event()

    def lead(self, topic: str, partition: int, leader: int) -> None:
        """Another broker leads from now on; -1: nobody."""
        self.version += 1
        found = self.topics[topic].partitions[partition]
        found.leader, found.leader_epoch = leader, found.leader_epoch + 1
        self._on_append()

    def find(self, topic_id: bytes, partition: int) -> Partition | None:
        for topic in self.topics.values():
            if topic.topic_id == topic_id and partition < len(topic.partitions):
                return topic.partitions[partition]
        return None

    def missing(self, topic_id: bytes) -> ErrorCode:
        """Of a partition that is not there."""
        if any(topic.topic_id == topic_id for topic in self.topics.values()):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.UNKNOWN_TOPIC_ID

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
                wire.BrokerRow(broker.broker_id, *broker.address)
                for broker in self.brokers.values()
            ),
            topics=tuple(self._topic_metadata(name) for name in dict.fromkeys(wanted)),
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
        network = ClientNetwork(self.network.node("client"))
        return Cluster(addresses, network, random=Random(1), client_id="test")


def page_of(
    told: wire.MetadataReply, body: wire.Metadata, *, topics_max: int = TOPICS_MAX
) -> wire.MetadataReply:
    """As many topics as are wanted, and as are told at once; all of them come by their names."""
    topics = list(told.topics)
    if body.topics is None:
        topics = sorted((one for one in topics if one.name > body.after), key=_name_of)
    page = tuple(topics[: min(body.topics_max, topics_max)])
    return replace(told, topics=page, is_complete=len(page) == len(topics))


def _name_of(topic: wire.TopicMetadata) -> str:
    return topic.name


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


def limited(error: ErrorCode, allowed: int) -> Step:
    """The same, and the limit is told."""
    return lambda turn: turn.refuse(error, allowed=allowed)


def done_but(error: ErrorCode) -> Step:
    """It is done, and nobody may say so."""

    def step(turn: Turn) -> Reply:
        [done] = turn.carry_out().body.partitions  # type: ignore[union-attr]
        return turn.refuse(error, base_offset=done.base_offset)

    return step


def done_and_refused(error: ErrorCode) -> Step:
    """It is carried out, and the answer says something else."""

    def step(turn: Turn) -> Reply:
        turn.carry_out()
        return turn.refuse(error)

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
