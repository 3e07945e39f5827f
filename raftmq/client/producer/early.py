"""A record that came before the partitions of its topic were known, until it joins a batch.

Owns what is known of it meanwhile. Invariant: it is told once, and either has joined a batch or
gives its bytes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.producer.delivery import EarlyDelivery
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from raftmq.client.producer.accumulator import Topic
    from raftmq.client.producer.batch import OnDelivery
    from raftmq.client.producer.dispatcher import Dispatcher
    from raftmq.client.producer.record import Extras
    from raftmq.wire.columns import Key, Value

EARLY_OVERHEAD_BYTES = 256  # beside that of any record


class EarlyRecord:
    """Waits in `Topic.waiting`.

    Attributes:
        since: when it was handed in.
        delivery: the promise of word about it.
    """

    __slots__ = (
        "_dispatcher", "_extras", "_key", "_on_delivery", "_size", "_timestamp", "_topic", "_value",
        "delivery", "since",
    )  # fmt: skip

    def __init__(
        self,
        dispatcher: Dispatcher,
        topic: Topic,
        record: tuple[Value, Key, int, int, Extras],
        on_delivery: OnDelivery | None,
        since: float,
    ) -> None:
        """`record`: value, key, timestamp, size and extras."""
        self._dispatcher, self._topic, self._on_delivery = dispatcher, topic, on_delivery
        self._value, self._key, self._timestamp, self._size, self._extras = record
        self.since, self.delivery = since, EarlyDelivery()
        dispatcher.room.take_anyway(EARLY_OVERHEAD_BYTES)
        if on_delivery is not None:
            self.delivery.claim()

    def on_known(self, error: RaftmqError | None) -> None:
        """It joins a batch, or never will."""
        self._dispatcher.room.give_back(EARLY_OVERHEAD_BYTES)
        if error is None:
            error = self._join()
        if error is None:
            return
        self._dispatcher.room.give_back(self._size)
        self._dispatcher.statistics.failed_records += 1
        self.delivery.refuse(error)
        if self._on_delivery is None:
            self._dispatcher.failures.add(error, lambda: not self.delivery.is_claimed)
        else:
            self._dispatcher.call_later(self._on_delivery, error, None)

    def _join(self) -> RaftmqError | None:
        try:
            batch, index = self._dispatcher.accumulator.add(
                self._topic, self._value, self._key, self._timestamp, self._size, self._begin,
                self._extras,
            )  # fmt: skip
        except RaftmqError as error:
            return error
        self.delivery.place(batch, index)
        if self._on_delivery is not None:
            self.delivery.call_back(self._on_delivery)
        return None

    def _begin(self) -> float:
        return self.since
