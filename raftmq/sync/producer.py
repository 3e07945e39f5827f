"""Blocking producer: send, enqueue, send_many, flush from any thread, with timeouts.

Checks a record in the caller's thread, so that its errors show there, and hands it over
(`handover.py`). Bulk calls wait until earlier records were taken, which keeps the order.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from raftmq.client.administration.checks import check_topic
from raftmq.client.producer.record import (
    checked_extras,
    checked_key,
    checked_timestamp,
    checked_value,
    size_of,
)
from raftmq.errors import BufferFull, RequestTimedOut
from raftmq.sync.block import Block
from raftmq.sync.handover import Delivery, Handed, Handover, Rows, may_wait
from raftmq.sync.loop import LoopCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from raftmq.client.producer.batch import BatchMetadata, OnDelivery, RecordMetadata
    from raftmq.client.producer.bulk import Progress
    from raftmq.client.producer.producer import Producer as AsyncProducer
    from raftmq.client.producer.record import GivenKey, GivenTags, GivenValue
    from raftmq.client.producer.statistics import Statistics
    from raftmq.sync.loop import Loop
    from raftmq.wire.batch.arguments import GivenHeaders


class Producer:
    """The calls of `raftmq.Producer`, blocking: `with client.producer(...) as producer:`.

    `timeout` is in seconds; None waits as long as it takes. It may be used by several threads.
    """

    def __init__(self, loop: Loop, producer: AsyncProducer, handover_bytes_max: int) -> None:
        self._loop, self._producer = loop, producer
        self._block = Block(loop, producer)
        self._handover = Handover(loop, producer, handover_bytes_max)

    @property
    def statistics(self) -> Statistics:
        """Counts of records and requests so far."""
        return self._producer.statistics

    def __enter__(self) -> Self:
        self._block.open()
        self._handover.open()
        self._loop.start(LoopCall(self._handover.run, ()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Threads that still send get Closed; records handed in before are sent."""
        if not self._loop.is_ours:  # a fork has nothing to close
            return
        self._handover.close()
        try:
            if error is None or isinstance(error, Exception):
                self._loop.call(self._handover.wait_taken)
        # Ctrl-C while waiting: cancel the producer.
        except BaseException as found:
            self._block.close(found)
            raise
        self._block.close(error)
        if error is None:
            self._handover.failures.raise_first()

    def send(
        self,
        topic: str,
        value: GivenValue,
        *,
        key: GivenKey = None,
        headers: GivenHeaders = None,
        tags: GivenTags = None,
        partition: int | None = None,
        timestamp: int | None = None,
        timeout: float | None = None,
    ) -> RecordMetadata:
        """See `raftmq.Producer.send`.

        Raises:
            RequestTimedOut: after `timeout` seconds; the record may be sent nevertheless.
                Indefinite.
        """
        deadline = _deadline(timeout)
        delivery = self.enqueue(
            topic,
            value,
            key=key,
            headers=headers,
            tags=tags,
            partition=partition,
            timestamp=timestamp,
            timeout=timeout,
        )
        return delivery.result(_seconds_left(deadline))

    def enqueue(
        self,
        topic: str,
        value: GivenValue,
        *,
        key: GivenKey = None,
        headers: GivenHeaders = None,
        tags: GivenTags = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: OnDelivery | None = None,
        timeout: float | None = None,
    ) -> Delivery:
        """See `raftmq.Producer.enqueue`: waits while the buffer is full.

        Raises:
            RequestTimedOut: the buffer stayed full for `timeout` seconds; the record was not
                accepted.
        """
        deadline = _deadline(timeout)
        while True:
            try:
                return self.send_nowait(
                    topic,
                    value,
                    key=key,
                    headers=headers,
                    tags=tags,
                    partition=partition,
                    timestamp=timestamp,
                    on_delivery=on_delivery,
                )
            except BufferFull as error:
                # Full: wait for half of the queue to be taken, unless the time is over.
                seconds = _seconds_left(deadline)
                if seconds is not None and seconds <= 0:
                    raise RequestTimedOut(f"no room within {timeout:g} s: {error}") from error
                self._loop.call(self._handover.wait_room, timeout=seconds)

    def send_nowait(
        self,
        topic: str,
        value: GivenValue,
        *,
        key: GivenKey = None,
        headers: GivenHeaders = None,
        tags: GivenTags = None,
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """See `raftmq.Producer.send_nowait`. `on_delivery` is called in the loop's thread: it must
        not make blocking calls of this client.
        """
        self._loop.check_process()
        self._handover.check_open()
        check_topic(topic)
        value, key = checked_value(value), None if key is None else checked_key(key)
        size = size_of(value, key, checked_extras(headers, tags, partition))
        self._producer.check_size(size)
        # Checked in this thread, so that the caller gets the error, not the loop.
        if timestamp is not None:
            checked_timestamp(timestamp)
        named = {
            "key": key,
            "headers": headers,
            "tags": tags,
            "partition": partition,
            "timestamp": timestamp,
            "on_delivery": on_delivery,
        }
        delivery = Delivery(self._handover, is_claimed=on_delivery is not None)
        self._handover.put(Handed(delivery, size, (topic, value), named))
        return delivery

    def send_many(
        self,
        topic: str,
        rows: Iterable[Any],
        *,
        value: Callable[[Any], GivenValue] | None = None,
        key: Callable[[Any], GivenKey] | None = None,
        headers: Callable[[Any], GivenHeaders] | None = None,
        tags: Callable[[Any], GivenTags] | None = None,
        timestamp: Callable[[Any], int] | None = None,
        partition: int | None = None,
        progress: Progress = None,
        timeout: float | None = None,
    ) -> list[BatchMetadata]:
        """See `raftmq.Producer.send_many`.

        Rows are read in this thread, so they may come slowly; functions of a row are called in the
        loop's thread, and must not block.

        Raises:
            RequestTimedOut: after `timeout` seconds; some records may be sent. Indefinite.
        """

        async def run(rows: Iterable[Any] | AsyncIterable[Any]) -> list[BatchMetadata]:
            await self._handover.wait_taken()  # keeps the order with records handed in before
            return await self._producer.send_many(
                topic,
                rows,
                value=value,
                key=key,
                headers=headers,
                tags=tags,
                timestamp=timestamp,
                partition=partition,
                progress=progress,
            )

        # A generator must not block the loop's thread.
        if may_wait(rows):
            return Rows(self._loop, rows).feed(run, timeout=timeout)
        return self._loop.call(run, rows, timeout=timeout)

    def send_columns(
        self,
        topic: str,
        *,
        values: Sequence[GivenValue],
        keys: Sequence[GivenKey] | None = None,
        headers: Sequence[GivenHeaders] | None = None,
        tags: Sequence[GivenTags] | None = None,
        timestamps: Sequence[int] | None = None,
        partitions: Sequence[int] | None = None,
        progress: Progress = None,
        timeout: float | None = None,
    ) -> list[BatchMetadata]:
        """See `raftmq.Producer.send_columns`."""

        async def run() -> list[BatchMetadata]:
            await self._handover.wait_taken()  # as in `send_many`
            return await self._producer.send_columns(
                topic,
                values=values,
                keys=keys,
                headers=headers,
                tags=tags,
                timestamps=timestamps,
                partitions=partitions,
                progress=progress,
            )

        return self._loop.call(run, timeout=timeout)

    def enqueue_columns(
        self,
        topic: str,
        *,
        values: Sequence[GivenValue],
        keys: Sequence[GivenKey] | None = None,
        headers: Sequence[GivenHeaders] | None = None,
        tags: Sequence[GivenTags] | None = None,
        timestamps: Sequence[int] | None = None,
        partitions: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """See `raftmq.Producer.enqueue_columns`.

        Raises:
            RequestTimedOut: the buffer stayed full for `timeout` seconds; some records may be sent.
                Indefinite.
        """

        async def run() -> None:
            await self._handover.wait_taken()  # as in `send_many`
            await self._producer.enqueue_columns(
                topic,
                values=values,
                keys=keys,
                headers=headers,
                tags=tags,
                timestamps=timestamps,
                partitions=partitions,
            )

        self._loop.call(run, timeout=timeout)

    def flush(self, *, timeout: float | None = None) -> None:
        """See `raftmq.Producer.flush`."""

        async def run() -> None:
            await self._handover.wait_taken()
            await self._producer.flush()

        self._loop.call(run, timeout=timeout)
        self._handover.failures.raise_first()


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _seconds_left(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()
