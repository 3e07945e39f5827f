"""Messages of idempotent, transactional and named producers: init producer id, fence producer.

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
    Owner,
    Partition,
    ProducerEpoch,
    Request,
    TopicId,
    TransactionIdOrNone,
)

# Of one request. A fence takes a broker some 70 us on its loop: 200 delay all others by 14 ms.
FENCES_MAX = 200

Opening: TypeAlias = Annotated[int, Meta(ge=0, le=ID_MAX)]
Sequence: TypeAlias = Annotated[int, Meta(ge=0, le=ID_MAX)]
Digest: TypeAlias = Annotated[int, Meta(ge=0, le=DIGEST_MAX)]
PartitionCount: TypeAlias = Annotated[int, Meta(ge=0, le=PARTITION_COUNT_MAX)]


class InitProducerIdReply(Body, frozen=True):
    """Without a transaction id the epoch begins at 0; the producer raises it by itself (decision
    0020). With one, `producer_epoch` is that of its next transaction, `last_version` the highest
    version that was committed under the id, -1: none, and `last_count` the rows of it.
    """

    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    producer_id: NaturalOrAbsent = ABSENT
    producer_epoch: ProducerEpoch = ABSENT
    transaction_timeout_ms: Milliseconds = 0
    last_version: NaturalOrAbsent = ABSENT
    last_count: NaturalOrAbsent = ABSENT


class InitProducerId(Request, frozen=True):
    """Asks any broker for a producer id that was never assigned before; or, with a transaction id,
    its coordinator to open the id: what another producer has open under it is aborted then.

    `owner`: random, of the producer object; `opening`: how often it has opened the id. The same
    again is a retry, an earlier opening is refused. With `expected_producer_id` and
    `expected_epoch` refused with PRODUCER_FENCED if another producer has opened the id since.
    `is_ephemeral`: nobody opens the id again; it is forgotten an hour after its last transaction.
    """

    api_key = 22
    reply = InitProducerIdReply

    timeout_ms: Milliseconds = TIMEOUT_MS
    transaction_id: TransactionIdOrNone = ""
    owner: Owner = b""
    opening: Opening = 0
    transaction_timeout_ms: Milliseconds = 60_000
    is_ephemeral: bool = False
    expected_producer_id: NaturalOrAbsent = ABSENT
    expected_epoch: ProducerEpoch = ABSENT


class PartitionToFence(Body, frozen=True):
    topic_id: TopicId
    partition: Partition
    leader_epoch: LeaderEpochOrAbsent = ABSENT


class PartitionFenced(Body, frozen=True):
    """`next_sequence` records of this generation stand in the partition, all committed; `digest` is
    the one of their last batch. `partition_count`: of the topic when the generation began; 0: the
    partition does not know. `takes_head_crc`: all nodes read an account with the CRC of the head
    behind it (feature level).
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
    takes_head_crc: bool = False


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
