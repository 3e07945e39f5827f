"""Commands of the metadata log, their results, and the encoding of both (Kafka: metadata records).

A command stands in an `Envelope` as a msgpack array: fields can be added at its end (older nodes
ignore them, newer ones fill in the default). A tag is never reused. A new command is sent only
once the feature level in the image says that every node knows it.

Epochs in a command are those that its sender saw: they make it a compare-and-set, so that of two
nodes that both believe to lead only one succeeds. Absent numbers are -1. Ids of topics and
directories are the 16 bytes of a UUID.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias, get_args

import msgspec
from msgspec import field

from raftmq.errors import ErrorCode, InvalidCommand, NewerCommand
from raftmq.model import AbortReason
from raftmq.wire.messages.cluster import COMMAND_BYTES_MAX
from raftmq.wire.nesting import Decoder

FORMAT_VERSION = 1  # of `Envelope`; raised only if older nodes must not read past the command
NO_BROKER = -1
# None, or any, as the comment of the field says.
NO_EPOCH = -1
NO_VERSION = -1  # of a transaction: the program gives it none; of a plan: there is none
NO_OFFSET = -1  # nothing is committed; expected of a commit: that it is so


class FeatureLevel(IntEnum):
    """What each level added. The controller raises it when all nodes know it (decision 0024)."""

    FIRST = 1
    LOG_STARTS = 2  # RaiseLogStart
    # OpenTransaction and what follows it; deletions by expiry say what they saw (decision 0038)
    TRANSACTIONS = 3
    TAGS = 4  # filters of groups; checked heads of the batches of named producers
    # Scheduled records (decision 0041), and crashes that are counted beside a committed offset.
    SCHEDULED = 5
    MOVES = 6  # PlanMove, CancelMove (decision 0044)


SUPPORTED_LEVEL = max(FeatureLevel)  # the highest that this version of raftmq knows


class PartitionId(NamedTuple):
    """One partition, by topic id: a later topic of the same name has another id."""

    topic_id: bytes
    partition: int


class RecoveryState(IntEnum):
    """RECOVERING: elected uncleanly, its log is not yet known to be whole (KIP-704)."""

    RECOVERED = 0
    RECOVERING = 1


class Loss(IntEnum):
    """What a replica has lost since it was in sync."""

    NOTHING = 0
    UNSYNCED = 1  # perhaps its unsynced tail: not trusted, yet it may have more than any other
    RECORDS = 2  # synced records, or everything


class ElectionKind(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1


class Value(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Part of a command, a result or the image: immutable, compared by content."""


class Endpoint(Value, frozen=True):
    listener: str
    host: str
    port: int


class GroupMemberRecord(Value, frozen=True):
    """A member of a consumer group. Subscription and assignment are the client's own bytes."""

    member_id: str
    client_id: str = ""
    host: str = ""
    instance_id: str | None = None  # static membership
    # Chosen by the member; the same defaults as the consumer's `MemberOptions`.
    session_timeout_ms: int = 15_000
    rebalance_timeout_ms: int = 300_000
    subscription: bytes = b""  # opaque: only clients read it
    assignment: bytes = b""  # opaque: only clients read it


class StoredOffset(Value, frozen=True):
    """One committed offset of a group: the next offset to be read."""

    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    committed_at_ms: int = 0  # wall clock of the coordinator; offsets expire by it
    expected: int | None = None  # compare-and-set: the offset that must be there now; -1: none
    # The member that handles the record there now, and nothing else. From FeatureLevel.SCHEDULED on
    alone_by: str = ""


class PartitionsHeld(Value, frozen=True):
    topic_id: bytes
    numbers: tuple[int, ...]


class CrashedMember(Value, frozen=True):
    """A member whose session has ended, and what it may have worked on then."""

    member_id: str
    held: tuple[PartitionsHeld, ...]


class ProposedIsrMember(Value, frozen=True):
    """A member of a proposed ISR, with the broker epoch under which it fetched from the leader."""

    broker_id: int
    broker_epoch: int


