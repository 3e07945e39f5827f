"""Errors of requests and connections."""

from __future__ import annotations

from contextlib import suppress

from raftmq.error_numbers import ErrorCode
from raftmq.errors.base import RaftmqError


class UnsupportedVersion(RaftmqError):
    """`correlation_id` is that of the request, so that it can be answered; None: not known."""

    code = ErrorCode.UNSUPPORTED_VERSION

    def __init__(self, what: str, *, correlation_id: int | None = None) -> None:
        self.correlation_id = correlation_id
        super().__init__(what)


class InvalidRequest(RaftmqError):
    code = ErrorCode.INVALID_REQUEST


class RequestTimedOut(RaftmqError):
    """Indefinite: it may have been carried out, or may be later."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True
    refresh_metadata = True
    definite = False


class Disconnected(RaftmqError):
    """Indefinite: the request may have been carried out."""

    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True
    refresh_metadata = True
    definite = False


class Unreachable(RaftmqError):
    """`was_refused`: its machine answered, and nobody listens there. Else it may be silence."""

    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True

    def __init__(self, what: str, *, was_refused: bool = False) -> None:
        self.was_refused = was_refused
        super().__init__(what)


class RemoteProtocolError(RaftmqError):
    code = ErrorCode.NETWORK_EXCEPTION
    retriable = True


class ServerError(RaftmqError):
    """Indefinite, as nothing is known of the error but its `number` and text."""

    definite = False

    def __init__(self, what: str, number: int = ErrorCode.UNKNOWN_SERVER_ERROR) -> None:
        self.number = number
        with suppress(ValueError):  # a number of a newer version
            self.code = ErrorCode(number)
        super().__init__(what)
