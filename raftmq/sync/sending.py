"""The blocking calls that send records of a transaction: of one producer, or as a member.

Owns the order: what was handed in reaches the producer before its block ends. Parameters and
docstrings of the calls are written by `python -m tests.sync_source`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from raftmq.client.blocks import BlockingBlock
from raftmq.client.producer.batch import RecordMetadata
from raftmq.client.type_parameters import Generic, KeyT_contra, ValueT_contra
from raftmq.errors import RaftmqError
from raftmq.sync.block import Block
from raftmq.sync.handover import Delivery
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from types import TracebackType

    from raftmq.client.moments import GivenTimestamp
    from raftmq.client.producer.batch import BatchMetadata, OnDelivery
    from raftmq.client.producer.bulk import Progress
    from raftmq.client.producer.record import GivenTags
    from raftmq.client.scheduling.due_times import GivenDelay
    from raftmq.client.transactions.sending import TransactionSender as AsyncSender
    from raftmq.sync.handover import Handover
    from raftmq.sync.loop import Loop
    from raftmq.wire.batch.arguments import GivenHeaders

T = TypeVar("T")


class TransactionSender(BlockingBlock, Generic[ValueT_contra, KeyT_contra]):
    """What a program sends with."""

    _producer: Any  # a blocking Producer, whose module imports this one

    def __init__(
        self, loop: Loop, handover: Handover, sender: AsyncSender[ValueT_contra, KeyT_contra]
    ) -> None:
        self._loop, self._handover, self._sender = loop, handover, sender
        self._block = Block(loop, sender)
        self.version = sender.version

    def __repr__(self) -> str:
        return repr(self._sender)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._loop.is_ours:  # in a fork: the transaction is the other process's
            return
        refused = None
        try:
            self._loop.call(self._handover.wait_taken)
            self._handover.failures.raise_first()
        except RaftmqError as found:  # handed in, and not taken: it must not be committed
            refused = found
        # Ctrl-C while waiting: the transaction is aborted.
        except BaseException as found:
            self._block.close(found)
            raise
        self._block.close(error or refused)
        if refused is not None and error is None:
            raise refused

    def send(
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
        timeout: float | None = None,
    ) -> RecordMetadata:
        """Send one record of the transaction, and wait until it is acknowledged.

        Args:
            topic, value, key, headers, tags, partition, timestamp, delay, deliver_at, delay_level:
                see `Producer.send`. A delay runs from the call on; the record is delivered once
                it is due and the transaction is committed.
            timeout: seconds; None waits for ever.

        Returns:
            Partition, offset and timestamp of the record, which counts once the transaction is
            committed; offset -1 where `is_done`.

        Raises:
            InvalidRecord, MessageTooLarge: it cannot be sent as it is. Definite.
            TransactionAborted: it was given up, and with it all of the block. Definite.
            InvalidTransaction: outside of the block. Definite.
            RequestTimedOut: after `timeout` seconds; the end of the block waits for the record.
                Indefinite.
        """
        if self._sender._drops(topic):
            return RecordMetadata(topic, ABSENT if partition is None else partition, ABSENT, ABSENT)
        found: RecordMetadata = self._producer.send(
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
            timeout=timeout,
        )
        return found

    def enqueue(
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
        timeout: float | None = None,
    ) -> Delivery:
        """Accept one record of the transaction; waits only while the buffer is full.

        `on_delivery` is called in the loop's thread: it must not make blocking calls of this
        client.

        Args:
            topic, value, key, headers, tags, partition, timestamp, delay, deliver_at, delay_level:
                see `Producer.send`.
            on_delivery: see `Producer.enqueue`.
            timeout: seconds; None waits for ever.

        Returns:
            The outcome; its `result` waits for it. The end of the block waits for it in any case.

        Raises:
            InvalidRecord, MessageTooLarge: it cannot be sent as it is. Definite.
            TransactionAborted: a record was given up, and with it all of the block. Definite.
            InvalidTransaction: outside of the block. Definite.
            RequestTimedOut: as BufferExhausted: the buffer stayed full for `timeout` seconds, and
                the record was not accepted. Definite.
        """
        if self._sender._drops(topic):
            return self._dropped(topic, partition, on_delivery)
        found: Delivery = self._producer.enqueue(
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
            timeout=timeout,
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

        `on_delivery` is called in the loop's thread: it must not make blocking calls of this
        client.

        Args:
            topic, value, key, headers, tags, partition, timestamp, delay, deliver_at, delay_level:
                see `Producer.send`.
            on_delivery: see `Producer.enqueue`.

        Returns:
            The outcome; its `result` waits for it. The end of the block waits for it in any case.

        Raises:
            BufferFull: `buffer_memory` is used up; `enqueue` waits instead. Definite.
            InvalidRecord, MessageTooLarge: it cannot be sent as it is. Definite.
            TransactionAborted: a record was given up, and with it all of the block. Definite.
            InvalidTransaction: outside of the block. Definite.
        """
        if self._sender._drops(topic):
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

    def send_many(
        self,
        topic: str,
        rows: Iterable[Any],
        *,
        value: Callable[[Any], ValueT_contra | None] | None = None,
        key: Callable[[Any], KeyT_contra | None] | None = None,
        headers: Callable[[Any], GivenHeaders] | None = None,
        tags: Callable[[Any], GivenTags] | None = None,
        timestamp: Callable[[Any], GivenTimestamp] | None = None,
        partition: int | None = None,
        progress: Progress = None,
        total: int | None = None,
        timeout: float | None = None,
    ) -> list[BatchMetadata]:
        """Send many records of the transaction, and wait until they are acknowledged.

        Args:
            topic, rows, value, key, headers, tags, timestamp, partition, progress, total: see
                `Producer.send_many`.
            timeout: seconds; None waits for ever.

        Returns:
            Where they are in the log; nothing where `is_done`.

        Raises:
            InvalidRecord: a row cannot be sent. Definite.
            TransactionAborted: a record was given up, and with it all of the block. Definite.
            InvalidTransaction: outside of the block. Definite.
            RequestTimedOut: after `timeout` seconds; some records may be sent. Indefinite.
        """
        if self._sender._drops(topic, 0):
            self._pass_over(rows)
            return []
        found: list[BatchMetadata] = self._producer.send_many(
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
            timeout=timeout,
        )
        return found

    def send_columns(
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
        timeout: float | None = None,
    ) -> list[BatchMetadata]:
        """Send parallel columns in the transaction, and wait; see `send_many`.

        Args:
            topic, values, keys, headers, tags, timestamps, partitions, progress: see
                `Producer.send_columns`.
            timeout: seconds; None waits for ever.

        Returns:
            See `send_many`.

        Raises:
            InvalidRecord: columns of different lengths, or an item that cannot be sent. Definite.
            RaftmqError: see `send_many`.
            RequestTimedOut: after `timeout` seconds; some records may be sent. Indefinite.
        """
        return self._call(
            lambda: self._sender.send_columns(
                topic,
                values=values,
                keys=keys,
                headers=headers,
                tags=tags,
                timestamps=timestamps,
                partitions=partitions,
                progress=progress,
            ),
            timeout=timeout,
        )

    def enqueue_columns(
        self,
        topic: str,
        *,
        values: Sequence[ValueT_contra | None],
        keys: Sequence[KeyT_contra | None] | None = None,
        headers: Sequence[GivenHeaders] | None = None,
        tags: Sequence[GivenTags] | None = None,
        timestamps: Sequence[GivenTimestamp] | None = None,
        partitions: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Accept parallel columns, waiting only while the buffer is full. The end of the block
        waits until they are sent.

        Args:
            topic, values, keys, headers, tags, timestamps, partitions: see `send_columns`.
            timeout: seconds; None waits for ever.

        Raises:
            InvalidRecord: columns of different lengths, or an item that cannot be sent. Definite.
            TransactionAborted: a record was given up, and with it all of the block. Definite.
            InvalidTransaction: outside of the block. Definite.
            RequestTimedOut: the buffer stayed full for `timeout` seconds; some records may be sent.
                Indefinite.
        """
        self._call(
            lambda: self._sender.enqueue_columns(
                topic,
                values=values,
                keys=keys,
                headers=headers,
                tags=tags,
                timestamps=timestamps,
                partitions=partitions,
            ),
            timeout=timeout,
        )

    @property
    def is_done(self) -> bool:
        """Its version was committed before: what is sent in it is dropped."""
        return self._ask(lambda: self._sender.is_done)

    def _pass_over(self, rows: Iterable[Any]) -> None:
        """Rows of what is dropped: nobody needs to read them."""

    def _dropped(
        self, topic: str, partition: int | None, on_delivery: OnDelivery | None
    ) -> Delivery:
        delivery = Delivery(self._handover, is_claimed=on_delivery is not None)
        delivery._settle(self._sender._dropped(topic, partition, on_delivery))
        return delivery

    def _call(self, call: Callable[[], Awaitable[T]], *, timeout: float | None = None) -> T:
        async def run() -> T:
            # Keeps the order with records handed in before.
            await self._handover.wait_taken()
            return await call()

        return self._loop.call(run, timeout=timeout)

    def _ask(self, ask: Callable[[], T]) -> T:
        return self._loop.evaluate(ask)
