"""Which topics there are, who leads them, and where to find the brokers: from this broker's image.

Owns the requests Metadata and DescribeCluster. Addresses are those of the listener on which was
asked. All topics come in pages; a page ends early enough to be sent, whatever was asked for, but
holds one topic at least. A large answer is made in slices, between which others have their turn;
all of it is of one image.
"""

from __future__ import annotations

from bisect import bisect_right
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
import trio

from raftmq.config import min_isr_in
from raftmq.errors import ErrorCode
from raftmq.metadata.commands import PartitionId
from raftmq.metadata.image import EMPTY_IMAGE
from raftmq.rpc.reply import Reply
from raftmq.wire.apis import ApiKey
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.cluster import (
    BrokerDescription,
    DescribeClusterReply,
    ListenerAddress,
    VoterAddress,
)
from raftmq.wire.messages.metadata import (
    Broker,
    MetadataReply,
    PartitionMetadata,
    TopicMetadata,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from raftmq.metadata.clocks import WrongClock
    from raftmq.metadata.commands import Endpoint
    from raftmq.metadata.image import BrokerState, MetadataImage, TopicState
    from raftmq.metadata.quorum import MetadataQuorum
    from raftmq.model import Address
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handler
    from raftmq.wire.header import Buffer
    from raftmq.wire.messages.cluster import DescribeCluster
    from raftmq.wire.messages.metadata import Metadata

PAGE_BYTES = 1 << 19  # of topics in one answer, estimated: half of what a header may have
TOPIC_BYTES = 40
PARTITION_BYTES = 24
REPLICA_BYTES = 15  # a broker's id in three lists
NOBODY: Mapping[int, Address] = MappingProxyType({})
SLICE_PARTITIONS = 500  # told in one go, in a millisecond or two


class ClusterMetadata:
    """
    Args:
        voters: of the quorum, where they listen for each other.
        wrong_clocks: whose clocks are wrong, as far as is known here.
    """

    def __init__(
        self,
        quorum: MetadataQuorum,
        *,
        cluster_id: str,
        voters: Mapping[int, Address] = NOBODY,
        wrong_clocks: Callable[[], Sequence[WrongClock]] = tuple,
    ) -> None:
        self._wrong_clocks = wrong_clocks
        self._quorum, self._cluster_id, self._voters = quorum, cluster_id, voters
        self._topic_ids, self._names = EMPTY_IMAGE.topic_ids, list[str]()

    def handlers(self) -> dict[ApiKey, Handler]:
        return {ApiKey.METADATA: self.metadata, ApiKey.DESCRIBE_CLUSTER: self.describe_cluster}

    def metadata(
        self, context: RequestContext, request: Metadata, _payload: Buffer
    ) -> Reply | Awaitable[Reply]:
        image = self._quorum.image
        view = _View(image, context.listener.name)
        if request.topics is None:
            names = self._names_after(image, request.after, limit=request.topics_max + 1)
        else:
            names = list(dict.fromkeys(request.topics))
        told: list[TopicMetadata] = []
        slices = view.tell(names[: request.topics_max], told)
        body = MetadataReply(
            metadata_version=image.version,
            cluster_id=self._cluster_id,
            controller_id=self._controller_id(),
            brokers=view.brokers(),
        )
        if next(slices, None) is None:
            return _with_topics(body, told, asked=len(names))
        return _finish(body, slices, told, asked=len(names))

    def describe_cluster(
        self, _context: RequestContext, _request: DescribeCluster, _payload: Buffer
    ) -> Reply:
        image, wrong_clocks = self._quorum.image, dict(self._wrong_clocks())
        body = DescribeClusterReply(
            cluster_id=self._cluster_id,
            controller_id=self._controller_id(),
            metadata_version=image.version,
            feature_level=image.feature_level,
            brokers=tuple(
                _describe(broker, wrong_clocks.get(broker_id))
                for broker_id, broker in sorted(image.brokers.items())
            ),
            voters=tuple(VoterAddress(node, *at) for node, at in sorted(self._voters.items())),
        )
        return Reply(body)

    def _controller_id(self) -> int:
        leader_id = self._quorum.leadership.leader_id
        return ABSENT if leader_id is None else leader_id

    def _names_after(self, image: MetadataImage, after: str, *, limit: int) -> list[str]:
        """Sorted once for each set of topics, and not for each page."""
        if image.topic_ids is not self._topic_ids:
            self._topic_ids, self._names = image.topic_ids, sorted(image.topic_ids)
        first = bisect_right(self._names, after)
        return self._names[first : first + limit]


def _with_topics(body: MetadataReply, told: Sequence[TopicMetadata], *, asked: int) -> Reply:
    is_complete = len(told) == asked
    return Reply(msgspec.structs.replace(body, topics=tuple(told), is_complete=is_complete))


async def _finish(
    body: MetadataReply, slices: Iterator[int], told: Sequence[TopicMetadata], *, asked: int
) -> Reply:
    """One slice after the other; what is asked meanwhile is answered meanwhile."""
    await trio.lowlevel.checkpoint()
    for _ in slices:
        await trio.lowlevel.checkpoint()
    return _with_topics(body, told, asked=asked)


class _View:
    """An image as it looks from one listener.

    A broker that has no such listener, or is fenced, is not there.
    """

    def __init__(self, image: MetadataImage, listener: str) -> None:
        self._image = image
        self._endpoints = {
            broker_id: endpoint
            for broker_id, broker in sorted(image.brokers.items())
            if image.is_unfenced(broker_id) and (endpoint := _endpoint(broker, listener))
        }

    def brokers(self) -> tuple[Broker, ...]:
        racks = self._image.brokers
        return tuple(
            Broker(broker_id, endpoint.host, endpoint.port, racks[broker_id].rack)
            for broker_id, endpoint in self._endpoints.items()
        )

    def tell(self, names: Sequence[str], told: list[TopicMetadata]) -> Iterator[int]:
        """Adds the first of these topics to `told`, as many as fit.

        Yields, how many are there, wherever a slice ends.
        """
        size, left = 0, SLICE_PARTITIONS
        for name in names:
            topic = self._image.topic_named(name)
            size += len(name.encode()) + TOPIC_BYTES + self._partitions_size(topic)
            if told and size > PAGE_BYTES:
                return
            left -= 1  # a topic costs as much as a partition
            partitions: list[PartitionMetadata] = []
            while topic is not None and len(partitions) < topic.partition_count:
                if left <= 0:
                    yield len(told)
                    left = SLICE_PARTITIONS
                slice_end = min(len(partitions) + left, topic.partition_count)
                left -= slice_end - len(partitions)
                partitions += self._partitions(topic, range(len(partitions), slice_end))
            told.append(_topic(name, topic, partitions))

    def _partitions_size(self, topic: TopicState | None) -> int:
        if topic is None:
            return 0
        replicas = self._image.partitions[PartitionId(topic.topic_id, 0)].replicas
        return topic.partition_count * (PARTITION_BYTES + REPLICA_BYTES * len(replicas))

    def _partitions(self, topic: TopicState, numbers: range) -> list[PartitionMetadata]:
        return [self._partition(PartitionId(topic.topic_id, number)) for number in numbers]

    def _partition(self, key: PartitionId) -> PartitionMetadata:
        state = self._image.partitions[key]
        is_led = state.leader in self._endpoints
        return PartitionMetadata(
            error=ErrorCode.NONE if is_led else ErrorCode.LEADER_NOT_AVAILABLE,
            partition=key.partition,
            leader=state.leader if is_led else ABSENT,
            leader_epoch=state.leader_epoch,
            replicas=state.replicas,
            isr=state.isr,
            offline=tuple(b for b in state.replicas if b not in self._endpoints),
        )


def _topic(
    name: str, topic: TopicState | None, partitions: list[PartitionMetadata]
) -> TopicMetadata:
    if topic is None:
        return TopicMetadata(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
    told, min_isr = tuple(partitions), min_isr_in(topic.configs)
    return TopicMetadata(ErrorCode.NONE, name, topic.topic_id, told, min_isr)


def _endpoint(broker: BrokerState, listener: str) -> Endpoint | None:
    found = [endpoint for endpoint in broker.endpoints if endpoint.listener == listener]
    return found[0] if found else None


def _describe(broker: BrokerState, clock_ahead_ms: int | None) -> BrokerDescription:
    return BrokerDescription(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        listeners=tuple(ListenerAddress(*it) for it in map(_fields, broker.endpoints)),
        rack=broker.rack,
        is_fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        clock_ahead_ms=clock_ahead_ms,
    )


def _fields(endpoint: Endpoint) -> tuple[str, str, int]:
    return endpoint.listener, endpoint.host, endpoint.port
