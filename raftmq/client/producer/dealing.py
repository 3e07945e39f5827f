"""Where records without a key go: one partition at a time, dealt like cards. Pure.

Stays with a partition until its batch is closed, so that batches get full, and deals the next one
from a shuffled deck of all: after each round all have had the same. A partition whose queue is
much longer than the others' is passed over, as its leader is slow or gone; and so is one that
nobody leads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

LONG_QUEUE_BYTES_MIN = 256 << 10  # a queue that is shorter is no sign of anything


class Dealer:
    """Of one topic.

    Args:
        queued_bytes: of a partition; math.inf where nobody leads.
    """

    def __init__(self, queued_bytes: Callable[[int], float], random: Random) -> None:
        self._queued_bytes, self._random = queued_bytes, random
        self._deck: list[int] = []
        self._count = 0
        self._current: int | None = None

    def current(self, partitions: int) -> int:
        """The partition that the next record goes to."""
        if partitions != self._count:
            self._count, self._deck, self._current = partitions, [], None
        if self._current is None:
            self._current = self._deal()
        return self._current

    def turn(self, partition: int) -> None:
        """A batch of that partition is closed: if it has the turn, it is somebody else's now."""
        if partition == self._current:
            self._current = None

    def _deal(self) -> int:
        """At most one deck is looked through: where all are slow, nobody is."""
        bound: float | None = None
        for _ in range(self._count):
            card = self._next_card()
            queued = self._queued_bytes(card)
            if queued > LONG_QUEUE_BYTES_MIN and bound is None:  # looks at all, so only now
                bound = self._bound()
            if bound is None or queued <= bound:
                return card
        return self._next_card()

    def _next_card(self) -> int:
        if not self._deck:
            self._deck = list(range(self._count))
            self._random.shuffle(self._deck)
        return self._deck.pop()

    def _bound(self) -> float:
        """Twice the median queue of those that are led, which a slow partition does not move."""
        queues = [self._queued_bytes(partition) for partition in range(self._count)]
        led = sorted([queue for queue in queues if queue < math.inf])
        if not led:
            return math.inf
        return max(2.0 * led[(len(led) - 1) // 2], LONG_QUEUE_BYTES_MIN)
