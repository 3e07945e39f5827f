"""Messages of idempotent and named producers: init producer id, fence producer.

A producer id is assigned once. A name maps to a producer id; a process that fences it in a
partition gets an epoch there, and the next sequence, so that it can continue (decision 0022).
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from raftmq.errors import ErrorCode
from raftmq.wire.batch.header import DIGEST_MAX, PARTITION_COUNT_MAX
from raftmq.wire.bodies import (
    ABSENT,
    ID_MAX,
    TIMEOUT_MS,
    Body,
    BrokerIdOrAbsent,
    ErrorMessage,
    ErrorNumber,
    LeaderEpochOrAbsent,
    Milliseconds,
    Name,
    Natural,
    NaturalOrAbsent,
    OffsetOrAbsent,
    Partition,
    Request,
    TopicId,
)

PRODUCER_EPOCH_MAX = (1 << 15) - 1  # the i16 of the batch header
# Of one request. A fence takes a broker some 70 us on its loop: 200 delay all others by 14 ms.
FENCES_MAX = 200

ProducerEpoch: TypeAlias = Annotated[int, Meta(ge=ABSENT, le=PRODUCER_EPOCH_MAX)]
Sequence: TypeAlias = Annotated[int, Meta(ge=0, le=ID_MAX)]
Digest: TypeAlias = Annotated[int, Meta(ge=0, le=DIGEST_MAX)]
PartitionCount: TypeAlias = Annotated[int, Meta(ge=0, le=PARTITION_COUNT_MAX)]


class InitProducerIdReply(Body, frozen=True):
    """The epoch begins at 0; the producer raises it by itself (decision 0020)."""

    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    producer_id: NaturalOrAbsent = ABSENT


class InitProducerId(Request, frozen=True):
    """Asks any broker for a producer id that was never assigned before."""

    api_key = 22
    reply = InitProducerIdReply

    timeout_ms: Milliseconds = TIMEOUT_MS


class PartitionToFence(Body, frozen=True):
    topic_id: TopicId
    partition: Partition
    leader_epoch: LeaderEpochOrAbsent = ABSENT


class PartitionFenced(Body, frozen=True):
    """`next_sequence` records of this generation stand in the partition, all committed; `digest` is
    the one of their last batch. `partition_count`: of the topic when the generation began; 0: the
    partition does not know.
    """

    topic_id: TopicId
    partition: Partition
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    producer_epoch: ProducerEpoch = ABSENT
    next_sequence: Sequence = 0
    digest: Digest = 0
    end_offset: OffsetOrAbsent = ABSENT
    leader: BrokerIdOrAbsent = ABSENT
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    partition_count: PartitionCount = 0


class FenceProducerReply(Body, frozen=True):
    producer_id: NaturalOrAbsent = ABSENT
    partitions: Annotated[tuple[PartitionFenced, ...], Meta(max_length=FENCES_MAX)] = ()


class FenceProducer(Request, frozen=True):
    """Ends the writing of earlier processes under this name; answered once that is committed.

    A higher `generation` begins its sequence at 0; the same one continues; a lower one is refused
    with PRODUCER_FENCED. `partition_count`: of the topic, by the producer's metadata.
    """

    api_key = 1006
    reply = FenceProducerReply

    name: Name
    generation: Natural
    partitions: Annotated[tuple[PartitionToFence, ...], Meta(max_length=FENCES_MAX)]
    timeout_ms: Milliseconds = TIMEOUT_MS
    partition_count: PartitionCount = 0
