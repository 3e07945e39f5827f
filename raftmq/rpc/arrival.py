"""A request that has begun to arrive: whether there is room for more, and how long it may take.

Owns the claim of one connection and the clock of its unfinished frame. The clock stands while this
side does not read: for want of room, or because the requests before are not handled yet.
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

BYTES_PER_SECOND_MIN = 256 << 10  # over all of a frame, beside the seconds that each may have


class Arrival:
    """Attributes:
    room: None until the other side has said who it is; until then only small frames are taken.
    window: of the requests before, if there is one. While it is full nothing large begins to be
        read: it would have room, and perhaps be the one that finishes, and could not be handled.
    is_waiting: for room; meanwhile nothing is read.
    """

    def __init__(self, seconds_max: float) -> None:
        self.room: RequestMemory | None = None
        self.window: RequestWindow | None = None
        self._seconds_max = seconds_max
        self._granted = trio.Event()
        self._claim = MemoryClaim(lambda: self._granted.set())  # whichever event there is then
        self._needed_bytes, self._since, self._resumed_at = 0, math.inf, -math.inf
        self.is_waiting = False

    def on_arrived(self) -> None:
        """Something is whole. Nothing is read until it is handled."""
        self._since = math.inf

    async def wait_room(self, needed_bytes: int, buffered_bytes: int, read_bytes: int) -> int:
        """How much may be read next, `read_bytes` at most; waits until that is more than none.

        Args:
            needed_bytes: of the frame that is under way, 0: none is.
            buffered_bytes: of it, which are here.

        Raises:
            RemoteProtocolError: a large frame before a Hello.
        """
        if not needed_bytes:
            self._since = math.inf
            return min(read_bytes, SMALL_BYTES)
        if self._since == math.inf or needed_bytes != self._needed_bytes:
            self._needed_bytes, self._since = needed_bytes, trio.current_time()
        if needed_bytes <= SMALL_BYTES:
            return min(read_bytes, SMALL_BYTES)
        if self.room is None:
            raise RemoteProtocolError(
                f"frame of {needed_bytes} bytes before Hello, at most {SMALL_BYTES}"
            )
        if self.window is not None and self.window.is_full and not self._claim.size:
            await self._stand_still(self.window.wait_room)
        # One small read needs no room, like small frames; a large one ends with the frame.
        if read_bytes > SMALL_BYTES and self.room.is_ample:
            read_bytes = max(SMALL_BYTES, min(read_bytes, needed_bytes - buffered_bytes))
            await self._hold(self.room, buffered_bytes + read_bytes)
            return read_bytes
        await self._hold(self.room, buffered_bytes)
        return min(read_bytes, SMALL_BYTES)

    async def _hold(self, room: RequestMemory, size: int) -> None:
        self._granted = trio.Event()
        room.want(self._claim, size)
        if self._claim.is_waiting:
            await self._stand_still(self._granted.wait)

    async def _stand_still(self, wait: Callable[[], Awaitable[None]]) -> None:
        """The clock stands meanwhile."""
        begin, since = trio.current_time(), self._since
        self._since, self.is_waiting = math.inf, True
        await wait()
        self._resumed_at = trio.current_time()
        self._since, self.is_waiting = since + self._resumed_at - begin, False

    def leave(self) -> None:
        """What had room is handled, or will never come."""
        if self.room is not None:
            self.room.leave(self._claim)

    def deadline(self, heard_at: float) -> float:
        """Until then something must come, and all of it after a time that grows with its length."""
        silent_at = max(heard_at, self._since, self._resumed_at) + self._seconds_max
        seconds = self._seconds_max + self._needed_bytes / BYTES_PER_SECOND_MIN
        return min(silent_at, self._since + seconds)

    def __str__(self) -> str:
        return f"a request of {self._needed_bytes} bytes"
