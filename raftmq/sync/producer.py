"""Blocking producer: send, enqueue, send_many, flush from any thread, with timeouts.

Checks a record in the caller's thread, so that its errors show there, and hands it over
(`handover.py`). Bulk calls wait until earlier records were taken, which keeps the order.
Parameters and docstrings of the calls are written by `python -m tests.sync_source`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from raftmq.client.administration.checks import check_topic
from raftmq.client.blocks import BlockingBlock, warn_unclosed
from raftmq.client.producer.delivery import check_callback
from raftmq.client.producer.record import (
    checked_extras,
    checked_key,
    checked_value,
    given_timestamp,
    size_of,
)
from raftmq.client.scheduling.due_times import check_level, due_ms_of
from raftmq.client.type_parameters import Generic, KeyT_contra, ValueT_contra
from raftmq.errors import BufferExhausted, BufferFull, Closed, RequestTimedOut
from raftmq.sync.block import Block
from raftmq.sync.handover import Delivery, Handed, Handover, Rows, may_wait
from raftmq.sync.loop import LoopCall, limit_of
from raftmq.sync.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from raftmq.client.moments import GivenTimestamp
    from raftmq.client.producer.batch import BatchMetadata, OnDelivery, RecordMetadata
    from raftmq.client.producer.bulk import Progress
    from raftmq.client.producer.options import ProducerOptions
    from raftmq.client.producer.producer import Producer as AsyncProducer
    from raftmq.client.producer.record import GivenTags
    from raftmq.client.producer.statistics import Statistics
    from raftmq.client.scheduling.due_times import GivenDelay
    from raftmq.sync.loop import Loop, TimeLimit
    from raftmq.wire.batch.arguments import GivenHeaders

T = TypeVar("T")


BUFFER_BYTES_MIN = 64 << 10  # the smallest buffer_memory that a producer accepts


def shares_of_buffer(options: ProducerOptions) -> tuple[int, int]:
    """A quarter of the buffer, in bytes, is for records that wait for the loop's thread, the rest
    for the producer in the loop; `buffer_memory` bounds both together.
    """
    handover_bytes = options.buffer_memory // 4
    rest = options.buffer_memory - handover_bytes
    return handover_bytes, max(rest, options.batch_size, options.max_request_size, BUFFER_BYTES_MIN)


class Producer(BlockingBlock, Generic[ValueT_contra, KeyT_contra]):
    """The calls of `raftmq.Producer`, blocking: `with client.producer(...) as producer:`.

    `timeout` is in seconds; None waits as long as it takes. It may be used by several threads.
    """

    def __init__(
        self,
        loop: Loop,
        producer: AsyncProducer[ValueT_contra, KeyT_contra],
        handover_bytes_max: int,
        *,
        handover: Handover | None = None,
    ) -> None:
        """`handover`: of one that is open in the loop, and not opened here: where records go."""
        self._loop, self._producer = loop, producer
        self._block = Block(loop, producer)
        self._was_opened = False
        self._handover = handover or Handover(loop, producer, handover_bytes_max)
        # Taken from the inner one, or it would serialize single records once more.
        self._serializers, producer._serializers = producer._serializers, None

    # A default, as the name may be gone when the interpreter ends. A fork has nothing to close.
    def __del__(self, warn: Callable[..., None] = warn_unclosed) -> None:
        if self._block.is_open and self._loop.is_ours:
            undelivered = self._handover.count_undelivered() + self._producer._undelivered()
            if undelivered:  # else it is enough that its client was closed
                warn(self, undelivered)

    @property
    def statistics(self) -> Statistics:
        """Counts of records and requests so far."""
        return self._producer.statistics

    def __repr__(self) -> str:
        return repr(self._producer)

    def open(self) -> Self:
        """Open it as `with` does, until `close()`. Raises as entering the block does."""
        return self.__enter__()

    def close(self) -> None:
        """Wait until everything is delivered, as the end of a block does, and raise the first
        failure that nothing else has reported. Does nothing if it is not open.
        """
        if self._block.is_open:
            self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        if self._was_opened:  # its tasks cannot be started again
            raise Closed("a producer is opened once: make another one")
        self._was_opened = True
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
        """Send one record, and wait until it is as safe as `acks` promises.

        Ending the wait does not take the record back. With a name, success counts only once the
        block has ended: a skipped record (offset -1) may differ from the one in the log.

        Args:
            topic: its name.
            value: bytes, or text, which is sent in UTF-8 and comes back as bytes; what
                `value_serializer` takes, if there is one; None for a record without a value.
            key: bytes, text or a whole number, and comes back as such; what `key_serializer` takes,
                if there is one. Records with one key stay in order, in one partition.
            headers: a mapping, or pairs, of names and values (bytes, text or None), for the program
                that reads the record.
            tags: words that the record bears, 16 at most, of 1 to 255 bytes each. Consumers may ask
                for records by them.
            partition: in place of the partitioner's choice.
            timestamp: milliseconds since 1970-01-01 UTC, or a datetime with a time zone; None: now.
            delay: seconds, or a timedelta: consumers get the record so long after this call.
            deliver_at: the moment from which on they get it, as `timestamp`; at once, if it is
                over. Due times are rounded up to 0.1 s; not in topics of Kafka's format.
            delay_level: number of a delay in the topic's delay.levels, from 1 on. One of the three.
            timeout: seconds; None waits for ever.

        Returns:
            Partition, offset and timestamp of the record; with a delay also its `schedule_handle`.

        Raises:
            InvalidRecord, MessageTooLarge: it cannot be sent as it is. Definite.
            DeliveryTimedOut: `delivery_timeout_ms` has passed and it was not appended. Definite.
            OutcomeUnknown: it may have been appended. Indefinite.
            Closed: the producer is not open, or was ended. Definite.
            RaftmqError: the broker's refusal; `error.definite` says which.
            RequestTimedOut: after `timeout` seconds; the record may be sent nevertheless.
                Indefinite, unless it is BufferExhausted, as from `enqueue`.
        """
        limit = limit_of(timeout)
        delivery = self._accepted(
            lambda: self.send_nowait(
                topic, value, key=key, headers=headers, tags=tags, partition=partition,
                timestamp=timestamp, delay=delay, deliver_at=deliver_at, delay_level=delay_level,
            ),
            limit,
        )  # fmt: skip
        try:
            return delivery._result(limit)
        except RequestTimedOut as error:
            if delivery.is_done:  # the outcome of the record
                raise
            raise RequestTimedOut(f"{error}{self._why_waiting(topic)}").at(topic) from None

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
        """Accept one record; waits only while the buffer (`buffer_memory`) is full, and for the
        levels of the topic with its first `delay_level`. See `send_nowait`.

        `on_delivery` is called in the loop's thread: it must not make blocking calls of this
        client.

        Args:
            topic, value, key, headers, tags, partition, timestamp, delay, deliver_at, delay_level:
                see `send`.
            on_delivery: called with (error, metadata), one of which is None, when the outcome is
                known. What it raises goes to the log, or to stderr where there is none.
            timeout: seconds; None waits for ever.

        Returns:
            The outcome; its `result` waits for it.

        Raises:
            InvalidRecord, MessageTooLarge: it cannot be sent as it is. Definite.
            Closed: the producer is not open, or was ended. Definite.
            RequestTimedOut: as BufferExhausted: the buffer stayed full for `timeout` seconds, and
                the record was not accepted. Definite.
        """
        return self._accepted(
            lambda: self.send_nowait(
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
            ),
            limit_of(timeout),
        )

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
        """Accept one record without waiting. See `send`.

        `on_delivery` is called in the loop's thread: it must not make blocking calls of this
        client.

        Args:
            topic, value, key, headers, tags, partition, timestamp, delay, deliver_at, delay_level:
                see `send`; `delay_level` once a call that waits has learnt the topic's levels.
            on_delivery: called with (error, metadata), one of which is None, when the outcome is
                known; with a name, success counts only once the block has ended. What it raises
                goes to the log, or to stderr where there is none.

        Returns:
            The outcome; its `result` waits for it.

        Raises:
            BufferFull: `buffer_memory` is used up; `enqueue` waits instead. Definite.
            InvalidRecord, MessageTooLarge: it cannot be sent as it is. Definite.
            Closed: the producer is not open, or was ended. Definite.
        """
        self._loop.check_process()
        self._handover.check_open()
        self._producer._check_transaction()
        check_topic(topic)
        if self._serializers is not None:  # in this thread, so that their errors show here
            value, key = self._serializers.record(value, key)
        sent, sent_key = checked_value(value), None if key is None else checked_key(key)
        size = size_of(sent, sent_key, checked_extras(headers, tags, partition))
        self._producer._check_size(size)
        # Checked in this thread, so that the caller gets the error, not the loop.
        if timestamp is not None:
            given_timestamp(timestamp)
        if delay_level is not None:
            check_level(delay_level, delay, deliver_at)
        check_callback(on_delivery)
        named = {
            "key": sent_key,
            "headers": headers,
            "tags": tags,
            "partition": partition,
            "timestamp": timestamp,
            "on_delivery": on_delivery,
        }
        if delay is not None or deliver_at is not None:  # it runs from this call on
            named["deliver_at"] = due_ms_of(delay, deliver_at, now_ms=self._producer._now_ms())
        elif delay_level is not None:
            named["delay_level"] = delay_level
        delivery = Delivery(self._handover, is_claimed=on_delivery is not None)
        self._handover.put(Handed(delivery, size, (topic, sent), named))
        return delivery

    def _why_waiting(self, topic: str) -> str:
        known = self._producer._accumulator.topics.get(topic)
        return "" if known is None else known.why_waiting()

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
        """Send many records, and wait until all are as safe as `acks` promises.

        The fast path: no object is kept for a single record. Memory stays within `buffer_memory`,
        however many rows there are. Records with a delay are sent one by one, by `enqueue`.

        Rows are read in this thread, so they may come slowly; functions of a row are called in the
        loop's thread, and must not block.

        Args:
            topic: its name.
            rows: any number of them; each is a value, as for `send`, unless `value` says what to
                send of a row.
            value, key, headers, tags, timestamp: functions of a row, whose results are as for
                `send`.
            partition: for all of them, in place of the partitioner's choice.
            progress: True for a bar on stderr, or a function of the number of records accepted so
                far.
            total: number of rows, for the bar, where `rows` does not say it, as a generator.
            timeout: seconds; None waits for ever.

        Returns:
            Where they are in the log: one result for each run of records that were sent together.

        Raises:
            InvalidRecord: a row cannot be sent; a note says how many before it were. Or `rows` is
                a single text or bytes. Definite.
            RaftmqError: the first failure, once all are settled; a note says how many were
                delivered. Definite or not: `error.definite`.
            RequestTimedOut: after `timeout` seconds; some records may be sent. Indefinite.
        """

        async def run(rows: Iterable[Any] | AsyncIterable[Any]) -> list[BatchMetadata]:
            await self._handover.wait_taken()  # as in `_call`
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
                total=total,
            )

        # A generator must not block the loop's thread.
        if may_wait(rows):
            return Rows(self._loop, rows).feed(run, timeout=timeout)
        return self._loop.call(run, rows, timeout=timeout)

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
        """Send parallel columns, as Arrow and Spark hold them, and wait; see `send_many`.

        Args:
            topic: its name.
            values, keys, headers, tags, timestamps: lists or Arrow arrays of one length, with items
                as for `send`.
            partitions: one for each record, in place of the partitioner's choice.
            progress: see `send_many`.
            timeout: seconds; None waits for ever.

        Returns:
            See `send_many`.

        Raises:
            InvalidRecord: columns of different lengths, or an item that cannot be sent. Definite.
            RaftmqError: see `send_many`.
            RequestTimedOut: after `timeout` seconds; some records may be sent. Indefinite.
        """
        return self._call(
            lambda: self._producer.send_columns(
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
        """Accept parallel columns, waiting only while the buffer is full. `flush`, or the end of
        the block, waits until they are sent, and raises what has failed.

        Args:
            topic, values, keys, headers, tags, timestamps, partitions: see `send_columns`.
            timeout: seconds; None waits for ever.

        Raises:
            InvalidRecord: columns of different lengths, or an item that cannot be sent. Definite.
            RequestTimedOut: the buffer stayed full for `timeout` seconds; some records may be sent.
                Indefinite.
        """
        self._call(
            lambda: self._producer.enqueue_columns(
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

    def flush(self, *, timeout: float | None = None) -> None:
        """Wait until the outcome of all records accepted so far is known, without linger. With a
        name, see `send`.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            RaftmqError: the first failure that neither a `result` nor `on_delivery` has reported; a
                note says how many records there were. `error.definite` says whether they were
                certainly not appended.
            RequestTimedOut: after `timeout` seconds; the records are sent nevertheless. Indefinite.
        """
        self._call(self._producer.flush, timeout=timeout)
        self._handover.failures.raise_first()

    def transaction(
        self, *, version: int | None = None, count: int | None = None, wait_visible: bool = False
    ) -> Transaction[ValueT_contra, KeyT_contra]:
        """A transaction: `with producer.transaction() as tx:` all of it counts, or nothing.

        Args:
            version: a number that rises from one transaction of the id to the next: each is
                committed once, however often and by which process it is tried; see
                `Transaction.is_done`. None: it has none.
            count: how many rows the version has, to be told where it was done before; None: the
                records that are sent in it.
            wait_visible: leave the block only once readers of committed records get all of it.

        Returns:
            The transaction, to be entered; one at a time.

        Raises:
            InvalidTransaction: the producer has neither a transaction_id nor transactions=True, or
                a number is not 0 or more. Definite.
        """
        self._loop.check_process()
        inner = self._producer.transaction(version=version, count=count, wait_visible=wait_visible)
        return Transaction(self._loop, self._handover, self, inner)

    def _accepted(self, attempt: Callable[[], Delivery], limit: TimeLimit | None) -> Delivery:
        while True:
            try:
                return attempt()
            except BufferFull as error:
                if not self._wait_room(limit):
                    raise BufferExhausted(f"no room within {limit}: {error}") from error

    def _wait_room(self, limit: TimeLimit | None) -> bool:
        """Wait for half of the queue to be taken; False: the time is over."""
        # Without a wait, callbacks in the loop's thread may try, too.
        if limit is not None and limit.is_over:
            return False
        try:
            self._loop.call(self._handover.wait_room, timeout=limit)
        except RequestTimedOut:
            return False
        return True

    def _call(self, call: Callable[[], Awaitable[T]], *, timeout: float | None) -> T:
        async def run() -> T:
            # Keeps the order with records handed in before.
            await self._handover.wait_taken()
            return await call()

        return self._loop.call(run, timeout=timeout)
