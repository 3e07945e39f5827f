"""Errors of records and of places in a log."""

from __future__ import annotations

from raftmq.error_numbers import ErrorCode
from raftmq.errors.base import RaftmqError


class CorruptRecord(RaftmqError):
    """Bytes that do not decode: says what is wrong and at which byte of which thing.

    Attributes:
        position: byte position of the damage, counted from the start of what was decoded
            (a buffer) or of the file that `where` names; None where it has no position.
        where: the file or log, when the bytes came from one.
        offset: of the record in its log, where whoever noticed knows it.
    """

    code = ErrorCode.CORRUPT_MESSAGE
    retriable = True

    def __init__(
        self, what: str, *, position: int | None = None, where: str = "", offset: int | None = None
    ) -> None:
        self.what, self.position, self.where, self.offset = what, position, where, offset
        at = "" if position is None else f" at byte {position}"
        super().__init__(f"corrupt record: {what}{at}{f' of {where}' if where else ''}")


class UnsupportedCompression(RaftmqError):
    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class InvalidRecord(RaftmqError):
    code = ErrorCode.INVALID_RECORD


class InvalidTimestamp(InvalidRecord):
    """`allowed`: the highest one that the broker took just then; -1: it has not told."""

    code = ErrorCode.INVALID_TIMESTAMP
    allowed = -1


class MessageTooLarge(RaftmqError):
    """`allowed`: bytes of a batch that the topic takes; -1: not told, or not what it is about."""

    code = ErrorCode.MESSAGE_TOO_LARGE
    allowed = -1


class OffsetOutOfRange(RaftmqError):
    code = ErrorCode.OFFSET_OUT_OF_RANGE


class LogTruncation(OffsetOutOfRange):
    """A leader that had not all records took over. `offset`: before it nothing has changed."""

    def __init__(self, what: str, *, offset: int) -> None:
        self.offset = offset
        super().__init__(what)


class OffsetNotAvailable(RaftmqError):
    code = ErrorCode.OFFSET_NOT_AVAILABLE
    retriable = True
