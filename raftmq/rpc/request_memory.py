"""Buffer pool of inbound requests: bytes that all connections of a server may hold unhandled.

Pure. What counts is what has been received, not what a frame's length announces: announcing costs
the sender nothing. When the pool is full one connection, the first in line, may read its frame to
the end nevertheless, and the next one after it; so one can always finish, and senders of half
frames delay the others only until their deadline. Small frames need no claim (decision 0029).

Invariants: `held_bytes` is the sum of all claims; it exceeds `bytes_max` only by the claim that is
finishing; while claims wait, one is finishing; claims are granted in the order of asking.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


# One read: these bytes are in memory before their frame's length is known.
SMALL_BYTES = 64 << 10


class MemoryClaim:
    """What one connection holds. `is_waiting`: its last request is not granted yet."""

    __slots__ = ("_on_granted", "is_waiting", "size", "wanted_bytes")

    def __init__(self, on_granted: Callable[[], None]) -> None:
        self._on_granted = on_granted
        self.size = self.wanted_bytes = 0
        self.is_waiting = False

    def grant(self) -> None:
        self.size, self.is_waiting = self.wanted_bytes, False
        self._on_granted()


class RequestMemory:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max, self.held_bytes = bytes_max, 0
        self._line: deque[MemoryClaim] = deque()
        self._finishing: MemoryClaim | None = None

    @property
    def is_ample(self) -> bool:
        """Nothing waits and half is free: a connection may claim ahead of what it has received."""
        return not self._line and 2 * self.held_bytes <= self.bytes_max

    def want(self, claim: MemoryClaim, size: int) -> None:
        """Claim `size` bytes in all; `on_granted` is called once they may be held, or at once."""
        assert not claim.is_waiting, "asked twice"
        claim.wanted_bytes = size
        # The finishing claim may exceed the pool; one that does not grow needs no room.
        if claim is self._finishing or size <= claim.size:
            self._grant(claim)
        else:
            claim.is_waiting = True
            self._line.append(claim)
        self._let_in()

    def leave(self, claim: MemoryClaim) -> None:
        """Release all of it: the frame was handled, or will never be complete."""
        if claim.is_waiting:
            self._line.remove(claim)
            claim.is_waiting = False
        if claim is self._finishing:  # the next in line may exceed the limit now
            self._finishing = None
        self.held_bytes -= claim.size
        claim.size = 0
        self._let_in()

    def _let_in(self) -> None:
        while self._line:  # in order of asking
            claim = self._line[0]
            # Over the limit: the first in line may still finish, if no other claim does.
            if self.held_bytes + claim.wanted_bytes - claim.size > self.bytes_max:
                if self._finishing is not None:  # one at a time may exceed the limit
                    return
                self._finishing = claim
            self._grant(self._line.popleft())

    def _grant(self, claim: MemoryClaim) -> None:
        self.held_bytes += claim.wanted_bytes - claim.size
        claim.grant()
