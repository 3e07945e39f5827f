"""`Transaction`: what `producer.transaction()` returns; records and offsets that count together.

Owns the block: what leaving it does, and what of it may be used when. The state is that of the
producer (`machine.py`), which has one transaction at a time; `session.py` asks the coordinator.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from raftmq.client.consumer.group_consumption import member_that_read
from raftmq.client.consumer.record import as_sent
from raftmq.client.dead_letters.moves import check_record
from raftmq.client.dead_letters.rejecting import ensure_topic, no_room
from raftmq.client.producer.record import AsSent
from raftmq.client.transactions.offsets import TransactionProgress
from raftmq.client.transactions.records import TransactionPhase
from raftmq.client.transactions.sending import TransactionSender
from raftmq.client.type_parameters import KeyT_contra, ValueT_contra
from raftmq.errors import (
    IllegalGeneration,
    InvalidTransaction,
    MessageTooLarge,
    OutcomeUnknown,
    ProducerFenced,
    TransactionAborted,
)
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import TypeAlias

    from raftmq.client.consumer.batch import AnyBatch
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.consumer.record import AnyRecord
    from raftmq.client.dead_letters.moves import Move, Moves
    from raftmq.client.producer.batch import RecordMetadata
    from raftmq.client.transactions.session import TransactionSession, Verdict

    GivenOffsets: TypeAlias = AnyBatch | Consumer[Any, Any] | Mapping[tuple[str, int], int]

Outcome = Literal["committed", "aborted"]


class Transaction(TransactionSender[ValueT_contra, KeyT_contra]):
    """`async with producer.transaction() as tx:` all of it counts, or nothing.

    Leaving the block waits until all records are acknowledged, and commits. With an error of the
    program it aborts, and the error goes on. A block that is cancelled is aborted, too; if the
    commit had left, the next transaction learns first what became of it.

    Readers of committed records get those of the transaction once it is committed; the offsets that
    sends answer with are known before that.

    Attributes:
        version: the program's number of it; None: it has none.
    """

    def __init__(
        self,
        producer: Any,  # noqa: ANN401  # a Producer, whose module imports this one
        session: TransactionSession,
        *,
        version: int | None,
        count: int | None,
        wait_visible: bool,
    ) -> None:
        super().__init__(session.machine.transaction_id, version)
        self._producer, self._session = producer, session
        self._count, self._wait_visible = count, wait_visible
        self._verdict: Verdict | None = None
        self._offsets = TransactionProgress()
        self._acknowledged_before = 0

    def __repr__(self) -> str:
        version = "" if self.version is None else f", version {self.version}"
        return f"<Transaction of {self._transaction_id!r}{version}: {self.state}>"

    async def __aenter__(self) -> Self:
        """Begin it; the producer's transaction before is ended first, if that is not known.

        Raises:
            InvalidTransaction: another one of this producer is on, or this one was entered before.
                Definite.
            ProducerFenced: another producer has the id. Definite.
            RaftmqError: the coordinator does not say what became of the one before. Definite.
        """
        if self._verdict is not None:
            raise InvalidTransaction(
                "a transaction is entered once: begin another one with producer.transaction()"
            )
        version = ABSENT if self.version is None else self.version
        count = ABSENT if self._count is None else self._count
        self._verdict = await self._session.begin(version=version, count=count)
        self._is_on = True
        self._acknowledged_before = self._producer.statistics.records
        self._is_done = self._session.is_committed_version(version)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._is_on:  # ended by `abort`
            return
        self._is_on = False
        if self._is_done:
            await self._session.skip()
        elif error is None:
            await self._commit()
        elif isinstance(error, (TransactionAborted, ProducerFenced)):
            await self._session.abort_soon()
            self._session.check_fenced()  # it says more than that a record was given up
            told = self._session.explained(error)
            if told is not error:
                raise told
        else:
            await self._session.abort_soon()

    async def _commit(self) -> None:
        def count() -> int:
            if self._count is not None:
                return self._count
            return int(self._producer.statistics.records) - self._acknowledged_before

        await self._session.commit(
            partial(self._offsets.groups, self._session.cluster),
            is_wanted=self.version is not None or self._offsets.are_given,
            wait_settled=self._wait_visible,
            count=None if self.version is None else count,
        )
        self._offsets.on_committed()

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
        self._check_on()
        if self._is_done:
            return
        try:
            self._offsets.add(given, group)
        except IllegalGeneration as error:
            raise self._session.refuse(error) from error

    async def reject(
        self,
        record: AnyRecord,
        error: BaseException | str | None = None,
        *,
        attempts: int = 1,
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
        """
        return await self._move(
            "reject", record, lambda moves: moves.rejected(record, error, attempts=attempts)
        )

    async def retry(
        self,
        record: AnyRecord,
        error: BaseException | str | None = None,
        *,
        attempts: int = 1,
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
        """
        return await self._move(
            "retry", record, lambda moves: moves.retried(record, error, attempts=attempts)
        )

    async def _move(
        self, call: str, record: AnyRecord, decide: Callable[[Moves], Move]
    ) -> RecordMetadata:
        self._check_on()
        check_record(record, call)
        try:
            member = member_that_read(record)
            move = decide(member.moves)
            member.commits.positions_of(record)
            if not self._is_done:
                await ensure_topic(self._session.cluster, move, record.topic)
        except IllegalGeneration as problem:
            raise self._session.refuse(problem) from problem
        sent = as_sent(record)
        is_plain = self._producer._serializers is None
        value = sent.value if is_plain else AsSent(sent.value, sent.key)
        try:
            return await self.send(
                move.topic,
                value,  # type: ignore[arg-type]  # past the serializers
                key=sent.key,  # type: ignore[arg-type]
                headers=move.headers,
                tags=sent.tags,
                delay=move.delay,
            )
        except (MessageTooLarge, TransactionAborted) as problem:
            cause = problem if isinstance(problem, MessageTooLarge) else problem.__cause__
            if isinstance(cause, MessageTooLarge):  # else the record is not what it is about
                raise no_room(record, move.topic, cause) from problem
            raise

    # -- its end ---------------------------------------------------------------------------

    async def abort(self) -> None:
        """End it now, so that nothing of it counts; the rest of the block may go on without it.

        Raises:
            InvalidTransaction: it is over. Definite.
            ProducerFenced: another producer has the id; nothing of it counts. Definite.
            RaftmqError: the coordinator does not answer. It is aborted by the next transaction, or
                when its time is over; nothing of it counts. Definite.
        """
        self._check_on()
        self._is_on = False
        if self._is_done:
            await self._session.skip()
        else:
            await self._session.abort()

    async def resolve(self) -> Outcome:
        """What became of it, after its block has ended with OutcomeUnknown or was cancelled.

        Returns:
            "committed" or "aborted".

        Raises:
            InvalidTransaction: its block has not ended. Definite.
            OutcomeUnknown: the coordinator does not answer: ask again later. Where `state` is
                "fenced" or "closed", or the producer has begun another transaction since, nobody
                can say it any more. Indefinite.
        """
        if self._is_on or self._verdict is None:
            raise InvalidTransaction("the transaction has not ended: leave its block first")
        if self.outcome is None:
            await self._session.resolve(self._verdict)
        if self.outcome is None:
            raise OutcomeUnknown(f"{self!r}: what became of it is not known any more")
        return self.outcome

    @property
    def state(self) -> str:
        """In a word: "ready" before it is entered, "open", "must abort", "committing", "aborting",
        "unknown", "committed", "aborted", "fenced", or "closed": what became of it is not known
        any more.
        """
        if self._verdict is None:
            return TransactionPhase.READY.value
        if self._is_on:
            return (
                TransactionPhase.OPEN.value if self._is_done else self._session.machine.phase.value
            )
        return self.outcome or self._session.phase_of(self._verdict).value

    @property
    def outcome(self) -> Outcome | None:
        """What became of it: "committed" or "aborted"; None: it is on, or that is not known."""
        if self._is_on or self._verdict is None or self._verdict.is_committed is None:
            return None
        return "committed" if self._verdict.is_committed else "aborted"

    # -- within ----------------------------------------------------------------------------

    def _check_on(self) -> None:
        if not self._is_on:
            raise InvalidTransaction(
                "the transaction is over: send and commit within its block, before abort()"
                if self._verdict is not None
                else "the transaction has not begun: enter its block first"
            )
