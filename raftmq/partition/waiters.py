"""Whoever waits for an offset to be reached: producers for their acknowledgements.

Owns the waiting, in the order of offsets, and its time limit. Nothing is done per record, and
nothing per waiter but when it begins and when it ends: no task waits, and whoever calls `expire`
now and then keeps the clock for all of them.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from raftmq.errors import RequestTimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.errors import RaftmqError


class Waiter:
    """Attributes:
    is_over: nothing will be told any more.
    """

    __slots__ = ("_on_end", "deadline")

    def __init__(self, deadline: float, on_end: Callable[[RaftmqError | None], None]) -> None:
        # Not kept once it is over: whoever is told knows the waiter, and the replica.
        self._on_end: Callable[[RaftmqError | None], None] | None = on_end
        self.deadline = deadline

    @property
    def is_over(self) -> bool:
        return self._on_end is None

    def end(self, error: RaftmqError | None = None) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(error)

    def abandon(self) -> None:
        """Whoever waited wants to know no more."""
        self._on_end = None


class OffsetWaiters:
    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Waiter]] = []
        self._numbers = count()

    def __len__(self) -> int:
        """Including those that have ended by themselves and whose turn has not come."""
        return len(self._heap)

    def add(
        self, offset: int, on_end: Callable[[RaftmqError | None], None], *, deadline: float
    ) -> Waiter:
        """Have `on_end` called once: with None when `release` reaches `offset`, which must not
        have been reached; with RequestTimedOut after `deadline`; or with what `release` and `fail`
        were called with.
        """
        waiter = Waiter(deadline, on_end)
        heappush(self._heap, (offset, next(self._numbers), waiter))
        return waiter

    def release(self, offset: int, error: RaftmqError | None = None) -> None:
        """Whoever waits for `offset` or less is done, or learns of `error`."""
        while self._heap and self._heap[0][0] <= offset:
            heappop(self._heap)[2].end(error)

    def fail(self, error: RaftmqError) -> None:
        waiting, self._heap = self._heap, []
        for _, _, waiter in waiting:
            waiter.end(error)

    def expire(self, now: float) -> None:
        """End those whose time is over, and forget whoever is no longer waiting: while nothing is
        acknowledged, no offset has its turn.
        """
        for offset, _, waiter in self._heap:
            if waiter.deadline <= now:
                waiter.end(RequestTimedOut(f"offset {offset} was not acknowledged in time"))
        waiting = [entry for entry in self._heap if not entry[2].is_over]
        if len(waiting) < len(self._heap):
            heapify(waiting)
            self._heap = waiting
