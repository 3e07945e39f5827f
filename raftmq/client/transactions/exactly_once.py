"""`exactly_once`: consume, transform and produce, where each input record has one result.

Owns the loop: when a transaction ends, what follows where one is aborted, and what becomes of a
batch that always fails. Two producers take turns, so that the next transaction is filled while the
one before is committed: it is asked only after that, so results count in the order of the input.
(Kafka Streams: processing.guarantee=exactly_once_v2.)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import anyio

from raftmq.client.dead_letters.moves import NO_POLICY, is_lasting
from raftmq.client.dead_letters.rejecting import PRODUCER_OPTIONS
from raftmq.client.network.channel import one_error
from raftmq.client.options import EXACTLY_ONCE
from raftmq.client.processing.retry_policy import RecordFate
from raftmq.client.transactions.offsets import member_behind
from raftmq.client.transactions.records import FAILED_SEND
from raftmq.client.transactions.suspects import Suspects
from raftmq.errors import (
    InvalidConfig,
    OutcomeUnknown,
    ProducerFenced,
    RaftmqError,
    TransactionAborted,
)
from raftmq.rpc.backoff import Backoff, Pauses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from raftmq.client.client import Client
    from raftmq.client.consumer.batch import AnyBatch
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.consumer.group_consumption import GroupConsumption, Processing
    from raftmq.client.consumer.record import AnyRecord
    from raftmq.client.producer.producer import Producer
    from raftmq.client.transactions.transaction import Transaction

    Transform: TypeAlias = Callable[[AnyBatch, Transaction[Any, Any]], Awaitable[object]]
    OnPoison: TypeAlias = Transform | Literal["dead_letter", "retry"] | None

# A transaction takes a fraction of a second: where its process dies, readers wait so long.
TIMEOUT_MS = 10_000
DEAD_LETTER, RETRY = "dead_letter", "retry"
INTERVAL_MS_MAX = TIMEOUT_MS // 2  # the commit needs time, too
# Without a batch for so long, offsets are committed alone, where reading has passed over something.
IDLE_SECONDS = 1.0
PAUSES = Pauses(0.1, 5.0)  # after an abort: at once, as its cause is mostly over, then longer

logger = logging.getLogger("raftmq.client")


async def exactly_once(
    mq: Client,
    consumer: Consumer[Any, Any],
    transform: Transform,
    *,
    interval_ms: float = 100,
    max_records: int = 10_000,
    attempts: int = 3,
    on_poison: OnPoison = None,
) -> None:
    """Read, transform and send, so that each record that is read has its result exactly once.

    Runs until it is cancelled. What `transform` sends with `tx`, and the offsets of what it got,
    are committed together. Where a transaction is aborted, its records are read again; so effects
    beside what `tx` sends may happen more than once.

    Once it is cancelled, open the consumer anew to go on: with records in hand, or a commit without
    an answer, the old one stands behind what may have no result, and later transactions refuse it.

    Args:
        mq: the client that sends.
        consumer: open, with `delivery="exactly_once"`, and a member of its group: of topics, or of
            a pattern.
        transform: `async def transform(batch, tx)`; it sends with `tx`.
        interval_ms: after so long, from its first batch on, a transaction is committed: readers of
            the results see them that much later.
        max_records: ... or after so many records.
        attempts: how often a batch may fail in `transform`, at its last the error is raised.
        on_poison: gets such a batch instead, as `transform` does: it may send it to a topic for
            dead letters. Its offsets are committed. "dead_letter": the records that fail by
            themselves go to the dead letters of the group (see `Transaction.reject`); to find
            them, batches that fail are tried in halves. "retry": they go to the group's topic of
            retries (see `Transaction.retry`) as soon as they have failed by themselves once, and
            how often is what the policy of the consumer says, not `attempts`.

    Raises:
        InvalidConfig: the consumer has no group, or is no member of it (`assign`), or has no
            policy for "retry", or a number is out of bounds. Definite.
        InvalidTransaction: the consumer commits otherwise, or has to be opened anew. Definite.
        ProducerFenced: another process has the consumer's group_instance_id. Definite.
        OutcomeUnknown: nobody can say any more what became of a commit; a consumer that is opened
            anew goes on from the group's offsets. Indefinite.
        RaftmqError: what reading has raised, as Closed; or why a record cannot be moved, now or
            later, as MessageTooLarge of its topic, or InvalidTimestamp where that takes no such
            delay; a note names the record.
        Exception: what `transform` has raised at last; a note names the batch.
    """
    problems = [*_bad_numbers(interval_ms, max_records, attempts), *bad_poison(on_poison)]
    if problems:
        raise InvalidConfig(problems)
    _check_member(member_behind(consumer), on_poison)
    options: dict[str, Any] = {
        "transactions": True,
        "delivery": EXACTLY_ONCE,
        "transaction_timeout_ms": TIMEOUT_MS,
    }
    if on_poison in (DEAD_LETTER, RETRY):  # they are as large as what was read
        options |= {key: PRODUCER_OPTIONS[key] for key in ("max_request_size", "buffer_memory")}
    async with mq.producer(**options) as one, mq.producer(**options) as other:
        loop = _Loop(
            (one, other),
            consumer,
            transform,
            seconds=interval_ms / 1000,
            records_max=max_records,
            attempts=attempts,
            on_poison=on_poison,
            backoff=Backoff(mq._new_random(), PAUSES),
        )
        await loop.run()


def _bad_numbers(interval_ms: float, max_records: int, attempts: int) -> list[str]:
    return [
        f"{name} = {given!r}: expected {low} to {high}"
        for name, given, low, high in (
            ("interval_ms", interval_ms, 1, INTERVAL_MS_MAX),
            ("max_records", max_records, 1, 1_000_000),
            ("attempts", attempts, 1, 1_000),
        )
        if isinstance(given, bool) or not low <= given <= high
    ]


def bad_poison(given: object) -> list[str]:
    """What is wrong with `on_poison`."""
    if given is None or given in (DEAD_LETTER, RETRY) or callable(given):
        return []
    expected = f'expected "{DEAD_LETTER}", "{RETRY}", or a function of a batch and tx'
    return [f"on_poison = {given!r}: {expected}"]


def _check_member(member: GroupConsumption, on_poison: OnPoison) -> None:
    """Raises InvalidConfig, InvalidTransaction; see `exactly_once`."""
    # Its commits would carry no generation: what an earlier process has asked could be carried out
    # after this one has read its offsets, and two at a time would both commit all.
    if not member.is_dealt:
        raise InvalidConfig(
            [
                "assign: a consumer that chooses its partitions itself is no member of its group, "
                "so nothing keeps another process, or a late commit of an earlier one, from "
                "counting the same records; name topics instead, or do it by hand: open a producer "
                "with a transaction_id before the consumer, and call tx.commit_offsets"
            ]
        )
    member.transaction_progress()  # raises, if it commits otherwise, or is in doubt
    if on_poison == RETRY and not member.moves.can_retry:
        raise InvalidConfig([f'on_poison = "{RETRY}": {NO_POLICY}'])


class _Turn:
    """One transaction, and what it has read."""

    def __init__(self, producer: Producer[Any, Any]) -> None:
        self.producer, self.tx = producer, producer.transaction()
        self.batches: list[AnyBatch] = []
        self._blocks: list[Processing] = []
        self.is_over = anyio.Event()
        self.error: Exception | None = None  # why it does not count

    @property
    def record_count(self) -> int:
        return sum(map(len, self.batches))

    def take(self, batch: AnyBatch, consumer: Consumer[Any, Any]) -> None:
        """Until the end of the turn its partition stays with this member."""
        block = consumer.processing(batch)
        block.__enter__()
        self._blocks.append(block)
        self.batches.append(batch)
        self.tx.commit_offsets(batch)

    def release(self, error: BaseException | None) -> None:
        while self._blocks:
            self._blocks.pop().__exit__(type(error) if error else None, error, None)


class _Loop:
    """See `exactly_once`."""

    def __init__(
        self,
        producers: tuple[Producer[Any, Any], Producer[Any, Any]],
        consumer: Consumer[Any, Any],
        transform: Transform,
        *,
        seconds: float,
        records_max: int,
        attempts: int,
        on_poison: OnPoison,
        backoff: Backoff,
    ) -> None:
        self._producers, self._consumer, self._transform = producers, consumer, transform
        self._member = member_behind(consumer)
        self._seconds, self._records_max = seconds, records_max
        self._attempts, self._on_poison, self._backoff = attempts, on_poison, backoff
        if on_poison == RETRY:  # the policy decides how often, and not in place
            self._attempts = 1
        self._failures: dict[tuple[str, int, int], int] = {}  # by partition and first offset
        self._suspects = Suspects()
        self._filling: anyio.CancelScope | None = None
        # What reading has passed over for these is neither committed nor taken back.
        self._pending = set[_Turn]()

    async def run(self) -> None:
        try:
            with one_error():
                await self._run()
        except BaseException as error:  # also when cancelled: the ends of the producers abort them
            if self._pending:
                self._member.doubt_progress()
            for turn in self._pending:
                turn.release(error)
            raise

    async def _run(self) -> None:
        async with anyio.create_task_group() as tasks:
            before: _Turn | None = None
            number = 0
            while True:
                turn = _Turn(self._producers[number % 2])
                number += 1
                problem = await self._fill(turn, before)
                if before is not None:
                    # Ends with the decision of the transaction before, or its time.
                    await before.is_over.wait()
                    problem = before.error or problem
                if problem is None:
                    tasks.start_soon(self._commit, turn)
                    before = turn
                    continue
                await self._go_back(turn, before, problem)
                before = None

    async def _fill(self, turn: _Turn, before: _Turn | None) -> Exception | None:
        """Read and transform until the transaction is to be committed. What goes wrong is returned:
        the transaction before comes first.
        """
        try:
            with anyio.CancelScope() as self._filling:
                if before is not None and before.error is not None:  # nothing would end the wait
                    return None
                try:
                    await turn.tx.__aenter__()
                    await self._transform_all(turn, before)
                    # So that the records of the next transaction stand behind these.
                    await turn.producer.flush()
                except Exception as error:
                    return error
        finally:
            self._filling = None
        return None

    async def _transform_all(self, turn: _Turn, before: _Turn | None) -> None:
        deadline = anyio.current_time() + IDLE_SECONDS
        # After a failure one batch at a time: those before it are committed without it.
        is_careful = bool(self._failures) or self._suspects.are_there
        while turn.record_count < self._records_max:
            batch, count = None, self._records_max - turn.record_count
            if is_careful:
                self._suspects.keep(self._consumer.assignment)
                count = min(count, self._suspects.records_max)
            # A cancelled wait loses nothing.
            with anyio.move_on_at(deadline):
                batch = await self._next(count)
            if batch is None and (turn.batches or self._takes_rest(turn, before)):  # it is time
                return
            if batch is None:
                deadline = anyio.current_time() + IDLE_SECONDS
                continue
            self._pending.add(turn)
            turn.take(batch, self._consumer)
            await self._transform_one(batch, turn)
            if is_careful:
                return
            if len(turn.batches) == 1:
                deadline = anyio.current_time() + self._seconds

    def _takes_rest(self, turn: _Turn, before: _Turn | None) -> bool:
        """Commit what reading has passed over behind the last records, as markers: else a group
        that has read all would have a lag.
        """
        if before is not None and not before.is_over.is_set():  # its offsets are not known yet
            return False
        if not self._member.commits.all_handed_out():
            return False
        self._pending.add(turn)
        turn.tx.commit_offsets(self._consumer)
        return True

    async def _next(self, records_max: int) -> AnyBatch:
        try:
            return await self._consumer._next_batch(records_max)
        except Exception as error:
            raise _EndError from error

    async def _transform_one(self, batch: AnyBatch, turn: _Turn) -> None:
        if self._on_poison in (DEAD_LETTER, RETRY):
            await self._transform_or_move(batch, turn)
            return
        key = _key_of(batch)
        if callable(self._on_poison) and self._failures.get(key, 0) >= self._attempts:
            await self._on_poison(batch, turn.tx)
            return
        try:
            await self._transform(batch, turn.tx)
        except (TransactionAborted, ProducerFenced):  # not the batch's fault
            raise
        except Exception as error:
            self._failures[key] = self._failures.get(key, 0) + 1
            if self._failures[key] >= self._attempts and self._on_poison is None:
                error.add_note(_named(batch, self._attempts))
                raise _EndError from error
            raise

    async def _transform_or_move(self, batch: AnyBatch, turn: _Turn) -> None:
        """Only a record that fails by itself, `attempts` times, is moved."""
        suspect = self._suspects.find(batch)
        if suspect.failures >= self._attempts and len(batch) == 1:
            move = turn.tx.retry if self._on_poison == RETRY else turn.tx.reject
            (record,) = batch.raw
            try:
                await move(record, suspect.error, attempts=suspect.failures)
            except RaftmqError as error:
                cause = _refusal_of(error)
                if cause is None:
                    raise
                _end_at(record, cause)
            return
        try:
            await self._transform(batch, turn.tx)
        except (TransactionAborted, ProducerFenced):  # not the batch's fault
            raise
        except Exception as error:
            self._check_last_attempt(batch, error)
            self._suspects.on_failed(batch, error)
            if len(batch) > 1:  # half of them is something else: no reason to wait longer
                self._backoff.reset()
            raise

    def _check_last_attempt(self, batch: AnyBatch, error: Exception) -> None:
        """Raises _EndError: with a policy without dead letters."""
        if self._on_poison != RETRY or len(batch) != 1:
            return
        (record,) = batch.raw
        if self._member.moves.fate(record) is RecordFate.RAISED:
            _end_at(record, error)

    async def _commit(self, turn: _Turn) -> None:
        try:
            await self._end(turn)
            self._pending.discard(turn)
            for batch in turn.batches:
                self._failures.pop(_key_of(batch), None)
                self._suspects.on_done(batch)
            self._backoff.reset()
        except Exception as error:
            turn.error = error
            if self._filling is not None:  # the next one is in vain
                self._filling.cancel()
        finally:
            turn.release(turn.error)
            turn.is_over.set()

    async def _end(self, turn: _Turn) -> None:
        """Raises TransactionAborted, ProducerFenced, _EndError."""
        try:
            await turn.tx.__aexit__(None, None, None)
        except OutcomeUnknown as error:
            await self._resolve(turn, error)

    async def _resolve(self, turn: _Turn, unknown: OutcomeUnknown) -> None:
        """Nothing follows before it is known: it would be read twice, or never."""
        while turn.tx.outcome is None:
            logger.warning("exactly_once: not known yet whether it is committed: %s", unknown)
            await anyio.sleep(self._backoff.next_seconds())
            try:
                await turn.tx.resolve()
            except OutcomeUnknown as error:
                unknown = error
            # Nobody knows any more. Read again, it might have two results; a consumer that is
            # opened anew goes on from the group's offsets, which were committed with the first, or
            # not.
            if turn.tx.outcome is None and turn.tx.state in ("closed", "fenced"):
                raise _EndError from unknown
        if turn.tx.outcome == "aborted":
            raise TransactionAborted(str(unknown)) from unknown

    async def _go_back(self, turn: _Turn, before: _Turn | None, problem: Exception) -> None:
        """Abort, and read again what does not count; or raise what ends it all."""
        if turn.tx.state != "ready":  # it was entered
            try:
                await turn.tx.__aexit__(type(problem), problem, None)
            # Which says more than the broker that has refused a record.
            except (TransactionAborted, ProducerFenced) as error:
                problem = error
        turn.release(problem)
        aborted = [turn]
        # What ends it all in `before` is that nobody knows what became of it.
        if before is not None and before.error and not isinstance(before.error, _EndError):
            aborted.insert(0, before)
        # The first batch of each partition last: there reading goes on.
        for batch in reversed([batch for each in aborted for batch in each.batches]):
            self._consumer._take_back(batch)
        self._pending.difference_update(aborted)
        if isinstance(problem, _EndError):
            assert problem.__cause__ is not None, "of nothing"
            raise problem.__cause__
        if isinstance(problem, ProducerFenced):
            raise problem
        seconds = self._backoff.next_seconds()
        logger.warning("exactly_once: aborted, again in %.1f s: reason=%r", seconds, problem)
        await anyio.sleep(seconds)


def _refusal_of(error: RaftmqError) -> RaftmqError | None:
    """Why a record would not be moved by the next transaction, either; None: it may be."""
    cause: BaseException | None = error
    if isinstance(error, TransactionAborted):  # the record is the only one of the transaction
        cause = error.__cause__ if error.reason == FAILED_SEND else None
    return cause if isinstance(cause, RaftmqError) and is_lasting(cause) else None


class _EndError(Exception):
    """Nothing follows: a batch has failed too often, reading has, or nobody knows what became of a
    commit. Its cause says it.
    """


def _end_at(record: AnyRecord, error: Exception) -> NoReturn:
    error.add_note(f"{record.topic}-{record.partition}, offset {record.offset}: not moved")
    raise _EndError from error


def _key_of(batch: AnyBatch) -> tuple[str, int, int]:
    return batch.topic, batch.partition, batch.base_offset


def _named(batch: AnyBatch, attempts: int) -> str:
    return (
        f"{batch.topic}-{batch.partition}, offsets {batch.base_offset} through {batch.last_offset}:"
        f" transform has failed {attempts} times; repair it, or give on_poison"
    )