class Command(Value, frozen=True, tag_field="kind"):
    """Base of the union; the tag of a subclass is never reused."""


# Brokers


class RegisterBroker(Command, frozen=True, tag=1):
    """A broker process came up. It starts fenced; its epoch is the index of this command.

    `previous_broker_epoch` and `directory_id` are read from its data directory and show whether
    the disk is the one of the last registration; the other fields show what the disk lost.

    A broker must write its epoch to its disk before its first heartbeat or fetch, and must send
    the `expected_broker_epoch` that it read, so that a late registration replaces no newer one.
    The same incarnation again is a retry. It may report more damage until it is unfenced for the
    first time; damage found later goes into ReportDamage.
    """

    broker_id: int
    incarnation: bytes  # 16 random bytes of this process: a retry is recognised by it
    directory_id: bytes
    endpoints: tuple[Endpoint, ...] = ()
    rack: str | None = None
    feature_level_min: int = 1  # the levels that its version supports
    feature_level_max: int = 1
    previous_broker_epoch: int = NO_EPOCH  # from its disk; -1: an empty directory
    boot_id: str = ""  # of its kernel; empty: unknown
    clean_shutdown_epoch: int = NO_EPOCH  # broker epoch of the process that left the mark
    damaged: tuple[tuple[bytes, int], ...] = ()  # lost records below their durable checkpoint
    expected_broker_epoch: int | None = None  # of the registration there; -1: none, None: any
    software_version: str = ""  # for operators; older brokers do not send it
    logs_max: int = 0  # partitions that its file descriptors allow; 0: not known


class FenceBroker(Command, frozen=True, tag=2):
    """Its session expired or its process died: it must lead nothing and leave every ISR."""

    broker_id: int
    broker_epoch: int


class UnfenceBroker(Command, frozen=True, tag=3):
    """It has caught up with the metadata: it may lead and join ISRs again."""

    broker_id: int
    broker_epoch: int


class BeginControlledShutdown(Command, frozen=True, tag=4):
    broker_id: int
    broker_epoch: int


class UnregisterBroker(Command, frozen=True, tag=5):
    """Forget a broker that is gone for good. Refused while it hosts replicas, or a plan says so."""

    broker_id: int
    broker_epoch: int


class ReviewPartitions(Command, frozen=True, tag=6):
    """Re-evaluate ISR and leader of some partitions after a change of `broker_id`: one slice."""

    broker_id: int
    broker_epoch: int
    partitions: tuple[tuple[bytes, int], ...]


class FinishReview(Command, frozen=True, tag=7):
    """Every partition that `broker_id` hosts was reviewed since `pending_since`."""

    broker_id: int
    broker_epoch: int
    pending_since: int


# Topics and partitions


class CreateTopic(Command, frozen=True, tag=8):
    """`assignments` holds the replicas of each partition, the preferred leader first.

    One command makes 1,000 partitions at most; AddPartitions makes the others.
    """

    topic_id: bytes
    name: str
    assignments: tuple[tuple[int, ...], ...]
    configs: dict[str, str] = field(default_factory=dict)


class DeleteTopic(Command, frozen=True, tag=9):
    topic_id: bytes


class AddPartitions(Command, frozen=True, tag=10):
    topic_id: bytes
    expected_count: int  # partitions that the topic has now
    assignments: tuple[tuple[int, ...], ...]  # of the new ones


class AlterTopicConfig(Command, frozen=True, tag=11):
    """`expected_epoch` is the topic's `config_epoch`, or -1 to overwrite any."""

    topic_id: bytes
    changes: dict[str, str | None]  # None removes a key, so that its default holds
    expected_epoch: int = -1


class AlterPartition(Command, frozen=True, tag=12):
    """A leader proposes an ISR: compare-and-set on leader epoch and partition epoch."""

    broker_id: int
    broker_epoch: int
    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[ProposedIsrMember, ...]
    recovery_state: RecoveryState = RecoveryState.RECOVERED


