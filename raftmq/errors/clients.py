"""Errors that are raised in clients, and never travel."""

from __future__ import annotations

from raftmq.error_numbers import ErrorCode
from raftmq.errors.base import RaftmqError


class OutcomeUnknown(RaftmqError):
    """A client gave up: some attempt may have been carried out. What it met last is the cause."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True
    definite = False


class DeliveryTimedOut(RaftmqError):
    """A producer gave up: it was never sent, or each attempt was refused. Definite."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True


class BufferFull(RaftmqError):
    """A producer has no room for another record now: wait for some, as `enqueue` does."""

    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    retriable = True


class Closed(RaftmqError):
    """A client, producer or consumer that was closed, or was not opened yet."""

    code = ErrorCode.INVALID_REQUEST
