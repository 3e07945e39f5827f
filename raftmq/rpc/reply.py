"""Answers: a small body and a payload of records that is passed on untouched; pending replies.

Pure. A payload is a sequence of buffers and file slices, which follow each other on the stream
without gaps. `PendingReply` is what lets a long poll or a produce wait without a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from raftmq.disk.files import FileSlice
from raftmq.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import Body

    Piece: TypeAlias = Buffer | FileSlice
    Payload: TypeAlias = Sequence[Piece]


# Correlation id of a request that wants no answer, and of a message that answers no request.
NOBODY = 0


class Answer(NamedTuple):
    """The outcome of a request, on the side that sent it.

    Attributes:
        body: of the class that the request names as its `reply`.
        metadata_version: of the broker that answered, -1 if it has none yet.
        throttle_ms: how long the broker asks the client to send nothing (quota); 0: not at all.
    """

    body: Any
    payload: bytes | memoryview
    metadata_version: int
    throttle_ms: int


class Reply(msgspec.Struct, frozen=True):
    """A handler's answer: a body with its payload, or an error with a message for people.

    Buffers of the payload must not change any more; file slices are read when they are sent.
    """

    body: Body | None
    payload: Payload = ()
    error: int = ErrorCode.NONE
    message: str = ""
    throttle_ms: int = 0


class PendingReply:
    """An answer that comes later, without a task that waits for it (Kafka: DelayedOperation).

    Its maker calls `settle` once; after `drop` that does nothing. Once it is over it holds no
    references to its callbacks: they refer to it in turn, and would keep logs and their open files
    alive.

    Attributes:
        on_dropped: called when the connection has ended and the answer is not wanted any more.
        outcome: what it was settled with, if that came before `attach`.
    """

    __slots__ = ("_deliver", "is_over", "on_dropped", "outcome")

    def __init__(self, on_dropped: Callable[[], None] | None = None) -> None:
        self.on_dropped, self.is_over = on_dropped, False
        self._deliver: Callable[[Reply | Exception], None] | None = None
        self.outcome: Reply | Exception | None = None

    def settle(self, outcome: Reply | Exception) -> None:
        """With the answer, or with the error that there is instead."""
        # Dropped with its connection, or timed out just before.
        if self.is_over:
            return
        deliver = self._deliver
        self._end()
        if deliver is None:
            # Settled inside of the handler: the server attaches a moment later.
            self.outcome = outcome
        else:
            deliver(outcome)

    def attach(self, deliver: Callable[[Reply | Exception], None]) -> None:
        """Call `deliver` with the outcome, at once if it is there already."""
        if self.outcome is not None:
            deliver(self.outcome)
        elif not self.is_over:  # after `drop` the outcome is wanted by no connection
            self._deliver = deliver

    def drop(self) -> None:
        """The connection has ended: call `on_dropped`, so that the maker can forget the request."""
        if not self.is_over:
            on_dropped = self.on_dropped
            self._end()
            if on_dropped is not None:
                on_dropped()

    def _end(self) -> None:
        self.is_over = True
        self._deliver = self.on_dropped = None


def payload_sizes(payload: Payload) -> tuple[int, int]:
    """Bytes on the stream, and those of them held in memory until they are sent: file slices hold
    none."""
    on_stream = in_memory = 0
    for piece in payload:
        if isinstance(piece, FileSlice):
            on_stream += piece.length
        else:
            in_memory += piece.nbytes if isinstance(piece, memoryview) else len(piece)
    return on_stream + in_memory, in_memory


def piece_length(piece: Piece) -> int:
    if isinstance(piece, FileSlice):
        return piece.length
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)
