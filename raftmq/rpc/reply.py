"""What a request or an answer consists of: a small body, and records that are never touched.

Pure. A payload is a sequence of buffers and of parts of files; on the stream they follow each
other without gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from raftmq.disk.files import FileSlice
from raftmq.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.wire.batch.header import Buffer
    from raftmq.wire.bodies import Body

    Piece: TypeAlias = Buffer | FileSlice
    Payload: TypeAlias = Sequence[Piece]


# Who asks with this correlation id waits for no answer, and what is sent with it answers nobody.
NOBODY = 0


class Answer(NamedTuple):
    """What a request led to, on the side that asked.

    Attributes:
        body: of the class that the request names as its `reply`.
        metadata_version: of the broker that answered, -1 if it has none yet.
        throttle_ms: so long the broker asks to be left alone.
    """

    body: Any
    payload: bytes | memoryview
    metadata_version: int
    throttle_ms: int


class Reply(NamedTuple):
    """A handler's answer: a body with its payload, or an error with a message for people.

    Buffers of the payload must not change any more; files are read when their turn comes.
    """

    body: Body | None
    payload: Payload = ()
    error: int = ErrorCode.NONE
    message: str = ""
    throttle_ms: int = 0


class PendingReply:
    """An answer that comes later, without a task that waits for it.

    Whoever made it calls `settle` once; after `drop` that does nothing. Once it is over it knows
    nobody: those whom it would call know it, and with them live logs and their open files.

    Attributes:
        on_dropped: called when nobody waits for the answer any more.
        outcome: what it was settled with, before anybody waited for it.
    """

    __slots__ = ("_deliver", "is_over", "on_dropped", "outcome")

    def __init__(self, on_dropped: Callable[[], None] | None = None) -> None:
        self.on_dropped, self.is_over = on_dropped, False
        self._deliver: Callable[[Reply | Exception], None] | None = None
        self.outcome: Reply | Exception | None = None

    def settle(self, outcome: Reply | Exception) -> None:
        """The answer, or why there is none."""
        if self.is_over:
            return
        deliver, _ = self._end()
        if deliver is None:
            self.outcome = outcome
        else:
            deliver(outcome)

    def attach(self, deliver: Callable[[Reply | Exception], None]) -> None:
        """`deliver` is called with what it is settled with, at once if it is already."""
        if self.outcome is not None:
            deliver(self.outcome)
        elif not self.is_over:
            self._deliver = deliver

    def drop(self) -> None:
        """Nobody waits for it any more."""
        if not self.is_over:
            _, on_dropped = self._end()
            if on_dropped is not None:
                on_dropped()

    def _end(self) -> tuple[Callable[[Reply | Exception], None] | None, Callable[[], None] | None]:
        """Who is to be called."""
        before, self.is_over = (self._deliver, self.on_dropped), True
        self._deliver = self.on_dropped = None
        return before


def payload_length(payload: Payload) -> int:
    """Bytes on the stream."""
    return sum(piece_length(piece) for piece in payload)


def memory_bytes(payload: Payload) -> int:
    """Bytes that are kept until the payload has been sent: parts of files cost nothing."""
    return sum(piece_length(piece) for piece in payload if not isinstance(piece, FileSlice))


def piece_length(piece: Piece) -> int:
    if isinstance(piece, FileSlice):
        return piece.length
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)
