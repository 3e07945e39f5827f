"""Messages of transactions: end, list, describe and forget; what is open in a partition; settling.

A transaction is a producer id in one of its epochs. `InitProducerId` with a transaction id opens
the id; producers send its records with `Produce`. (docs/decisions/0038)
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

from raftmq.errors import ErrorCode
from raftmq.model import LINEAGE_CHARS_MAX, AbortReason
from raftmq.wire.bodies import (
    ABSENT,
    PARTITIONS_MAX,
    TIMEOUT_MS,
    Body,
    BrokerIdOrAbsent,
    ErrorMessage,
    ErrorNumber,
    Generation,
    LeaderEpoch,
    LeaderEpochOrAbsent,
    MemberId,
    Milliseconds,
    Name,
    Natural,
    NaturalOrAbsent,
    Offset,
    OffsetOrAbsent,
    Owner,
    Partition,
    ProducerEpoch,
    Request,
    Timestamp,
    TopicId,
    TopicPartition,
    TransactionId,
    TransactionIdOrNone,
)
from raftmq.wire.messages.group_offsets import OffsetToCommit  # noqa: TC001  # msgspec reads it

# Of one transaction; the quorum's rules have the same limits.
TRANSACTION_PARTITIONS_MAX = 2_000
TRANSACTION_GROUPS_MAX = 100
TRANSACTION_OFFSETS_MAX = 5_000
DESCRIBED_MAX = 1_000  # transaction ids of one request or reply
OPEN_MAX = 5_000  # open transactions of one partition, and so of one reply about it
OVERDUE_MAX = 100  # of a kind in one reply: people look at the first few
SETTLED_MAX = 10_000  # questions of one request, of all its partitions

MEMBERS_MAX = 8_192  # of one version of a shared transaction; the quorum's rules have the same

Lineage: TypeAlias = Annotated[str, Meta(max_length=LINEAGE_CHARS_MAX)]
MemberNumbers: TypeAlias = Annotated[bytes, Meta(max_length=MEMBERS_MAX // 8)]
TransactionIds: TypeAlias = Annotated[tuple[TransactionId, ...], Meta(max_length=DESCRIBED_MAX)]
Reason: TypeAlias = Annotated[int, Meta(ge=0, le=max(AbortReason).value)]


class GroupOffsets(Body, frozen=True):
    """Offsets that the commit moves, by a member in its present generation; or without membership:
    generation -1 and an empty member id. `expected` is not allowed here.
    """

    group: Name
    generation: Generation = ABSENT
    member_id: MemberId = ""
    instance_id: Name | None = None
    offsets: Annotated[tuple[OffsetToCommit, ...], Meta(max_length=TRANSACTION_OFFSETS_MAX)] = ()


class EndTxnReply(Body, frozen=True):
    """`producer_id` and `producer_epoch` are those of the next transaction, also with an error
    that ends this one; -1: not told. `is_committed` is the outcome of the asked one where there is
    no error: a commit that was aborted before is told so, with the reason.

    Attributes:
        is_repeated: it was decided before, by an earlier attempt or by somebody else.
        count: rows of a version that was committed before; -1: not known.
        is_settled: all of its records can be read by now; only if it was asked to wait for that.
        dropped: offsets of partitions that do not exist any more.
    """

    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    producer_id: NaturalOrAbsent = ABSENT
    producer_epoch: ProducerEpoch = ABSENT
    is_committed: bool = False
    is_repeated: bool = False
    reason: Reason = AbortReason.NONE
    count: NaturalOrAbsent = ABSENT
    is_settled: bool = False
    dropped: Natural = 0


class EndTxn(Request, frozen=True):
    """Sent to the coordinator of the transaction id; answered once it is decided in the quorum.

    The same again is a retry, and is told the same, after any failover. `owner` is the one that
    opened the id; empty: a leader whose log is held up, or an operator, who may only abort.
    `partitions`: all those in which it has records. `wait_settled`: answer once all of it can be
    read, at most `timeout_ms` later.

    Of a version of a shared transaction (`lineage` is not None): `producer_id` is the block of its
    members, -1: none has written anything; the epoch is 0; `numbers`: the members that count, as
    bits, member n is bit n % 8 of byte n // 8. All others are aborted by the commit.
    """

    api_key = 26
    reply = EndTxnReply

    transaction_id: TransactionId
    producer_id: NaturalOrAbsent
    producer_epoch: ProducerEpoch
    is_commit: bool
    owner: Owner = b""
    reason: Reason = AbortReason.NONE
    transaction_version: NaturalOrAbsent = ABSENT
    count: NaturalOrAbsent = ABSENT
    partitions: Annotated[
        tuple[TopicPartition, ...], Meta(max_length=TRANSACTION_PARTITIONS_MAX)
    ] = ()
    groups: Annotated[tuple[GroupOffsets, ...], Meta(max_length=TRANSACTION_GROUPS_MAX)] = ()
    wait_settled: bool = False
    timeout_ms: Milliseconds = TIMEOUT_MS
    lineage: Lineage | None = None
    numbers: MemberNumbers = b""


class JoinTransactionReply(Body, frozen=True):
    """The member writes as producer `block + number`, in epoch 0. With `is_done` the version was
    committed before, and there is no number; `count`: its rows, -1: not known.
    """

    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    is_done: bool = False
    count: NaturalOrAbsent = ABSENT
    block: NaturalOrAbsent = ABSENT
    number: NaturalOrAbsent = ABSENT
    transaction_timeout_ms: Milliseconds = 0


class JoinTransaction(Request, frozen=True):
    """Asks the coordinator of a shared transaction for one more member of a version. Repeated, it
    gives another number, which does no harm.

    `lineage`: whose versions these are; another one is refused. A lower version that is open is
    aborted; under a higher one this is refused with PRODUCER_FENCED.
    """

    api_key = 1013
    reply = JoinTransactionReply

    transaction_id: TransactionId
    lineage: Lineage
    transaction_version: Natural
    transaction_timeout_ms: Milliseconds = 60_000
    is_ephemeral: bool = False
    timeout_ms: Milliseconds = TIMEOUT_MS


class CommittedTransaction(Body, frozen=True):
    """`producer_ids`: of a shared one, how many there are from `producer_id` on: its block."""

    producer_id: Natural
    producer_epoch: ProducerEpoch
    producer_ids: Annotated[int, Meta(ge=1, le=MEMBERS_MAX)] = 1


class PartitionToSettle(Body, frozen=True):
    """Of the leader in exactly `leader_epoch`: one of an earlier epoch may lack the records."""

    topic_id: TopicId
    partition: Partition
    leader_epoch: LeaderEpoch
    transactions: Annotated[tuple[CommittedTransaction, ...], Meta(max_length=SETTLED_MAX)]


class PartitionSettled(Body, frozen=True):
    """`settled`: for each transaction, in the order of the request, whether its marker stands
    below the high watermark, or it has nothing there. Empty with an error.
    """

    topic_id: TopicId
    partition: Partition
    error: ErrorNumber = ErrorCode.NONE
    settled: Annotated[tuple[bool, ...], Meta(max_length=SETTLED_MAX)] = ()


class TransactionsSettledReply(Body, frozen=True):
    partitions: Annotated[tuple[PartitionSettled, ...], Meta(max_length=PARTITIONS_MAX)] = ()


class TransactionsSettled(Request, frozen=True):
    """A coordinator asks which committed transactions have their markers. Between brokers only."""

    api_key = 1010
    reply = TransactionsSettledReply
    is_for_brokers = True

    partitions: Annotated[tuple[PartitionToSettle, ...], Meta(max_length=PARTITIONS_MAX)]


class TransactionDescribed(Body, frozen=True):
    """(producer_id, producer_epoch): the present transaction, or the next one; of a shared one the
    block of the version that is open, or -1. `last_*`: of the newest decision; `last_epoch` is -1
    before the first. `lineage`: None where it is not shared.
    """

    transaction_id: TransactionId
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    producer_id: NaturalOrAbsent = ABSENT
    producer_epoch: ProducerEpoch = ABSENT
    timeout_ms: Milliseconds = 0
    is_ephemeral: bool = False
    last_producer_id: NaturalOrAbsent = ABSENT
    last_epoch: ProducerEpoch = ABSENT
    last_is_committed: bool = False
    last_reason: Reason = AbortReason.NONE
    last_version: NaturalOrAbsent = ABSENT
    last_count: NaturalOrAbsent = ABSENT
    unsettled: Natural = 0  # commits that are not settled yet
    unsettled_partitions: Annotated[
        tuple[TopicPartition, ...], Meta(max_length=TRANSACTION_PARTITIONS_MAX)
    ] = ()
    changed_at_ms: Timestamp = ABSENT
    lineage: Lineage | None = None
    open_version: NaturalOrAbsent = ABSENT
    joined: Natural = 0  # members of the version that is open


class DescribeTransactionsReply(Body, frozen=True):
    transactions: Annotated[tuple[TransactionDescribed, ...], Meta(max_length=DESCRIBED_MAX)] = ()


class DescribeTransactions(Request, frozen=True):
    """Of any broker, by its metadata."""

    api_key = 65
    reply = DescribeTransactionsReply

    transaction_ids: TransactionIds


class ListTransactionsReply(Body, frozen=True):
    """`next_after`: the last id of this page, to go on behind; empty: it was the last page."""

    transactions: Annotated[tuple[TransactionDescribed, ...], Meta(max_length=DESCRIBED_MAX)] = ()
    next_after: TransactionIdOrNone = ""


class ListTransactions(Request, frozen=True):
    """Of any broker, by its metadata; ids in their order, those behind `after`."""

    api_key = 66
    reply = ListTransactionsReply

    after: TransactionIdOrNone = ""
    only_unsettled: bool = False


class OpenInPartition(Body, frozen=True):
    """A transaction that holds the last stable offset. `transaction_id` is empty where the
    metadata know none (any more). `open_ms`: for how long this leader has had it open.
    """

    producer_id: Natural
    producer_epoch: ProducerEpoch
    first_offset: Offset
    open_ms: Milliseconds = 0
    transaction_id: TransactionIdOrNone = ""


class PartitionOpen(Body, frozen=True):
    """`transactions`: the oldest, as many as fit into the reply, of `open_count`."""

    topic_id: TopicId
    partition: Partition
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    high_watermark: OffsetOrAbsent = ABSENT
    last_stable_offset: OffsetOrAbsent = ABSENT
    transactions: Annotated[tuple[OpenInPartition, ...], Meta(max_length=OPEN_MAX)] = ()
    leader: BrokerIdOrAbsent = ABSENT
    leader_epoch: LeaderEpochOrAbsent = ABSENT
    open_count: Natural = 0


class DescribeProducersReply(Body, frozen=True):
    partitions: Annotated[tuple[PartitionOpen, ...], Meta(max_length=PARTITIONS_MAX)] = ()


class DescribeProducers(Request, frozen=True):
    """Which transactions are open in partitions; of their leaders."""

    api_key = 61
    reply = DescribeProducersReply

    partitions: Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)]


class ForgetTransactionReply(Body, frozen=True):
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""


class ForgetTransaction(Request, frozen=True):
    """Of the coordinator: what is open under the id is aborted, and the id is forgotten, with its
    versions. Refused while commits are not settled, unless `with_unsettled`: these may be torn.
    """

    api_key = 1011
    reply = ForgetTransactionReply

    transaction_id: TransactionId
    with_unsettled: bool = False
    timeout_ms: Milliseconds = TIMEOUT_MS


class OverduePartition(Body, frozen=True):
    """Its oldest open transaction; `transaction_id` is empty where the metadata know none."""

    topic_id: TopicId
    partition: Partition
    transaction_id: TransactionIdOrNone = ""
    open_ms: Milliseconds = 0


class OverdueCommits(Body, frozen=True):
    """`commits` of the id are not settled, the oldest for `oldest_ms`."""

    transaction_id: TransactionId
    commits: Natural = 0
    oldest_ms: Milliseconds = 0


class DescribeOverdueReply(Body, frozen=True):
    open: Annotated[tuple[OverduePartition, ...], Meta(max_length=OVERDUE_MAX)] = ()
    unsettled: Annotated[tuple[OverdueCommits, ...], Meta(max_length=OVERDUE_MAX)] = ()


class DescribeOverdue(Request, frozen=True):
    """What takes longer than it may, of each broker: transactions that are open in partitions that
    it leads for longer than any timeout; commits that it coordinates and that are not settled.
    """

    api_key = 1012
    reply = DescribeOverdueReply