class ReassignPartition(Command, frozen=True, tag=13):
    """Move a partition to `replicas`; None cancels the reassignment in progress. The plan that it
    carries out goes in the same command; a plan for other replicas is a later wish, and stays.
    """

    topic_id: bytes
    partition: int
    partition_epoch: int
    replicas: tuple[int, ...] | None
    # The plan that the controller starts: only while it stands. From FeatureLevel.MOVES on
    planned_at: int = NO_VERSION


class ElectLeader(Command, frozen=True, tag=14):
    topic_id: bytes
    partition: int
    election: ElectionKind = ElectionKind.PREFERRED
    leader_epoch: int = NO_EPOCH  # that was seen, or -1 for any


# Producers, coordinators, groups


class AllocateProducerIds(Command, frozen=True, tag=15):
    broker_id: int
    broker_epoch: int
    count: int


class AssignSlot(Command, frozen=True, tag=16):
    """Give a coordinator slot to a broker; raises the slot's epoch."""

    slot: int
    expected_epoch: int
    broker_id: int


class SaveGroup(Command, frozen=True, tag=17):
    """A rebalance is complete: the members of the group, and the assignment of each.

    The generation must be above the saved one; or equal, for a retry, and where only the member id
    of a static member has changed.
    """

    slot_epoch: int
    group: str
    generation: int
    protocol_type: str = "consumer"
    protocol: str = ""
    leader: str = ""
    members: tuple[GroupMemberRecord, ...] = ()
    changed_at_ms: int = 0
    # The filter of all members, an expression; empty: none. From FeatureLevel.TAGS on
    tags: str = ""
    # Since the save before. From FeatureLevel.SCHEDULED on
    crashed: tuple[CrashedMember, ...] = ()


class GroupCommits(Value, frozen=True):
    """The offsets of one group that arrived within one tick of its coordinator."""

    group: str
    commits: tuple[StoredOffset, ...]


class CommitOffsets(Command, frozen=True, tag=18):
    """The commits of all groups of one slot within a tick (batching)."""

    slot: int
    slot_epoch: int
    groups: tuple[GroupCommits, ...]


class SeenOffset(Value, frozen=True):
    """An offset as expiry saw it. Two clocks cannot be compared, so its time is an identity."""

    topic_id: bytes
    partition: int
    offset: int
    committed_at_ms: int


class DeleteGroup(Command, frozen=True, tag=19):
    """Remove an empty group with its offsets. With `seen`: by expiry, only if its offsets are
    exactly these. From FeatureLevel.TRANSACTIONS on, as a transaction moves offsets past the line
    of their group.
    """

    slot_epoch: int
    group: str
    seen: tuple[SeenOffset, ...] | None = None


class DeleteOffsets(Command, frozen=True, tag=20):
    """Remove single offsets of a group: expired, or of a topic that is gone. `seen`: those that
    still are as expiry saw them; else as in `DeleteGroup`.
    """

    slot_epoch: int
    group: str
    partitions: tuple[tuple[bytes, int], ...]
    seen: tuple[SeenOffset, ...] = ()


class SetFeatureLevel(Command, frozen=True, tag=21):
    """Raise the level once every registered broker and voter supports it; never lower it."""

    expected: int
    level: int


class ReportDamage(Command, frozen=True, tag=22):
    """A running broker cannot use its replicas of `partitions`: records are lost, or only the
    disk has failed. Each partition gets another leader epoch, and another leader if it needs one.
    Unchanged stays a partition where this replica follows, lost nothing, and may be needed as the
    next leader.
    """

    broker_id: int
    broker_epoch: int
    partitions: tuple[tuple[bytes, int], ...]
    loss: Loss = Loss.RECORDS


class RaiseLogStart(Command, frozen=True, tag=23):
    """A leader was asked to delete the records before `start_offset`, which are all committed:
    compare-and-set on the leader epoch. From FeatureLevel.LOG_STARTS on (decision 0024).
    """

    broker_id: int
    broker_epoch: int
    topic_id: bytes
    partition: int
    leader_epoch: int
    start_offset: int


