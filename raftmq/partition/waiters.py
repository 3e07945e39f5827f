"""Tasks that wait for an offset to be reached: producers for their acknowledgements.

Owns the waiting, in the order of offsets, and its time limit. Nothing is done per record, and
nothing per waiter but when it begins and when it ends: whoever calls `expire` now and then keeps
the clock for all of them.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

import trio

from raftmq.errors import RequestTimedOut

if TYPE_CHECKING:
    from raftmq.errors import RaftmqError


class _Waiter:
    __slots__ = ("deadline", "error", "is_over", "task")

    def __init__(self, deadline: float) -> None:
        self.task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        self.deadline = deadline
        self.error: RaftmqError | None = None
        self.is_over = False

    def end(self, error: RaftmqError | None = None) -> None:
        if self.is_over:
            return
        self.is_over, self.error = True, error
        if self.task is not None:
            trio.lowlevel.reschedule(self.task)

    def abandon(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self.is_over, self.task = True, None
        return trio.lowlevel.Abort.SUCCEEDED


class OffsetWaiters:
    def __init__(self) -> None:
        self._heap: list[tuple[int, int, _Waiter]] = []
        self._numbers = count()

    def __len__(self) -> int:
        """Including those that have ended by themselves and whose turn has not come."""
        return len(self._heap)

    async def wait(self, offset: int, *, deadline: float) -> None:
        """Until `release` reaches `offset`. It must not have been reached.

        Raises:
            RequestTimedOut: `deadline` came first.
            RaftmqError: whatever `fail` was called with.
        """
        waiter = _Waiter(deadline)
        heappush(self._heap, (offset, next(self._numbers), waiter))
        await trio.lowlevel.wait_task_rescheduled(waiter.abandon)
        if waiter.error is not None:
            raise waiter.error

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
