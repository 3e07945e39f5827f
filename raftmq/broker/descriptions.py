"""DescribeTopics: everything that the metadata knows of topics, partition by partition, in pages.

Owns the request and its cursor. Each page is of the image at its time: what is deleted or grows
between two pages shows as it is then. A page always gets further than the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import ErrorCode, InvalidRequest
from raftmq.metadata.commands import PartitionId, RecoveryState
from raftmq.rpc.reply import Reply
from raftmq.wire.apis import ApiKey
from raftmq.wire.messages.topics import (
    Cursor,
    DescribeTopicsReply,
    PartitionDescription,
    TopicDescription,
)

if TYPE_CHECKING:
    from raftmq.metadata.image import MetadataImage, PartitionState, TopicState
    from raftmq.metadata.quorum import MetadataQuorum
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handler
    from raftmq.wire.header import Buffer
    from raftmq.wire.messages.topics import DescribeTopics

PAGE_BYTES = 1 << 19  # of one answer, estimated: half of what a header may have
TOPIC_BYTES = 50
PARTITION_BYTES = 40
BROKER_ID_BYTES = 5


class Descriptions:
    def __init__(self, quorum: MetadataQuorum) -> None:
        self._quorum = quorum

    def handlers(self) -> dict[ApiKey, Handler]:
        return {ApiKey.DESCRIBE_TOPICS: self.describe}

    def describe(
        self, _context: RequestContext, request: DescribeTopics, _payload: Buffer
    ) -> Reply:
        """Raises InvalidRequest where the cursor is at a topic that was not asked for."""
        page = _Page(self._quorum.image, request.partitions_max)
        following: Cursor | None = None
        for cursor in _cursors(request):
            following = cursor if page.is_full else page.add(cursor)
            if following is not None:
                break
        return Reply(DescribeTopicsReply(tuple(page.topics), following))


def _cursors(request: DescribeTopics) -> list[Cursor]:
    """Where to begin in each topic that is left."""
    names = list(dict.fromkeys(request.topics))
    first = request.first
    if first is None:
        return [Cursor(name, 0) for name in names]
    if first.topic not in names:
        raise InvalidRequest(
            f"the page begins with topic {first.topic!r}, which is not asked for: name it"
        )
    following = names[names.index(first.topic) + 1 :]
    return [first, *(Cursor(name, 0) for name in following)]


class _Page:
    """Attributes:
    topics: what is on it so far.
    """

    def __init__(self, image: MetadataImage, partitions_max: int) -> None:
        self._image, self._partitions_left = image, partitions_max
        self._bytes_left = PAGE_BYTES
        self.topics: list[TopicDescription] = []

    @property
    def is_full(self) -> bool:
        return self._partitions_left <= 0 or self._bytes_left <= 0

    def add(self, cursor: Cursor) -> Cursor | None:
        """The topic from there on; where the next page begins, if this one ends within it."""
        topic = self._image.topic_named(cursor.topic)
        if topic is None:
            self.topics.append(_unknown(cursor.topic))
            self._bytes_left -= TOPIC_BYTES + 3 * len(cursor.topic)
            return None
        self._bytes_left -= TOPIC_BYTES + _configs_size(topic)
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
        """One at least, if there is one."""
        described: list[PartitionDescription] = []
        for number in range(first, topic.partition_count):
            if described and self.is_full:
                break
            state = self._image.partitions[PartitionId(topic.topic_id, number)]
            described.append(_describe(number, state))
            self._partitions_left -= 1
            self._bytes_left -= _size(state)
        return described


def _unknown(name: str) -> TopicDescription:
    message = "no such topic, as far as this broker knows"
    return TopicDescription(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


def _configs_size(topic: TopicState) -> int:
    return sum(len(key) + len(value) for key, value in topic.configs.items())


def _size(state: PartitionState) -> int:
    """Who is in several lists costs several ids."""
    lists = (state.replicas, state.isr, state.eligible, state.last_known_eligible)
    return PARTITION_BYTES + BROKER_ID_BYTES * sum(map(len, (*lists, state.adding, state.removing)))


def _describe(number: int, state: PartitionState) -> PartitionDescription:
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