# Transactions


class OpenTransaction(Command, frozen=True, tag=24):
    """A producer opens a transaction id: what is open under it is aborted, in the same command.

    The same owner and opening again is a retry, and gets the answer for now; a lower opening comes
    late. With `expected_producer_id` and `expected_epoch` only if they are the current ones, or
    those of the newest decision. From FeatureLevel.TRANSACTIONS on, as all below.
    """

    slot_epoch: int
    transaction_id: str
    owner: bytes  # 16 random bytes of the producer object
    opening: int  # how often this owner has opened it
    timeout_ms: int
    is_ephemeral: bool = False  # an id that nobody opens again: forgotten an hour after its end
    expected_producer_id: int = -1
    expected_epoch: int = -1
    changed_at_ms: int = 0  # wall clock of the coordinator; idle ids are forgotten by it


class TransactionOffsets(Value, frozen=True):
    """Offsets of one group that a transaction commits, by a member of the group, or by a program
    without membership: generation -1 and an empty member id.
    """

    group: str
    generation: int
    member_id: str
    instance_id: str | None
    offsets: tuple[StoredOffset, ...]


class SettledTransaction(Value, frozen=True):
    """Partitions in which a committed transaction has its marker below the high watermark."""

    producer_id: int
    producer_epoch: int
    partitions: tuple[tuple[bytes, int], ...]


class SharedEnd(Value, frozen=True):
    """What the end of a version says besides: whose versions these are, and its members that count,
    as bits: member n is bit n % 8 of byte n // 8. All others are aborted.
    """

    lineage: str
    numbers: bytes = b""


class TransactionEnd(Value, frozen=True):
    """Commit or abort the transaction (producer_id, producer_epoch) of `transaction_id`; of a
    shared one the block of its members, -1: none of them has written anything, and epoch 0.
    """

    transaction_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    # Of the producer that asks; empty: a leader whose log is held up, or an operator.
    owner: bytes = b""
    reason: AbortReason = AbortReason.NONE
    version: int = NO_VERSION
    count: int = NO_VERSION  # rows of that version, by the program; -1: it does not say
    partitions: tuple[tuple[bytes, int], ...] = ()  # in which it has records
    groups: tuple[TransactionOffsets, ...] = ()
    settled: tuple[SettledTransaction, ...] = ()  # of older commits of this id: to be forgotten
    shared: SharedEnd | None = None  # None also where a block is aborted by whom it holds up


class EndTransactions(Command, frozen=True, tag=26):
    """Ends of transactions of one slot: each is decided, or refused, by itself."""

    slot: int
    slot_epoch: int
    ends: tuple[TransactionEnd, ...]
    changed_at_ms: int = 0


class SettledCommits(Value, frozen=True):
    transaction_id: str
    settled: tuple[SettledTransaction, ...]


class ForgetSettled(Command, frozen=True, tag=27):
    """Forget commits that are settled; what is not there any more is skipped."""

    slot: int
    slot_epoch: int
    transactions: tuple[SettledCommits, ...]


class TransactionSeen(Value, frozen=True):
    transaction_id: str
    changed_at_ms: int


class DeleteTransactions(Command, frozen=True, tag=28):
    """Forget transaction ids that are idle, as seen: one that has changed since stays, and one
    with commits that are not settled stays unless `with_unsettled`. What is open is aborted by it.
    """

    slot: int
    slot_epoch: int
    seen: tuple[TransactionSeen, ...]
    with_unsettled: bool = False


class TransactionJoin(Value, frozen=True):
    """So many more members for a version of a shared transaction."""

    transaction_id: str
    lineage: str
    version: int
    timeout_ms: int  # of the version, if this opens it
    is_ephemeral: bool = False
    count: int = 1


class JoinTransactions(Command, frozen=True, tag=29):
    """Members join versions of one slot: each join is answered, or refused, by itself. A repeated
    one gets another number, which is as good: one under which nothing is written does no harm.
    """

    slot: int
    slot_epoch: int
    joins: tuple[TransactionJoin, ...]
    changed_at_ms: int = 0


