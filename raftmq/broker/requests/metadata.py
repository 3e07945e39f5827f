"""Metadata requests: topics, partition leaders, brokers, cluster and topic descriptions, paged.

Owns Metadata, DescribeCluster and DescribeTopics, answered from this broker's image, with addresses
of the listener over which the client asked. A page ends early enough to be sent, but holds one
topic at least. A large answer is built in slices, between which other tasks run; all of it is of
one image.
"""

from __future__ import annotations

from bisect import bisect_right
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
import trio

from raftmq.errors import ErrorCode, InvalidRequest
from raftmq.metadata.commands import PartitionId, RecoveryState
from raftmq.metadata.image import EMPTY_IMAGE
from raftmq.rpc.reply import Reply
from raftmq.topic_config import is_page_cached, min_isr_in
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.cluster import (
    BrokerDescription,
    DescribeCluster,
    DescribeClusterReply,
    ListenerAddress,
    VoterAddress,
)
from raftmq.wire.messages.metadata import (
    BrokerRow,
    Metadata,
    MetadataReply,
    PartitionMetadata,
    TopicMetadata,
)
from raftmq.wire.messages.topics import (
    Cursor,
    DescribeTopics,
    DescribeTopicsReply,
    PartitionDescription,
    TopicDescription,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from raftmq.metadata.clocks import ClockOffset
    from raftmq.metadata.commands import Endpoint
    from raftmq.metadata.image import BrokerState, MetadataImage, PartitionState, TopicState
    from raftmq.metadata.quorum import MetadataQuorum
    from raftmq.model import Address
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer


# Sizes are estimates of the encoded form, in bytes.
PAGE_BYTES = 1 << 19  # of topics in one answer: a quarter of `header_bytes_max`
TOPIC_BYTES = 40
PARTITION_BYTES = 24
REPLICA_BYTES = 15  # a broker id in three lists
NOBODY: Mapping[int, Address] = MappingProxyType({})  # no voters
SLICE_PARTITIONS = 500  # built in one step, in a millisecond or two


class MetadataRequests:
    """
    Args:
        voters: of the quorum, with the addresses at which they listen for each other.
        wrong_clocks: brokers with wrong clocks, as far as this broker knows.
        own_epoch: under which this process is registered; -1 while it is not.
    """

    def __init__(
        self,
        quorum: MetadataQuorum,
        *,
        cluster_id: str,
        voters: Mapping[int, Address] = NOBODY,
        wrong_clocks: Callable[[], Sequence[ClockOffset]] = tuple,
        own_epoch: Callable[[], int] = lambda: ABSENT,
    ) -> None:
        self._wrong_clocks, self._own_epoch = wrong_clocks, own_epoch
        self._quorum, self._cluster_id, self._voters = quorum, cluster_id, voters
        self._topic_ids, self._names = EMPTY_IMAGE.topic_ids, list[str]()

    def handlers(self) -> Handlers:
        return {Metadata: self.metadata, DescribeCluster: self.describe_cluster}

    def metadata(
        self, context: RequestContext, request: Metadata, _payload: Buffer
    ) -> Reply | Awaitable[Reply]:
        image = self._quorum.image
        view = _View(image, context.listener.name)
        # One more than the page: it says whether there is a next page.
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
        # Small answers need no task.
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
                _describe_broker(broker, wrong_clocks.get(broker_id))
                for broker_id, broker in sorted(image.brokers.items())
            ),
            voters=tuple(VoterAddress(node, *at) for node, at in sorted(self._voters.items())),
            own_epoch=self._own_epoch(),
        )
        return Reply(body)

    def _controller_id(self) -> int:
        # The controller is the leader of the quorum; for a moment there may be none.
        leader_id = self._quorum.leadership.leader_id
        return ABSENT if leader_id is None else leader_id

    def _names_after(self, image: MetadataImage, after: str, *, limit: int) -> list[str]:
        """Sorted once for each set of topics, not for each page."""
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
    """The remaining slices; other requests are answered in between."""
    # The first slice was built in the handler.
    await trio.lowlevel.checkpoint()
    for _ in slices:
        await trio.lowlevel.checkpoint()  # a turn for all other tasks between two slices
    return _with_topics(body, told, asked=asked)


