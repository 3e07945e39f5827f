"""`Producer`: the public calls that accept records, with their checks and back-pressure.

Kafka: KafkaProducer. A record is only checked and put into its batch here; `dispatcher.py` sends
it. Also owns the records that wait for the metadata of their topic.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Self

import anyio.lowlevel

from raftmq.client.administration.checks import check_topic
from raftmq.client.openable import Openable
from raftmq.client.producer.bulk import Bulk
from raftmq.client.producer.delivery import Delivery, PendingDelivery, check_callback
from raftmq.client.producer.dispatcher import Dispatcher, PendingRecord
from raftmq.client.producer.record import (
    NO_EXTRAS,
    RECORD_OVERHEAD_BYTES,
    checked_extras,
    checked_key,
    checked_value,
    given_timestamp,
    size_of,
)
from raftmq.client.scheduling.due_times import DueTimes
from raftmq.client.transactions.machine import TransactionMachine
from raftmq.client.transactions.sending import check_version
from raftmq.client.transactions.session import TransactionSession
from raftmq.client.transactions.transaction import Transaction
from raftmq.client.type_parameters import Generic, KeyT_contra, ValueT_contra
from raftmq.errors import BufferFull, Closed, InvalidTransaction, MessageTooLarge
from raftmq.wire.batch.compression import compress

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable, Sequence
    from random import Random
    from types import TracebackType
    from typing import Any, TypeAlias

    from raftmq.client.moments import GivenTimestamp
    from raftmq.client.producer.accumulator import TopicQueues
    from raftmq.client.producer.batch import BatchMetadata, OnDelivery, RecordMetadata
    from raftmq.client.producer.bulk import Progress
    from raftmq.client.producer.options import ProducerOptions
    from raftmq.client.producer.record import Extras, GivenTags, Unchecked
    from raftmq.client.producer.statistics import Statistics
    from raftmq.client.routing.cluster import Cluster
    from raftmq.client.scheduling.due_times import GivenDelay
    from raftmq.client.transactions.records import TransactionRecords
    from raftmq.wire.batch.arguments import GivenHeaders
    from raftmq.wire.batch.columns import Key, Value

    _Record: TypeAlias = tuple[Value, Key, int, int, Extras]  # timestamp and size in the middle


# -- Producer -------------------------------------------------------------------------------------


class Producer(Openable, Generic[ValueT_contra, KeyT_contra]):
    """Sends records: `async with client.producer(...) as producer:`.

    Leaving the block waits until everything is delivered, and raises the first failure that no
    `await` and no `on_delivery` has reported. When the block is cancelled, records that were not
    sent yet are given up. With a name, leaving raises ReplayMismatch where the program sent fewer
    records than the log has under this generation.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        *,
        random: Random,
        now_ms: Callable[[], int],
        member: TransactionRecords | None = None,
    ) -> None:
        """Made by `Client.producer`, or as the part of a `Member` that sends.

        Args:
            now_ms: timestamp of records without one, in milliseconds since 1970-01-01 UTC.
            member: its one transaction, which others begin and end.

        Raises:
            UnsupportedCompression: the codec's package is not installed.
        """
        # Fails here rather than with the first batch, if the codec is not installed.
        compress(options.codec, b"")
        self._cluster, self._options, self._now_ms = cluster, options, now_ms
        self._dispatcher = Dispatcher(cluster, options, random, member)
        self._accumulator = self._dispatcher.accumulator
        self._buffer_pool = self._dispatcher.buffer_pool
        self._size_max = options.max_request_size + RECORD_OVERHEAD_BYTES
        self._was_opened = self._is_open = False
        self._named = self._accumulator.named
        machine = self._accumulator.machine
        self._session: TransactionSession | None = None
        if isinstance(machine, TransactionMachine):
            self._session = TransactionSession(cluster, machine, self._dispatcher, options)
        self._serializers = options.serializers
        self._delivery_kind = Delivery._of(cluster.check_loop)
        self._pending_kind = PendingDelivery._of(cluster.check_loop)
        self._callback: OnDelivery | None = None  # the `on_delivery` that was checked last
        self._due_times = DueTimes(cluster, now_ms, timeout_seconds=options.delivery_seconds)
        self._is_filled = False  # a batch was filled since `enqueue` last yielded to other tasks

    @property
    def statistics(self) -> Statistics:
        """Counts of records and requests so far."""
        return self._dispatcher.statistics

    def __repr__(self) -> str:
        options = self._options
        given = [
            f"{field.name}={value!r}"
            for field in fields(options)
            if (value := getattr(options, field.name)) != field.default or field.name == "acks"
        ]
        return f"<Producer with {', '.join(given)}, {self._state(was_opened=self._was_opened)}>"

    async def __aenter__(self) -> Self:
        if self._was_opened:  # its tasks cannot be started again
            raise Closed("a producer is opened once: make another one")
        self._was_opened = True
        await self._dispatcher.open()
        if self._session is not None:
            try:
                # Now, so that a transaction of the process before ends at once.
                await self._session.open()
            except BaseException as error:  # also when cancelled: the tasks are running
                await self._dispatcher.close(type(error), error, error.__traceback__)
                raise
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._session is not None:
                await self._session.close()
            # A cancelled block does not wait for deliveries; one with an error of the program does.
            if error is None or isinstance(error, Exception):
                # Ends when every batch is settled, at the latest by delivery_timeout_ms. Callbacks
                # may still send.
                await self._dispatcher.wait_delivered(of_later=True)
        finally:
            self._is_open = False
            await self._dispatcher.close(kind, error, traceback)
        if error is None:  # an error of the program must not be hidden by one of ours
            self._dispatcher.failures.raise_first()
            self._accumulator.check_replayed()

    # -- one record ------------------------------------------------------------------------

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
        """Send one record, and wait until it is as safe as `acks` promises.

        Cancelling the wait does not take the record back. With a name, success counts only once the
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

        Returns:
            Partition, offset and timestamp of the record; with a delay also its `schedule_handle`.

        Raises:
            InvalidRecord, MessageTooLarge: it cannot be sent as it is. Definite.
            DeliveryTimedOut: `delivery_timeout_ms` has passed and it was not appended. Definite.
            OutcomeUnknown: it may have been appended. Indefinite.
            Closed: the producer is not open, or was ended. Definite.
            RaftmqError: the broker's refusal; `error.definite` says which.
        """
        delivery = await self.enqueue(
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
        return await delivery

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
        """Accept one record; waits only while the buffer (`buffer_memory`) is full, and for the
        levels of the topic with its first `delay_level`. See `send_nowait`.

        Args:
            topic, value, key, headers, tags, partition, timestamp, delay, deliver_at, delay_level:
                see `send`.
            on_delivery: called with (error, metadata), one of which is None, when the outcome is
                known. What it raises goes to the log, or to stderr where there is none.

        Returns:
            The outcome, to be awaited.

        Raises:
            InvalidRecord, MessageTooLarge: it cannot be sent as it is. Definite.
            Closed: the producer is not open, or was ended. Definite.
        """
        sent, sent_key, extras, size = self._checked(value, key, headers, tags, partition)
        if delay is not None or deliver_at is not None or delay_level is not None:
            due_ms = await self._due_ms(topic, delay, deliver_at, delay_level)
            extras = extras._replace(due_ms=due_ms)
        if self._is_filled:  # once per batch, so that the sending task gets to run
            self._is_filled = False
            await anyio.lowlevel.checkpoint()
            self._check_open()
        if not self._buffer_pool.take_now(size):
            await self._wait_memory(size)
        return self._take(topic, sent, sent_key, extras, timestamp, size, on_delivery)

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

        Args:
            topic, value, key, headers, tags, partition, timestamp, delay, deliver_at, delay_level:
                see `send`; `delay_level` once a call that waits has learnt the topic's levels.
            on_delivery: called with (error, metadata), one of which is None, when the outcome is
                known; with a name, success counts only once the block has ended. What it raises
                goes to the log, or to stderr where there is none.

        Returns:
            The outcome, to be awaited.

        Raises:
            BufferFull: `buffer_memory` is used up; `enqueue` waits instead. Definite.
            InvalidRecord, MessageTooLarge: it cannot be sent as it is. Definite.
            Closed: the producer is not open, or was ended. Definite.
        """
        sent, sent_key, extras, size = self._checked(value, key, headers, tags, partition)
        if delay is not None or deliver_at is not None or delay_level is not None:
            due_ms = self._due_times.due_ms_now(topic, delay, deliver_at, delay_level)
            extras = extras._replace(due_ms=due_ms)
        if not self._buffer_pool.take_now(size):
            raise BufferFull(self._buffer_pool.why_full(size))
        return self._take(topic, sent, sent_key, extras, timestamp, size, on_delivery)

    async def flush(self) -> None:
        """Wait until the outcome of all records accepted so far is known, without linger. With a
        name, see `send`.

        Raises:
            RaftmqError: the first failure that neither an `await` nor `on_delivery` has reported; a
                note says how many records there were. `error.definite` says whether they were
                certainly not appended.
        """
        self._check_entered()
        await self._dispatcher.wait_delivered()
        self._dispatcher.failures.raise_first()
        self._cluster.check_open()  # closed meanwhile: other calls may have reported those failures

    # -- many records ----------------------------------------------------------------------

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
        """Send many records, and wait until all are as safe as `acks` promises.

        The fast path: no object is kept for a single record. Memory stays within `buffer_memory`,
        however many rows there are. Records with a delay are sent one by one, by `enqueue`.

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

        Returns:
            Where they are in the log: one result for each run of records that were sent together.

        Raises:
            InvalidRecord: a row cannot be sent; a note says how many before it were. Or `rows` is
                a single text or bytes. Definite.
            RaftmqError: the first failure, once all are settled; a note says how many were
                delivered. Definite or not: `error.definite`.
        """
        functions = (value, key, headers, tags, timestamp)
        return await self._bulk().send_rows(
            topic, rows, functions=functions, partition=partition, progress=progress, total=total
        )

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
        """Send parallel columns, as Arrow and Spark hold them, and wait; see `send_many`.

        Args:
            topic: its name.
            values, keys, headers, tags, timestamps: lists or Arrow arrays of one length, with items
                as for `send`.
            partitions: one for each record, in place of the partitioner's choice.
            progress: see `send_many`.

        Returns:
            See `send_many`.

        Raises:
            InvalidRecord: columns of different lengths, or an item that cannot be sent. Definite.
            RaftmqError: see `send_many`.
        """
        columns = (values, keys, headers, tags, timestamps, partitions)
        return await self._bulk().send_columns(topic, columns, progress=progress)

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
        """Accept parallel columns, waiting only while the buffer is full. `flush`, or the end of
        the block, waits until they are sent, and raises what has failed.

        Args:
            topic, values, keys, headers, tags, timestamps, partitions: see `send_columns`.

        Raises:
            InvalidRecord: columns of different lengths, or an item that cannot be sent. Definite.
        """
        columns = (values, keys, headers, tags, timestamps, partitions)
        await self._bulk().enqueue_columns(topic, columns)

    # -- transactions ----------------------------------------------------------------------

    def transaction(
        self, *, version: int | None = None, count: int | None = None, wait_visible: bool = False
    ) -> Transaction[ValueT_contra, KeyT_contra]:
        """A transaction: `async with producer.transaction() as tx:` all of it counts, or nothing.

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
        if self._session is None:
            raise InvalidTransaction(
                "this producer has no transactions: give it a transaction_id, or transactions=True"
            )
        check_version(version, count, has_id=self._options.transaction_id is not None)
        self._check_entered()
        return Transaction(
            self, self._session, version=version, count=count, wait_visible=wait_visible
        )

    # -- within ----------------------------------------------------------------------------

    async def _due_ms(
        self,
        topic: str,
        delay: GivenDelay | None,
        deliver_at: GivenTimestamp | None,
        level: int | None,
    ) -> int | None:
        transaction = self._dispatcher.transaction_count
        due_ms = await self._due_times.due_ms(topic, delay, deliver_at, level)
        self._check_open()
        if self._dispatcher.transaction_count != transaction:  # it has waited for the levels
            raise InvalidTransaction("the transaction has ended before the record was taken")
        return due_ms

    def _bulk(self) -> Bulk:
        return Bulk(self, self._dispatcher, self._options, self._now_ms)

    def _checked(
        self,
        value: Unchecked,
        key: Unchecked,
        headers: GivenHeaders,
        tags: GivenTags,
        partition: int | None,
    ) -> tuple[Value, Key, Extras, int]:
        """The record as it is kept, and its size in bytes of memory."""
        if self._serializers is not None:
            value, key = self._serializers.record(value, key)
        # Most records are plain bytes: they skip the general checks, as this runs once per record.
        is_plain = type(value) is bytes and (key is None or type(key) is bytes)
        if is_plain and not headers and not tags and partition is None:
            extras, size = NO_EXTRAS, RECORD_OVERHEAD_BYTES + len(value)
            if key is not None:
                size += len(key)
        else:
            value, key = checked_value(value), checked_key(key)
            extras = checked_extras(headers, tags, partition)
            size = size_of(value, key, extras)
        # One comparison on the fast path; `size` is never less than the record's bytes.
        if size > self._size_max or not self._dispatcher.is_taking:
            self._check_open()
            self._check_size(size)
        return value, key, extras, size

    def _take(
        self,
        topic_name: str,
        value: Value,
        key: Key,
        extras: Extras,
        timestamp: GivenTimestamp | None,
        size: int,
        on_delivery: OnDelivery | None,
    ) -> Delivery:
        """Put a record, whose memory is reserved, into its batch."""
        try:
            if on_delivery is not self._callback:  # mostly the same one, record after record
                check_callback(on_delivery)
                self._callback = on_delivery
            topic = self._accumulator.topics.get(topic_name) or self._topic(topic_name)
            stamp = self._now_ms() if timestamp is None else given_timestamp(timestamp)
            # Metadata have not answered yet.
            if not topic.count:
                return self._put_in_line(topic, (value, key, stamp, size, extras), on_delivery)
            # `now` refuses other event loops, once per batch: a check of each record would cost
            # time.
            batch, index = self._accumulator.add(
                topic, value, key, stamp, size, self._cluster.now, extras
            )
        # Not added: a bad topic, timestamp or partition, or another event loop.
        except BaseException:
            self._buffer_pool.give_back_now(size)
            raise
        delivery = self._delivery_kind(batch, index)
        if on_delivery is not None:
            delivery._call_back(on_delivery)
        if batch.is_closed:  # full: send now
            self._is_filled = True
            self._dispatcher.wake()
        elif not index:
            self._dispatcher.on_opened(batch)
        return delivery

    def _put_in_line(
        self, topic: TopicQueues, record: _Record, on_delivery: OnDelivery | None
    ) -> Delivery:
        """Let the record wait for the number of partitions of its topic."""
        early = PendingRecord(
            self._dispatcher, topic, record, on_delivery, self._cluster.now(), self._pending_kind()
        )
        topic.waiting.append(early)
        self._dispatcher.wake()
        return early.delivery

    def _topic(self, name: str) -> TopicQueues:
        """Also for `bulk.py`, as are `_check_open` and `_check_size`."""
        topic = self._accumulator.topics.get(name)
        if topic is None:
            topic = self._accumulator.topic(check_topic(name))
            # The count is kept for good: refresh, as the topic may have grown
            if self._named is not None:
                self._cluster.routes.doubt(name)
            # Known from another producer or consumer of this client: no need to wait.
            elif (known := self._cluster.routes.topic(name)) is not None:
                topic.know(len(known.places))
        return topic

    def _check_open(self) -> None:
        """Raises Closed, InvalidRequest in another event loop, what ended a named producer or a
        transaction, or InvalidTransaction outside of one.
        """
        self._check_entered()
        self._cluster.check_open()
        self._cluster.check_loop()
        self._check_transaction()

    def _check_transaction(self) -> None:
        """The part that any thread may call."""
        ending = self._accumulator.ending
        if ending is not None and ending.error is not None:
            raise ending.error.copied()
        machine = self._accumulator.machine
        if machine is not None and not self._dispatcher.is_taking:
            raise InvalidTransaction(f"{machine}: {machine.OUTSIDE}")

    def _check_entered(self) -> None:
        if not self._is_open:
            raise self._why_closed("the producer", was_opened=self._was_opened)

    def _undelivered(self) -> int:
        return self._dispatcher.count_undelivered()

    def _check_size(self, size: int) -> None:
        """Raises MessageTooLarge."""
        if size - RECORD_OVERHEAD_BYTES > self._options.max_request_size:
            raise MessageTooLarge(
                f"a record of {size - RECORD_OVERHEAD_BYTES} bytes; max_request_size is "
                f"{self._options.max_request_size}: send less, or raise it, here and as "
                "max.message.bytes of the topic"
            )

    async def _wait_memory(self, size: int) -> None:
        self._check_open()
        self._dispatcher.wake()  # batches that linger hold the memory
        # Ends when settled batches give memory back, or when the producer closes.
        await self._buffer_pool.take(size)
        if not self._dispatcher.is_taking:  # closed or ended while it waited
            self._buffer_pool.give_back(size)
            self._check_open()
