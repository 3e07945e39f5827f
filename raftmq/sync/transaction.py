"""Blocking transaction: `with producer.transaction() as tx:` from any thread.

Owns the order: what was handed in before reaches the producer before the transaction begins or
ends. Parameters and docstrings of the calls are written by `python -m tests.sync_source`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from raftmq.client.blocks import BlockingBlock
from raftmq.client.producer.batch import RecordMetadata
from raftmq.client.type_parameters import Generic, KeyT_contra, ValueT_contra
from raftmq.errors import RaftmqError
from raftmq.sync.block import Block
from raftmq.sync.consumer import Consumer
from raftmq.sync.handover import Delivery
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from raftmq.client.moments import GivenTimestamp
    from raftmq.client.producer.batch import BatchMetadata, OnDelivery
    from raftmq.client.producer.bulk import Progress
    from raftmq.client.producer.record import GivenTags
    from raftmq.client.transactions.transaction import GivenOffsets, Outcome
    from raftmq.client.transactions.transaction import Transaction as AsyncTransaction
    from raftmq.sync.handover import Handover
    from raftmq.sync.loop import Loop
    from raftmq.wire.batch.arguments import GivenHeaders

T = TypeVar("T")


class Transaction(BlockingBlock, Generic[ValueT_contra, KeyT_contra]):
    """The calls of `raftmq.Transaction`, blocking: `with producer.transaction() as tx:`.

    Attributes:
        version: the program's number of it; None: it has none.
    """

    def __init__(
        self,
        loop: Loop,
        handover: Handover,
        producer: Any,  # noqa: ANN401  # a blocking Producer, whose module imports this one
        transaction: AsyncTransaction[ValueT_contra, KeyT_contra],
    ) -> None:
        self._loop, self._handover, self._producer = loop, handover, producer
        self._transaction = transaction
        self._block = Block(loop, transaction)
        self.version = transaction.version

    def __repr__(self) -> str:
        return repr(self._transaction)

    def __enter__(self) -> Self:
        self._loop.call(self._handover.wait_taken)  # what came before does not belong to it
        self._block.open()
        return self

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
        timeout: float | None = None,
    ) -> RecordMetadata:
        """Send one record of the transaction, and wait until it is acknowledged.

        Args:
            topic, value, key, headers, tags, partition, timestamp: see `Producer.send`.
            timeout: seconds; None waits for ever.

        Returns:
            Partition, offset and timestamp of the record, which counts once the transaction is
            committed; offset -1 where `is_done`.

        Raises:
            InvalidRecord, MessageTooLarge: it cannot be sent as it is. Definite.
            TransactionAborted: it was given up, and with it the transaction. Definite.
            InvalidTransaction: the transaction is over. Definite.
            RequestTimedOut: after `timeout` seconds; the end of the block waits for the record.
                Indefinite.
        """
        if self._transaction._drops(topic):
            return RecordMetadata(topic, ABSENT if partition is None else partition, ABSENT, ABSENT)
        found: RecordMetadata = self._producer.send(
            topic,
            value,
            key=key,
            headers=headers,
            tags=tags,
            partition=partition,
            timestamp=timestamp,
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
        on_delivery: OnDelivery | None = None,
        timeout: float | None = None,
    ) -> Delivery:
        """Accept one record of the transaction; waits only while the buffer is full.

        `on_delivery` is called in the loop's thread: it must not make blocking calls of this
        client.

        Args:
            topic, value, key, headers, tags, partition, timestamp: see `Producer.send`.
            on_delivery: see `Producer.enqueue`.
            timeout: seconds; None waits for ever.

        Returns:
            The outcome; its `result` waits for it. The end of the block waits for it in any case.

        Raises:
            InvalidRecord, MessageTooLarge: it cannot be sent as it is. Definite.
            TransactionAborted: a record was given up, and with it the transaction. Definite.
            InvalidTransaction: the transaction is over. Definite.
            RequestTimedOut: as BufferExhausted: the buffer stayed full for `timeout` seconds, and
                the record was not accepted. Definite.
        """
        if self._transaction._drops(topic):
            return self._dropped(topic, partition, on_delivery)
        found: Delivery = self._producer.enqueue(
            topic,
            value,
            key=key,
            headers=headers,
            tags=tags,
            partition=partition,
            timestamp=timestamp,
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
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Accept one record of the transaction without waiting.

        `on_delivery` is called in the loop's thread: it must not make blocking calls of this
        client.

        Args:
            topic, value, key, headers, tags, partition, timestamp: see `Producer.send`.
            on_delivery: see `Producer.enqueue`.

        Returns:
            The outcome; its `result` waits for it. The end of the block waits for it in any case.

        Raises:
            BufferFull: `buffer_memory` is used up; `enqueue` waits instead. Definite.
            InvalidRecord, MessageTooLarge: it cannot be sent as it is. Definite.
            TransactionAborted: a record was given up, and with it the transaction. Definite.
            InvalidTransaction: the transaction is over. Definite.
        """
        if self._transaction._drops(topic):
            return self._dropped(topic, partition, on_delivery)
        found: Delivery = self._producer.send_nowait(
            topic,
            value,
            key=key,
            headers=headers,
            tags=tags,
            partition=partition,
            timestamp=timestamp,
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
            Where they are in the log; nothing where `is_done`, which reads no rows.

        Raises:
            InvalidRecord: a row cannot be sent. Definite.
            TransactionAborted: a record was given up, and with it the transaction. Definite.
            InvalidTransaction: the transaction is over. Definite.
            RequestTimedOut: after `timeout` seconds; some records may be sent. Indefinite.
        """
        if self._transaction._drops(topic):
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
            lambda: self._transaction.send_columns(
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

    def commit_offsets(self, given: GivenOffsets, *, group: str | None = None) -> None:
        """Commit offsets of a group with the transaction: they move if it is committed.

        Args:
            given: a batch as a consumer of a group has handed it out; or a consumer, for all that
                it has handed out; or offsets by topic and partition, as `{("orders", 0): 42}`: the
                next one to read.
            group: whose offsets these are, where they are given by numbers. It may have no members.

        Raises:
            InvalidTransaction: the transaction is over. Definite.
            InvalidConfig: no group is given, or another one than that of the consumer. Definite.
            TransactionAborted: the partition is another member's by now, which reads these records
                again; so nothing of the transaction may count (reason "group"). Definite.
        """
        inner = given._consumer if isinstance(given, Consumer) else given
        self._ask(lambda: self._transaction.commit_offsets(inner, group=group))

    def abort(self) -> None:
        """End it now, so that nothing of it counts; the rest of the block may go on without it.

        Raises:
            InvalidTransaction: it is over. Definite.
            ProducerFenced: another producer has the id; nothing of it counts. Definite.
            RaftmqError: the coordinator does not answer. It is aborted by the next transaction, or
                when its time is over; nothing of it counts. Definite.
        """
        self._call(self._transaction.abort)

    def resolve(self) -> Outcome:
        """What became of it, after its block has ended with OutcomeUnknown or was cancelled.

        Returns:
            "committed" or "aborted".

        Raises:
            InvalidTransaction: its block has not ended. Definite.
            OutcomeUnknown: the coordinator does not answer: ask again later. Where `state` is
                "fenced" or "closed", or the producer has begun another transaction since, nobody
                can say it any more. Indefinite.
        """
        return self._call(self._transaction.resolve)

    @property
    def state(self) -> str:
        """In a word: "ready" before it is entered, "open", "must abort", "committing", "aborting",
        "unknown", "committed", "aborted", "fenced", or "closed": what became of it is not known
        any more.
        """
        return self._ask(lambda: self._transaction.state)

    @property
    def outcome(self) -> Outcome | None:
        """What became of it: "committed" or "aborted"; None: it is on, or that is not known."""
        return self._ask(lambda: self._transaction.outcome)

    @property
    def is_done(self) -> bool:
        """Its version was committed before: what is sent in it is dropped."""
        return self._ask(lambda: self._transaction.is_done)

    def _dropped(
        self, topic: str, partition: int | None, on_delivery: OnDelivery | None
    ) -> Delivery:
        delivery = Delivery(self._handover, is_claimed=on_delivery is not None)
        delivery._settle(self._transaction._dropped(topic, partition, on_delivery))
        return delivery

    def _call(self, call: Callable[[], Awaitable[T]], *, timeout: float | None = None) -> T:
        async def run() -> T:
            # Keeps the order with records handed in before.
            await self._handover.wait_taken()
            return await call()

        return self._loop.call(run, timeout=timeout)

    def _ask(self, ask: Callable[[], T]) -> T:
        async def in_loop() -> T:
            return ask()

        return self._loop.call(in_loop)