class PlanMove(Command, frozen=True, tag=30):
    """Move a partition to `replicas`, the preferred leader first, when its turn comes: the
    controller starts it by ReassignPartition. Takes the place of an earlier plan.

    Only if the partition is as the sender saw it, so that a late copy undoes nothing: in that epoch
    (-1: any, and any plan), and with the plan of that version (-1: without one).
    """

    topic_id: bytes
    partition: int
    replicas: tuple[int, ...]
    plan_seen: int = NO_VERSION
    epoch_seen: int = NO_EPOCH


class CancelMove(Command, frozen=True, tag=31):
    """Forget the plan, and end the reassignment in progress: the partition keeps the replicas that
    it had before. `plan_seen`, `epoch_seen`: as in PlanMove."""

    topic_id: bytes
    partition: int
    plan_seen: int = NO_VERSION
    epoch_seen: int = NO_EPOCH


AnyCommand: TypeAlias = (
    RegisterBroker | FenceBroker | UnfenceBroker | BeginControlledShutdown | UnregisterBroker
    | ReviewPartitions | FinishReview | CreateTopic | DeleteTopic | AddPartitions
    | AlterTopicConfig | AlterPartition | ReassignPartition | ElectLeader | AllocateProducerIds
    | AssignSlot | SaveGroup | CommitOffsets | DeleteGroup | DeleteOffsets | SetFeatureLevel
    | ReportDamage | RaiseLogStart | OpenTransaction | EndTransactions | ForgetSettled
    | DeleteTransactions | JoinTransactions | PlanMove | CancelMove
)  # fmt: skip


class CommandId(Value, frozen=True):
    """Identifies a command over all of its retries, so that it is applied once.

    `origin` is a broker, `epoch` its broker epoch, `sequence` counts up within the epoch.
    """

    origin: int
    epoch: int
    sequence: int


class Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry of the Raft log."""

    format_version: int
    command: AnyCommand
    command_id: CommandId | None = None


# Results


class Result(Value, frozen=True, tag_field="kind"):
    """Base of the union; the tag of a subclass is never reused."""


class Done(Result, frozen=True, tag=1):
    """The wanted state holds, whether this command changed it or found it so."""


class Refused(Result, frozen=True, tag=2):
    """Nothing was changed. `code` is one of Kafka's numbers."""

    code: ErrorCode
    message: str


class BrokerRegistered(Result, frozen=True, tag=3):
    broker_epoch: int


class PartitionAltered(Result, frozen=True, tag=4):
    """The partition after the command. It may differ from the proposal: a reassignment that this
    completes drops replicas, and may move the leader.
    """

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    recovery_state: RecoveryState


class ProducerIdBlock(Result, frozen=True, tag=5):
    """Ids first ... first + count - 1 belong to the broker that asked."""

    first: int
    count: int


class OffsetRefused(Value, frozen=True):
    """A commit whose `expected` did not match, and the offset that is saved (-1: none)."""

    group: str
    topic_id: bytes
    partition: int
    offset: int


class OffsetsCommitted(Result, frozen=True, tag=6):
    """Every commit was saved, except those in `refused`."""

    refused: tuple[OffsetRefused, ...] = ()


