"""Every error that raftmq raises on purpose, with Kafka's error numbers.

    RaftmqError
    ├── CorruptRecord           bytes that are not what they claim to be
    ├── UnsupportedCompression  codec unknown, or its package is not installed
    ├── InvalidRecord           well-formed, but not allowed here
    │   └── InvalidTimestamp    too far in the future
    ├── MessageTooLarge         batch over max.message.bytes
    ├── OffsetOutOfRange        below the log start or beyond the log end
    │   └── LogTruncation       ... because the log lost records that were read already
    ├── OffsetNotAvailable      a new leader does not know yet what is committed
    ├── UnknownTopicOrPartition no such topic or partition, as far as that broker knows
    ├── UnknownTopicId          the topic was deleted, or that broker has not heard of it yet
    ├── LeaderNotAvailable      nobody leads the partition now
    ├── NotLeaderOrFollower     this replica's part in the partition has changed meanwhile
    │   └── LeaderElsewhere     ... and nothing was appended
    ├── FencedLeaderEpoch       from a leader, or to one, that has been replaced since
    ├── UnknownLeaderEpoch      of a leader that this broker has not heard of yet
    ├── NotEnoughReplicas       too few in sync for acks=all; nothing was appended
    ├── NotEnoughReplicasAfterAppend  ... and it was appended
    ├── InvalidRequiredAcks     acks is neither -1 nor a number of replicas that there are
    ├── FetchSessionIdNotFound  the broker has forgotten the session: begin a new one
    ├── InvalidFetchSessionEpoch  the two sides disagree on the session: begin a new one
    ├── TopicAuthorizationFailed  not allowed with this topic
    ├── ClusterAuthorizationFailed  not allowed with this cluster, or not on this listener
    ├── InconsistentClusterId   it belongs to another cluster
    ├── StaleBrokerEpoch        from a broker process that has been replaced since
    ├── BrokerIdNotRegistered   the cluster knows no such broker
    ├── BrokerNotAvailable      its process does not run, or has ended before it was ready
    ├── UnsupportedVersion      a request, or a version of one, that the other side does not know
    ├── InvalidRequest          it decodes, but makes no sense
    ├── InvalidTopic            not a name that a topic may have
    ├── TopicAlreadyExists
    ├── InvalidConfig           a bad topic or broker setting; names every bad key
    ├── InvalidPartitions       no partitions, too many, or fewer than there are
    ├── InvalidReplicationFactor  more replicas than active brokers, or than allowed
    ├── InvalidReplicaAssignment  replicas on brokers that do not exist, or twice on one
    ├── InvalidUpdateVersion    somebody else has changed it since it was read; nothing was changed
    ├── PreferredLeaderNotAvailable  the first replica is not in sync
    ├── EligibleLeadersNotAvailable  no replica may lead
    ├── ElectionNotNeeded       it leads already
    ├── InvalidCommand          a metadata command that is too large or does not decode
    │   └── NewerCommand        one that only a newer version knows; this node must stop
    ├── NotCoordinator          another broker coordinates the group
    ├── InvalidGroupId          not a name that a group may have
    ├── GroupIdNotFound         no such group
    ├── NonEmptyGroup           it has members: have them leave first
    ├── UnknownMemberId         the group has no such member, or not any more
    ├── IllegalGeneration       of a generation of the group that is over
    ├── OffsetMetadataTooLarge  the text that goes with a committed offset
    ├── CoordinatorLoadInProgress  a new coordinator has not read the group's past yet
    ├── CoordinatorNotAvailable nobody coordinates the group now
    ├── InconsistentGroupProtocol  no assignor that all members know
    ├── InvalidSessionTimeout   shorter or longer than the coordinator allows
    ├── RebalanceInProgress     partitions are dealt out anew: join again
    ├── MemberIdRequired        join once more, with the id that the answer gives
    ├── GroupMaxSizeReached     the group has as many members as it may have
    ├── FencedInstanceId        another process has joined under the same instance id
    ├── GroupSubscribedToTopic  members of the group read the topic
    ├── OutOfOrderSequence      not the number that comes next of that producer
    ├── DuplicateSequence       it stands in the log already, nobody remembers where
    ├── InvalidProducerEpoch    of an epoch of that producer that is over
    ├── UnknownProducerId       nothing is known of that producer, and it does not begin at 0
    ├── TooManyProducers        more than a partition remembers at a time
    ├── ProducerFenced          another process goes on under the same producer name
    ├── ReplayMismatch          a named producer sends something else than the first time
    ├── NotController           this node does not lead the metadata quorum
    ├── QuorumBusy              too many proposals wait already
    ├── ProposalDiscarded       another command took its place in the log
    ├── RequestTimedOut         no answer in time; it may have been carried out
    ├── ProposalUncertain       the outcome of a proposal is unknown
    ├── OutcomeUnknown          a client cannot know whether its request was carried out
    ├── DeliveryTimedOut        a producer gave up, and certainly nothing was appended
    ├── BufferFull              a producer's memory is used up for now
    ├── Closed                  a client, producer or consumer that is not open
    ├── Disconnected            the connection ended before the answer came
    ├── Unreachable             no connection to an address, or no listening there
    ├── RemoteProtocolError     a peer broke the protocol; its connection was closed
    ├── StorageError            the disk refused; that log is offline until a restart
    │   ├── DirectoryInUse      another process holds the data directory
    │   └── CorruptJournal      the quorum's own files are damaged, or not this node's
    └── ServerError             an answer with a number that has no class here

`definite` answers one question: did the operation certainly not happen? `retriable` says that
the same call may succeed later; `refresh_metadata` that the caller should first ask who leads.
`_FIRST` says which of the classes that share a number stands for it (`error_for`).
"""

