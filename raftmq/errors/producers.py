"""Errors of the numbers that producers give to what they send."""

from __future__ import annotations

from raftmq.error_numbers import ErrorCode
from raftmq.errors.base import RaftmqError


class OutOfOrderSequence(RaftmqError):
    """Not the sequence number that comes next of that producer; nothing was appended."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class DuplicateSequence(RaftmqError):
    """It stands in the log already, so long ago that nobody remembers where. Indefinite: it
    happened, once.
    """

    code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    definite = False


class InvalidProducerEpoch(RaftmqError):
    """Of an epoch of that producer that is over; nothing was appended."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class UnknownProducerId(RaftmqError):
    """Nothing is known (any more) of that producer, and its sequence does not begin at 0; nothing
    was appended.
    """

    code = ErrorCode.UNKNOWN_PRODUCER_ID


class TooManyProducers(RaftmqError):
    """The partition remembers as many producers as it may, and all have appended lately; nothing
    was appended.
    """

    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    retriable = True


class ProducerFenced(RaftmqError):
    """Another process goes on under the same producer name; nothing was appended."""

    code = ErrorCode.PRODUCER_FENCED


class ReplayMismatch(RaftmqError):
    """A named producer sends something else than the first time in the same generation, or to
    another number of partitions. Nothing of the records that fail with it was appended; other
    partitions may have taken some of this run before. Raised in the client, and never travels.
    """

    code = ErrorCode.INVALID_REQUEST
