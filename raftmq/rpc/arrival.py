"""Inbound back-pressure of one connection: memory for the frame being read, and its deadline.

Owns the memory claim of one connection (`request_memory.py`) and the clock of its unfinished frame.
The clock is stopped while this side itself does not read: because there is no room, or because
earlier requests are not handled yet. A slow server must not blame its client.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from raftmq.errors import RemoteProtocolError
from raftmq.rpc.request_memory import SMALL_BYTES, MemoryClaim

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.rpc.request_memory import RequestMemory
    from raftmq.rpc.window import RequestWindow

# A frame may take its silence limit plus its length over this rate, so that a sender that drips one
# byte at a time cannot hold memory for hours, while a slow but honest link (2 Mbit/s) gets through.
BYTES_PER_SECOND_MIN = 256 << 10


class Arrival:
    """Attributes:
    room: memory of the server that this connection draws on; None before its Hello, when only
        small frames are accepted, as it is not known yet whether a broker or a client sends them.
    window: of the requests in flight, if there is one. While it is full no large frame begins to
        be read: it would take memory, perhaps the turn to finish beyond the limit, and could not
        be handled.
    is_waiting: this side waits for room; meanwhile nothing is read.
    """

    def __init__(self, seconds_max: float) -> None:
        self.room: RequestMemory | None = None
        self.window: RequestWindow | None = None
        self._seconds_max = seconds_max
        self._granted = trio.Event()
        self._claim = MemoryClaim(lambda: self._granted.set())  # `_hold` replaces the event
        self._needed_bytes, self._since, self._resumed_at = 0, math.inf, -math.inf
        self.is_waiting = False

    def on_arrived(self) -> None:
        """A whole frame is here. The clock stops until the next one begins: between two frames
        nothing is late, and an idle connection is the server's to judge."""
        self._since = math.inf

    async def wait_room(self, needed_bytes: int, buffered_bytes: int, read_bytes: int) -> int:
        """How many bytes may be read next, at most `read_bytes`; waits until that is above zero.

        Args:
            needed_bytes: length of the frame being received.
            buffered_bytes: how much of it has been received.

        Raises:
            RemoteProtocolError: a large frame before Hello.
        """
        # Another frame has begun: its clock starts now.
        if self._since == math.inf or needed_bytes != self._needed_bytes:
            self._needed_bytes, self._since = needed_bytes, trio.current_time()
        if needed_bytes <= SMALL_BYTES:
            # Small frames are read without a claim: they would queue behind large ones (0029).
            return min(read_bytes, SMALL_BYTES)
        if self.room is None:
            # Before Hello the sender is unknown, and may not make the server hold much.
            raise RemoteProtocolError(
                f"frame of {needed_bytes} bytes before Hello, at most {SMALL_BYTES}"
            )
        # The frame could not be handled anyhow.
        if self.window is not None and self.window.is_full and not self._claim.size:
            # Ends when enough requests of this connection have been answered, or it is closed.
            await self._stand_still(self.window.wait_room)
        # One small read needs no room, like small frames; a large one ends with the frame.
        if read_bytes > SMALL_BYTES and self.room.is_ample:
            # While memory is ample read in large steps, up to the end of the frame; else claim only
            # what has already been received, which keeps the sum within the limit.
            read_bytes = max(SMALL_BYTES, min(read_bytes, needed_bytes - buffered_bytes))
            # Until other connections have released enough memory, or this one ends.
            await self._hold(self.room, buffered_bytes + read_bytes)
            return read_bytes
        await self._hold(self.room, buffered_bytes)  # as above, for bytes that are here already
        return min(read_bytes, SMALL_BYTES)

    async def _hold(self, room: RequestMemory, size: int) -> None:
        # A new event for each wait: an earlier grant must not end this one.
        self._granted = trio.Event()
        room.want(self._claim, size)
        if self._claim.is_waiting:  # granted at once otherwise, within `want`
            # Ends when other connections release memory; oldest claim first.
            await self._stand_still(self._granted.wait)

    async def _stand_still(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait with the frame's clock stopped: this side is slow, not the sender."""
        begin, since = trio.current_time(), self._since
        self._since, self.is_waiting = math.inf, True
        await wait()  # for memory or the window; `Connection` cancels it with the connection
        # Not in a `finally`: a cancelled wait ends the connection, and its clock with it.
        self._resumed_at = trio.current_time()
        self._since, self.is_waiting = since + self._resumed_at - begin, False

    def leave(self) -> None:
        """Release the memory: the frame was handled, or will never be complete."""
        if self.room is not None and (self._claim.size or self._claim.is_waiting):
            self.room.leave(self._claim)

    def deadline(self, heard_at: float) -> float:
        """When to give the sender up: for silence, or for a frame slower than the least rate."""
        silent_at = max(heard_at, self._since, self._resumed_at) + self._seconds_max
        seconds = self._seconds_max + self._needed_bytes / BYTES_PER_SECOND_MIN
        return min(silent_at, self._since + seconds)

    def __str__(self) -> str:
        return f"a request of {self._needed_bytes} bytes"
