"""Messages of scheduled records: cancel them by their handles, list what is pending.

Sent to the leader of the partition. A handle is the offset that a record had at first; what became
of its batch since, the leader knows (docs/decisions/0041).
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from raftmq.errors import ErrorCode
from raftmq.wire.batch.header import RECORDS_MAX
from raftmq.wire.bodies import (
    ABSENT,
    TIMEOUT_MS,
    Body,
    BrokerIdOrAbsent,
    ByteCount,
    ErrorMessage,
    ErrorNumber,
    LeaderEpochOrAbsent,
    Milliseconds,
    Name,
    Natural,
    NaturalOrAbsent,
    Offset,
    OffsetOrAbsent,
    Partition,
    Request,
    TopicId,
)

HANDLES_MAX = 1_000  # of one request; a cancel in the log has room for ten times as many
ENTRIES_MAX = 1_000  # batches of one page
# Of the batches of a page; the first one is sent at any size.
PAGE_BYTES_MAX = 1 << 20

Delta: TypeAlias = Annotated[int, Meta(ge=0, le=RECORDS_MAX - 1)]


class RecordCancelled(Body, frozen=True):
    """`reason`: with CANNOT_CANCEL: "delivered", "cancelled", "aborted" or "unknown"."""

    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    reason: Name = ""


class CancelScheduledReply(Body, frozen=True):
    """`error`: nothing is known of any of them; leader and epoch are filled in with errors after
    which a client needs fresh metadata. `records`: of each offset that was asked for, in order.
    """

    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    leader: BrokerIdOrAbsent = ABSENT
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    records: Annotated[tuple[RecordCancelled, ...], Meta(max_length=HANDLES_MAX)] = ()


class CancelScheduled(Request, frozen=True):
    """Cancel scheduled records of one partition: those that can be in one append. Answered once
    that is committed, and what a refusal follows from, too.

    `offsets`: those that the records had at first. `leader_epoch`: of the leader by the client's
    metadata, -1: of any.
    """

    api_key = 1014
    reply = CancelScheduledReply

    topic_id: TopicId
    partition: Partition
    offsets: Annotated[tuple[Offset, ...], Meta(min_length=1, max_length=HANDLES_MAX)]
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    timeout_ms: Milliseconds = TIMEOUT_MS


class ScheduledRow(Body, frozen=True):
    """A batch that is to be delivered. `first_offset`: handles of its records count from there.

    `left_out`: deltas of the records that are cancelled. `is_undecided`: its transaction is open.
    """

    base_offset: Offset
    first_offset: Offset
    record_count: Annotated[int, Meta(ge=1, le=RECORDS_MAX)]
    due_ms: Natural
    length: ByteCount  # of the batch in the payload
    left_out: Annotated[tuple[Delta, ...], Meta(max_length=RECORDS_MAX)] = ()
    is_undecided: bool = False


class ListScheduledReply(Body, frozen=True):
    """Counts and next due time are of the whole partition; -1: nothing is pending. `next_offset`:
    where the next page begins; -1: this was the last one. The payload has the batches of the
    entries, in this order.
    """

    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    leader: BrokerIdOrAbsent = ABSENT
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    pending_count: Natural = 0
    pending_bytes: Natural = 0
    next_due_ms: NaturalOrAbsent = ABSENT
    next_offset: OffsetOrAbsent = ABSENT
    entries: Annotated[tuple[ScheduledRow, ...], Meta(max_length=ENTRIES_MAX)] = ()


class ListScheduled(Request, frozen=True):
    """The scheduled batches of one partition from `start_offset` on, as they stand in its log, that
    are neither delivered nor cancelled. Pages may be short, even empty, before the last one.

    `limit`: entries of the answer. 0: only the counts.
    """

    api_key = 1015
    reply = ListScheduledReply

    topic_id: TopicId
    partition: Partition
    start_offset: Offset = 0
    limit: Annotated[int, Meta(ge=0, le=ENTRIES_MAX)] = ENTRIES_MAX
    leader_epoch: LeaderEpochOrAbsent = ABSENT
