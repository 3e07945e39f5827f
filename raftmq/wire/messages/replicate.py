"""Replication messages: a follower's fetch, and its report of what it holds. Between brokers only.

Two offsets are sent separately: where the follower's log ends (fetch) and what it holds (progress),
see decision 0014.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftmq.wire.bodies import (
    PARTITIONS_MAX,
    Body,
    BrokerEpoch,
    BrokerId,
    ByteCount,
    LeaderEpoch,
    Milliseconds,
    Natural,
    Nothing,
    Offset,
    Partition,
    Request,
    TopicId,
)
from raftmq.wire.messages.fetch import (
    NO_SESSION,
    WITHOUT_SESSION,
    FetchPartitions,
    FetchReply,
    Forgotten,
    SessionEpoch,
)


class PartitionProgress(Body, frozen=True):
    """Everything before `held_offset` counts as held by this follower."""

    topic_id: TopicId
    partition: Partition
    leader_epoch: LeaderEpoch
    held_offset: Offset


Progress = Annotated[tuple[PartitionProgress, ...], Meta(max_length=PARTITIONS_MAX)]


class ReplicaFetch(Request, frozen=True):
    """A Fetch by a follower, which may read what is not committed yet. The leader processes `held`
    after `partitions`, as it counts up to the fetch offset only.
    """

    api_key = 1001
    reply = FetchReply
    is_for_brokers = True

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    max_wait_ms: Milliseconds
    bytes_min: ByteCount
    bytes_max: ByteCount
    session_id: Natural = NO_SESSION
    session_epoch: SessionEpoch = WITHOUT_SESSION
    partitions: FetchPartitions = ()
    forgotten: Forgotten = ()
    held: Progress = ()


class ReplicaProgress(Request, frozen=True):
    """Sent as soon as more is held, after a flush, without waiting for the next fetch. One way."""

    api_key = 1002
    reply = Nothing
    is_for_brokers = True
    is_one_way = True

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    partitions: Progress
