"""How many bytes of requests all connections of a server may hold that are not handled yet. Pure.

Counted is what has come, not what is announced: a promise costs its maker nothing. Where all is
taken, one connection, the first that waits, reads on to the end of its frame nevertheless, and the
next one after it; so somebody can always finish, and those who have sent much and stopped hold up
nobody for longer than one of them may take. Small frames need no room.

Invariants: `held_bytes` is the sum of what claims hold; it exceeds `bytes_max` only by what the one
that finishes holds; somebody finishes as long as anybody waits; all are let in in order.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


SMALL_BYTES = 64 << 10  # as much as one read, which is there before anybody knows


class MemoryClaim:
    """Of one connection. `is_waiting`: for as much as it asked for last."""

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
        """Nobody waits, nor is likely to."""
        return not self._line and 2 * self.held_bytes <= self.bytes_max

    def want(self, claim: MemoryClaim, size: int) -> None:
        """To hold so much from now on; `on_granted` is called once it may, perhaps at once."""
        assert not claim.is_waiting, "asked twice"
        claim.wanted_bytes = size
        if claim is self._finishing or size <= claim.size:
            self._grant(claim)
        else:
            claim.is_waiting = True
            self._line.append(claim)
        self._let_in()

    def leave(self, claim: MemoryClaim) -> None:
        """Its frame is handled, or will never come."""
        if claim.is_waiting:
            self._line.remove(claim)
            claim.is_waiting = False
        if claim is self._finishing:
            self._finishing = None
        self.held_bytes -= claim.size
        claim.size = 0
        self._let_in()

    def _let_in(self) -> None:
        while self._line:
            claim = self._line[0]
            if self.held_bytes + claim.wanted_bytes - claim.size > self.bytes_max:
                if self._finishing is not None:
                    return
                self._finishing = claim
            self._grant(self._line.popleft())

    def _grant(self, claim: MemoryClaim) -> None:
        self.held_bytes += claim.wanted_bytes - claim.size
        claim.grant()
