"""Messages of committed offsets of consumer groups: commit, fetch, delete; sent to the coordinator.

An offset is that of the next record to read. It belongs to a topic id, so that a later topic of the
same name does not inherit it.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from raftmq.errors import ErrorCode
from raftmq.wire.bodies import (
    ABSENT,
    PARTITIONS_MAX,
    TIMEOUT_MS,
    Body,
    ErrorMessage,
    ErrorNumber,
    Generation,
    LeaderEpochOrAbsent,
    MemberId,
    Milliseconds,
    Name,
    Natural,
    Offset,
    OffsetOrAbsent,
    Partition,
    PartitionOutcome,
    Request,
    SlotEpoch,
    Timestamp,
    TopicId,
    TopicPartition,
)

OFFSET_METADATA_CHARS_MAX = 4_096  # as in Kafka; the quorum checks that its UTF-8 fits, too

OffsetMetadata: TypeAlias = Annotated[str, Meta(max_length=OFFSET_METADATA_CHARS_MAX)]


class OffsetToCommit(Body, frozen=True):
    """`expected`: commit only if this offset is committed now, -1: none is; None: in any case.
    `is_alone`: the member handles the record there now, and nothing else until it commits again: if
    its session ends, that counts for this record (decision 0043).
    """

    topic_id: TopicId
    partition: Partition
    offset: Offset
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    metadata: OffsetMetadata = ""
    expected: OffsetOrAbsent | None = None
    is_alone: bool = False


class CommitOutcome(Body, frozen=True):
    """With INVALID_UPDATE_VERSION (not the expected one) `offset` is committed now; -1: none."""

    topic_id: TopicId
    partition: Partition
    error: ErrorNumber = ErrorCode.NONE
    offset: OffsetOrAbsent = ABSENT


class OffsetCommitReply(Body, frozen=True):
    """With `error`, none was committed."""

    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    partitions: Annotated[tuple[CommitOutcome, ...], Meta(max_length=PARTITIONS_MAX)] = ()


class OffsetCommit(Request, frozen=True):
    """Answered once it is in the quorum. Without a member, `generation` is -1 and `member_id`
    empty: allowed while the group has no members.

    `number` rises with each attempt to commit of a member, or of a `sender`, a random name of a
    client that commits without a member: a late attempt, over a connection that was given up,
    changes nothing (decision 0025). Not checked if it is 0, or without member and sender.
    `slot_epoch`: see `groups.py`.
    """

    api_key = 8
    reply = OffsetCommitReply

    group: Name
    generation: Generation
    member_id: MemberId
    partitions: Annotated[tuple[OffsetToCommit, ...], Meta(max_length=PARTITIONS_MAX)]
    instance_id: Name | None = None
    timeout_ms: Milliseconds = TIMEOUT_MS
    number: Natural = 0
    slot_epoch: SlotEpoch = 0
    sender: Name = ""


class FetchedOffset(Body, frozen=True):
    """`offset` is -1 if nothing was committed. `crashes`: how many members have crashed that had
    the partition, since the committed offset moved.
    """

    topic_id: TopicId
    partition: Partition
    offset: OffsetOrAbsent = ABSENT
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    metadata: OffsetMetadata = ""
    committed_at_ms: Timestamp = ABSENT
    crashes: Natural = 0


class OffsetFetchReply(Body, frozen=True):
    """`slot_epoch`, `last_change`: of the coordinator, for a later OffsetDelete of what this reply
    shows; 0: an older broker.
    """

    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    partitions: Annotated[tuple[FetchedOffset, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    slot_epoch: SlotEpoch = 0
    last_change: Natural = 0


class OffsetFetch(Request, frozen=True):
    """Linearizable: it shows every commit that was answered before. With a member id, it fails if
    the group has no such member any more, also if another process has taken the place of a static
    one.

    `partitions` None: all. Empty: the answer waits for all changes that came before, so that a
    deletion with its `last_change` is not refused for one of them.
    """

    api_key = 9
    reply = OffsetFetchReply

    group: Name
    partitions: Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)] | None = None
    generation: Generation = ABSENT
    member_id: MemberId = ""
    timeout_ms: Milliseconds = TIMEOUT_MS
    instance_id: Name | None = None


class OffsetDeleteReply(Body, frozen=True):
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    partitions: Annotated[tuple[PartitionOutcome, ...], Meta(max_length=PARTITIONS_MAX)] = ()


class OffsetDelete(Request, frozen=True):
    """Deletes committed offsets. Refused for topics that members of the group read, and if the
    group has changed after the `last_change` of an OffsetFetch under the same `slot_epoch`: a late
    copy deletes nothing that was committed since (decision 0025). 0: not checked.
    """

    api_key = 47
    reply = OffsetDeleteReply

    group: Name
    partitions: Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)]
    timeout_ms: Milliseconds = TIMEOUT_MS
    slot_epoch: SlotEpoch = 0
    last_change: Natural = 0
