"""Which records are handed out next: partitions take turns, a batch each. Pure.

Kafka: FetchCollector. Owns the order, and the batch whose records are handed out one by one.
Records that were not handed out stay with their partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raftmq.client.consumer.batch import ConsumedBatch
    from raftmq.client.consumer.partition_state import ConsumedPartition, Key
    from raftmq.client.consumer.record import ConsumerRecord

Made = TypeVar("Made")


class Opened:
    """A batch whose records are being handed out one by one."""

    def __init__(self, state: ConsumedPartition, batch: ConsumedBatch) -> None:
        self.state, self.batch = state, batch
        self.last_offset = batch.last_offset

    def position_after(self, last: ConsumerRecord | None) -> int | None:
        """Where reading goes on after the record that was handed out last."""
        if last is None:  # nothing of it was handed out
            return self.state.position
        return self.batch.end_offset if last.offset == self.last_offset else last.offset + 1


class FetchCollector:
    """The turns of all partitions.

    Args:
        on_taken: called with a partition of which records were handed out, so that more of it can
            be fetched.
    """

    def __init__(self, on_taken: Callable[[ConsumedPartition], None]) -> None:
        self._on_taken = on_taken
        self._ready: dict[Key, ConsumedPartition] = {}  # in the order of their turns
        self._opened: Opened | None = None

    def offer(self, state: ConsumedPartition) -> None:
        """Queue the partition, if it has something to hand out."""
        if state.is_deliverable and not self.is_open(state):
            self._ready.setdefault(state.key, state)

    def take(self, records_max: int) -> ConsumedBatch | None:
        """The next batch, which counts as handed out; None: there is none.

        Raises:
            RaftmqError: the error of a partition.
        """
        found = self._next(records_max)
        if found is None:
            return None
        state, batch = found
        self._hand_out(state, batch.end_offset, last=batch.last_offset)
        return batch

    def open(self, records_max: int) -> Iterator[ConsumerRecord] | None:
        """As `take`, for records that are handed out one by one, see `close`.

        Raises:
            RaftmqError: also if the records cannot be decoded.
        """
        return self.open_as(records_max, iter)

    def open_as(self, records_max: int, make: Callable[[ConsumedBatch], Made]) -> Made | None:
        """As `open`, for the result of `make`.

        Raises:
            RaftmqError: also what `make` raises.
        """
        batch = self.open_batch(records_max)
        if batch is None:  # no partition has anything to hand out
            return None
        try:
            return make(batch)
        # The first record cannot be decoded: the position stays before it.
        except RaftmqError as error:
            self.close(None)
            raise error.at(batch.topic, batch.partition) from error

    def open_batch(self, records_max: int) -> ConsumedBatch | None:
        """The next batch, of which nothing counts as handed out yet: see `close`, `end_batch`.

        Raises:
            RaftmqError: the error of a partition, or of decoding.
        """
        assert self._opened is None, "another one is open"
        found = self._next(records_max)
        if found is None:
            return None
        state, batch = found
        try:
            self._opened = Opened(state, batch)
        except RaftmqError as error:
            self.offer(state)
            raise error.at(*state.key) from error
        return batch

    def has_open(self, batch: ConsumedBatch) -> bool:
        """Whether the batch is still open: a seek or rebalance may have closed it."""
        return self._opened is not None and self._opened.batch is batch

    def end_batch(self) -> None:
        """All records of the open batch were handed out."""
        opened, self._opened = self._opened, None
        assert opened is not None, "none is open"
        self._hand_out(opened.state, opened.batch.end_offset, last=opened.last_offset)

    def close(self, last: ConsumerRecord | None) -> None:
        """Close the open batch; records after `last` come another time. None: nothing was handed
        out.
        """
        opened, self._opened = self._opened, None
        if opened is None:
            return
        position = opened.position_after(last)
        # Nothing was handed out: the partition keeps its records, and its turn.
        if last is None or position is None:
            self.offer(opened.state)
        else:
            self._hand_out(opened.state, position, last=last.offset)

    @property
    def is_any_open(self) -> bool:
        return self._opened is not None

    def is_open(self, state: ConsumedPartition) -> bool:
        return self._opened is not None and self._opened.state is state

    def position(self, state: ConsumedPartition, last: ConsumerRecord | None) -> int | None:
        """Offset of the next record of a partition."""
        # The state's own position moves only when the batch is closed.
        if self._opened is not None and self._opened.state is state:
            position = self._opened.position_after(last)
            return None if position is None else state.behind(position)[0]
        return state.position

    def last_consumed(self, state: ConsumedPartition, last: ConsumerRecord | None) -> int | None:
        """Offset of the record of a partition that was handed out last; None: none was."""
        return last.offset if last is not None and self.is_open(state) else state.last_consumed

    def _next(self, records_max: int) -> tuple[ConsumedPartition, ConsumedBatch] | None:
        while self._ready:
            state = self._ready.pop(next(iter(self._ready)))
            # Paused, sought or released since it was queued.
            if not state.is_deliverable:
                continue
            batch = self._peek(state, records_max)
            if batch is not None:
                return state, batch
            error = state.take_error()
            self._on_taken(state)
            if error is not None:
                raise error
        return None

    def _peek(self, state: ConsumedPartition, records_max: int) -> ConsumedBatch | None:
        try:
            return state.peek(records_max)
        except RaftmqError as error:
            self.offer(state)
            raise error.at(*state.key) from error

    def _hand_out(self, state: ConsumedPartition, position: int, *, last: int) -> None:
        state.advance(position, last=last)
        self.offer(state)
        self._on_taken(state)
