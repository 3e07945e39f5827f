"""Replicas that do not ask their leader just now, because the last time went wrong.

Owns until when each rests. Reads no clock.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.broker.followed import Followed


class Resting:
    """Times are those of the clock of whoever calls."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Followed]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, followed: Followed, *, until: float) -> None:
        heappush(self._heap, (until, next(self._numbers), followed))

    @property
    def next_at(self) -> float:
        """When the first one has rested; math.inf if nobody rests."""
        return self._heap[0][0] if self._heap else math.inf

    def take_rested(self, now: float) -> Iterator[Followed]:
        """Who has rested enough, in that order; they rest no more."""
        while self.next_at <= now:
            yield heappop(self._heap)[2]
