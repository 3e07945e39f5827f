"""Blocking `exactly_once`: `transform` runs in the program's thread, all else in the loop.

Owns the way of a batch to that thread, and of its outcome back. Invariant: a record reaches the
transaction that `transform` was given, or none: where that was aborted meanwhile, each further call
with it is refused, even if another one has begun since.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import trio

from raftmq.client.network.channel import one_error
from raftmq.client.options import bad_function
from raftmq.client.transactions import exactly_once as asynchronous
from raftmq.client.transactions.exactly_once import DEAD_LETTER, RETRY
from raftmq.errors import InvalidConfig
from raftmq.sync.handover import Handover
from raftmq.sync.loop import LoopCall
from raftmq.sync.producer import Producer
from raftmq.sync.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from raftmq.client.consumer.batch import AnyBatch
    from raftmq.client.transactions.transaction import Transaction as AsyncTransaction
    from raftmq.sync.client import Client
    from raftmq.sync.consumer import Consumer
    from raftmq.sync.loop import Loop

    Transform: TypeAlias = Callable[[AnyBatch, Transaction[Any, Any]], object]
    OnPoison: TypeAlias = Transform | Literal["dead_letter", "retry"] | None
    AsyncTransform: TypeAlias = Callable[[AnyBatch, AsyncTransaction[Any, Any]], Awaitable[None]]

HANDOVER_BYTES_MAX = 8 << 20  # of records that wait for the loop: a quarter of buffer_memory


def exactly_once(
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

    Runs in this thread until Ctrl-C, or until another thread closes the client. What `transform`
    sends with `tx`, and the offsets of what it got, are committed together. Where a transaction is
    aborted, its records are read again; so effects beside what `tx` sends may happen more than
    once.

    After Ctrl-C open the consumer anew to go on: with records in hand, or a commit without an
    answer, the old one stands behind what may have no result, and later transactions refuse it.

    Args:
        mq: the client that sends.
        consumer: with `delivery="exactly_once"`, and a member of its group: of topics, or of a
            pattern; no other thread reads from it.
        transform: `def transform(batch, tx)`; it sends with `tx`.
        interval_ms: after so long, from its first batch on, a transaction is committed: readers of
            the results see them that much later.
        max_records: ... or after so many records.
        attempts: how often a batch may fail in `transform`, at its last the error is raised.
        on_poison: gets such a batch instead, as `transform` does: it may send it to a topic for
            dead letters. Its offsets are committed. "dead_letter": the records that fail by
            themselves go to the dead letters of the group (see `Transaction.reject`); to find
            them, batches that fail are tried in halves.

    Raises:
        InvalidConfig: the consumer has no group, or is no member of it (`assign`), or a number is
            out of bounds. Definite.
        InvalidTransaction: the consumer commits otherwise, or has to be opened anew. Definite.
        ProducerFenced: another process has the consumer's group_instance_id. Definite.
        Closed: the client or the consumer is closed. Definite.
        OutcomeUnknown: nobody can say any more what became of a commit; a consumer that is opened
            anew goes on from the group's offsets. Indefinite.
        RaftmqError: what else reading has raised.
        MessageTooLarge: a record has no room in the topic of dead letters. Definite.
        Exception: what `transform` has raised at last; a note names the batch.
    """
    problems = [
        *bad_function("transform", transform, "def transform(batch, tx)"),
        *_bad_poison(on_poison),
    ]
    if problems:
        raise InvalidConfig(problems)
    inner = consumer._for_transactions()
    thread = _ProgramThread(mq._loop)

    async def run() -> None:
        with thread.jobs:
            await asynchronous.exactly_once(
                mq._client,
                inner,
                thread.called(transform),
                interval_ms=interval_ms,
                max_records=max_records,
                attempts=attempts,
                on_poison=thread.called(on_poison) if callable(on_poison) else on_poison,
            )

    thread.work_for(LoopCall(run, ()))


def _bad_poison(given: OnPoison) -> list[str]:
    if given in (DEAD_LETTER, RETRY):
        return []
    return bad_function("on_poison", given, f'"{DEAD_LETTER}", "{RETRY}", or def bury(batch, tx)')


class _Job:
    """A batch for a function of the program."""

    def __init__(
        self, function: Transform, batch: AnyBatch, tx: Transaction[Any, Any], on_end: trio.Event
    ) -> None:
        self._function, self._batch, self._tx = function, batch, tx
        self.ended = on_end
        self.error: Exception | None = None

    def run(self) -> None:
        """In the program's thread. What is no Exception, as Ctrl-C, ends the thread's work."""
        try:
            self._function(self._batch, self._tx)
        except Exception as error:
            self.error = error


class _ProgramThread:
    """The thread that has called `exactly_once`: it does one job after the other.

    Attributes:
        jobs: to be closed with the call that has them done.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        # Without room: a job that is withdrawn before it was taken is never done.
        self.jobs, self._todo = trio.open_memory_channel[_Job](0)

    def work_for(self, call: LoopCall[None]) -> None:
        """Do what the call in the loop asks for, until it ends. Raises its error."""
        try:
            self._loop.start(call)
            while (job := self._loop.call(self._next)) is not None:
                job.run()
                self._loop.call_soon(job.ended.set)
            self._loop.wait(call)
        # Also Ctrl-C: what is open is aborted, then the error goes on.
        except BaseException:
            self._loop.cancel(call)
            with suppress(Exception):
                self._loop.wait(call)
            raise

    def called(self, function: Transform) -> AsyncTransform:
        """The function as the loop calls it."""

        async def call(batch: AnyBatch, tx: AsyncTransaction[Any, Any]) -> None:
            handover = Handover(self._loop, tx, HANDOVER_BYTES_MAX)
            handover.open()
            with one_error():
                async with trio.open_nursery() as tasks:
                    tasks.start_soon(handover.run)
                    try:
                        await self._do(function, batch, tx, handover)
                        await handover.wait_taken()
                    finally:
                        handover.close()
            handover.failures.raise_first()

        return call

    async def _do(
        self,
        function: Transform,
        batch: AnyBatch,
        tx: AsyncTransaction[Any, Any],
        handover: Handover,
    ) -> None:
        producer = Producer(self._loop, tx._producer, HANDOVER_BYTES_MAX, handover=handover)
        blocking = Transaction(self._loop, handover, producer, tx)
        job = _Job(function, batch, blocking, trio.Event())
        await self.jobs.send(job)
        # Until the program's thread has done it. If this is cancelled, it goes on, in vain: its
        # transaction refuses what is sent.
        await job.ended.wait()
        if job.error is not None:
            raise job.error

    async def _next(self) -> _Job | None:
        """None: the call has ended."""
        try:
            # Ends with a job, or with the call that has them done.
            return await self._todo.receive()
        except trio.EndOfChannel:
            return None
