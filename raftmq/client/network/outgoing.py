"""What waits to leave on one connection, and how long it has been at it. Pure.

Owns the order and the joining: whatever has queued up while a write was under way leaves with the
next one. Large payloads leave as they are, in parts, so that whoever watches sees them move.

Invariant: what was put here leaves whole, or the connection ends.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from raftmq.rpc.reply import piece_length

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from raftmq.wire.batch.header import Buffer

JOINED_BYTES_MAX = 256 << 10  # copying that much costs less than another write
STEP_BYTES = 1 << 20


class Outgoing:
    """`take`, write each buffer and tell `on_write`; when all have left, `on_sent`.

    Attributes:
        queued_bytes: of what has not left yet.
        pushed_at: when a write of much was done last: such a one goes on only while it is taken.
        writes_since: since when the present write lasts; math.inf while there is none.
    """

    def __init__(self) -> None:
        self.queued_bytes = 0
        self.pushed_at, self.writes_since = -math.inf, math.inf
        self._queue: deque[tuple[int, Sequence[Buffer]]] = deque()
        self._taken_bytes = 0

    @property
    def is_empty(self) -> bool:
        """There is nothing to take."""
        return not self._queue

    def put(self, head: bytes, payload: Sequence[Buffer] = ()) -> None:
        """The frame that `head` begins."""
        size = len(head) + sum(map(piece_length, payload))
        self._queue.append((size, (head, *payload)))
        self.queued_bytes += size

    def take(self, now: float) -> list[Buffer]:
        """What is to be written next, in order."""
        assert not self._taken_bytes, "taken while a write is under way"
        pieces: list[Buffer] = []
        while self._queue and self._taken_bytes < STEP_BYTES:
            size, more = self._queue.popleft()
            self._taken_bytes += size
            pieces += more
        self.writes_since = now
        return list(_writes(pieces))

    def on_write(self, now: float) -> None:
        """One buffer of those that were taken has left."""
        self.writes_since = now
        if self._taken_bytes >= STEP_BYTES:
            self.pushed_at = now

    def on_sent(self) -> None:
        """All that was taken has left."""
        self.queued_bytes -= self._taken_bytes
        self._taken_bytes, self.writes_since = 0, math.inf


def _writes(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same bytes, small pieces joined and large ones cut, but never copied."""
    small: list[Buffer] = []
    small_bytes = 0
    for piece in pieces:
        size = piece_length(piece)
        if small and small_bytes + size > JOINED_BYTES_MAX:
            yield _joined(small)
            small, small_bytes = [], 0
        if size > JOINED_BYTES_MAX:
            yield from _parts(piece)
        elif size:
            small.append(piece)
            small_bytes += size
    if small:
        yield _joined(small)


def _joined(pieces: list[Buffer]) -> Buffer:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _parts(piece: Buffer) -> Iterator[Buffer]:
    view = memoryview(piece).cast("B")
    for start in range(0, len(view), STEP_BYTES):
        yield view[start : start + STEP_BYTES]
