"""The batch whose records are handed out one by one: here, or to other threads.

Owns which of them was the last. Invariant: whatever else is wanted of the partition ends it, and
what was not handed out of it comes another time.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any

from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raftmq.client.consumer.batch import ConsumedBatch, ConsumerRecord, Work
    from raftmq.client.consumer.fetch_collector import FetchCollector
    from raftmq.client.consumer.partition_state import ConsumedPartition


# -- Lent -----------------------------------------------------------------------------------------
# Records of one batch that other threads take, one by one.
#
# Owns who gets which: each is either taken, or left when the loop stops the lending, and then it
# comes another time. Invariant: nothing is taken after `stop`, and `last` is exact from then on;
# before, it may be one behind, so that less counts as done, never more.


class SharedBatch:
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


# -- One by one -----------------------------------------------------------------------------------


_NOTHING: Iterator[Any] = iter(())


class RecordIterator:
    """
    Args:
        on_stopped: told what stays in the program's hand.

    Attributes:
        records: those that are left.
        last: whoever takes one from `records` notes it here.
    """

    def __init__(self, delivery: FetchCollector, on_stopped: Callable[[Work], None]) -> None:
        self._delivery, self._on_stopped = delivery, on_stopped
        self.records: Iterator[ConsumerRecord] = _NOTHING
        self.last: ConsumerRecord | None = None
        self._lent: SharedBatch | None = None
        self._seen: ConsumerRecord | None = None

    def lend(self, lent: SharedBatch) -> None:
        """To other threads, the batch that is open."""
        self._lent = lent

    @property
    def is_open(self) -> bool:
        return self._delivery.is_any_open

    @property
    def in_hand(self) -> Work | None:
        """What the program works on; None: nothing was handed out yet."""
        return self.last if self._lent is None else self._lent.in_hand

    def position(self, state: ConsumedPartition) -> int | None:
        """Of the next record of a partition."""
        return self._delivery.position(state, self._newest)

    def has_moved(self) -> bool:
        """Whether something was handed out since this was asked last."""
        newest, seen = self._newest, self._seen
        self._seen = newest
        return newest is not None and newest is not seen

    def put_back(self, state: ConsumedPartition) -> None:
        """Something else is wanted of that partition."""
        if self._delivery.is_open(state):
            self.stop()

    def stop(self) -> None:
        """The rest comes another time; what was handed out last stays in hand."""
        if self._lent is not None:
            self._lent.stop()
        if (work := self.in_hand) is not None:
            self._on_stopped(work)
        self.close()

    def close(self) -> None:
        """The same, and nothing is in hand."""
        if self._lent is not None:
            self._lent.stop()
        self._delivery.close(self._newest)
        self.records, self.last, self._lent = _NOTHING, None, None

    @property
    def _newest(self) -> ConsumerRecord | None:
        return self.last if self._lent is None else self._lent.last