class TransactionOpened(Result, frozen=True, tag=7):
    """The producer id and epoch of the next transaction; the newest version that was committed
    under the id, -1: none, and its count.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    last_version: int = NO_VERSION
    last_count: int = NO_VERSION


class EndOutcome(Value, frozen=True):
    """What became of one end, by its place in the command, where it is not the usual: decided as
    asked, and the next epoch is the one after. With a `code` it was refused.
    """

    place: int
    code: ErrorCode = ErrorCode.NONE
    message: str = ""
    is_committed: bool = False
    is_repeated: bool = False  # decided before
    reason: AbortReason = AbortReason.NONE
    producer_id: int = -1  # of the next transaction; -1: not told
    producer_epoch: int = -1
    count: int = NO_VERSION  # of a version that was committed before
    dropped: int = 0  # offsets of partitions that do not exist any more


class TransactionsEnded(Result, frozen=True, tag=8):
    """Every end was decided as asked, except as `outcomes` says."""

    outcomes: tuple[EndOutcome, ...] = ()


class JoinOutcome(Value, frozen=True):
    """The number of the first of the members that have joined; the others follow it. The producer
    id of a member is `block + number`, in epoch 0. With `is_done` the version was committed before,
    and there is none; with a `code` it was refused.

    One for all that join a version together: results of commands are remembered.
    """

    code: ErrorCode = ErrorCode.NONE
    message: str = ""
    is_done: bool = False
    count: int = NO_VERSION  # rows of a version that was committed before, where they are known
    block: int = -1
    number: int = -1
    timeout_ms: int = 0  # of the version


class TransactionsJoined(Result, frozen=True, tag=9):
    """`outcomes`: in the order of the joins."""

    outcomes: tuple[JoinOutcome, ...]


AnyResult: TypeAlias = (
    Done | Refused | BrokerRegistered | PartitionAltered | ProducerIdBlock | OffsetsCommitted
    | TransactionOpened | TransactionsEnded | TransactionsJoined
)  # fmt: skip


class _Opening(msgspec.Struct, array_like=True):
    """The first fields of an envelope of any format."""

    format_version: int
    command: msgspec.Raw = msgspec.Raw(b"\x90")  # an empty array: `_Kind` then refuses it


class _Kind(msgspec.Struct, array_like=True):
    """The first field of a command of any version: its tag."""

    kind: int


_TAG_MAX = max(int(kind.__struct_config__.tag) for kind in get_args(AnyCommand))
_encoder = msgspec.msgpack.Encoder()
_envelope_decoder = msgspec.msgpack.Decoder(Envelope)
_opening_decoder = Decoder[_Opening](_Opening)
_kind_decoder = msgspec.msgpack.Decoder(_Kind)


def encode_command(command: AnyCommand, command_id: CommandId | None = None) -> bytes:
    """The bytes for the log.

    Raises:
        InvalidCommand: over COMMAND_BYTES_MAX, or it would raise the feature level above what
            this node knows; nothing was sent.
    """
    name = type(command).__name__
    # Committed, it would stop every node of this version, this one included.
    if isinstance(command, SetFeatureLevel) and command.level > SUPPORTED_LEVEL:
        raise InvalidCommand(
            f"{name} to {command.level}: this node knows levels up to {SUPPORTED_LEVEL}: upgrade it"
        )
    data = _encoder.encode(Envelope(FORMAT_VERSION, command, command_id))
    if len(data) > COMMAND_BYTES_MAX:  # the caller must split it: it would block the quorum
        raise InvalidCommand(
            f"{name} takes {len(data)} bytes, at most {COMMAND_BYTES_MAX}: split it"
        )
    return data


def decode_command(data: bytes) -> Envelope:
    """The envelope of an entry of the log.

    Raises:
        NewerCommand: of a format or a kind that only a newer version of raftmq knows.
        InvalidCommand: bytes that no version of raftmq wrote.
    """
    try:
        _refuse_newer(data)
        return _envelope_decoder.decode(data)
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise InvalidCommand(f"command of {len(data)} bytes does not decode: {error}") from error


def _refuse_newer(data: bytes) -> None:
    """Check the format first, then the kind: in a newer version, all that follows may differ."""
    opening = _opening_decoder.decode(data)
    if opening.format_version > FORMAT_VERSION:
        raise NewerCommand(
            f"command has format {opening.format_version}, this node knows {FORMAT_VERSION}:"
            " upgrade it"
        )
    kind = _kind_decoder.decode(opening.command).kind
    if kind > _TAG_MAX:
        raise NewerCommand(f"command is of kind {kind}, this node knows {_TAG_MAX}: upgrade it")
