"""What can be said to the metadata quorum, what it answers, and the bytes of both.

Owns the commands, the results and their encoding: a command travels in an `Envelope` and is a
msgpack array, so that fields can be added at its end (older nodes ignore them, newer ones fill
in the default). A tag is never given to another meaning. New commands are sent only once the
feature level in the image says that every node knows them.

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
from raftmq.wire.nesting import Decoder

COMMAND_BYTES_MAX = 1 << 20
FORMAT_VERSION = 1
NO_BROKER = -1
NO_EPOCH = -1


class FeatureLevel(IntEnum):
    """What came with each level. A cluster reaches one when all of its nodes know it."""

    FIRST = 1
    LOG_STARTS = 2  # RaiseLogStart


SUPPORTED_LEVEL = max(FeatureLevel)  # the highest that this version of raftmq knows


class PartitionId(NamedTuple):
    """One partition, by topic id, so that a topic of the same name made later is another one."""

    topic_id: bytes
    partition: int


class RecoveryState(IntEnum):
    """RECOVERING: elected uncleanly, its log is not yet known to be whole (KIP-704)."""

    RECOVERED = 0
    RECOVERING = 1


class Loss(IntEnum):
    """What a replica has lost since it was in sync."""

    NOTHING = 0
    UNSYNCED = 1  # perhaps its tail: holds no promise, yet may know more than any other
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
    session_timeout_ms: int = 15_000
    rebalance_timeout_ms: int = 300_000
    subscription: bytes = b""
    assignment: bytes = b""


class StoredOffset(Value, frozen=True):
    """One committed offset of a group: the next offset to be read."""

    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    committed_at_ms: int = 0
    expected: int | None = None  # compare-and-set: the offset that must be there now; -1: none


class ProposedIsrMember(Value, frozen=True):
    """A member of a proposed ISR, with the incarnation that the leader talked to."""

    broker_id: int
    broker_epoch: int


class Command(Value, frozen=True, tag_field="kind"):
    """Base of the union; each subclass has a number for ever."""


# Brokers


class RegisterBroker(Command, frozen=True, tag=1):
    """A broker process came up. It starts fenced; its epoch is the index of this command.

    `previous_broker_epoch` and `directory_id` are read from its data directory and tell whether
    the disk is the one that belongs to the last registration; the rest tells what the disk lost.

    What a broker owes: its epoch is on its disk before its first heartbeat or fetch; and it sends
    `expected_broker_epoch`, as it read it, so that a registration that comes late replaces nobody.
    The same incarnation again is a retry. It may report more damage until it is unfenced for the
    first time; what is found later goes into ReportDamage.
    """

    broker_id: int
    incarnation: bytes  # 16 random bytes of this process: a retry is recognised by it
    directory_id: bytes
    endpoints: tuple[Endpoint, ...] = ()
    rack: str | None = None
    feature_level_min: int = 1
    feature_level_max: int = 1
    previous_broker_epoch: int = NO_EPOCH
    boot_id: str = ""
    clean_shutdown_epoch: int = NO_EPOCH  # broker epoch of the process that left the mark
    damaged: tuple[tuple[bytes, int], ...] = ()  # lost records below their durable checkpoint
    expected_broker_epoch: int | None = None  # that is registered now; -1: nobody, None: any


class FenceBroker(Command, frozen=True, tag=2):
    """Its session expired or its process died: it leads nothing and is in no ISR any more."""

    broker_id: int
    broker_epoch: int


class UnfenceBroker(Command, frozen=True, tag=3):
    """It has caught up with the metadata and may lead."""

    broker_id: int
    broker_epoch: int


class BeginControlledShutdown(Command, frozen=True, tag=4):
    broker_id: int
    broker_epoch: int


class UnregisterBroker(Command, frozen=True, tag=5):
    """Forget a broker that is gone for good. Refused while it hosts replicas."""

    broker_id: int
    broker_epoch: int


class ReviewPartitions(Command, frozen=True, tag=6):
    """One slice of the consequences of a change of `broker_id`: see each partition anew."""

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

    One command makes 1,000 partitions at most; CreatePartitions makes the others.
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
    """`expected_epoch` is the topic's `config_epoch`, or -1 to overwrite whatever is there."""

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
    """Move a partition to `replicas`; None cancels a move that is under way."""

    topic_id: bytes
    partition: int
    partition_epoch: int
    replicas: tuple[int, ...] | None


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
    """A rebalance is complete: who is in the group, and what each member got.

    The generation must be above the one that is there; or equal, for a retry, and where nothing
    but the id of a static member has changed.
    """

    slot_epoch: int
    group: str
    generation: int
    protocol_type: str = "consumer"
    protocol: str = ""
    leader: str = ""
    members: tuple[GroupMemberRecord, ...] = ()
    changed_at_ms: int = 0


class GroupCommits(Value, frozen=True):
    """The offsets of one group that arrived within one tick of its coordinator."""

    group: str
    commits: tuple[StoredOffset, ...]


class CommitOffsets(Command, frozen=True, tag=18):
    """All groups of one slot that committed within a tick; each group stands for itself."""

    slot: int
    slot_epoch: int
    groups: tuple[GroupCommits, ...]


class DeleteGroup(Command, frozen=True, tag=19):
    """Remove an empty group with its offsets."""

    slot_epoch: int
    group: str


