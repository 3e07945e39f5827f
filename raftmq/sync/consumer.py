"""The consumer of `raftmq.sync`.

Owns what lies between the consumer in the loop and the program's thread: records of one batch, or a
batch. Invariants: what comes out of the loop lies here before anybody is told, so a wait that is
interrupted loses nothing; whatever else is asked for, what lies here is given back first.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import anyio
import trio

from raftmq.errors import Closed
from raftmq.sync.block import Block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from raftmq.client.consumer.batch import ConsumedBatch, ConsumerRecord
    from raftmq.client.consumer.consumer import Batches
    from raftmq.client.consumer.consumer import Consumer as AsyncConsumer
    from raftmq.client.consumer.partition_state import Key
    from raftmq.sync.loop import Loop

T = TypeVar("T")


class Consumer:
    """The calls of `raftmq.Consumer`, blocking. It opens when it is first used.

    It is closed at the end of its `with` block, if it has one, or with its client. `timeout` is in
    seconds; None waits for ever. Threads that iterate at the same time share the records.
    """

    def __init__(self, loop: Loop, consumer: AsyncConsumer, open_ones: set[Consumer]) -> None:
        """`open_ones`: where it is to be found as long as it is open."""
        self._loop, self._consumer, self._open_ones = loop, consumer, open_ones
        self._block = Block(loop, consumer)
        self._lock = Lock()  # for what follows
        self._is_open = self._is_closed = False
        self._turn = trio.Lock()  # of those who ask for more
        self._batches: deque[ConsumedBatch] = deque()  # not handed out yet, one at most
        self._of: ConsumedBatch | None = None  # of which there is ...
        self._rest: deque[ConsumerRecord] = deque()  # ... what was not handed out yet

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is fetched any more. Does nothing the second time."""
        with self._lock:
            is_open, self._is_open, self._is_closed = self._is_open, False, True
        self._rest.clear()
        self._batches.clear()
        if is_open and self._loop.is_ours:
            self._open_ones.discard(self)
            self._block.close(None)

    # -- records ---------------------------------------------------------------------------

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self.records()

    def records(self, *, timeout: float | None = None) -> Iterator[ConsumerRecord]:
        """The next records, one by one; ends when none has come for `timeout` seconds.

        Whoever breaks off goes on with the next record later, also with another call.
        """
        self._open()
        while len(self._rest) or self._loop.call(self._fill, timeout):
            while (record := _pop(self._rest)) is not None:
                self._loop.check_process()
                yield record

    def batches(
        self, *, max_records: int | None = None, timeout: float | None = None
    ) -> Iterator[ConsumedBatch]:
        """The next batches, each of one partition, as columns; ends as `records` does."""
        self._open()
        found = self._consumer.batches(max_records=max_records)
        while self._loop.call(self._fetch, found, timeout):
            if (batch := _pop(self._batches)) is not None:
                yield batch

    # -- positions -------------------------------------------------------------------------

    @property
    def assignment(self) -> list[Key]:
        """The partitions that are read, as pairs of topic and number."""
        return self._ask(lambda: self._consumer.assignment)

    @property
    def paused(self) -> list[Key]:
        return self._ask(lambda: self._consumer.paused)

    def position(self, topic: str, partition: int) -> int | None:
        """Offset of the next record to hand out; None: where to start is not known yet."""
        return self._ask(lambda: self._position(topic, partition))

    def high_watermark(self, topic: str, partition: int) -> int | None:
        """Where the partition ended when it was fetched last; None: it was not yet."""
        return self._ask(lambda: self._consumer.high_watermark(topic, partition))

    def lag(self, topic: str, partition: int) -> int | None:
        """Records between the position and the high watermark; None: not known yet."""
        return self._ask(lambda: self._lag(topic, partition))

    def end_offsets(self, *, timeout: float | None = None) -> dict[Key, int]:
        """Where the partitions end now. See `raftmq.Consumer.end_offsets`."""
        self._open()
        return self._loop.call(self._consumer.end_offsets, timeout=timeout)

    def seek(
        self,
        topic: str,
        partition: int,
        *,
        offset: int | None = None,
        timestamp: int | datetime | None = None,
    ) -> None:
        """Go on elsewhere. See `raftmq.Consumer.seek`."""

        def seek() -> None:
            self._give_back()
            self._consumer.seek(topic, partition, offset=offset, timestamp=timestamp)

        self._ask(seek)

    def pause(self, *partitions: Key) -> None:
        """Hand out nothing of them, and fetch nothing, until `resume`."""

        def pause() -> None:
            self._give_back()
            self._consumer.pause(*partitions)

        self._ask(pause)

    def resume(self, *partitions: Key) -> None:
        self._ask(lambda: self._consumer.resume(*partitions))

    # -- within ----------------------------------------------------------------------------

    def _open(self) -> None:
        self._loop.check_process()
        with self._lock:
            if self._is_closed:
                raise Closed("the consumer is closed: make another one")
            if self._is_open:
                return
            self._is_closed = True  # unless that works
            self._block.open()
            self._is_open, self._is_closed = True, False
            self._open_ones.add(self)

    def _ask(self, question: Callable[[], T]) -> T:
        """In the loop, where the consumer lives."""

        async def ask() -> T:
            return question()

        self._open()
        return self._loop.call(ask)

    # -- in the loop -----------------------------------------------------------------------

    async def _fill(self, seconds_max: float | None) -> bool:
        """Whether there are more records to hand out."""
        with anyio.move_on_after(seconds_max):
            async with self._turn:
                self._give_back_batches()
                if not self._rest:
                    self._of, records = await self._consumer._next_records()
                    self._rest.extend(records)
        return bool(self._rest)

    async def _fetch(self, found: Batches, seconds_max: float | None) -> bool:
        """The same for batches."""
        with anyio.move_on_after(seconds_max):
            async with self._turn:
                self._give_back_records()
                if not self._batches:
                    self._batches.append(await anext(found))
        return bool(self._batches)

    def _position(self, topic: str, partition: int) -> int | None:
        """What lies here comes first."""
        for batch in tuple(self._batches):
            if (batch.topic, batch.partition) == (topic, partition):
                return batch.base_offset
        for record in tuple(self._rest)[:1]:
            if record[:2] == (topic, partition):
                return record.offset
        return self._consumer.position(topic, partition)

    def _lag(self, topic: str, partition: int) -> int | None:
        position = self._position(topic, partition)
        end = self._consumer.high_watermark(topic, partition)
        return None if position is None or end is None else max(0, end - position)

    def _give_back(self) -> None:
        """What was taken and not handed out comes again, unless somebody seeks elsewhere."""
        self._give_back_records()
        self._give_back_batches()

    def _give_back_records(self) -> None:
        first = _pop(self._rest)
        if first is not None and self._of is not None:
            self._rest.clear()
            self._consumer._take_back(self._of, first.offset)

    def _give_back_batches(self) -> None:
        if (batch := _pop(self._batches)) is not None:
            self._consumer._take_back(batch, batch.base_offset)


def _pop(line: deque[T]) -> T | None:
    """Other threads may be faster."""
    try:
        return line.popleft()
    except IndexError:
        return None
