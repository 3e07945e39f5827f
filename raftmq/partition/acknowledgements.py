"""Acknowledgements: produce requests that wait for `acks` (Kafka: DelayedProduce, its purgatory).

Owns what `acks` means: 1 for the leader alone, k for that many replicas in sync, -1 for all of
them, and not fewer than min.insync.replicas. A record counts once a replica *holds* it: synced, or
in the page cache, as the topic's durability says. No task waits per request (decision 0016).
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from raftmq.errors import (
    InvalidRequiredAcks,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    RequestTimedOut,
)
from raftmq.wire.bodies import ACKS_ALL

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.errors import RaftmqError
    from raftmq.partition.leader import Leader


# -- Waiters --------------------------------------------------------------------------------------
# Callbacks that wait for an offset to be reached: produce requests for their acknowledgement.
#
# Owns the waiters, in the order of offsets, and their deadlines. Work is done only when a waiter
# begins or ends, never per record: no task waits and no timer runs for each of them, the broker
# calls `expire` at intervals for all.


class Waiter:
    """Attributes:
    is_over: its callback was called or abandoned, and will not be called again.
    """

    __slots__ = ("_on_end", "deadline")

    def __init__(self, deadline: float, on_end: Callable[[RaftmqError | None], None]) -> None:
        # Dropped once it is over: the callback refers to the waiter and the replica, a cycle.
        self._on_end: Callable[[RaftmqError | None], None] | None = on_end
        self.deadline = deadline

    @property
    def is_over(self) -> bool:
        return self._on_end is None

    def end(self, error: RaftmqError | None = None) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:  # else it was abandoned, or has ended already
            on_end(error)

    def abandon(self) -> None:
        """The client does not wait any more: its connection has ended."""
        self._on_end = None


class OffsetWaiters:
    """Attributes:
    heap: offset, number and waiter, the lowest offset first.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Waiter]] = []
        self._numbers = count()  # breaks ties in the heap: waiters cannot be compared

    def __len__(self) -> int:
        """Including waiters that were abandoned and are still in the heap."""
        return len(self.heap)

    def add(
        self, offset: int, on_end: Callable[[RaftmqError | None], None], *, deadline: float
    ) -> Waiter:
        """Have `on_end` called once: with None when `release` reaches `offset`, which must not
        have been reached; with RequestTimedOut after `deadline`; or with what `release` and `fail`
        were called with.
        """
        waiter = Waiter(deadline, on_end)
        heappush(self.heap, (offset, next(self._numbers), waiter))
        return waiter

    def release(self, offset: int, error: RaftmqError | None = None) -> None:
        """End those that wait for `offset` or less, with `error` if there is one."""
        while self.heap and self.heap[0][0] <= offset:
            heappop(self.heap)[2].end(error)

    def fail(self, error: RaftmqError) -> None:
        waiting, self.heap = self.heap, []  # first, as a callback may add a waiter
        for _, _, waiter in waiting:
            waiter.end(error)

    def expire(self, now: float) -> None:
        """End waiters whose deadline has passed, and drop those that were abandoned: `release`
        drops them only when offsets are acknowledged, and for a while none may be.
        """
        for offset, _, waiter in self.heap:
            if waiter.deadline <= now:
                waiter.end(RequestTimedOut(f"offset {offset} was not acknowledged in time"))
        waiting = [entry for entry in self.heap if not entry[2].is_over]
        if len(waiting) < len(self.heap):  # else the heap stays as it is: the usual case
            heapify(waiting)
            self.heap = waiting


# -- Acknowledgements -----------------------------------------------------------------------------


class Acknowledgements:
    """`name` is the log's, for messages."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiters: defaultdict[int, OffsetWaiters] = defaultdict(OffsetWaiters)  # by acks

    def check(self, leader: Leader, acks: int) -> None:
        """
        Raises:
            NotEnoughReplicas, InvalidRequiredAcks: `acks` cannot be had.
        """
        isr, min_isr = leader.assignment.isr, leader.assignment.min_isr
        count = len(leader.assignment.replicas)
        if acks < ACKS_ALL or acks > count:  # could not be reached even with all in sync
            raise InvalidRequiredAcks(
                f'acks={acks}: the number of replicas is {count}; take at most that, or "all"'
            )
        # Refused before the append, so that the error is definite and the client may send again.
        if (acks == ACKS_ALL and not leader.has_min_isr) or acks > len(isr):
            needed = min_isr if acks == ACKS_ALL else acks
            raise NotEnoughReplicas(
                f"{self._name}: in sync are {len(isr)} {isr}, acks={acks} needs {needed}"
            )

    def add(
        self,
        end_offset: int,
        acks: int,
        on_end: Callable[[RaftmqError | None], None],
        *,
        deadline: float,
    ) -> Waiter:
        """Have `on_end` called once everything before `end_offset` is held as `acks` demands, which
        it is not yet; or with an error: RequestTimedOut after `deadline`, see `release` and `fail`.
        """
        return self._waiters[acks].add(end_offset, on_end, deadline=deadline)

    def release(self, leader: Leader) -> None:
        """Answer the requests whose records are held: with NotEnoughReplicasAfterAppend if by
        fewer than min.insync.replicas.
        """
        for acks, waiters in self._waiters.items():
            # None waits with these acks: spare the sorting of offsets.
            if waiters.heap and waiters.heap[0][0] <= (end := reached(leader, acks)):
                waiters.release(end, self._shortfall(leader, acks))

    def _shortfall(self, leader: Leader, acks: int) -> RaftmqError | None:
        if acks != ACKS_ALL or leader.has_min_isr:  # acks=k promises nothing about min ISR
            return None
        isr = leader.assignment.isr
        return NotEnoughReplicasAfterAppend(f"{self._name}: only {isr} are in sync")

    def fail(self, error: RaftmqError) -> None:
        """End all waiters with `error`: the role ended, or the log went offline."""
        for waiters in self._waiters.values():
            waiters.fail(error)

    def expire(self, now: float) -> None:
        for waiters in self._waiters.values():
            waiters.expire(now)


def reached(leader: Leader, acks: int) -> int:
    """Everything before it is held as `acks` demands."""
    return leader.high_watermark if acks == ACKS_ALL else leader.held_by(acks)
