"""Producers of one partition, and what each of them waits for before it is answered.

Owns what `acks` means: 1 for the leader alone, k for that many replicas in sync, -1 for all of
them, and not fewer than min.insync.replicas. Everything that is waited for is *held*, as the
topic's durability says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import InvalidRequiredAcks, NotEnoughReplicas, NotEnoughReplicasAfterAppend
from raftmq.partition.waiters import OffsetWaiters
from raftmq.wire.bodies import ACKS_ALL

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.errors import RaftmqError
    from raftmq.partition.leader import Leader
    from raftmq.partition.waiters import Waiter


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
