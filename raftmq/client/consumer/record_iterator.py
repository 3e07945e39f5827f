"""Hands out the open batch record by record: to the program's task, or to other threads.

Owns which record was the last. Invariant: a seek, pause or rebalance of the partition ends the
batch, and its remaining records come another time.
"""

from __future__ import annotations

from bisect import bisect
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any

from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raftmq.client.consumer.batch import ConsumedBatch, Work
    from raftmq.client.consumer.fetch_collector import FetchCollector
    from raftmq.client.consumer.partition_state import ConsumedPartition
    from raftmq.client.consumer.record import AnyRecord, ConsumerRecord


# -- Shared batch ---------------------------------------------------------------------------------
# Records of one batch that several threads take, one by one.
#
# Owns which thread gets which record. Each is either taken, or left when the event loop calls
# `stop`, and then it comes another time. Invariant: nothing is taken after `stop`, and `last` is
# exact from then on; before, it may be one behind, so that fewer records count as done, never more.


class SharedBatch:
    """A batch whose records threads take under a lock.

    Attributes:
        last: the record that was taken last.
    """

    def __init__(self, batch: ConsumedBatch) -> None:
        """Raises RaftmqError: the first record cannot be decoded."""
        self._batch, self._rest = batch, deque(_decodable(batch))
        self._lock = Lock()
        self.last: ConsumerRecord | None = None
        self._taker, self._is_shared = 0, False
        self._is_stopped = False

    def __bool__(self) -> bool:
        """Whether a record is left."""
        return bool(self._rest)

    def take(self, taker: int) -> ConsumerRecord | None:
        """The next record; None: there is none. `taker`: the thread, any number but 0."""
        with self._lock:
            if not self._rest:
                return None
            self.last = record = self._rest.popleft()
            if taker != self._taker:  # a second thread: the batch is shared from now on
                self._is_shared, self._taker = self._taker != 0, taker
            return record

    def give_back(self, record: ConsumerRecord, *, may_repeat: bool) -> None:
        """It was taken, and not handed out after all: it comes first the next time.

        Args:
            may_repeat: also if records behind it, which other threads have taken, may come twice.
        """
        batch = self._batch
        if (record.topic, record.partition) != (batch.topic, batch.partition):
            return  # other threads have gone on to the next batch
        records = _decodable(batch)
        offsets = [one.offset for one in records]
        if record.offset not in offsets:
            return
        place = offsets.index(record.offset)
        with self._lock:
            waiting = [one.offset for one in self._rest]
            # Not taken from this one, after a seek: it comes anyway.
            if self._is_stopped or record.offset in waiting:
                return
            if self.last is record or may_repeat:
                # Other threads may have given back some behind it, or before it.
                rank = bisect(waiting, record.offset)
                self._rest.insert(rank, record)
                if rank == 0:
                    self.last = records[place - 1] if place else None

    def stop(self) -> None:
        """The remaining records are not handed out."""
        with self._lock:
            self._is_stopped = True
            self._rest.clear()

    @property
    def in_flight(self) -> ConsumedBatch | ConsumerRecord | None:
        """The work in flight: the whole batch once several threads take from it, as each finishes
        only its own record by asking for the next.
        """
        return self._batch if self._is_shared else self.last


def _decodable(batch: ConsumedBatch) -> list[ConsumerRecord]:
    """Records up to the first that cannot be decoded; its error is raised once it is the first.

    They are raw: deserializers are the program's, and may take their time in its threads.
    """
    found: list[ConsumerRecord] = []
    try:
        found.extend(batch.raw)
    except RaftmqError:
        if not found:  # the first record: nothing to hand out before it
            raise
    return found


# -- Record iterator ------------------------------------------------------------------------------


# One exhausted iterator for all: iterating over it finds nothing, without a check per record.
_NOTHING: Iterator[Any] = iter(())


class RecordIterator:
    """The open batch, and the last record handed out of it.

    Args:
        on_stopped: gets the work that the program still has in flight.

    Attributes:
        records: those that are left.
        last: set by the caller that takes a record from `records`, as a call per record costs time.
    """

    def __init__(self, delivery: FetchCollector, on_stopped: Callable[[Work], None]) -> None:
        self._delivery, self._on_stopped = delivery, on_stopped
        self.records: Iterator[AnyRecord] = _NOTHING
        self.last: AnyRecord | None = None
        self._shared: SharedBatch | None = None
        self._seen: AnyRecord | None = None

    def lend(self, lent: SharedBatch) -> None:
        """The open batch goes to other threads."""
        self._shared = lent

    @property
    def is_open(self) -> bool:
        return self._delivery.is_any_open

    @property
    def in_flight(self) -> Work | None:
        """The record or batch in flight; None: nothing was handed out yet."""
        return self.last if self._shared is None else self._shared.in_flight

    def position(self, state: ConsumedPartition) -> int | None:
        """Offset of the next record of a partition."""
        return self._delivery.position(state, self._newest)

    def last_consumed(self, state: ConsumedPartition) -> int | None:
        """Offset of the last record of a partition."""
        return self._delivery.last_consumed(state, self._newest)

    def has_moved(self) -> bool:
        """Whether a record was handed out since the last call."""
        newest, seen = self._newest, self._seen
        self._seen = newest
        return newest is not None and newest is not seen

    def put_back(self, state: ConsumedPartition) -> None:
        """A seek, pause or rebalance of that partition: close its batch."""
        if self._delivery.is_open(state):  # otherwise no record of it is being handed out
            self.stop()

    def stop(self) -> None:
        """Close the batch; the record handed out last stays in flight."""
        if self._shared is not None:
            self._shared.stop()
        if (work := self.in_flight) is not None:
            self._on_stopped(work)
        self.close()

    def close(self) -> None:
        """Close the batch; nothing stays in flight."""
        if self._shared is not None:
            self._shared.stop()
        self._delivery.close(self._newest)
        self.records, self.last, self._shared = _NOTHING, None, None

    @property
    def _newest(self) -> AnyRecord | None:
        return self.last if self._shared is None else self._shared.last
