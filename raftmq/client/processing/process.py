"""`process`: reads, hands records to workers, tries again, sets aside, commits.

Owns the tasks; which record is next is decided by `order.py`, commits and rebalances are the
consumer's. Invariants: a record is finished once its handler has returned, or it is among the dead
letters, or in the topic of retries, and only what is finished is committed; what is no `Exception`,
as a cancellation or Ctrl-C, always passes.
"""

from __future__ import annotations

import logging
from inspect import isasyncgen, isawaitable, iscoroutinefunction, isgenerator
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio.lowlevel import checkpoint

from raftmq.client.dead_letters.letters import attempts_before, origin_of
from raftmq.client.dead_letters.moves import is_lasting
from raftmq.client.network.channel import one_error
from raftmq.client.processing.alone_handling import AloneHandling, PoisonError
from raftmq.client.processing.order import ProcessingOrder
from raftmq.client.processing.retry_policy import RecordFate, fate_of
from raftmq.client.unheard import is_heard, print_error
from raftmq.errors import (
    IllegalGeneration,
    RaftmqError,
    UndecodableRecord,
)
from raftmq.rpc.backoff import Backoff, Pauses
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from random import Random
    from typing import TypeAlias

    from raftmq.client.consumer.batch import AnyBatch
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.consumer.record import AnyRecord, PartitionOwnership
    from raftmq.client.processing.options import ProcessOptions
    from raftmq.client.processing.order import RecordInHand

    Handler: TypeAlias = Callable[[Any], object]

# A handler that never waits would keep the loop from heartbeats, and cancellations from showing.
RECORDS_PER_CHECKPOINT = 20
STOP_SECONDS = 0.05  # how late an event of `threading` may be seen
# While the topic cannot be written: each attempt has a time limit of its own.
MOVE_PAUSES = Pauses(0.5, 5.0)
FIRST_ONLY = "no other failure is printed: begin with logging.basicConfig()"

logger = logging.getLogger("raftmq.client")


class StopEvent(Protocol):
    """An event of trio, asyncio or anyio, whose `wait` is awaited; or one of `threading`."""

    def is_set(self) -> bool: ...
    def wait(self) -> Any: ...  # noqa: ANN401


class MoveRecord(Protocol):
    """`Consumer.reject`, or `retry`."""

    async def __call__(
        self, record: AnyRecord, error: BaseException | str | None = None, *, attempts: int = 1
    ) -> object: ...


async def process(
    consumer: Consumer[Any, Any],
    handler: Handler,
    options: ProcessOptions,
    *,
    reject: MoveRecord,
    retry: MoveRecord,
    random: Random,
    stop: StopEvent | None = None,
) -> None:
    """Open the consumer, and hand its records to `handler` until cancelled, or stopped.

    Args:
        reject: stores a dead letter.
        retry: stores a record in the topic of retries.

    Raises:
        RaftmqError: what reading has raised.
        Exception: what the handler has raised; a note names the record.
    """
    loop = _Loop(consumer, handler, options, reject=reject, retry=retry, random=random)
    consumer._in_flight_records.join(loop)
    async with consumer:
        await loop.run(stop)


