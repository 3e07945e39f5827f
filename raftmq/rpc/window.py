"""How much work one connection may cause: requests, and bytes that they and their answers hold.

Owns the counts and the waiting for room. Who waits takes nothing more from the stream, so that the
sender's own socket holds it up.
"""

from __future__ import annotations

import trio


class RequestWindow:
    """A request enters with its bytes; its answer may add some; both are released once it left.

    What comes last may go over the limit, or a large request would never have room. Requests that
    are set aside, because they wait for others, take no place among the rest as long as there are
    not too many of them; their bytes count.
    """

    def __init__(self, *, requests_max: int, bytes_max: int, aside_max: int = 0) -> None:
        self.requests = self.held_bytes = 0
        self._requests_max, self._bytes_max = requests_max, bytes_max
        self._aside, self._aside_max = 0, aside_max
        self._room = trio.lowlevel.ParkingLot()

    @property
    def is_full(self) -> bool:
        counted = self.requests - min(self._aside, self._aside_max)
        return counted >= self._requests_max or self.held_bytes >= self._bytes_max

    def set_aside(self) -> None:
        """One of those that have entered."""
        self._aside += 1
        if self._room and not self.is_full:
            self._room.unpark_all()

    def take_back(self) -> None:
        """It is about to be answered."""
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
        if self._room and not self.is_full:
            self._room.unpark_all()

    async def wait_room(self) -> None:
        while self.is_full:
            await self._room.park()
