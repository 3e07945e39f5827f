"""Fetch request and reply: long polls of consumers, fetch sessions, diverging epochs.

The payload of a reply holds the batches of each partition, in the order in which the reply names
them. With a fetch session (KIP-227) the broker remembers which partitions are fetched: a request
names those that are new or have a new position, a reply those with new data or another state.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from raftmq.errors import ErrorCode
from raftmq.model import IsolationLevel
from raftmq.wire.bodies import (
    ABSENT,
    ID_MAX,
    PARTITIONS_MAX,
    Body,
    BrokerIdOrAbsent,
    ByteCount,
    ErrorMessage,
    ErrorNumber,
    Isolation,
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
from raftmq.wire.tag_clauses import TagClauses  # noqa: TC001  # msgspec reads it

# Kafka's numbers (KIP-227).
NO_SESSION = 0  # session id
WITHOUT_SESSION = -1  # session epoch of a full fetch that begins no session
NEW_SESSION = 0  # session epoch that begins one; then 1, 2 ... with each request
# Aborted transactions in the answer about one partition, 130 kB: as many as a partition may have
# open, so that those of a single batch always fit. Where there are more, fewer batches are sent.
ABORTED_MAX = 5_000
# Ranges that are left out of the answer about one partition; where there are more, it ends before
# them.
LEFT_OUT_MAX = 1_000
SessionEpoch: TypeAlias = Annotated[int, Meta(ge=WITHOUT_SESSION, le=ID_MAX)]


class FetchPartition(Body, frozen=True):
    """`leader_epoch`: of the leader by the reader's metadata, -1: of any. `last_fetched_epoch`: of
    the batch before `fetch_offset`, -1: not known; by it the leader finds where two logs diverge.
    """

    topic_id: TopicId
    partition: Partition
    fetch_offset: Offset
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    last_fetched_epoch: LeaderEpochOrAbsent = ABSENT
    bytes_max: ByteCount = 1 << 20  # as in Kafka; a larger first batch is sent all the same


FetchPartitions: TypeAlias = Annotated[tuple[FetchPartition, ...], Meta(max_length=PARTITIONS_MAX)]
Forgotten: TypeAlias = Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)]


class Diverging(Body, frozen=True):
    """In the leader's log `leader_epoch`, the latest at or before the reader's, ends here."""

    leader_epoch: LeaderEpochOrAbsent
    end_offset: Offset


class AbortedTransaction(Body, frozen=True):
    """The batches of that producer at offsets from `first_offset` up to `marker_offset` do not
    count."""

    producer_id: Natural
    first_offset: Offset
    marker_offset: Offset


class LeftOutRange(Body, frozen=True):
    """No record at offsets from `start_offset` up to `end_offset` is for the reader: none passes
    its filter, or what stands there is scheduled. `leader_epoch` is that of the last batch
    there."""

    start_offset: Offset
    end_offset: Offset
    leader_epoch: LeaderEpochOrAbsent


class PartitionFetched(Body, frozen=True):
    """Leader and epoch are filled in with errors after which a client needs fresh metadata.

    With READ_COMMITTED no record is at or beyond `last_stable_offset`; `aborted` are the aborted
    transactions that the records of the answer meet. Every offset before the next one to fetch is
    in a batch of the payload, whole or partial, or in a range of `left_out`.
    """

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
    last_stable_offset: OffsetOrAbsent = ABSENT
    aborted: Annotated[tuple[AbortedTransaction, ...], Meta(max_length=ABORTED_MAX)] = ()
    left_out: Annotated[tuple[LeftOutRange, ...], Meta(max_length=LEFT_OUT_MAX)] = ()


class FetchReply(Body, frozen=True):
    session_id: Natural = NO_SESSION
    partitions: Annotated[tuple[PartitionFetched, ...], Meta(max_length=PARTITIONS_MAX)] = ()


class Fetch(Request, frozen=True):
    """A long poll: answered once `bytes_min` are there, on an error or a change of a partition, or
    after `max_wait_ms`. What `tags` do not let pass may be left out of the answer, and counts for
    nothing there; a broker of an earlier version sends it. `takes_gaps`: the reader knows ranges
    that are left out, also without a filter; a partition that hides something is refused to others.
    """

    api_key = 1
    reply = FetchReply

    max_wait_ms: Milliseconds
    bytes_min: ByteCount
    bytes_max: ByteCount
    session_id: Natural = NO_SESSION
    session_epoch: SessionEpoch = WITHOUT_SESSION
    partitions: FetchPartitions = ()
    forgotten: Forgotten = ()
    rack: Name = ""
    isolation_level: Isolation = IsolationLevel.READ_UNCOMMITTED  # of clients that know no other
    tags: TagClauses = ()
    takes_gaps: bool = False