from __future__ import annotations

from typing import TypeVar

from raftmq.error_numbers import ErrorCode
from raftmq.errors.base import RaftmqError
from raftmq.errors.clients import (
    BufferFull,
    Closed,
    DeliveryTimedOut,
    OutcomeUnknown,
)
from raftmq.errors.cluster import (
    BrokerIdNotRegistered,
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    InconsistentClusterId,
    InvalidCommand,
    NewerCommand,
    NotController,
    ProposalDiscarded,
    ProposalUncertain,
    QuorumBusy,
    StaleBrokerEpoch,
    TopicAuthorizationFailed,
)
from raftmq.errors.groups import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupIdNotFound,
    GroupMaxSizeReached,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidSessionTimeout,
    MemberIdRequired,
    NonEmptyGroup,
    NotCoordinator,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    UnknownMemberId,
)
from raftmq.errors.partitions import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    FencedLeaderEpoch,
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    InvalidRequiredAcks,
    LeaderElsewhere,
    LeaderNotAvailable,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    PreferredLeaderNotAvailable,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raftmq.errors.producers import (
    DuplicateSequence,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    ProducerFenced,
    ReplayMismatch,
    TooManyProducers,
    UnknownProducerId,
)
from raftmq.errors.records import (
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    LogTruncation,
    MessageTooLarge,
    OffsetNotAvailable,
    OffsetOutOfRange,
    UnsupportedCompression,
)
from raftmq.errors.requests import (
    Disconnected,
    InvalidRequest,
    RemoteProtocolError,
    RequestTimedOut,
    ServerError,
    Unreachable,
    UnsupportedVersion,
)
from raftmq.errors.storage import (
    CorruptJournal,
    DirectoryInUse,
    StorageError,
)
from raftmq.errors.topics import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopic,
    InvalidUpdateVersion,
    TopicAlreadyExists,
)

