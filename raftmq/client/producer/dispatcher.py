"""The tasks of one producer: one that sends what is ready, and helpers for all that has to wait.

Owns one task that asks `ProducerSender` what has to leave, and hands it to the connection, which
calls back with the answer (decision 0016). A request that has to wait before, as without a
connection, has a task of its own, and so has each topic whose metadata are refreshed or whose
partitions are fenced, and a request for a producer id. Decides nothing itself: `sender.py` does.
Callbacks of the program are called between two steps of the sender, never within one, as they may
call the producer.

Invariant: each request is answered once, at the latest when the producer's tasks end.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from raftmq.client.block_tasks import BlockTasks
from raftmq.client.producer.accumulator import Accumulator, BufferPool
from raftmq.client.producer.delivery import PendingDelivery, call_program
from raftmq.client.producer.requests import (
    answers_in,
    ask,
    ask_now,
    ask_producer_id,
    fence,
    wait_taken,
)
from raftmq.client.producer.sender import ProducerSender
from raftmq.client.producer.statistics import Failures, Statistics, timed_out
from raftmq.errors import Closed, Disconnected, RaftmqError
from raftmq.wire.bodies import ABSENT, ACKS_NONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random
    from types import TracebackType

    from anyio.abc import TaskGroup

    from raftmq.client.producer.accumulator import TopicQueues
    from raftmq.client.producer.batch import OnDelivery, Outcome, ProducerBatch
    from raftmq.client.producer.options import ProducerOptions
    from raftmq.client.producer.partition_queue import Answered, ProduceRequest
    from raftmq.client.producer.record import Extras
    from raftmq.client.routing.cluster import Cluster
    from raftmq.client.transactions.records import TransactionRecords
    from raftmq.rpc.reply import Answer
    from raftmq.wire.batch.columns import Key, Value

GROWTH_CHECK_SECONDS = 1.0  # between two metadata refreshes that only look for new partitions

logger = logging.getLogger("raftmq.client")


class _Waiter:
    """A task that waits until a topic's number of partitions is known."""

    def __init__(self, since: float) -> None:
        self.since, self.settled = since, anyio.Event()
        self.error: RaftmqError | None = None

    def on_known(self, error: RaftmqError | None) -> None:
        self.error = error
        self.settled.set()


