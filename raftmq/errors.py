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
    └── StorageError            the disk refused; that log is offline until a restart
        └── DirectoryInUse      another process holds the data directory

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
    NOT_LEADER_OR_FOLLOWER = 6
    MESSAGE_TOO_LARGE = 10
    INVALID_TIMESTAMP = 32
    INVALID_CONFIG = 40
    KAFKA_STORAGE_ERROR = 56
    FENCED_LEADER_EPOCH = 74
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87


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
