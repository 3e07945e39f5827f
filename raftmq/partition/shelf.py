"""Producers of one kind in one partition, in the order of their last appends. Pure.

Owns who is forgotten: time and the limit make it forget whole producers, those first that have
appended nothing for longest.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container

    from raftmq.partition.sequences import Producer


class ShelfLimits(NamedTuple):
    """Attributes:
    producers_max: of one partition.
    idle_seconds_max: a producer that has appended nothing for longer is forgotten.
    spare_seconds: where there are too many, only one that is idle for so long makes room.
    """

    producers_max: int
    idle_seconds_max: float
    spare_seconds: float


class Shelf:
    """Attributes:
    known: whoever is idle for longest comes first.
    last_append: seconds, from the same moment for all.
    """

    def __init__(self, limits: ShelfLimits) -> None:
        self.limits = limits
        self.known: dict[int, Producer] = {}
        self.last_append: dict[int, float] = {}

    def put(self, producer_id: int, producer: Producer, time: float) -> None:
        """It has appended just now, later than all others."""
        is_new = self.known.pop(producer_id, None) is None
        if is_new and len(self.known) >= self.limits.producers_max:
            self._forget_idlest()
        self.known[producer_id] = producer
        self.last_append[producer_id] = time

    def restore(self, producer_id: int, producer: Producer, time: float) -> None:
        """As it was known in an earlier life; whoever was idle for longest comes first."""
        self.known[producer_id] = producer
        self.last_append[producer_id] = time

    def forget_idle(self, time: float) -> None:
        """Forget who has appended nothing for longer than the limit."""
        oldest = time - self.limits.idle_seconds_max
        while self.known and self.last_append[next(iter(self.known))] < oldest:
            self._forget_idlest()

    def _forget_idlest(self) -> None:
        producer_id = next(iter(self.known))
        del self.known[producer_id], self.last_append[producer_id]

    def forget_all(self) -> None:
        self.known.clear()
        self.last_append.clear()

    def has_room(self, count: int, time: float, *, but: Container[int] = ()) -> bool:
        """Whether `count` new ones find room, if nobody of `but` makes any."""
        excess = len(self.known) + count - self.limits.producers_max
        if excess <= 0:
            return True
        others = (producer_id for producer_id in self.known if producer_id not in but)
        last_to_go = next(islice(others, excess - 1, None), None)
        if last_to_go is None:
            return False
        return time - self.last_append[last_to_go] >= self.limits.spare_seconds
