"""Identities of producers: ids for those that need one, and fences for those that have a name.

A producer id is given out once. A name stands for an id of its own in each partition: whoever
fences it gets an epoch, and is told how far the sequence has come, so that it can go on from there.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta

from raftmq.errors import ErrorCode
from raftmq.wire.apis import ApiKey
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

PRODUCER_EPOCH_MAX = (1 << 15) - 1
# A fence takes its broker some 70 us: a request must not keep all others waiting.
FENCES_MAX = 200

ProducerEpoch: TypeAlias = Annotated[int, Meta(ge=ABSENT, le=PRODUCER_EPOCH_MAX)]
Sequence: TypeAlias = Annotated[int, Meta(ge=0, le=ID_MAX)]
Digest: TypeAlias = Annotated[int, Meta(ge=0, le=DIGEST_MAX)]
PartitionCount: TypeAlias = Annotated[int, Meta(ge=0, le=PARTITION_COUNT_MAX)]


class InitProducerIdReply(Body, frozen=True):
    """The epoch begins at 0; a producer raises it by itself."""

    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    producer_id: NaturalOrAbsent = ABSENT


class InitProducerId(Request, frozen=True):
    """An id that nobody has. Asked of any broker."""

    api_key: ClassVar[ApiKey] = ApiKey.INIT_PRODUCER_ID
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = InitProducerIdReply

    timeout_ms: Milliseconds = TIMEOUT_MS


class PartitionToFence(Body, frozen=True):
    topic_id: TopicId
    partition: Partition
    leader_epoch: LeaderEpochOrAbsent = ABSENT


class PartitionFenced(Body, frozen=True):
    """`next_sequence` records of this generation stand in the partition, all committed; `digest`
    is what the producer said of them with the last batch. `partition_count`: of the topic when the
    generation began, as far as the partition knows; 0 if it does not.
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
    """Whoever has written under this name before writes no more; answered once that is committed.

    A higher `generation` begins a sequence at 0; the same goes on with it; a lower one is refused
    with PRODUCER_FENCED. `partition_count`: as many as the topic has, as far as the producer knows.
    """

    api_key: ClassVar[ApiKey] = ApiKey.FENCE_PRODUCER
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = FenceProducerReply

    name: Name
    generation: Natural
    partitions: Annotated[tuple[PartitionToFence, ...], Meta(max_length=FENCES_MAX)]
    timeout_ms: Milliseconds = TIMEOUT_MS
    partition_count: PartitionCount = 0
