"""The offsets that groups have committed: where their reading goes on. Asked of the coordinator.

An offset is that of the next record to be read. It belongs to a topic id, so that a topic of the
same name made later begins anew.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from msgspec import Meta

from raftmq.errors import ErrorCode
from raftmq.wire.apis import ApiKey
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

OFFSET_METADATA_CHARS_MAX = 4_096  # and as many bytes of UTF-8, which the quorum checks

OffsetMetadata: TypeAlias = Annotated[str, Meta(max_length=OFFSET_METADATA_CHARS_MAX)]


class OffsetToCommit(Body, frozen=True):
    """`expected`: commit only if that is what is there now; -1: nothing is; None: whatever."""

    topic_id: TopicId
    partition: Partition
    offset: Offset
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    metadata: OffsetMetadata = ""
    expected: OffsetOrAbsent | None = None


class CommitOutcome(Body, frozen=True):
    """INVALID_UPDATE_VERSION: not what was expected; `offset` is what is there (-1: nothing)."""

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

    `number` rises with each attempt to commit of a member, or of a `sender`, the name that whoever
    commits without a member has drawn: an earlier one that comes late, over a connection that was
    given up, changes nothing. 0, or with neither of both: it is not counted. `slot_epoch`: as of
    all that changes a group (`groups.py`).
    """

    api_key: ClassVar[ApiKey] = ApiKey.OFFSET_COMMIT
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = OffsetCommitReply

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
    """`offset` is -1 where nothing was committed."""

    topic_id: TopicId
    partition: Partition
    offset: OffsetOrAbsent = ABSENT
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    metadata: OffsetMetadata = ""
    committed_at_ms: Timestamp = ABSENT


class OffsetFetchReply(Body, frozen=True):
    """`slot_epoch`, `last_change`: of the coordinator, for whoever wants to delete what he has seen
    here; 0 of older brokers.
    """

    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    partitions: Annotated[tuple[FetchedOffset, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    slot_epoch: SlotEpoch = 0
    last_change: Natural = 0


class OffsetFetch(Request, frozen=True):
    """Linearizable: it shows every commit that was answered before. With a member, it fails where
    the member is none of the group any more, and says whether another process has the place of a
    static one.

    `partitions` None: all that there are. Empty: the answer waits for all changes that came before,
    so that a deletion that bears its `last_change` is not refused for one of them.
    """

    api_key: ClassVar[ApiKey] = ApiKey.OFFSET_FETCH
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = OffsetFetchReply

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
    """Forget them. Refused for topics that members of the group read, and of a group that has
    changed after the `last_change` that an OffsetFetch told under the same `slot_epoch`: a copy
    that comes late deletes nothing that was committed since. 0: whatever was.
    """

    api_key: ClassVar[ApiKey] = ApiKey.OFFSET_DELETE
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]] = OffsetDeleteReply

    group: Name
    partitions: Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)]
    timeout_ms: Milliseconds = TIMEOUT_MS
    slot_epoch: SlotEpoch = 0
    last_change: Natural = 0