__all__ = [
    "BrokerIdNotRegistered",
    "BrokerNotAvailable",
    "BufferFull",
    "Closed",
    "ClusterAuthorizationFailed",
    "CoordinatorLoadInProgress",
    "CoordinatorNotAvailable",
    "CorruptJournal",
    "CorruptRecord",
    "DeliveryTimedOut",
    "DirectoryInUse",
    "Disconnected",
    "DuplicateSequence",
    "ElectionNotNeeded",
    "EligibleLeadersNotAvailable",
    "ErrorCode",
    "FencedInstanceId",
    "FencedLeaderEpoch",
    "FetchSessionIdNotFound",
    "GroupIdNotFound",
    "GroupMaxSizeReached",
    "GroupSubscribedToTopic",
    "IllegalGeneration",
    "InconsistentClusterId",
    "InconsistentGroupProtocol",
    "InvalidCommand",
    "InvalidConfig",
    "InvalidFetchSessionEpoch",
    "InvalidGroupId",
    "InvalidPartitions",
    "InvalidProducerEpoch",
    "InvalidRecord",
    "InvalidReplicaAssignment",
    "InvalidReplicationFactor",
    "InvalidRequest",
    "InvalidRequiredAcks",
    "InvalidSessionTimeout",
    "InvalidTimestamp",
    "InvalidTopic",
    "InvalidUpdateVersion",
    "LeaderElsewhere",
    "LeaderNotAvailable",
    "LogTruncation",
    "MemberIdRequired",
    "MessageTooLarge",
    "NewerCommand",
    "NonEmptyGroup",
    "NotController",
    "NotCoordinator",
    "NotEnoughReplicas",
    "NotEnoughReplicasAfterAppend",
    "NotLeaderOrFollower",
    "OffsetMetadataTooLarge",
    "OffsetNotAvailable",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "OutcomeUnknown",
    "PreferredLeaderNotAvailable",
    "ProducerFenced",
    "ProposalDiscarded",
    "ProposalUncertain",
    "QuorumBusy",
    "RaftmqError",
    "RebalanceInProgress",
    "RemoteProtocolError",
    "ReplayMismatch",
    "RequestTimedOut",
    "ServerError",
    "StaleBrokerEpoch",
    "StorageError",
    "TooManyProducers",
    "TopicAlreadyExists",
    "TopicAuthorizationFailed",
    "UnknownLeaderEpoch",
    "UnknownMemberId",
    "UnknownProducerId",
    "UnknownTopicId",
    "UnknownTopicOrPartition",
    "Unreachable",
    "UnsupportedCompression",
    "UnsupportedVersion",
    "error_for",
    "without_frames",
]

# Of the classes that share a number, the one that stands for it.
_FIRST = (
    UnsupportedVersion,
    InvalidRequest,
    InvalidRecord,
    NotController,
    QuorumBusy,
    RequestTimedOut,
    Disconnected,
)


AnyError = TypeVar("AnyError", bound=RaftmqError)


def error_for(number: int, message: str) -> RaftmqError:
    """The exception that an error number of an answer stands for.

    It promises no more than the one that was raised over there: of classes that share a number,
    it is indefinite if one of them is.
    """
    assert number != ErrorCode.NONE, "no error"
    cls = _BY_NUMBER.get(number)
    if cls is None:
        return ServerError(message, number)
    if cls is InvalidConfig:
        return InvalidConfig([message])
    if cls is CorruptRecord:
        return CorruptRecord(message.removeprefix("corrupt record: "))
    return cls(message)


def without_frames(error: AnyError) -> AnyError:
    """For whoever keeps it: frames in which it was raised know logs, whose files would stay open,
    and often the one that keeps it, so that nobody but the garbage collector would let them go.
    """
    behind: list[BaseException | None] = [error]
    while behind:
        one = behind.pop()
        if one is not None and one.__traceback__ is not None:
            one.__traceback__ = None
            behind += [one.__cause__, one.__context__]
    return error


def _by_number() -> dict[int, type[RaftmqError]]:
    """Whoever has a number from its parent leaves it to the parent."""
    found: dict[int, type[RaftmqError]] = {cls.code: cls for cls in _FIRST}
    for cls in _descendants(RaftmqError):
        if "code" in vars(cls):
            first = found.setdefault(cls.code, cls)
            assert first is cls or first in _FIRST, f"{cls} shares its number with {first}"
    return found


def _descendants(base: type[RaftmqError]) -> list[type[RaftmqError]]:
    children = base.__subclasses__()
    return children + [cls for child in children for cls in _descendants(child)]


_BY_NUMBER = _by_number()
