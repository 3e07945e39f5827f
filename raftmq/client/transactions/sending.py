"""The calls that send records of a transaction, or drop them where it was done before.

Owns what `Transaction`, of one producer, and `Member`, of a transaction of many producers, have in
common: which calls there are, and that they send nothing outside of the block, nor of a version
that was committed before.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from raftmq.client.producer.batch import BatchMetadata, ProducerBatch, RecordMetadata
from raftmq.client.producer.delivery import Delivery, call_program, check_callback
from raftmq.client.type_parameters import Generic, KeyT_contra, ValueT_contra
from raftmq.errors import InvalidTransaction
from raftmq.wire.bodies import ABSENT, NUMBER_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable, Sequence
    from types import TracebackType

    from raftmq.client.moments import GivenTimestamp
    from raftmq.client.producer.batch import OnDelivery
    from raftmq.client.producer.bulk import Progress
    from raftmq.client.producer.record import GivenTags
    from raftmq.client.scheduling.due_times import GivenDelay
    from raftmq.wire.batch.arguments import GivenHeaders

logger = logging.getLogger("raftmq.client")


class TransactionSender(Generic[ValueT_contra, KeyT_contra]):
    """An `async with` block in which a program sends."""

    _producer: Any  # a Producer, whose module imports this one

    def __init__(self, transaction_id: str, version: int | None) -> None:
        self._transaction_id, self.version = transaction_id, version
        self._is_on = self._is_done = self._was_told = False

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raise NotImplementedError

    async def send(
        self,
        topic: str,
        value: ValueT_contra | None,
        *,
        key: KeyT_contra | None = None,
        headers: GivenHeaders = None,
        tags: GivenTags = None,
        partition: int | None = None,
        timestamp: GivenTimestamp | None = None,
        delay: GivenDelay | None = None,
        deliver_at: GivenTimestamp | None = None,
        delay_level: int | None = None,
    ) -> RecordMetadata:
        """Send one record of the transaction, and wait until it is acknowledged.

        Args:
            topic, value, key, headers, tags, partition, timestamp, delay, deliver_at, delay_level:
                see `Producer.send`. A delay runs from the call on; the record is delivered once
                it is due and the transaction is committed.

        Returns:
            Partition, offset and timestamp of the record, which counts once the transaction is
            committed; offset -1 where `is_done`.

        Raises:
            InvalidRecord, MessageTooLarge: it cannot be sent as it is. Definite.
            TransactionAborted: it was given up, and with it all of the block. Definite.
            InvalidTransaction: outside of the block. Definite.
        """
        if self._drops(topic):
            return RecordMetadata(topic, _partition(partition), ABSENT, ABSENT)
        found: RecordMetadata = await self._producer.send(
            topic,
            value,
            key=key,
            headers=headers,
            tags=tags,
            partition=partition,
            timestamp=timestamp,
            delay=delay,
            deliver_at=deliver_at,
            delay_level=delay_level,
        )
        return found

    async def enqueue(
        self,
        topic: str,
        value: ValueT_contra | None,
        *,
        key: KeyT_contra | None = None,
        headers: GivenHeaders = None,
        tags: GivenTags = None,
        partition: int | None = None,
        timestamp: GivenTimestamp | None = None,
        delay: GivenDelay | None = None,
        deliver_at: GivenTimestamp | None = None,
        delay_level: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Accept one record of the transaction; waits only while the buffer is full.

        Args:
            topic, value, key, headers, tags, partition, timestamp, delay, deliver_at, delay_level:
                see `Producer.send`.
            on_delivery: see `Producer.enqueue`.

        Returns:
            The outcome, to be awaited. The end of the block waits for it in any case.

        Raises:
            InvalidRecord, MessageTooLarge: it cannot be sent as it is. Definite.
            TransactionAborted: a record was given up, and with it all of the block. Definite.
            InvalidTransaction: outside of the block. Definite.
        """
        if self._drops(topic):
            return self._dropped(topic, partition, on_delivery)
        found: Delivery = await self._producer.enqueue(
            topic,
            value,
            key=key,
            headers=headers,
            tags=tags,
            partition=partition,
            timestamp=timestamp,
            delay=delay,
            deliver_at=deliver_at,
            delay_level=delay_level,
            on_delivery=on_delivery,
        )
        return found

    def send_nowait(
        self,
        topic: str,
        value: ValueT_contra | None,
        *,
        key: KeyT_contra | None = None,
        headers: GivenHeaders = None,
        tags: GivenTags = None,
        partition: int | None = None,
        timestamp: GivenTimestamp | None = None,
        delay: GivenDelay | None = None,
        deliver_at: GivenTimestamp | None = None,
        delay_level: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Accept one record of the transaction without waiting.

        Args:
            topic, value, key, headers, tags, partition, timestamp, delay, deliver_at, delay_level:
                see `Producer.send`.
            on_delivery: see `Producer.enqueue`.

        Returns:
            The outcome, to be awaited. The end of the block waits for it in any case.

        Raises:
            BufferFull: `buffer_memory` is used up; `enqueue` waits instead. Definite.
            InvalidRecord, MessageTooLarge: it cannot be sent as it is. Definite.
            TransactionAborted: a record was given up, and with it all of the block. Definite.
            InvalidTransaction: outside of the block. Definite.
        """
        if self._drops(topic):
            return self._dropped(topic, partition, on_delivery)
        found: Delivery = self._producer.send_nowait(
            topic,
            value,
            key=key,
            headers=headers,
            tags=tags,
            partition=partition,
            timestamp=timestamp,
            delay=delay,
            deliver_at=deliver_at,
            delay_level=delay_level,
            on_delivery=on_delivery,
        )
        return found

    async def send_many(
        self,
        topic: str,
        rows: Iterable[Any] | AsyncIterable[Any],
        *,
        value: Callable[[Any], ValueT_contra | None] | None = None,
        key: Callable[[Any], KeyT_contra | None] | None = None,
        headers: Callable[[Any], GivenHeaders] | None = None,
        tags: Callable[[Any], GivenTags] | None = None,
        timestamp: Callable[[Any], GivenTimestamp] | None = None,
        partition: int | None = None,
        progress: Progress = None,
        total: int | None = None,
    ) -> list[BatchMetadata]:
        """Send many records of the transaction, and wait until they are acknowledged.

        Args:
            topic, rows, value, key, headers, tags, timestamp, partition, progress, total: see
                `Producer.send_many`.

        Returns:
            Where they are in the log; nothing where `is_done`.

        Raises:
            InvalidRecord: a row cannot be sent. Definite.
            TransactionAborted: a record was given up, and with it all of the block. Definite.
            InvalidTransaction: outside of the block. Definite.
        """
        if self._drops(topic, 0):
            await self._pass_over(rows)
            return []
        found: list[BatchMetadata] = await self._producer.send_many(
            topic,
            rows,
            value=value,
            key=key,
            headers=headers,
            tags=tags,
            timestamp=timestamp,
            partition=partition,
            progress=progress,
            total=total,
        )
        return found

    async def send_columns(
        self,
        topic: str,
        *,
        values: Sequence[ValueT_contra | None],
        keys: Sequence[KeyT_contra | None] | None = None,
        headers: Sequence[GivenHeaders] | None = None,
        tags: Sequence[GivenTags] | None = None,
        timestamps: Sequence[GivenTimestamp] | None = None,
        partitions: Sequence[int] | None = None,
        progress: Progress = None,
    ) -> list[BatchMetadata]:
        """Send parallel columns in the transaction, and wait; see `send_many`.

        Args:
            topic, values, keys, headers, tags, timestamps, partitions, progress: see
                `Producer.send_columns`.

        Returns:
            See `send_many`.

        Raises:
            InvalidRecord: columns of different lengths, or an item that cannot be sent. Definite.
            RaftmqError: see `send_many`.
        """
        if self._drops(topic, 0):
            self._on_dropped(len(values))
            return []
        found: list[BatchMetadata] = await self._producer.send_columns(
            topic,
            values=values,
            keys=keys,
            headers=headers,
            tags=tags,
            timestamps=timestamps,
            partitions=partitions,
            progress=progress,
        )
        return found

    async def enqueue_columns(
        self,
        topic: str,
        *,
        values: Sequence[ValueT_contra | None],
        keys: Sequence[KeyT_contra | None] | None = None,
        headers: Sequence[GivenHeaders] | None = None,
        tags: Sequence[GivenTags] | None = None,
        timestamps: Sequence[GivenTimestamp] | None = None,
        partitions: Sequence[int] | None = None,
    ) -> None:
        """Accept parallel columns, waiting only while the buffer is full. The end of the block
        waits until they are sent.

        Args:
            topic, values, keys, headers, tags, timestamps, partitions: see `send_columns`.

        Raises:
            InvalidRecord: columns of different lengths, or an item that cannot be sent. Definite.
            TransactionAborted: a record was given up, and with it all of the block. Definite.
            InvalidTransaction: outside of the block. Definite.
        """
        if self._drops(topic, 0):
            self._on_dropped(len(values))
            return
        await self._producer.enqueue_columns(
            topic,
            values=values,
            keys=keys,
            headers=headers,
            tags=tags,
            timestamps=timestamps,
            partitions=partitions,
        )

    @property
    def is_done(self) -> bool:
        """Its version was committed before: what is sent in it is dropped."""
        return self._is_done

    # -- within ----------------------------------------------------------------------------

    def _check_on(self) -> None:
        """Raises InvalidTransaction: its block was not entered, or has ended."""
        raise NotImplementedError

    def _drops(self, topic: str, count: int = 1) -> bool:
        """Whether what is sent, so many records, is to be dropped. Any thread may call this.

        Raises:
            InvalidTransaction: outside of the block.
        """
        self._check_on()
        if not self._is_done:
            return False
        self._on_dropped(count)
        if not self._was_told:
            self._was_told = True
            logger.info(
                "version committed before, its records are dropped: transaction=%s version=%s"
                " topic=%s",
                self._transaction_id,
                self.version,
                topic,
            )
        return True

    def _on_dropped(self, count: int) -> None:
        """So many records were dropped."""

    async def _pass_over(self, rows: Iterable[Any] | AsyncIterable[Any]) -> None:
        """Rows of what is dropped: nobody needs to read them."""

    def _dropped(
        self, topic: str, partition: int | None, on_delivery: OnDelivery | None
    ) -> Delivery:
        """Of a record that is not sent: done, without a place in the log."""
        check_callback(on_delivery)
        number = _partition(partition)
        batch = ProducerBatch(topic, number, 0.0)
        batch.add(b"", None, ABSENT, 0)
        batch.settle(BatchMetadata(topic, number, ABSENT, 1, is_skipped=True))
        if on_delivery is not None:
            call_program(partial(on_delivery, None, batch.metadata_of(0)))
        delivery: Delivery = self._producer._delivery_kind(batch, 0)
        return delivery


def check_number(name: str, given: int) -> None:
    """Raises InvalidTransaction: not a number that the wire can carry."""
    # True is an int for Python
    is_number = isinstance(given, int) and not isinstance(given, bool)
    if not (is_number and 0 <= given <= NUMBER_MAX):
        raise InvalidTransaction(f"{name} = {given!r}: expected a whole number, 0 to {NUMBER_MAX}")


def check_version(version: int | None, count: int | None, *, has_id: bool) -> None:
    """`has_id`: the program has named the transaction id.

    Raises:
        InvalidTransaction: not a number that the wire can carry, or nobody could know the version.
    """
    for name, given in (("version", version), ("count", count)):
        if given is not None:
            check_number(name, given)
    if version is not None and not has_id:
        raise InvalidTransaction(
            f"version = {version} without a transaction_id: with transactions=True each producer"
            " has an id of its own, so no other one knows what was committed; give it a"
            " transaction_id that the same part of the program has again after a restart"
        )


def _partition(given: int | None) -> int:
    return ABSENT if given is None else given
