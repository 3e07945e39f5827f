"""How much of the buffer is used, and who waits for room: first come, first served.

Invariants: `used_bytes` is the sum over all records that were taken and not settled. Bytes are
taken when somebody is let in, not when it wakes up, so nobody slips in between; who is cancelled
after that gives them back.
"""

from __future__ import annotations

from collections import deque

import anyio


class Room:
    """Attributes:
    used_bytes: of records that wait or are on their way.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.used_bytes = 0
        self._line: deque[tuple[int, anyio.Event]] = deque()
        self._is_closed = False

    @property
    def is_wanted(self) -> bool:
        """Somebody waits."""
        return bool(self._line)

    def take_now(self, size: int) -> bool:
        """Whether there was room for `size` bytes; then they are taken.

        What is larger than all of it is let in alone: others bound its size.
        """
        used_bytes = self.used_bytes + size
        if self._line or (used_bytes > self._bytes_max and self.used_bytes):
            return False
        self.used_bytes = used_bytes
        return True

    async def take(self, size: int) -> None:
        """Wait until they are taken; after `close` they are at once."""
        if self._is_closed:
            self.take_anyway(size)
        if self._is_closed or self.take_now(size):
            return
        place = size, anyio.Event()
        self._line.append(place)
        try:
            await place[1].wait()
        except BaseException:
            if place[1].is_set():
                self.give_back(size)
            else:
                self._line.remove(place)
            self.let_in()
            raise

    def take_anyway(self, size: int) -> None:
        """Whether or not there is room: a little, for what is in already."""
        self.used_bytes += size

    def give_back_now(self, size: int) -> None:
        """And let in who has room now."""
        self.give_back(size)
        self.let_in()

    def give_back(self, size: int) -> None:
        """Whoever waits for it: `let_in`."""
        self.used_bytes -= size
        assert self.used_bytes >= 0, "more was given back than taken"

    def let_in(self) -> None:
        """Whoever is in line and has room now."""
        while self._line and self._has_room(self._line[0][0]):
            self._let_in_next()

    def close(self) -> None:
        """Let in all who wait; they will find that no record is taken any more."""
        self._is_closed = True
        while self._line:
            self._let_in_next()

    def _has_room(self, size: int) -> bool:
        return not self.used_bytes or self.used_bytes + size <= self._bytes_max

    def _let_in_next(self) -> None:
        size, event = self._line.popleft()
        self.used_bytes += size
        event.set()