class Dispatcher:
    """Sends the accumulator's batches and reports outcomes. `open` and `close` belong to the task
    that has entered the producer's block.

    Attributes:
        accumulator: where records go, once memory for them is reserved in `buffer_pool`.
        buffer_pool: its memory.
        is_taking: it is open, and was not ended early, as one with a name may be.
        transaction_count: so many have begun.
        failures: those that no task awaits and no callback got.
        statistics: for the program to read.
    """

    def __init__(
        self,
        cluster: Cluster,
        options: ProducerOptions,
        random: Random,
        member: TransactionRecords | None = None,
    ) -> None:
        self._cluster, self._options = cluster, options
        self.buffer_pool, self.is_taking = BufferPool(options.buffer_memory), False
        self.failures, self.statistics, self.transaction_count = Failures(), Statistics(), 0
        self._block: BlockTasks | None = None  # only a running loop has one
        self._tasks: TaskGroup | None = None  # of `_run`
        self._wake = anyio.Event()
        self._alarm: anyio.CancelScope  # of the sleep between steps; only a running loop has one
        self._settled: anyio.Event | None = None  # only while a task waits for it
        # Requests whose answer a callback takes, and what withdraws them
        self._asked: dict[int, tuple[ProduceRequest, Callable[[], None]]] = {}
        self._numbers = count()
        self._defect: BaseException | None = None  # of `_on_outcome`, for `_run` to raise
        # Tasks in flush(), close and bulk calls: while there are any, nothing lingers
        self._waiting_count = 0
        self._refreshing, self._fencing = set[str](), set[str]()
        self._is_asking_id, self._growth_check_at = False, 0.0
        # Leaders that were sent requests with acks=0, which they do not answer
        self._unanswered: set[int] = set()
        self._calls: list[Callable[[], object]] = []
        self._cut: Closed | None = None  # the client was closed before the producer
        # Last, as both call back
        self.accumulator = Accumulator(options, random, self._is_led, self._on_end, member)
        self._sending = ProducerSender(options, self.accumulator, self._on_settled)

    async def open(self) -> None:
        self._cluster.check_open()
        self._cluster.check_loop()
        self._block, self._alarm = BlockTasks(self._run), anyio.CancelScope()
        await self._block.open()
        self._cluster.at_close.add(self._on_client_closed)
        self.is_taking = self.accumulator.takes_records  # else from `begin` on

    async def close(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Stop all tasks: unsent batches fail as certainly not appended, those in flight as
        unknown.
        """
        assert self._block is not None, "closed before it was opened"
        self._block.check_loop()
        self._cluster.at_close.discard(self._on_client_closed)
        self.is_taking = False
        closed = Closed("the producer was closed before it was delivered")
        try:
            await self._block.close(kind, error, traceback)
        except Exception as failure:  # a task has failed, which closes the producer
            closed.__cause__ = failure
            raise
        finally:
            self._sending.end_all(closed)
            self.buffer_pool.close()
            self._wake_waiters()

    def wake(self) -> None:
        """Run the next step now: something may be ready to leave."""
        self._wake.set()

    def on_opened(self, batch: ProducerBatch) -> None:
        """Run the next step when that batch has lingered."""
        ids, linger_seconds = self.accumulator.ids, self._options.linger_seconds
        is_full = self.accumulator.is_filled  # the batch before, which leaves now
        # The first step of all requests the producer id, while the batch lingers.
        is_first = ids is not None and ids.newest is None
        if not linger_seconds or is_full or is_first or self._is_hurried:
            self.wake()
        else:
            self._look_by(batch.opened_at + linger_seconds)

    def _look_by(self, time: float) -> None:
        if time < self._alarm.deadline:  # else the next step is early enough already
            self._alarm.deadline = time

    async def wait_delivered(self, *, of_later: bool = False) -> None:
        """Wait until the outcome of all records accepted so far is known; nothing lingers
        meanwhile.

        Args:
            of_later: and of those accepted while this waits.
        """
        start = math.inf if of_later else self._cluster.now()
        self.hurry(+1)
        try:
            while any(since <= start for since in self._times_of_unsettled()):
                # Ends at the latest with the delivery timeout of each batch.
                await self._wait_settled()
        finally:
            self.hurry(-1)
        while self._unanswered:  # with acks=0 records may still be on this side of the connection
            await wait_taken(self._cluster, self._unanswered.pop(), self._options)

    async def wait_known(self, topic: TopicQueues) -> None:
        """Wait until the number of partitions of the topic is known.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
            DeliveryTimedOut: no broker has answered in time.
        """
        waiter = _Waiter(anyio.current_time())
        topic.waiting.append(waiter)
        self.wake()
        try:
            # Ends with the answer to a metadata request, or with the delivery timeout.
            await waiter.settled.wait()
        except BaseException:
            # Cancelled while it waits. Otherwise `on_known` has removed it already.
            if not waiter.settled.is_set():
                topic.waiting.remove(waiter)
            raise
        if waiter.error is not None:
            raise waiter.error

    async def wait_fenced(self, topic: TopicQueues) -> None:
        """Wait until all partitions of the topic have fenced the producer's name, even if no record
        is sent: only then earlier runs cannot write any more.

        Raises:
            DeliveryTimedOut: not all did in time.
            RaftmqError: what has ended the producer.
        """
        named, fences = self.accumulator.named, topic.fences
        assert named is not None, "the producer has no name"
        assert fences is not None, "the producer has no name"
        topic.is_fence_wanted = True
        self.wake()
        with anyio.move_on_after(self._options.delivery_seconds):
            while named.error is None and not fences.is_complete:
                # Woken after every step and answer, fences included.
                await self._wait_settled()
        if named.error is None and not fences.is_complete:
            reason = fences.problem or topic.problem
            late = timed_out(f"not all partitions know of {named} in time", reason)
            named.end(late.at(topic.name))
            raise late.at(topic.name)
        if named.error is not None:  # ended by an error elsewhere
            raise named.error.copied()

    def hurry(self, change: int) -> None:
        """One task more (+1) or less (-1) waits for delivery, so that nothing may linger."""
        self._waiting_count += change
        self._wake.set()

    def call_later(self, on_delivery: OnDelivery, *told: object) -> None:
        """Queue a callback of the program, to be called between two steps."""
        self._calls.append(partial(on_delivery, *told))  # type: ignore[arg-type]

    @property
    def _is_hurried(self) -> bool:
        """Nothing may linger. A full buffer is in a hurry, too: what lingers keeps the program
        waiting for memory.
        """
        return self._waiting_count > 0 or self.buffer_pool.is_wanted

    # -- transactions ----------------------------------------------------------------------

    def begin(self) -> None:
        """Take the records of a transaction."""
        self.is_taking = self._cut is None
        self.transaction_count += 1

    async def stop_taking(self) -> None:
        """Take no more records, and turn away those that wait for memory: they would belong to the
        next transaction.
        """
        self.is_taking = False
        self.buffer_pool.turn_away()
        await anyio.lowlevel.checkpoint()  # they find it so before anything else is taken

    def fail_transaction(self) -> None:
        """Nothing of it leaves any more; answers that still come change nothing."""
        machine = self.accumulator.machine
        assert machine is not None, "the producer has no transactions"
        assert machine.error is not None, "it goes on"
        self._sending.end_all(machine.error)
        self._wake_waiters()
        self.failures.forget()  # the end of the transaction reports them

    # -- sending ---------------------------------------------------------------------------

    async def _run(self) -> None:
        async with anyio.create_task_group() as self._tasks:
            try:
                while self._defect is None:
                    # One scope for many steps: only the end of a linger or a deadline leaves it.
                    with anyio.CancelScope() as self._alarm:
                        while self._defect is None:
                            self._wake = anyio.Event()
                            self._take_step()
                            # Until a record, an answer or metadata wakes it, or the alarm.
                            await self._wake.wait()
                raise self._defect
            finally:
                self._withdraw_all()  # no callback finds the task group closed

    def _take_step(self) -> None:
        assert self._tasks is not None
        now = self._cluster.clock()
        # No request leaves any more; what comes back from one in flight fails here, too.
        if self._cut is not None:
            self._sending.fail_all(self._cut)
        self.accumulator.is_filled = False
        step = self._sending.step(self._cluster.routes, now, is_hurried=self._is_hurried)
        self._look_by(step.look_at)
        if self.accumulator.machine is not None:
            self._look_by(self.accumulator.machine.on_time(now))
        for request in step.requests:
            self._send(request, now)
        for late in step.overdue:
            logger.warning(
                "delivery takes long: topic=%s partition=%d seconds=%.0f reason=%s",
                *late,
            )
        for topic in step.unknown_topics:
            self._refresh_soon(topic)
        for topic in step.unfenced_topics:
            self._fence_soon(topic)
        if step.is_id_wanted and not self._is_asking_id:  # one request at a time
            self._is_asking_id = True
            self._tasks.start_soon(self._ask_id)
        self._wake_waiters()

    def _send(self, request: ProduceRequest, now: float) -> None:
        """In this step, unless it has to wait, or needs no answer."""
        assert self._tasks is not None
        self.statistics.requests += 1
        acks, withdraw, number = self._options.acks_number, None, next(self._numbers)
        if acks != ACKS_NONE:
            taken = partial(self._on_outcome, number)
            withdraw = ask_now(self._cluster, request, taken, acks=acks, now=now)
        if withdraw is None:
            self._tasks.start_soon(self._perform, request)
        else:
            self._asked[number] = request, withdraw

    def _on_outcome(self, number: int, outcome: Answer | RaftmqError) -> None:
        """Called in a task of the connection."""
        request, _ = self._asked.pop(number)
        try:
            self._take_answers(request, answers_in(self._cluster, request, outcome))
            self._maybe_refresh_all()
        # Of the program or of this producer: it must not end the connection, which others use.
        except BaseException as defect:
            self._defect = defect
            self.wake()

    async def _perform(self, request: ProduceRequest) -> None:
        answers: list[Answered] = []
        try:
            answers += await ask(self._cluster, request, acks=self._options.acks_number)
            # No answer will show that the broker has read it: `wait_delivered` asks.
            if self._options.acks == 0:
                self._unanswered.add(request.leader)
        finally:  # also when the task is cancelled at close
            self._take_answers(request, answers or _gone(request))
        self._maybe_refresh_all()

    def _withdraw_all(self) -> None:
        """No answer counts any more."""
        while self._asked:
            _, (request, withdraw) = self._asked.popitem()
            withdraw()
            self._take_answers(request, _gone(request))

    def _take_answers(self, request: ProduceRequest, answers: Sequence[Answered]) -> None:
        cluster = self._cluster
        self._sending.on_answer(request, answers, cluster.routes, cluster.clock())
        self._wake_waiters()
        # Else the next step has nothing to do: a lone request does without it.
        if self._is_hurried or any(len(part.queue) for part in request.parts):
            self.wake()

    def _maybe_refresh_all(self) -> None:
        """Refresh topics after an answer that named newer metadata: they may have more partitions.
        With acks=0 no answer says so, therefore refresh by time.
        """
        cluster = self._cluster
        may_have_grown = cluster.newest_version > cluster.routes.version or self._options.acks == 0
        if may_have_grown and (now := cluster.clock()) >= self._growth_check_at:
            self._growth_check_at = now + GROWTH_CHECK_SECONDS
            for topic in self.accumulator.topics:
                self._refresh_soon(topic)

    def _refresh_soon(self, topic: str) -> None:
        assert self._tasks is not None
        if topic not in self._refreshing:  # one task per topic
            self._refreshing.add(topic)
            self._tasks.start_soon(self._refresh, topic)

    async def _refresh(self, topic: str) -> None:
        deadline = anyio.current_time() + self._options.request_timeout_ms / 1000
        try:
            await self._cluster.refresh(topic, deadline=deadline)
            self.accumulator.topics[topic].problem = None
        except RaftmqError as error:  # the next step tries again; batches time out on their own
            self.accumulator.topics[topic].problem = error
            logger.info("metadata: topic=%s reason=%s", topic, error)
            if isinstance(error, Closed):  # the client: nothing will be known any more
                self._sending.fail_topic(self.accumulator.topics[topic], error)
                self._wake_waiters()
                return
            # The next step asks again at once; this keeps a cluster that refuses from being
            # flooded.
            await anyio.sleep(self._options.retry_backoff_ms / 1000)
        finally:
            self._refreshing.discard(topic)
            self._wake.set()

    async def _ask_id(self) -> None:
        ids = self.accumulator.ids
        assert ids is not None, "the producer needs no id"
        deadline = anyio.current_time() + self._options.request_timeout_ms / 1000
        try:
            ids.on_id(await ask_producer_id(self._cluster, deadline=deadline))
        except RaftmqError as error:  # the next step asks again
            logger.info("no producer id: reason=%s", error)
            self._sending.on_no_id(error)
            self._wake_waiters()
            # As for metadata: while `_is_asking_id` is set, no other request for an id starts.
            await anyio.sleep(self._options.retry_backoff_ms / 1000)
        finally:
            self._is_asking_id = False
            self._wake.set()

    def _fence_soon(self, topic: str) -> None:
        assert self._tasks is not None
        if topic not in self._fencing:  # one task per topic
            self._fencing.add(topic)
            self._tasks.start_soon(self._fence, self.accumulator.topics[topic])

    async def _fence(self, topic: TopicQueues) -> None:
        fences = topic.fences
        assert fences is not None, "the producer has no name"
        missing_before = len(fences.missing)
        deadline = anyio.current_time() + self._options.request_timeout_ms / 1000
        try:
            answers = await fence(self._cluster, topic.name, fences, deadline=deadline)
            self._sending.on_fenced(topic, answers)
            # Progress: only partitions that keep refusing deserve long pauses.
            if len(fences.missing) < missing_before:
                topic.fence_backoff.reset()
            # Pause before the next step starts this task again.
            if fences.missing:
                logger.info("not fenced yet: topic=%s reason=%s", topic.name, fences.problem)
                await anyio.sleep(topic.fence_backoff.next_seconds())
        finally:
            self._fencing.discard(topic.name)
            self._wake.set()

    def _is_led(self, topic: str, partition: int) -> bool:
        """Partitions that metadata do not know count as led: the sender finds out."""
        place = self._cluster.routes.find(topic, partition)
        return place is None or place.leader != ABSENT

    # -- what became of it -----------------------------------------------------------------

    def _on_end(self) -> None:
        """A named producer has ended, or a transaction must be aborted: accept no more records."""
        self.is_taking = False
        self.wake()

    def _on_client_closed(self) -> None:
        """Without it nothing can be sent: what waits must not wait for its delivery timeout."""
        self._cut = Closed("the client was closed before it was delivered")
        if self.accumulator.ending is not None:
            self.accumulator.ending.end(self._cut)
        self.is_taking = False
        self.buffer_pool.close()
        self.wake()

    def _on_settled(self, batch: ProducerBatch, outcome: Outcome) -> None:
        self.statistics.on_settled(outcome, batch.unskipped_count, skipped=batch.skipped)
        self.buffer_pool.give_back(batch.byte_count)
        # Reported by `flush`, unless the program claims it before.
        if isinstance(outcome, RaftmqError):
            self.failures.add(outcome, lambda: batch.unclaimed)
        for index, on_delivery in batch.settle(outcome):
            self._calls.append(partial(_call_back, on_delivery, batch, index))

    def _wake_waiters(self) -> None:
        """Wake tasks that wait for memory or outcomes; callbacks are called before they go on."""
        self.buffer_pool.let_in()
        if self._settled is not None:
            self._settled.set()
            self._settled = None
        # A callback may hand in records, which may queue further callbacks.
        while self._calls:
            calls, self._calls = self._calls, []
            for call in calls:
                call_program(call)

    async def _wait_settled(self) -> None:
        if self._settled is None:
            self._settled = anyio.Event()
        await self._settled.wait()  # until the next step or answer

    def count_undelivered(self) -> int:
        """Records that have no outcome yet, or a failure that nothing has reported. For `__del__`,
        too, which any thread may run.
        """
        topics = list(self.accumulator.topics.values())
        waiting = [one for topic in topics for one in list(topic.waiting)]
        records = sum([not isinstance(one, _Waiter) for one in waiting])
        return records + sum(map(len, self._unsettled())) + self.failures.count()

    def _times_of_unsettled(self) -> Iterator[float]:
        """When the unsettled records were accepted: the first record of each batch."""
        for topic in self.accumulator.topics.values():
            yield from (waiting.since for waiting in topic.waiting)
        yield from (batch.opened_at for batch in self._unsettled())

    def _unsettled(self) -> Iterator[ProducerBatch]:
        # Copies, which no other task or thread changes meanwhile.
        for topic in list(self.accumulator.topics.values()):
            for queue in list(topic.busy.values()):
                yield from queue.unsettled()


def _gone(request: ProduceRequest) -> list[Answered]:
    gone = Disconnected("the producer was closed before the answer came")
    return [gone] * len(request.parts)


def _call_back(on_delivery: OnDelivery, batch: ProducerBatch, index: int) -> None:
    try:
        metadata = batch.metadata_of(index)
    except RaftmqError as error:
        on_delivery(error, None)
    else:
        on_delivery(None, metadata)


# -- Records before metadata ----------------------------------------------------------------------
# A record that came before the number of partitions of its topic was known, until it joins a batch.
#
# Invariant: it is settled once: it either joins a batch, or fails and gives its memory back.


# Of memory for the object and its delivery, beside RECORD_OVERHEAD_BYTES
EARLY_OVERHEAD_BYTES = 256


class PendingRecord:
    """A record in `TopicQueues.waiting`.

    Attributes:
        since: when it was accepted; its delivery timeout counts from here.
        delivery: its outcome, for the program to await.
    """

    __slots__ = (
        "_dispatcher", "_extras", "_key", "_on_delivery", "_size", "_timestamp", "_topic", "_value",
        "delivery", "since",
    )  # fmt: skip

    def __init__(
        self,
        dispatcher: Dispatcher,
        topic: TopicQueues,
        record: tuple[Value, Key, int, int, Extras],
        on_delivery: OnDelivery | None,
        since: float,
        delivery: PendingDelivery,
    ) -> None:
        """`record`: value, key, timestamp, size and extras."""
        self._dispatcher, self._topic, self._on_delivery = dispatcher, topic, on_delivery
        self._value, self._key, self._timestamp, self._size, self._extras = record
        self.since, self.delivery = since, delivery
        dispatcher.buffer_pool.take_anyway(EARLY_OVERHEAD_BYTES)
        if on_delivery is not None:  # the callback will report a failure
            self.delivery._claim()

    def on_known(self, error: RaftmqError | None) -> None:
        """Join a batch, or fail with `error`."""
        self._dispatcher.buffer_pool.give_back(EARLY_OVERHEAD_BYTES)
        if error is None:
            error = self._join()
        if error is None:
            return
        machine = self._dispatcher.accumulator.machine
        if machine is not None:  # it was accepted, so the transaction lacks it
            machine.end(error)
            error = machine.aborted(error)
        self._dispatcher.buffer_pool.give_back(self._size)
        self._dispatcher.statistics.failed_records += 1
        self.delivery._refuse(error)
        if self._on_delivery is None:  # otherwise the callback reports it
            self._dispatcher.failures.add(error, lambda: not self.delivery._is_claimed)
        else:
            self._dispatcher.call_later(self._on_delivery, error, None)

    def _join(self) -> RaftmqError | None:
        try:
            batch, index = self._dispatcher.accumulator.add(
                self._topic, self._value, self._key, self._timestamp, self._size, self._begin,
                self._extras,
            )  # fmt: skip
        except RaftmqError as error:
            return error
        self.delivery._place(batch, index)
        if self._on_delivery is not None:
            self.delivery._call_back(self._on_delivery)
        return None

    def _begin(self) -> float:
        return self.since
