"""Which offset belongs to a time, and where a leader epoch ends."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta

from raftmq.errors import ErrorCode
from raftmq.wire.apis import ApiKey
from raftmq.wire.bodies import (
    ABSENT,
    NUMBER_MAX,
    PARTITIONS_MAX,
    Body,
    ErrorNumber,
    LeaderEpoch,
    LeaderEpochOrAbsent,
    OffsetOrAbsent,
    Partition,
    Request,
    Timestamp,
    TopicId,
)

LATEST = -1  # as a timestamp: what is committed ends here
EARLIEST = -2  # as a timestamp: the log starts here
WantedTimestamp: TypeAlias = Annotated[int, Meta(ge=EARLIEST, le=NUMBER_MAX)]


class WantedOffset(Body, frozen=True):
    """The first record at or after `timestamp`, in milliseconds since 1970-01-01 UTC."""

    topic_id: TopicId
    partition: Partition
    leader_epoch: LeaderEpochOrAbsent
    timestamp: WantedTimestamp


class FoundOffset(Body, frozen=True):
    """`offset` is -1 where no record is so young. `leader_epoch` is that of the record."""

    topic_id: TopicId
    partition: Partition
    error: ErrorNumber = ErrorCode.NONE
    timestamp: Timestamp = ABSENT
    offset: OffsetOrAbsent = ABSENT
    leader_epoch: LeaderEpochOrAbsent = ABSENT


class ListOffsetsReply(Body, frozen=True):
    partitions: Annotated[tuple[FoundOffset, ...], Meta(max_length=PARTITIONS_MAX)] = ()


class ListOffsets(Request, frozen=True):
    api_key: ClassVar[ApiKey] = ApiKey.LIST_OFFSETS
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = ListOffsetsReply

    partitions: Annotated[tuple[WantedOffset, ...], Meta(max_length=PARTITIONS_MAX)]


class WantedEpoch(Body, frozen=True):
    """`current_leader_epoch`: of the leader that is asked, -1: whoever leads."""

    topic_id: TopicId
    partition: Partition
    current_leader_epoch: LeaderEpochOrAbsent
    leader_epoch: LeaderEpoch


class FoundEpoch(Body, frozen=True):
    """The latest epoch at or before the one asked for, and where it ends; -1: there is none."""

    topic_id: TopicId
    partition: Partition
    error: ErrorNumber = ErrorCode.NONE
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    end_offset: OffsetOrAbsent = ABSENT


class OffsetForLeaderEpochReply(Body, frozen=True):
    partitions: Annotated[tuple[FoundEpoch, ...], Meta(max_length=PARTITIONS_MAX)] = ()


class OffsetForLeaderEpoch(Request, frozen=True):
    api_key: ClassVar[ApiKey] = ApiKey.OFFSET_FOR_LEADER_EPOCH
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = OffsetForLeaderEpochReply

    partitions: Annotated[tuple[WantedEpoch, ...], Meta(max_length=PARTITIONS_MAX)]
