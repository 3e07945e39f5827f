"""Send queue of one connection: joins small buffers, cuts large ones, notes progress. Pure.

All that was queued during a write leaves with the next one. Large payloads are cut but not copied,
so that the stall check sees them move. Invariant: a frame that was put here is written whole, or
the connection ends.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from raftmq.rpc.reply import piece_length

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from raftmq.wire.batch.header import Buffer

JOINED_BYTES_MAX = 256 << 10  # copying so much costs less than another write
AT_ONCE_BYTES_MAX = 64 << 10  # of a frame that is worth a copy and no task switch
STEP_BYTES = 1 << 20  # of one write: a slow connection shows progress after each


class Outgoing:
    """Usage: `take`, write each buffer and call `on_write`; after the last one `on_sent`.

    Attributes:
        queued_bytes: not written yet.
        pushed_at: when a buffer of a large write was written last: such a write advances only while
            the broker reads.
        writes_since: since when the present write lasts; math.inf without one.
    """

    def __init__(
        self, wake: Callable[[], None], send_now: Callable[[Buffer], int] = lambda _data: 0
    ) -> None:
        """`wake` is called when there is something to take, `send_now` for one small frame before
        that: it returns how many bytes have left without waiting."""
        self._wake, self._send_now = wake, send_now
        self.queued_bytes = 0
        self.pushed_at, self.writes_since = -math.inf, math.inf
        self._queue: deque[tuple[int, Sequence[Buffer]]] = deque()
        self._taken_bytes = 0

    @property
    def is_empty(self) -> bool:
        """There is nothing to take."""
        return not self._queue

    def put(self, head: bytes, payload: Sequence[Buffer] = ()) -> None:
        """Queue a frame: its head and payload."""
        size = len(head) + sum(map(piece_length, payload))
        self._queue.append((size, (head, *payload)))
        self.queued_bytes += size

    def flush(self, *, at_once: bool = False) -> None:
        """Send what was put.

        Args:
            at_once: nothing more will come soon: one small frame leaves in this task, without a
                switch to the one that writes. What does not leave so is left to that.
        """
        if at_once and len(self._queue) == 1 and not self._taken_bytes:
            size, pieces = self._queue[0]
            if size <= AT_ONCE_BYTES_MAX:
                data = b"".join(pieces)
                sent = self._send_now(data)
                self.queued_bytes -= sent
                if sent == size:
                    self._queue.popleft()
                    return
                self._queue[0] = (size - sent, (memoryview(data)[sent:],))
        self._wake()

    def take(self, now: float) -> list[Buffer]:
        """Buffers to write next, in order."""
        assert not self._taken_bytes, "taken while a write is under way"
        pieces: list[Buffer] = []
        # At most about 1 MiB at a time, so that progress is noted between writes.
        while self._queue and self._taken_bytes < STEP_BYTES:
            size, more = self._queue.popleft()
            self._taken_bytes += size
            pieces += more
        self.writes_since = now
        return list(_writes(pieces))

    def on_write(self, now: float) -> None:
        """One of the buffers that were taken has been written."""
        self.writes_since = now
        # A small write fits into the kernel's buffer, which proves nothing about the broker.
        if self._taken_bytes >= STEP_BYTES:
            self.pushed_at = now

    def on_sent(self) -> None:
        """All buffers that were taken have been written."""
        self.queued_bytes -= self._taken_bytes
        self._taken_bytes, self.writes_since = 0, math.inf


def _writes(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same bytes: small pieces joined, large ones cut without copying."""
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
