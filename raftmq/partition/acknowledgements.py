"""Producers of one partition, and what each of them waits for before it is answered.

Owns what `acks` means: 1 for the leader alone, k for that many replicas in sync, -1 for all of
them, and not fewer than min.insync.replicas. Everything that is waited for is *held*, as the
topic's durability says.
"""

from __future__ import annotations

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
# Whoever waits for an offset to be reached: producers for their acknowledgements.
#
# Owns the waiting, in the order of offsets, and its time limit. Nothing is done per record, and
# nothing per waiter but when it begins and when it ends: no task waits, and whoever calls `expire`
# now and then keeps the clock for all of them.


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


# -- Acknowledgements -----------------------------------------------------------------------------


class Acknowledgements:
    """`name` is the log's, for messages."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiters: dict[int, OffsetWaiters] = {}  # by acks

    def check(self, leader: Leader, acks: int) -> None:
        """
        Raises:
            NotEnoughReplicas, InvalidRequiredAcks: `acks` cannot be had.
        """
        isr, min_isr = leader.assignment.isr, leader.assignment.min_isr
        count = len(leader.assignment.replicas)
        if acks < ACKS_ALL or acks > count:
            raise InvalidRequiredAcks(
                f'acks={acks}: the number of replicas is {count}; take at most that, or "all"'
            )
        if (acks == ACKS_ALL and not leader.has_min_isr) or acks > len(isr):
            needed = min_isr if acks == ACKS_ALL else acks
            raise NotEnoughReplicas(
                f"{self._name}: in sync are {len(isr)} {isr}, acks={acks} needs {needed}"
            )

    def add(
        self,
        leader: Leader,
        end_offset: int,
        acks: int,
        on_end: Callable[[RaftmqError | None], None],
        *,
        deadline: float,
    ) -> Waiter:
        """Have `on_end` called once everything before `end_offset` is held as `acks` demands, which
        it is not yet; or with an error: RequestTimedOut after `deadline`, see `release` and `fail`.
        """
        assert end_offset > reached(leader, acks), "nothing to wait for"
        waiters = self._waiters.setdefault(acks, OffsetWaiters())
        return waiters.add(end_offset, on_end, deadline=deadline)

    def release(self, leader: Leader) -> None:
        """Answer whoever has what it waits for. NotEnoughReplicasAfterAppend where that is held,
        but by fewer than min.insync.replicas.
        """
        for acks, waiters in self._waiters.items():
            if waiters:
                waiters.release(reached(leader, acks), self._shortfall(leader, acks))

    def _shortfall(self, leader: Leader, acks: int) -> RaftmqError | None:
        if acks != ACKS_ALL or leader.has_min_isr:
            return None
        isr = leader.assignment.isr
        return NotEnoughReplicasAfterAppend(f"{self._name}: only {isr} are in sync")

    def fail(self, error: RaftmqError) -> None:
        """Nobody will be answered otherwise."""
        for waiters in self._waiters.values():
            waiters.fail(error)

    def expire(self, now: float) -> None:
        for waiters in self._waiters.values():
            waiters.expire(now)


def reached(leader: Leader, acks: int) -> int:
    """Everything before it is held as `acks` demands."""
    return leader.high_watermark if acks == ACKS_ALL else leader.held_by(acks)
