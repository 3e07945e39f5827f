"""Record batches on their way to consumers.

The payload of a reply holds the batches of each partition, in the order in which the reply names
them. With a session the broker remembers which partitions are fetched: a request names those that
are new or have moved on, a reply those of which there is something to tell.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta

from raftmq.errors import ErrorCode
from raftmq.wire.apis import ApiKey
from raftmq.wire.bodies import (
    ABSENT,
    ID_MAX,
    PARTITIONS_MAX,
    Body,
    BrokerIdOrAbsent,
    ByteCount,
    ErrorMessage,
    ErrorNumber,
    LeaderEpochOrAbsent,
    Milliseconds,
    Name,
    Natural,
    Offset,
    OffsetOrAbsent,
    Partition,
    Request,
    TopicId,
    TopicPartition,
)

NO_SESSION = 0  # as a session id
WITHOUT_SESSION = -1  # as a session epoch: and begin none
NEW_SESSION = 0  # as a session epoch: begin one; then 1, 2 ... with each request
SessionEpoch: TypeAlias = Annotated[int, Meta(ge=WITHOUT_SESSION, le=ID_MAX)]


class FetchPartition(Body, frozen=True):
    """`leader_epoch`: of the leader that is meant, -1: whoever leads. `last_fetched_epoch`: of
    the batch before `fetch_offset`, -1: not known; it lets the leader see where two logs part.
    """

    topic_id: TopicId
    partition: Partition
    fetch_offset: Offset
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    last_fetched_epoch: LeaderEpochOrAbsent = ABSENT
    bytes_max: ByteCount = 1 << 20  # a first batch that is larger comes nevertheless


FetchPartitions: TypeAlias = Annotated[tuple[FetchPartition, ...], Meta(max_length=PARTITIONS_MAX)]
Forgotten: TypeAlias = Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)]


class Diverging(Body, frozen=True):
    """In the leader's log `leader_epoch`, the latest at or before the one asked for, ends here."""

    leader_epoch: LeaderEpochOrAbsent
    end_offset: Offset


class PartitionFetched(Body, frozen=True):
    """Leader and epoch are told with the errors that ask for fresh metadata."""

    topic_id: TopicId
    partition: Partition
    error: ErrorNumber = ErrorCode.NONE
    high_watermark: OffsetOrAbsent = ABSENT
    log_start_offset: OffsetOrAbsent = ABSENT
    length: ByteCount = 0  # of its batches in the payload
    diverging: Diverging | None = None
    leader: BrokerIdOrAbsent = ABSENT
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    message: ErrorMessage = ""


class FetchReply(Body, frozen=True):
    session_id: Natural = NO_SESSION
    partitions: Annotated[tuple[PartitionFetched, ...], Meta(max_length=PARTITIONS_MAX)] = ()


class Fetch(Request, frozen=True):
    """Answered once there are `bytes_min`, or something else to tell, or after `max_wait_ms`."""

    api_key: ClassVar[ApiKey] = ApiKey.FETCH
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = FetchReply

    max_wait_ms: Milliseconds
    bytes_min: ByteCount
    bytes_max: ByteCount
    session_id: Natural = NO_SESSION
    session_epoch: SessionEpoch = WITHOUT_SESSION
    partitions: FetchPartitions = ()
    forgotten: Forgotten = ()
    rack: Name = ""
