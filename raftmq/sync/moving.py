"""The blocking calls of a consumer that move records: to the dead letters, or to the retries.

Written by `python -m tests.sync_source`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.client.consumer.consumer import Consumer as AsyncConsumer
    from raftmq.client.consumer.record import AnyRecord
    from raftmq.client.producer.batch import RecordMetadata

T = TypeVar("T")


class MovingCalls:
    """The part of a consumer that sets records aside, and has them tried again."""

    _consumer: AsyncConsumer[Any, Any]

    def reject(
        self,
        record: AnyRecord,
        error: BaseException | str | None = None,
        *,
        attempts: int = 1,
        timeout: float | None = None,
    ) -> RecordMetadata:
        """Set a record aside: send it to the dead letters of the group, as it was sent.

        Returns once the dead letter is stored, with acks="all". The record is done then as any
        other that was handed out, and is committed as the commit mode says: at least once, so a
        process that dies in between leaves a second dead letter. In a transaction it is
        `Transaction.reject`.

        The topic is `__dead.` and the name of the group, and made on first use. Headers say where
        the record stood (`raftmq.origin`), `raftmq.attempts`, `raftmq.error` and `raftmq.group`.

        Args:
            record: as it was handed out, not a copy; or the `record` of an UndecodableRecord.
            error: why: an exception, or a text. Its class and first line are kept.
            attempts: how often it was tried since it was read. What it was tried before it was
                moved to the topic of retries is added.
            timeout: seconds; None waits for ever.

        Returns:
            Topic, partition and offset of the dead letter.

        Raises:
            InvalidRequest: the consumer is not a member of a group, or `record` is a copy, or one
                of the group's own dead letters. Definite.
            InvalidTransaction: with `commit="transaction"`, where the transaction sets records
                aside. Definite.
            IllegalGeneration: the partition is not this member's any more, so another one reads the
                record again; nothing was sent. Definite.
            MessageTooLarge: with its headers it is too large for the topic of dead letters.
                Definite.
            OutcomeUnknown: the dead letter may be stored, or not; reject it again. Indefinite.
            RaftmqError: the topic cannot be made, or the record not be stored: it is not set
                aside. `error.definite` says whether that is certain.
            RequestTimedOut: after `timeout` seconds; the dead letter may be stored. Indefinite.
        """
        return self._call(
            lambda: self._consumer.reject(record, error, attempts=attempts), timeout=timeout
        )

    def retry(
        self,
        record: AnyRecord,
        error: BaseException | str | None = None,
        *,
        attempts: int = 1,
        timeout: float | None = None,
    ) -> RecordMetadata:
        """Have a record tried again, later: send it to the topic of retries of the group, as it was
        sent, with a delay that the policy of the consumer decides (`retry=`). After its last
        attempt it goes to the dead letters.

        Returns once it is stored, with acks="all". The record is done then as any other that was
        handed out, and is committed as the commit mode says: at least once, so a process that dies
        in between leaves it in both topics. In a transaction it is `Transaction.retry`.

        The topic is `__retry.` and the name of the group, made on first use, and read by all
        members that have a policy. Headers say where the record stood first (`raftmq.origin`, also
        `record.origin`), `raftmq.attempts`, `raftmq.error` and `raftmq.group`. The order of its key
        is given up.

        Args:
            record: as it was handed out, not a copy; or the `record` of an UndecodableRecord.
            error: why: an exception, or a text. Its class and first line are kept.
            attempts: how often it was tried since it was read. What it was tried before, as its
                header says when it comes back, is added.
            timeout: seconds; None waits for ever.

        Returns:
            Topic, partition and offset where it stands now.

        Raises:
            InvalidRequest: the consumer is not a member of a group, or has no policy, or `record`
                is a copy. Definite.
            InvalidTransaction: with `commit="transaction"`, where the transaction moves records.
                Definite.
            IllegalGeneration: the partition is not this member's any more, so another one reads the
                record again; nothing was sent. Definite.
            MessageTooLarge: with its headers it is too large for the topic. Definite.
            OutcomeUnknown: it may be stored, or not; call it again. Indefinite.
            RaftmqError: the topic cannot be made, or the record not be stored: it is not moved.
                `error.definite` says whether that is certain.
            BaseException: `error` itself, after the last attempt, where the policy has no dead
                letters; InvalidRequest, where it is no exception. Nothing was sent.
            RequestTimedOut: after `timeout` seconds; the record may be stored. Indefinite.
        """
        return self._call(
            lambda: self._consumer.retry(record, error, attempts=attempts), timeout=timeout
        )

    def crashes(self, topic: str, partition: int) -> int:
        """How many members of the group have crashed with the first record of a partition that is
        not committed: their sessions have ended while they had it, and they had not left. 0 again
        once the committed offset moves.

        It is as this member was told when it got the partition. Up to 2, any record that they had
        in hand may have been the cause. More is counted only of a record that was the only one in
        hand: of `process`, and of consumers with `retry` or with `commit="record"`, which hand out
        one at a time then. `retry` with dead letters sets aside what has reached its attempts.

        Raises:
            InvalidConfig: the partition is not read by this consumer, or it is not in a group.
                Definite.
        """
        return self._ask(lambda: self._consumer.crashes(topic, partition))

    def _call(self, function: Callable[[], Awaitable[T]], *, timeout: float | None) -> T:
        raise NotImplementedError

    def _ask(self, question: Callable[[], T]) -> T:
        raise NotImplementedError
