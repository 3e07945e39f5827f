"""Records of one batch that other threads take, one by one.

Owns who gets which: each is either taken, or left when the loop stops the lending, and then it
comes another time. Invariant: nothing is taken after `stop`, and `last` is exact from then on;
before, it may be one behind, so that less counts as done, never more.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING

from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from raftmq.client.consumer.batch import ConsumedBatch, ConsumerRecord


class Lent:
    """Attributes:
    last: that was taken.
    """

    def __init__(self, batch: ConsumedBatch) -> None:
        """Raises RaftmqError: the first record cannot be decoded."""
        self._batch, self._rest = batch, deque(_decodable(batch))
        self._lock = Lock()
        self.last: ConsumerRecord | None = None
        self._taker, self._is_shared = 0, False

    def __bool__(self) -> bool:
        """Whether there is something to take."""
        return bool(self._rest)

    def take(self, taker: int) -> ConsumerRecord | None:
        """The next record; None: there is none. `taker`: the thread, any number but 0."""
        with self._lock:
            if not self._rest:
                return None
            self.last = record = self._rest.popleft()
            if taker != self._taker:
                self._is_shared, self._taker = self._taker != 0, taker
            return record

    def stop(self) -> None:
        """What was not taken is not handed out."""
        with self._lock:
            self._rest.clear()

    @property
    def in_hand(self) -> ConsumedBatch | ConsumerRecord | None:
        """What may be worked on. Several threads ask each for its own work, not for the others'."""
        return self._batch if self._is_shared else self.last


def _decodable(batch: ConsumedBatch) -> list[ConsumerRecord]:
    """What cannot be decoded ends them, and is told once it is the first."""
    found: list[ConsumerRecord] = []
    try:
        found.extend(batch)
    except RaftmqError:
        if not found:
            raise
    return found
