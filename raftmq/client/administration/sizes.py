"""The admin's sizes of topics: the logs of all brokers, put together by topic and partition.

Who leads is taken from the metadata of one broker, sizes from each broker that holds a replica. One
that does not answer in time, or is of a version that does not know the request, leaves its replicas
unknown and fails nothing. (Kafka: describeLogDirs)
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import anyio

from raftmq.client.administration.questions import know_addresses, settle
from raftmq.client.administration.results import PartitionSize, TopicSize
from raftmq.client.administration.topics import all_metadata
from raftmq.client.routing.routes import no_topic
from raftmq.errors import RaftmqError, ServerError, UnknownTopicOrPartition
from raftmq.wire.bodies import TOPICS_MAX
from raftmq.wire.messages.topics import DescribeLogs, DescribeLogsReply, LogCursor, LogRow

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.messages.metadata import MetadataReply, PartitionMetadata, TopicMetadata

# For all pages of one broker: one that has just died must not hold up a list of topics for long
LOGS_SECONDS_MAX = 2.0

# By broker, topic id and partition.
Logs: TypeAlias = dict[tuple[int, bytes, int], LogRow]


async def topic_sizes(
    cluster: Cluster, names: Sequence[str] | None, *, deadline: float
) -> dict[str, TopicSize]:
    """By name; None: of all topics."""
    metadata = await all_metadata(cluster, deadline=deadline)
    topics = _chosen(metadata, names)
    ids = tuple(topics) if names is not None and len(topics) <= TOPICS_MAX else None
    active = {one.broker_id for one in metadata.brokers}
    holders = {
        broker_id
        for topic in topics.values()
        for one in topic.partitions
        for broker_id in one.replicas
    }
    logs, _ = await gather_logs(cluster, active & holders, ids, deadline=deadline)
    return {
        topic.name: TopicSize(
            topic.name,
            topic_id,
            tuple(_size(topic_id, one, logs) for one in topic.partitions),
        )
        for topic_id, topic in topics.items()
    }


async def gather_logs(
    cluster: Cluster,
    brokers: Collection[int],
    topics: tuple[bytes, ...] | None,
    *,
    deadline: float,
) -> tuple[Logs, set[int]]:
    """The logs of these topics (None: of all) on these brokers; and the brokers that have told of
    all that they have.
    """
    await know_addresses(cluster, brokers, deadline=_limit(deadline))
    logs: Logs = {}
    asked = tuple(brokers)
    outcomes = await settle(
        [partial(_gather, cluster, one, topics, logs, deadline) for one in asked]
    )
    told = zip(asked, outcomes, strict=True)
    return logs, {one for one, outcome in told if not isinstance(outcome, RaftmqError)}


def _chosen(metadata: MetadataReply, names: Sequence[str] | None) -> dict[bytes, TopicMetadata]:
    there = {topic.name: topic for topic in metadata.topics if topic.topic_id is not None}
    for name in names or ():
        if name not in there:
            raise UnknownTopicOrPartition(no_topic(name))
    chosen = there.values() if names is None else [there[name] for name in names]
    return {topic.topic_id: topic for topic in chosen if topic.topic_id is not None}


def _limit(deadline: float) -> float:
    return min(deadline, anyio.current_time() + LOGS_SECONDS_MAX)


async def _gather(
    cluster: Cluster,
    broker_id: int,
    topics: tuple[bytes, ...] | None,
    logs: Logs,
    deadline: float,
) -> None:
    """All pages of one broker.

    Raises:
        RaftmqError: what the pages before it said is kept.
    """
    limit = _limit(deadline)
    first: LogCursor | None = None
    while True:
        body = DescribeLogs(topics, first=first)
        reply: DescribeLogsReply = (await cluster.ask(broker_id, body, deadline=limit)).body
        for row in reply.logs:
            logs[broker_id, row.topic_id, row.partition] = row
        following = reply.next
        if following is None:  # the last page
            return
        # A faulty broker must not make this loop for ever.
        if first is not None and _place(following) <= _place(first):
            raise ServerError(f"broker {broker_id}: pages of logs that lead nowhere")
        first = following


def _place(cursor: LogCursor) -> tuple[bytes, int]:
    return cursor.topic_id, cursor.partition


def _size(topic_id: bytes, told: PartitionMetadata, logs: Logs) -> PartitionSize:
    rows = [logs.get((broker_id, topic_id, told.partition)) for broker_id in told.replicas]
    known = [row.size_bytes for row in rows if row is not None]
    led = logs.get((told.leader, topic_id, told.partition))
    return PartitionSize(
        told.partition,
        None if led is None else led.log_end_offset - led.log_start_offset,
        None if led is None else led.size_bytes,
        sum(known) if rows and len(known) == len(rows) else None,
    )
