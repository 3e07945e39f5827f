"""Blocking transaction: `with producer.transaction() as tx:` from any thread.

Owns the order: what was handed in before reaches the producer before the transaction begins.
Parameters and docstrings of the calls are written by `python -m tests.sync_source`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftmq.client.type_parameters import KeyT_contra, ValueT_contra
from raftmq.sync.consumer import Consumer
from raftmq.sync.sending import TransactionSender

if TYPE_CHECKING:
    from typing import Self

    from raftmq.client.consumer.record import AnyRecord
    from raftmq.client.producer.batch import RecordMetadata
    from raftmq.client.transactions.transaction import GivenOffsets, Outcome
    from raftmq.client.transactions.transaction import Transaction as AsyncTransaction
    from raftmq.sync.handover import Handover
    from raftmq.sync.loop import Loop


class Transaction(TransactionSender[ValueT_contra, KeyT_contra]):
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
        super().__init__(loop, handover, transaction)
        self._producer, self._transaction = producer, transaction

    def __enter__(self) -> Self:
        self._loop.call(self._handover.wait_taken)  # what came before does not belong to it
        self._block.open()
        return self

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

    def reject(
        self,
        record: AnyRecord,
        error: BaseException | str | None = None,
        *,
        attempts: int = 1,
        timeout: float | None = None,
    ) -> RecordMetadata:
        """Set a record aside: send it to the dead letters of the group that has read it, as a part
        of the transaction. So it stands there once, if `commit_offsets` commits it with the same
        transaction, which the program still has to call.

        Args:
            record: as a consumer of a group has handed it out, not a copy; or the `record` of an
                UndecodableRecord.
            error: why: an exception, or a text. Its class and first line are kept.
            attempts: how often it was tried since it was read. What it was tried before it was
                moved to the topic of retries is added.
            timeout: seconds; None waits for ever.

        Returns:
            Topic, partition and offset of the dead letter, which counts once the transaction is
            committed; offset -1 where `is_done`.

        Raises:
            InvalidRequest: `record` is a copy, or not of a group, or one of the group's own dead
                letters. Definite.
            InvalidTransaction: the transaction is over. Definite.
            MessageTooLarge: with its headers it is too large for the topic of dead letters.
                Definite.
            TransactionAborted: the partition is another member's by now (reason "group"), or the
                record was given up; nothing of the transaction counts. Definite.
            RaftmqError: the topic cannot be made; nothing was sent. Definite.
            RequestTimedOut: after `timeout` seconds; the end of the block waits for the record.
                Indefinite.
        """
        return self._call(
            lambda: self._transaction.reject(record, error, attempts=attempts), timeout=timeout
        )

    def retry(
        self,
        record: AnyRecord,
        error: BaseException | str | None = None,
        *,
        attempts: int = 1,
        timeout: float | None = None,
    ) -> RecordMetadata:
        """Have a record tried again, later: send it to the topic of retries of the group that has
        read it, as a part of the transaction, with a delay that the policy of its consumer decides
        (`retry=`). After its last attempt it goes to the dead letters. So it stands there once,
        if `commit_offsets` commits it with the same transaction, which the program still has to
        call. See `Consumer.retry`.

        Args:
            record: as a consumer of a group has handed it out, not a copy; or the `record` of an
                UndecodableRecord.
            error: why: an exception, or a text. Its class and first line are kept.
            attempts: how often it was tried since it was read. What it was tried before is added.
            timeout: seconds; None waits for ever.

        Returns:
            Topic, partition and offset where it stands once the transaction is committed; offset -1
            where `is_done`.

        Raises:
            InvalidRequest: `record` is a copy, or not of a group, or its consumer has no policy.
                Definite.
            InvalidTransaction: the transaction is over. Definite.
            MessageTooLarge: with its headers it is too large for the topic. Definite.
            TransactionAborted: the partition is another member's by now (reason "group"), or the
                record was given up; nothing of the transaction counts. Definite.
            RaftmqError: the topic cannot be made; nothing was sent. Definite.
            BaseException: `error` itself, after the last attempt, where the policy has no dead
                letters; InvalidRequest, where it is no exception. Nothing was sent.
            RequestTimedOut: after `timeout` seconds; the end of the block waits for the record.
                Indefinite.
        """
        return self._call(
            lambda: self._transaction.retry(record, error, attempts=attempts), timeout=timeout
        )

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
