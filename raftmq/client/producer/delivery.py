"""The promise of word about one record, which may be awaited, asked or forgotten.

Holds no task and no event until somebody awaits it. Claims: whoever awaits, has asked or is called
back knows of a failure, so nobody else has to be told; a wait that is cancelled knows nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from raftmq.client.producer.batch import OnDelivery, ProducerBatch, RecordMetadata
    from raftmq.errors import RaftmqError


class Delivery:
    """`await delivery` returns the record's `RecordMetadata`, or raises why there is none.

    It may be awaited more than once, and by several tasks. A wait that is cancelled changes
    nothing: the record is sent nevertheless.
    """

    __slots__ = ("_batch", "_claims", "_index")

    def __init__(self, batch: ProducerBatch, index: int) -> None:
        self._batch: ProducerBatch | None = batch
        self._index = index
        self._claims = 0

    @property
    def is_done(self) -> bool:
        """Whether it is known what became of the record."""
        return self._batch is not None and self._held()[0].outcome is not None

    @property
    def is_claimed(self) -> bool:
        """Somebody knows what became of it, or will be told."""
        return self._claims > 0

    def result(self) -> RecordMetadata:
        """What `await` returns; only where `is_done`.

        Raises:
            RaftmqError: what became of the record instead; `definite` says whether it certainly
                was not appended.
        """
        assert self._batch is not None, "not done yet"
        self.claim()
        batch, index = self._held()
        return batch.metadata_of(index)

    def call_back(self, on_delivery: OnDelivery) -> None:
        """Have `on_delivery` told. Only before it `is_done`."""
        assert self._batch is not None, "in no batch yet"
        self.claim()
        batch, index = self._held()
        batch.call_back(index, on_delivery)

    def claim(self) -> None:
        """Somebody knows, or will."""
        self._claims += 1
        if self._claims == 1 and self._batch is not None:
            batch, index = self._held()
            batch.claim(index)

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:
        return self._wait().__await__()

    async def _wait(self) -> RecordMetadata:
        self.claim()
        try:
            while not self.is_done:
                event = anyio.Event()
                self._watch(event.set)
                await event.wait()
        except BaseException:
            self._disclaim()
            raise
        return self.result()

    def _disclaim(self) -> None:
        self._claims -= 1
        if not self._claims and self._batch is not None:
            batch, index = self._held()
            batch.claim(index, is_claimed=False)

    def _held(self) -> tuple[ProducerBatch, int]:
        """The batch that has the record by now, and its place there."""
        assert self._batch is not None, "in no batch yet"
        return self._batch.holder_of(self._index)

    def _watch(self, watcher: Callable[[], None]) -> None:
        self._held()[0].watch(watcher)


class EarlyDelivery(Delivery):
    """Of a record that has no batch yet, because nobody knows the partitions of its topic."""

    __slots__ = ("_error", "_watchers")

    def __init__(self) -> None:
        self._batch, self._index, self._claims = None, 0, 0
        self._error: RaftmqError | None = None
        self._watchers: list[Callable[[], None]] = []

    @property
    def is_done(self) -> bool:
        return self._error is not None or super().is_done

    def result(self) -> RecordMetadata:
        if self._error is None:
            return super().result()
        self.claim()
        raise self._error.copied()

    def place(self, batch: ProducerBatch, index: int) -> None:
        """The record has joined a batch."""
        self._batch, self._index = batch, index
        if self._claims:
            batch.claim(index)
        self._wake()

    def refuse(self, error: RaftmqError) -> None:
        """It never will."""
        self._error = error
        self._wake()

    def _watch(self, watcher: Callable[[], None]) -> None:
        if self._batch is None:
            self._watchers.append(watcher)
        else:
            super()._watch(watcher)

    def _wake(self) -> None:
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()