class _View:
    """An image as seen from one listener.

    Brokers that are fenced, or have no such listener, are left out: a client cannot use them.
    """

    def __init__(self, image: MetadataImage, listener: str) -> None:
        self._image = image
        self._endpoints = {
            broker_id: endpoint
            for broker_id, broker in sorted(image.brokers.items())
            if image.is_unfenced(broker_id) and (endpoint := _endpoint(broker, listener))
        }

    def brokers(self) -> tuple[BrokerRow, ...]:
        racks = self._image.brokers
        return tuple(
            BrokerRow(broker_id, endpoint.host, endpoint.port, racks[broker_id].rack)
            for broker_id, endpoint in self._endpoints.items()
        )

    def tell(self, names: Sequence[str], told: list[TopicMetadata]) -> Iterator[int]:
        """Adds as many of these topics to `told` as fit, in order.

        Yields their number after each slice but the last.
        """
        size, left = 0, SLICE_PARTITIONS
        for name in names:
            topic = self._image.topic_named(name)
            size += len(name.encode()) + TOPIC_BYTES + self._partitions_size(topic)
            # The first topic comes whole, or paging would not proceed.
            if told and size > PAGE_BYTES:
                return
            left -= 1  # a topic costs as much as a partition
            partitions: list[PartitionMetadata] = []
            # An unknown topic has none.
            while topic is not None and len(partitions) < topic.partition_count:
                # A slice may end in the middle of a topic with many partitions.
                if left <= 0:
                    yield len(told)
                    left = SLICE_PARTITIONS
                slice_end = min(len(partitions) + left, topic.partition_count)
                left -= slice_end - len(partitions)
                partitions += self._partitions(topic, range(len(partitions), slice_end))
            told.append(_topic(name, topic, partitions))

    def _partitions_size(self, topic: TopicState | None) -> int:
        # An unknown name is answered with an error and has no partitions.
        if topic is None:
            return 0
        replicas = self._image.partitions[PartitionId(topic.topic_id, 0)].replicas
        return topic.partition_count * (PARTITION_BYTES + REPLICA_BYTES * len(replicas))

    def _partitions(self, topic: TopicState, numbers: range) -> list[PartitionMetadata]:
        return [self._partition(PartitionId(topic.topic_id, number)) for number in numbers]

    def _partition(self, key: PartitionId) -> PartitionMetadata:
        state = self._image.partitions[key]
        # A leader that is fenced or not on this listener is none for this client.
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
    if topic is None:  # answered with an error of its own
        return TopicMetadata(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
    return TopicMetadata(
        ErrorCode.NONE,
        name,
        topic.topic_id,
        tuple(partitions),
        min_isr_in(topic.configs),
        is_page_cached(topic.configs),
    )


def _endpoint(broker: BrokerState, listener: str) -> Endpoint | None:
    found = [endpoint for endpoint in broker.endpoints if endpoint.listener == listener]
    return found[0] if found else None


def _describe_broker(broker: BrokerState, clock_ahead_ms: int | None) -> BrokerDescription:
    return BrokerDescription(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        listeners=tuple(ListenerAddress(*it) for it in map(_fields, broker.endpoints)),
        rack=broker.rack,
        is_fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        clock_ahead_ms=clock_ahead_ms,
        software_version=broker.software_version,
    )


def _fields(endpoint: Endpoint) -> tuple[str, str, int]:
    return endpoint.listener, endpoint.host, endpoint.port


# -- Descriptions ---------------------------------------------------------------------------------
# DescribeTopics: everything the metadata knows about topics, partition by partition, in pages.
#
# Owns the request and its cursor. Each page is of the image at its time: deletions and growth
# between two pages show as they happen. Each page gets further than the one before.


DESCRIBED_TOPIC_BYTES = 50
DESCRIBED_PARTITION_BYTES = 40
BROKER_ID_BYTES = 5  # a 32-bit integer in msgpack, at most


class TopicDescriptions:
    def __init__(self, quorum: MetadataQuorum) -> None:
        self._quorum = quorum

    def handlers(self) -> Handlers:
        return {DescribeTopics: self.describe}

    def describe(
        self, _context: RequestContext, request: DescribeTopics, _payload: Buffer
    ) -> Reply:
        """Raises InvalidRequest if the cursor names a topic that is not among those asked for."""
        page = _Page(self._quorum.image, request.partitions_max)
        following: Cursor | None = None
        for cursor in _cursors(request):
            # The page ends before this topic, or within it.
            following = cursor if page.is_full else page.add(cursor)
            if following is not None:  # the page is full
                break
        return Reply(DescribeTopicsReply(tuple(page.topics), following))


def _cursors(request: DescribeTopics) -> list[Cursor]:
    """Where to begin in each of the remaining topics."""
    names = list(dict.fromkeys(request.topics))
    first = request.first
    if first is None:  # the first page
        return [Cursor(name, 0) for name in names]
    if first.topic not in names:  # a cursor of another request
        raise InvalidRequest(
            f"the page begins with topic {first.topic!r}, which is not asked for: name it"
        )
    following = names[names.index(first.topic) + 1 :]
    return [first, *(Cursor(name, 0) for name in following)]


class _Page:
    """Attributes:
    topics: on this page so far.
    """

    def __init__(self, image: MetadataImage, partitions_max: int) -> None:
        self._image, self._partitions_left = image, partitions_max
        self._bytes_left = PAGE_BYTES
        self.topics: list[TopicDescription] = []

    @property
    def is_full(self) -> bool:
        return self._partitions_left <= 0 or self._bytes_left <= 0

    def add(self, cursor: Cursor) -> Cursor | None:
        """Add the topic from there on; returns where the next page begins if it ends within it."""
        topic = self._image.topic_named(cursor.topic)
        # Deleted between two pages, or never there.
        if topic is None:
            self.topics.append(_unknown(cursor.topic))
            self._bytes_left -= DESCRIBED_TOPIC_BYTES + 3 * len(cursor.topic)
            return None
        self._bytes_left -= DESCRIBED_TOPIC_BYTES + _configs_size(topic)
        partitions = self._partitions(topic, cursor.partition)
        self.topics.append(
            TopicDescription(
                topic.name,
                topic_id=topic.topic_id,
                partition_count=topic.partition_count,
                partitions=tuple(partitions),
                configs=topic.configs,
            )
        )
        end = cursor.partition + len(partitions)
        return Cursor(topic.name, end) if end < topic.partition_count else None

    def _partitions(self, topic: TopicState, first: int) -> list[PartitionDescription]:
        """At least one, if there is one, so that paging proceeds."""
        described: list[PartitionDescription] = []
        for number in range(first, topic.partition_count):
            if described and self.is_full:  # full, and it has got further
                break
            state = self._image.partitions[PartitionId(topic.topic_id, number)]
            described.append(_describe_partition(number, state))
            self._partitions_left -= 1
            self._bytes_left -= _size(state)
        return described


def _unknown(name: str) -> TopicDescription:
    message = "no such topic, as far as this broker knows"
    return TopicDescription(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


def _configs_size(topic: TopicState) -> int:
    return sum(len(key) + len(value) for key, value in topic.configs.items())


def _size(state: PartitionState) -> int:
    """A replica that is in several lists costs several ids."""
    lists = (state.replicas, state.isr, state.eligible, state.last_known_eligible)
    return DESCRIBED_PARTITION_BYTES + BROKER_ID_BYTES * sum(
        map(len, (*lists, state.adding, state.removing))
    )


def _describe_partition(number: int, state: PartitionState) -> PartitionDescription:
    return PartitionDescription(
        number,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        replicas=state.replicas,
        isr=state.isr,
        eligible=state.eligible,
        last_known_eligible=state.last_known_eligible,
        adding=state.adding,
        removing=state.removing,
        is_recovering=state.recovery_state is RecoveryState.RECOVERING,
    )
