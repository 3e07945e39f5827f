"""In-flight window of one served connection: requests and bytes that it may have unanswered.

Owns the counts and the wait for room. While the window is full the reader takes nothing from the
stream, so that TCP passes the back-pressure on to the sender.
"""

from __future__ import annotations

import trio


class RequestWindow:
    """A request enters with its bytes; its answer may add some; both are released when it was sent.

    The request that enters last may exceed the limit, or a large one would never fit. Delayed
    requests (long polls, `set_aside`) do not take places of others, up to `aside_max` of them;
    their bytes count.
    """

    def __init__(self, *, requests_max: int, bytes_max: int, aside_max: int = 0) -> None:
        self.requests = self.held_bytes = 0
        self._requests_max, self._bytes_max = requests_max, bytes_max
        self._aside, self._aside_max = 0, aside_max
        self._room, self._waiting = trio.lowlevel.ParkingLot(), 0

    @property
    def is_full(self) -> bool:
        aside = self._aside if self._aside < self._aside_max else self._aside_max
        return self.requests - aside >= self._requests_max or self.held_bytes >= self._bytes_max

    def set_aside(self) -> None:
        """A request that has entered is delayed: it waits for records, not for this server."""
        self._aside += 1
        # It gave its place back, perhaps the one that the reader waits for.
        if self._waiting and not self.is_full:
            self._room.unpark_all()

    def take_back(self) -> None:
        """A delayed request is about to be answered."""
        self._aside -= 1
        assert self._aside >= 0, "taken back twice"

    def enter(self, size: int) -> None:
        self.requests += 1
        self.held_bytes += size

    def add(self, size: int) -> None:
        self.held_bytes += size

    def release(self, requests: int, size: int) -> None:
        self.requests -= requests
        self.held_bytes -= size
        assert self.requests >= 0, "released twice"
        assert self.held_bytes >= 0, "released more than entered"
        if self._waiting and not self.is_full:  # wake the reader only if it would go on
            self._room.unpark_all()

    async def wait_room(self) -> None:
        self._waiting += 1
        try:
            # Checked again after waking: `unpark_all` wakes, it does not reserve.
            while self.is_full:
                await self._room.park()  # released answers wake it
        finally:
            self._waiting -= 1