class _Loop:
    """See `process`. To the consumer it is the records in hand."""

    def __init__(
        self,
        consumer: Consumer[Any, Any],
        handler: Handler,
        options: ProcessOptions,
        *,
        reject: MoveRecord,
        retry: MoveRecord,
        random: Random,
    ) -> None:
        self._consumer, self._handler, self._options = consumer, handler, options
        self._reject, self._retry = reject, retry
        self._policy, self._random = options.policy, random
        self._group: str = options.consumer["group"]
        self._deserializers = consumer._options.deserializers
        self._is_async = _is_async(handler)
        self._threads: anyio.CapacityLimiter | None = None
        self._order = ProcessingOrder(options.max_in_hand)
        self._alone = AloneHandling(consumer, self._policy, random, lambda: self._is_stopping)
        self._finished_count = 0
        self._is_told = False  # of a failure, where the program has set up no logging
        self._error: Exception | None = None  # that ends it
        self._is_stopping = False
        self._scope = anyio.CancelScope()
        # Each is set once, and then replaced
        self._ready, self._roomy = anyio.Event(), anyio.Event()
        self._postponed, self._progress = anyio.Event(), anyio.Event()

    async def run(self, stop: StopEvent | None) -> None:
        if not self._is_async:
            self._threads = anyio.CapacityLimiter(self._options.concurrency)
        with one_error(), self._scope:
            async with anyio.create_task_group() as tasks:
                for task in (self._read, self._wake, self._report):
                    tasks.start_soon(task)
                if stop is not None:
                    tasks.start_soon(self._watch, stop)
                async with anyio.create_task_group() as workers:
                    for _ in range(self._options.concurrency):
                        workers.start_soon(self._work)
                tasks.cancel_scope.cancel()  # the workers end only when it is stopped
        if self._error is not None:
            raise self._error

    def _end(self, error: Exception) -> None:
        """End it with this error; handlers at work are cancelled."""
        self._order.stop()
        if self._error is None:
            self._error = error
        else:  # it comes again, as nothing of it is finished
            logger.warning("process: another record has failed at the end: reason=%r", error)
        self._scope.cancel()

    async def _watch(self, stop: StopEvent) -> None:
        if iscoroutinefunction(stop.wait):
            await stop.wait()  # the program's
        else:
            while not stop.is_set():  # noqa: ASYNC110  # no loop hears of an event of threads
                await anyio.sleep(STOP_SECONDS)
        self._is_stopping = True
        self._order.stop()
        self._tell_workers()

    # -- reading ---------------------------------------------------------------------------

    async def _read(self) -> None:
        records_max = self._consumer._options.max_poll_records
        try:
            while True:
                while not (room := self._order.room):
                    self._roomy = anyio.Event()
                    # Until a record is finished, or its partition is another member's.
                    await self._roomy.wait()
                self._take(await self._consumer._next_batch(min(records_max, room)))
        except Exception as error:  # of a partition, a topic, or the group
            self._end(error)

    def _take(self, batch: AnyBatch) -> None:
        state = self._consumer._subscription.states.get((batch.topic, batch.partition))
        # Lost in the moment in which it was handed out: its new owner reads it.
        if state is None or state.ownership is not batch.ownership:
            return
        try:
            records = list(batch.raw)
        except RaftmqError as error:
            raise error.at(batch.topic, batch.partition) from error
        if self._alone.is_wanted(batch):
            self._order.handle_alone(batch.ownership, self._options.max_in_hand)
        self._order.add(batch.ownership, records)
        # It is in hand, record by record: the batch as a whole holds up no rebalance.
        self._consumer._finish()
        self._pause_and_resume()
        self._tell_workers()

    def _pause_and_resume(self) -> None:
        filled, roomy = self._order.update_full()
        self._consumer.pause(*filled)
        self._consumer.resume(*roomy)

    # -- handling --------------------------------------------------------------------------

    async def _work(self) -> None:
        handled = 0
        while True:
            ready = self._ready
            one = self._order.begin()
            if one is not None:
                await (self._handle_alone(one) if one.is_alone else self._handle(one))
                handled += 1
                if handled % RECORDS_PER_CHECKPOINT == 0:
                    await checkpoint()
            elif self._is_stopping:
                return
            else:
                # Until more was read, or is due, or may be begun after all.
                await ready.wait()

    async def _handle_alone(self, one: RecordInHand) -> None:
        """While nothing else is handled; should the process die, it is known of what."""
        first = one.place.first
        assert first is not None, "begun, and finished"
        poison = self._alone.poison_in(one.record)
        if poison is not None:
            one.failure, one.attempts = one.failure or poison, poison.crashes
        try:
            if one.failure is None and not await self._alone.begin(one, first.record):
                return self._put_back(one)
            await self._handle(one)
            await self._alone.end(one, first.record)
            is_any_left = self._order.first_offset(one.record.ownership) is not None
            if not is_any_left and self._alone.is_over(one.record):
                self._order.clear(one.record.ownership)
        finally:
            self._order.end_alone(one)
            self._tell_workers()
        return None

    def _put_back(self, one: RecordInHand) -> None:
        """It was not handled."""
        if one.is_lost:
            self._finish(one)
        elif not self._is_stopping:
            one.attempts -= 1
            self._postpone(one, seconds=0)

    async def _handle(self, one: RecordInHand) -> None:
        error = one.failure or await self._attempt(one.record)
        if error is None or one.is_lost:  # if lost, its new owner handles it
            return self._finish(one)
        match self._fate(one, error):
            case RecordFate.IN_PLACE:
                self._try_again(one, error)
            case RecordFate.RETRY_TOPIC | RecordFate.DEAD_LETTER as fate:
                await self._move(one, error, fate)
            case RecordFate.RAISED:
                self._end_with(one, error)

    def _fate(self, one: RecordInHand, error: Exception) -> RecordFate:
        if isinstance(error, PoisonError):
            return RecordFate.DEAD_LETTER
        is_undecodable = isinstance(error, _UndecodableError)
        return fate_of(self._policy, self._attempts(one), is_undecodable=is_undecodable)

    def _attempts(self, one: RecordInHand) -> int:
        return attempts_before(one.record, self._group) + one.attempts

    def _try_again(self, one: RecordInHand, error: Exception) -> None:
        assert self._policy is not None, "no policy"
        seconds = self._policy.backoff.pause_seconds(one.attempts, self._random)
        self._tell(one, error, "failed", one.attempts, again_in=f"{seconds:.1f}s")
        one.is_passed = one.is_alone and self._alone.is_passed(one.record)
        self._postpone(one, seconds=seconds)

    async def _move(self, one: RecordInHand, error: Exception, fate: RecordFate) -> None:
        cause = _cause_of(error)
        is_dead, attempts = fate is RecordFate.DEAD_LETTER, self._attempts(one)
        if is_dead:
            self._tell(one, error, "to the dead letters", attempts)
        else:
            assert self._policy is not None, "no policy"
            seconds = self._policy.backoff.usual_seconds(attempts)
            self._tell(one, error, "to the retries", attempts, again_in=f"~{seconds:g}s")
        move = self._reject if is_dead else self._retry
        backoff = Backoff(self._random, MOVE_PAUSES)
        while True:
            try:
                await move(one.record, cause, attempts=one.attempts)
            except IllegalGeneration:  # the partition's new owner handles it
                return self._finish(one)
            except RaftmqError as failed:
                if is_lasting(failed):
                    return self._end_with(one, failed)
                logger.warning("process: not moved yet: %s %s", self._described(one), failed)
                if self._is_stopping:  # it comes again, in the next process
                    return None
                await anyio.sleep(backoff.next_seconds())
                if one.place.is_held_back:  # a rebalance does not wait for brokers
                    one.failure, one.attempts = error, one.attempts - 1
                    return self._postpone(one, seconds=0)
            else:
                return self._finish(one)

    def _tell(
        self, one: RecordInHand, error: Exception, what: str, attempts: int, again_in: str = ""
    ) -> None:
        """
        Args:
            again_in: empty: this was the last attempt.
        """
        cause, is_new = _cause_of(error), attempts == 1 or not again_in
        logger.log(
            logging.WARNING if is_new else logging.INFO, "process: %s: %s attempts=%d%s reason=%r",
            what, self._described(one), attempts, again_in and f" again_in={again_in}", cause,
            exc_info=cause if is_new and isinstance(cause, Exception) else None,
        )  # fmt: skip
        if not (self._is_told or is_heard(logger)):
            self._is_told = True
            failed = cause if isinstance(cause, Exception) else error
            again = again_in and f", again in {again_in}"
            print_error(failed, f"{_named(one)}: {what}{again}; {FIRST_ONLY}")

    def _described(self, one: RecordInHand) -> str:
        """Its group, where it stands and, of one that was moved, where it stood first."""
        found, origin = one.record, origin_of(one.record)
        named = f"group={self._group} record={_named(one)}"
        if origin[:3] == (found.topic, found.partition, found.offset):
            return named
        return f"{named} origin={origin.topic}-{origin.partition}@{origin.offset}"

    def _postpone(self, one: RecordInHand, *, seconds: float) -> None:
        self._order.postpone(one, anyio.current_time() + seconds)
        self._postponed.set()
        self._consumer._in_flight_records.on_progress()  # a rebalance waits no longer

    def _end_with(self, one: RecordInHand, error: Exception) -> None:
        if isinstance(error, _UndecodableError):
            error = error.error
        attempts = counted(self._attempts(one), "attempt")
        hint = "; retry=RetryPolicy() tries again and sets it aside" if self._policy is None else ""
        error.add_note(f"{_named(one)}: not finished, after {attempts}; it comes again{hint}")
        self._end(error)

    def _finish(self, one: RecordInHand) -> None:
        is_waited_for = one.place.is_held_back
        self._order.finish(one)
        self._finished_count += 1
        self._progress.set()
        self._roomy.set()
        if is_waited_for:  # by a rebalance
            self._consumer._in_flight_records.on_progress()
        if self._order.full:
            self._pause_and_resume()

    async def _attempt(self, record: AnyRecord) -> Exception | None:
        """Its error; None: it was handled."""
        try:
            if self._is_async:
                await self._handler(self._made(record))  # type: ignore[misc]
            else:
                await self._attempt_in_thread(record)
        except Exception as error:
            return error
        except anyio.get_cancelled_exc_class() as cut:
            await checkpoint()  # raises, if this task is cancelled
            return RuntimeError(f"the handler has raised {cut!r}, and was not cancelled")
        return None

    async def _attempt_in_thread(self, record: AnyRecord) -> None:
        def call() -> tuple[object, BaseException | None]:
            try:
                return self._handler(self._made(record)), None
            # Raised in the loop's thread: StopIteration, for one, cannot be handed over.
            except BaseException as error:
                return None, error

        # Waits for the thread also when cancelled: nobody can end it.
        answer, error = await anyio.to_thread.run_sync(call, limiter=self._threads)
        if error is not None:
            raise error
        if isawaitable(answer):  # a plain function that returns a coroutine
            await answer
        elif isgenerator(answer) or isasyncgen(answer):
            raise TypeError("the handler returned a generator, which nobody has run")

    def _made(self, record: AnyRecord) -> AnyRecord:
        if self._deserializers is None:
            return record
        try:
            return self._deserializers.record_of(record)
        except UndecodableRecord as error:
            raise _UndecodableError(error) from error

    # -- time ------------------------------------------------------------------------------

    async def _wake(self) -> None:
        while True:
            self._postponed = anyio.Event()
            with anyio.CancelScope(deadline=self._order.next_due):
                # Until the next record is due, or another one waits.
                await self._postponed.wait()
            if self._order.wake(anyio.current_time()):
                self._tell_workers()

    async def _report(self) -> None:
        """Tell the member of progress, once in a commit interval and not for each record."""
        member, seen = self._consumer._group("process").member, 0
        while True:
            if self._finished_count == seen:
                self._progress = anyio.Event()
                # Until something is finished.
                await self._progress.wait()
            seen = self._finished_count
            self._consumer._in_flight_records.on_progress()
            await anyio.sleep(member.options.commit_interval_ms / 1000)

    def _tell_workers(self) -> None:
        ready, self._ready = self._ready, anyio.Event()
        ready.set()

    # -- as the records in hand of the consumer --------------------------------------------

    @property
    def is_held(self) -> bool:
        return self._order.is_held

    def is_busy(self, ownerships: Collection[PartitionOwnership | None]) -> bool:
        return self._order.is_busy(ownerships)

    def first_offset(self, ownership: PartitionOwnership | None) -> int | None:
        return self._order.first_offset(ownership)

    def hold_back(self, ownership: PartitionOwnership | None) -> None:
        self._order.hold_back(ownership)

    def hand_out(self, ownership: PartitionOwnership | None) -> None:
        self._order.hand_out(ownership)
        self._tell_workers()

    def release(self, ownership: PartitionOwnership | None) -> None:
        self._order.release(ownership)
        self._roomy.set()
        self._tell_workers()

    def abandon(self) -> None:
        self._order.abandon()


class _UndecodableError(Exception):
    """Of a deserializer, and not of a handler that decodes by itself, which may be tried again."""

    def __init__(self, error: UndecodableRecord) -> None:
        super().__init__(str(error))
        self.error = error


def _cause_of(error: Exception) -> Exception | str:
    """As a dead letter tells it."""
    if isinstance(error, _UndecodableError):
        return error.error
    return str(error) if isinstance(error, PoisonError) else error


def _is_async(handler: object) -> bool:
    # An object with `async def __call__` is one, too.
    return iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__)


def _named(one: RecordInHand) -> str:
    record = one.record
    return f"{record.topic}-{record.partition}, offset {record.offset}"