class DeleteOffsets(Command, frozen=True, tag=20):
    """Remove single offsets of a group: expired, or of a topic that is gone."""

    slot_epoch: int
    group: str
    partitions: tuple[tuple[bytes, int], ...]


class SetFeatureLevel(Command, frozen=True, tag=21):
    """Raise the level once every registered broker and voter supports it; never lower it."""

    expected: int
    level: int


class ReportDamage(Command, frozen=True, tag=22):
    """A running broker cannot use its replicas of `partitions`: records are lost, or only the
    disk has failed. Each partition gets another leader epoch, and another leader if it needs one;
    none, where this replica follows, has lost nothing, and may have to lead next.
    """

    broker_id: int
    broker_epoch: int
    partitions: tuple[tuple[bytes, int], ...]
    loss: Loss = Loss.RECORDS


class RaiseLogStart(Command, frozen=True, tag=23):
    """A leader was asked to delete what stands before `start_offset`, all of which is committed:
    compare-and-set on the leader epoch. From FeatureLevel.LOG_STARTS on.
    """

    broker_id: int
    broker_epoch: int
    topic_id: bytes
    partition: int
    leader_epoch: int
    start_offset: int


AnyCommand: TypeAlias = (
    RegisterBroker | FenceBroker | UnfenceBroker | BeginControlledShutdown | UnregisterBroker
    | ReviewPartitions | FinishReview | CreateTopic | DeleteTopic | AddPartitions
    | AlterTopicConfig | AlterPartition | ReassignPartition | ElectLeader | AllocateProducerIds
    | AssignSlot | SaveGroup | CommitOffsets | DeleteGroup | DeleteOffsets | SetFeatureLevel
    | ReportDamage | RaiseLogStart
)  # fmt: skip


class CommandId(Value, frozen=True):
    """Names one intention, however often it is sent: a retry is applied once.

    `origin` is a broker, `epoch` its broker epoch, `sequence` counts up within the epoch.
    """

    origin: int
    epoch: int
    sequence: int


class Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What stands in the Raft log."""

    format_version: int
    command: AnyCommand
    command_id: CommandId | None = None


# Results


class Result(Value, frozen=True, tag_field="kind"):
    """Base of the union; each subclass has a number for ever."""


class Done(Result, frozen=True, tag=1):
    """It is so now, whether this command changed it or found it that way."""


class Refused(Result, frozen=True, tag=2):
    """Nothing was changed. `code` is one of Kafka's numbers."""

    code: ErrorCode
    message: str


class BrokerRegistered(Result, frozen=True, tag=3):
    broker_epoch: int


class PartitionAltered(Result, frozen=True, tag=4):
    """The partition as it is after the command: what the leader asked for, or more."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    recovery_state: RecoveryState


class ProducerIdBlock(Result, frozen=True, tag=5):
    """Ids first ... first + count - 1 belong to whoever asked."""

    first: int
    count: int


class OffsetRefused(Value, frozen=True):
    """A commit whose `expected` did not match, and what is there (-1: nothing)."""

    group: str
    topic_id: bytes
    partition: int
    offset: int


class OffsetsCommitted(Result, frozen=True, tag=6):
    """Every commit was written, but those in `refused`."""

    refused: tuple[OffsetRefused, ...] = ()


AnyResult: TypeAlias = (
    Done | Refused | BrokerRegistered | PartitionAltered | ProducerIdBlock | OffsetsCommitted
)


class _Opening(msgspec.Struct, array_like=True):
    """Of every envelope there will ever be: what comes first, whatever follows."""

    format_version: int
    command: msgspec.Raw = msgspec.Raw(b"\x90")


class _Kind(msgspec.Struct, array_like=True):
    """Of every command: its number."""

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
    if isinstance(command, SetFeatureLevel) and command.level > SUPPORTED_LEVEL:
        raise InvalidCommand(
            f"{name} to {command.level}: this node knows levels up to {SUPPORTED_LEVEL}: upgrade it"
        )
    data = _encoder.encode(Envelope(FORMAT_VERSION, command, command_id))
    if len(data) > COMMAND_BYTES_MAX:
        raise InvalidCommand(
            f"{name} takes {len(data)} bytes, at most {COMMAND_BYTES_MAX}: split it"
        )
    return data


def decode_command(data: bytes) -> Envelope:
    """The other way.

    Raises:
        NewerCommand: of a format or a kind that only a newer version of raftmq knows.
        InvalidCommand: bytes that no version of ours wrote.
    """
    try:
        _refuse_newer(data)
        return _envelope_decoder.decode(data)
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise InvalidCommand(f"command of {len(data)} bytes does not decode: {error}") from error


def _refuse_newer(data: bytes) -> None:
    """First the format, then the kind: what follows them may look like anything."""
    opening = _opening_decoder.decode(data)
    if opening.format_version > FORMAT_VERSION:
        raise NewerCommand(
            f"command has format {opening.format_version}, this node knows {FORMAT_VERSION}:"
            " upgrade it"
        )
    kind = _kind_decoder.decode(opening.command).kind
    if kind > _TAG_MAX:
        raise NewerCommand(f"command is of kind {kind}, this node knows {_TAG_MAX}: upgrade it")
