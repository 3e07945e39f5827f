"""Messages list offsets (earliest, latest, by timestamp) and offset for leader epoch.

Sent to the leader of each partition: a consumer finds its position with the first, and where its
log diverges with the second (KIP-320).
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from raftmq.errors import ErrorCode
from raftmq.model import IsolationLevel
from raftmq.wire.bodies import (
    ABSENT,
    NUMBER_MAX,
    PARTITIONS_MAX,
    Body,
    ErrorNumber,
    Isolation,
    LeaderEpoch,
    LeaderEpochOrAbsent,
    OffsetOrAbsent,
    Partition,
    Request,
    Timestamp,
    TopicId,
)

# In place of a timestamp, with Kafka's numbers.
LATEST = -1  # the high watermark; with READ_COMMITTED the last stable offset
EARLIEST = -2  # the log start offset
WantedTimestamp: TypeAlias = Annotated[int, Meta(ge=EARLIEST, le=NUMBER_MAX)]


class WantedOffset(Body, frozen=True):
    """The first record at or after `timestamp`, in milliseconds since 1970-01-01 UTC."""

    topic_id: TopicId
    partition: Partition
    leader_epoch: LeaderEpochOrAbsent
    timestamp: WantedTimestamp


class FoundOffset(Body, frozen=True):
    """`offset` is -1 if all records are older. `leader_epoch`: of the record."""

    topic_id: TopicId
    partition: Partition
    error: ErrorNumber = ErrorCode.NONE
    timestamp: Timestamp = ABSENT
    offset: OffsetOrAbsent = ABSENT
    leader_epoch: LeaderEpochOrAbsent = ABSENT


class ListOffsetsReply(Body, frozen=True):
    partitions: Annotated[tuple[FoundOffset, ...], Meta(max_length=PARTITIONS_MAX)] = ()


class ListOffsets(Request, frozen=True):
    """With READ_COMMITTED nothing at or beyond the last stable offset is found."""

    api_key = 2
    reply = ListOffsetsReply

    partitions: Annotated[tuple[WantedOffset, ...], Meta(max_length=PARTITIONS_MAX)]
    isolation_level: Isolation = IsolationLevel.READ_UNCOMMITTED  # of clients that know no other


class WantedEpoch(Body, frozen=True):
    """`current_leader_epoch`: of the leader by the client's metadata, -1: of any."""

    topic_id: TopicId
    partition: Partition
    current_leader_epoch: LeaderEpochOrAbsent
    leader_epoch: LeaderEpoch


class FoundEpoch(Body, frozen=True):
    """The latest epoch at or before the wanted one, and where it ends; -1: there is none."""

    topic_id: TopicId
    partition: Partition
    error: ErrorNumber = ErrorCode.NONE
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    end_offset: OffsetOrAbsent = ABSENT


class OffsetForLeaderEpochReply(Body, frozen=True):
    partitions: Annotated[tuple[FoundEpoch, ...], Meta(max_length=PARTITIONS_MAX)] = ()


class OffsetForLeaderEpoch(Request, frozen=True):
    api_key = 23
    reply = OffsetForLeaderEpochReply

    partitions: Annotated[tuple[WantedEpoch, ...], Meta(max_length=PARTITIONS_MAX)]
