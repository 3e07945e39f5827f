"""Every error that raftmq raises on purpose, with Kafka's error numbers.

    RaftmqError
    ├── CorruptRecord           bytes that are not what they claim to be
    ├── UnsupportedCompression  codec unknown, or its package is not installed
    ├── InvalidRecord           well-formed, but not allowed here
    │   └── InvalidTimestamp    too far in the future
    ├── MessageTooLarge         batch over max.message.bytes
    ├── OffsetOutOfRange        below the log start or beyond the log end
    ├── NotLeaderOrFollower     this replica's part in the partition has changed meanwhile
    ├── FencedLeaderEpoch       from a leader, or to one, that has been replaced since
    ├── InvalidConfig           a bad topic or broker setting; names every bad key
    ├── InvalidPartitions       no partitions, too many, or fewer than there are
    ├── InvalidReplicationFactor  more replicas than active brokers, or than allowed
    ├── InvalidCommand          a metadata command that is too large or does not decode
    │   └── NewerCommand        one that only a newer version knows; this node must stop
    ├── NotController           this node does not lead the metadata quorum
    ├── QuorumBusy              too many proposals wait already
    ├── ProposalDiscarded       another command took its place in the log
    ├── ProposalUncertain       the outcome of a proposal is unknown
    ├── Unreachable             no connection to an address, or no listening there
    ├── RemoteProtocolError     a peer broke the protocol; its connection was closed
    └── StorageError            the disk refused; that log is offline until a restart
        ├── DirectoryInUse      another process holds the data directory
        └── CorruptJournal      the quorum's own files are damaged, or not this node's

`definite` answers one question: did the operation certainly not happen? `retriable` says that
the same call may succeed later; `refresh_metadata` that the caller should first ask who leads.
Numbers: https://kafka.apache.org/protocol.html#protocol_error_codes
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ErrorCode(IntEnum):
    """Kafka's numbers, so that a Kafka listener needs no translation table."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    ILLEGAL_GENERATION = 22
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    KAFKA_STORAGE_ERROR = 56
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108


class RaftmqError(Exception):
    """Base of the tree; `str()` names the thing and, where there is one, the way out."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: ClassVar[bool] = False
    refresh_metadata: ClassVar[bool] = False
    definite: ClassVar[bool] = True


class CorruptRecord(RaftmqError):
    """Bytes that do not decode: says what is wrong and at which byte of which thing.

    Attributes:
        position: byte position of the damage, counted from the start of what was decoded
            (a buffer) or of the file that `where` names; None where it has no position.
        where: the file or log, when the bytes came from one.
    """

    code = ErrorCode.CORRUPT_MESSAGE
    retriable = True

    def __init__(self, what: str, *, position: int | None = None, where: str = "") -> None:
        self.what, self.position, self.where = what, position, where
        at = "" if position is None else f" at byte {position}"
        super().__init__(f"corrupt record: {what}{at}{f' of {where}' if where else ''}")


class UnsupportedCompression(RaftmqError):
    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class InvalidRecord(RaftmqError):
    code = ErrorCode.INVALID_RECORD


class InvalidTimestamp(InvalidRecord):
    code = ErrorCode.INVALID_TIMESTAMP


class MessageTooLarge(RaftmqError):
    code = ErrorCode.MESSAGE_TOO_LARGE


class OffsetOutOfRange(RaftmqError):
    code = ErrorCode.OFFSET_OUT_OF_RANGE


class NotLeaderOrFollower(RaftmqError):
    """Indefinite: what was appended here may stand in the new leader's log."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    retriable = True
    refresh_metadata = True
    definite = False


class FencedLeaderEpoch(RaftmqError):
    code = ErrorCode.FENCED_LEADER_EPOCH
    retriable = True
    refresh_metadata = True


class InvalidConfig(RaftmqError):
    """`problems` holds one line per bad key."""

    code = ErrorCode.INVALID_CONFIG

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class InvalidPartitions(RaftmqError):
    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactor(RaftmqError):
    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidCommand(RaftmqError):
    code = ErrorCode.INVALID_REQUEST


class NewerCommand(InvalidCommand):
    """Whoever understands it applies it: a node that passed over it would know something else."""

    code = ErrorCode.UNSUPPORTED_VERSION


class NotController(RaftmqError):
    """Definite: nothing was appended. `leader_id` is who leads, as far as this node knows."""

    code = ErrorCode.NOT_CONTROLLER
    retriable = True
    refresh_metadata = True

    def __init__(self, what: str, leader_id: int | None = None) -> None:
        self.leader_id = leader_id
        super().__init__(what)


class QuorumBusy(RaftmqError):
    """Definite: the queue of proposals is full; try again after a pause."""

    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    retriable = True


class ProposalDiscarded(RaftmqError):
    """Definite: a new leader put another command in its place in the log."""

    code = ErrorCode.NOT_CONTROLLER
    retriable = True
    refresh_metadata = True


class ProposalUncertain(RaftmqError):
    """It may have been applied, or may be later: retry with the same command id, or read."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True
    refresh_metadata = True
    definite = False


class Unreachable(RaftmqError):
    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True


class RemoteProtocolError(RaftmqError):
    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True


class StorageError(RaftmqError):
    """A file operation failed. Indefinite: bytes of a failed write may be found after a restart."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True
    refresh_metadata = True
    definite = False


class DirectoryInUse(StorageError):
    definite = True
    retriable = False
    refresh_metadata = False


class CorruptJournal(StorageError):
    """The node must stay out of the quorum; the message says what is damaged and the way back."""

    definite = True
    retriable = False
    refresh_metadata = False
