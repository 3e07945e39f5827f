"""What leaves, when, and who is told: the tasks of one producer.

Owns one task that looks what has to leave, one for each request on its way, one for each topic
whose leaders are asked for or are told of a name, and one that asks for a producer id. Decides
nothing: `sending.py` does. Functions of the program are called between its steps, never within one.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import TYPE_CHECKING

import anyio

from raftmq.client.network.channel import one_error
from raftmq.client.producer.accumulator import Accumulator, BufferPool
from raftmq.client.producer.requests import ask, ask_producer_id, fence, wait_taken
from raftmq.client.producer.sender import ProducerSender
from raftmq.client.producer.statistics import Failures, Statistics
from raftmq.errors import Closed, DeliveryTimedOut, Disconnected, RaftmqError
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random
    from types import TracebackType

    from anyio.abc import TaskGroup

    from raftmq.client.producer.accumulator import TopicQueues
    from raftmq.client.producer.batch import OnDelivery, Outcome, ProducerBatch
    from raftmq.client.producer.options import ProducerOptions
    from raftmq.client.producer.sender import Answered, ProduceRequest
    from raftmq.client.routing.cluster import Cluster

NEWS_SECONDS_MIN = 1.0  # between two questions about topics of which nothing is doubted

logger = logging.getLogger("raftmq.client")


class _Waiter:
    """A task that waits until a topic is known."""

    def __init__(self, since: float) -> None:
        self.since, self.told = since, anyio.Event()
        self.error: RaftmqError | None = None

    def on_known(self, error: RaftmqError | None) -> None:
        self.error = error
        self.told.set()


class Dispatcher:
    """`open` and `close` belong to the task that has entered the producer's block.

    Attributes:
        accumulator: where records go, once there is `room`.
        failures: of which nobody was told.
        statistics: for reading.
    """

    def __init__(self, cluster: Cluster, options: ProducerOptions, random: Random) -> None:
        self._cluster, self._options = cluster, options
        self.accumulator = Accumulator(options, random, self._is_led)
        self.room = BufferPool(options.buffer_memory)
        self.failures, self.statistics = Failures(), Statistics()
        self._sending = ProducerSender(options, self.accumulator, self._on_settled)
        self._tasks: TaskGroup | None = None
        self._wake, self._look_at = anyio.Event(), 0.0
        self._settled = anyio.Event()
        self._waiting_count = 0  # tasks that wait until everything has left
        self._refreshing: set[str] = set()
        self._fencing: set[str] = set()
        self._is_asking_id = False
        self._news_at = 0.0
        self._told: set[int] = set()  # leaders that were sent what they do not answer
        self._calls: list[Callable[[], object]] = []

    async def open(self) -> None:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run)

    async def close(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """What has not left yet never will; of what is on its way nobody knows what becomes.

        An error of the body goes its own way, past the tasks, which would make it a group.
        """
        assert self._tasks is not None, "closed before it was opened"
        self._tasks.cancel_scope.cancel()
        try:
            with one_error():
                if error is None or isinstance(error, Exception):
                    await self._tasks.__aexit__(None, None, None)
                else:
                    await self._tasks.__aexit__(kind, error, traceback)
        finally:
            self._sending.fail_all(Closed("the producer was closed before it was sent"))
            self.room.close()
            self._tell()

    def wake(self) -> None:
        """Look now what has to leave."""
        self._wake.set()

    def look_by(self, time: float) -> None:
        """Look then, or before."""
        if time < self._look_at:
            self._look_at = time
            self._wake.set()

    async def wait_delivered(self, *, of_later: bool = False) -> None:
        """Until it is known what became of all that was handed in so far; nothing lingers.

        Args:
            of_later: and of what comes meanwhile.
        """
        start = math.inf if of_later else anyio.current_time()
        self.hurry(+1)
        try:
            while any(since <= start for since in self._times_of_unsettled()):
                await self._settled.wait()
        finally:
            self.hurry(-1)
        while self._told:  # with acks=0 records may still be on this side of the connection
            await wait_taken(self._cluster, self._told.pop(), self._options)

    async def wait_known(self, topic: TopicQueues) -> None:
        """Until it is known how many partitions the topic has.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
            DeliveryTimedOut: nobody has told.
        """
        waiter = _Waiter(anyio.current_time())
        topic.waiting.append(waiter)
        self.wake()
        try:
            await waiter.told.wait()
        except BaseException:
            if not waiter.told.is_set():
                topic.waiting.remove(waiter)
            raise
        if waiter.error is not None:
            raise waiter.error

    async def wait_fenced(self, topic: TopicQueues) -> None:
        """Until all partitions of the topic know of the producer's name, though nothing is sent.

        Raises:
            DeliveryTimedOut: they do not in time.
            RaftmqError: what has ended the producer.
        """
        named, fences = self.accumulator.named, topic.fences
        assert named is not None, "the producer has no name"
        assert fences is not None, "the producer has no name"
        topic.is_fence_wanted = True
        self.wake()
        with anyio.move_on_after(self._options.delivery_seconds):
            while named.error is None and not fences.is_complete:
                await self._settled.wait()
        if named.error is None and not fences.is_complete:
            late = DeliveryTimedOut(f"not all partitions know of {named} in time: {fences.problem}")
            named.end(late.at(topic.name))
            raise late.at(topic.name)
        if named.error is not None:
            raise named.error.copied()

    def hurry(self, change: int) -> None:
        """One more who waits, so that nothing may linger; or one less."""
        self._waiting_count += change
        self._wake.set()

    def call_later(self, on_delivery: OnDelivery, *told: object) -> None:
        """Between two steps."""
        self._calls.append(partial(on_delivery, *told))  # type: ignore[arg-type]

    # -- sending ---------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._look()
            with anyio.CancelScope(deadline=self._look_at):
                await self._wake.wait()
            self._wake = anyio.Event()

    def _look(self) -> None:
        assert self._tasks is not None
        now = anyio.current_time()
        is_hurried = self._waiting_count > 0 or self.room.is_wanted
        step = self._sending.step(self._cluster.routes, now, is_hurried=is_hurried)
        self._look_at = step.look_at
        for request in step.requests:
            self.statistics.requests += 1
            self._tasks.start_soon(self._perform, request)
        for topic in step.unknown_topics:
            self._refresh_soon(topic)
        for topic in step.unfenced_topics:
            self._fence_soon(topic)
        if step.is_id_wanted and not self._is_asking_id:
            self._is_asking_id = True
            self._tasks.start_soon(self._ask_id)
        self._tell()

    async def _perform(self, request: ProduceRequest) -> None:
        answers: list[Answered] = []
        try:
            answers += await ask(self._cluster, request, acks=self._options.acks_number)
            if self._options.acks == 0:
                self._told.add(request.leader)
        finally:
            gone = Disconnected("the producer was closed before the answer came")
            now = anyio.current_time()
            answers = answers or [gone] * len(request.parts)
            self._sending.on_answer(request, answers, self._cluster.routes, now)
            self._tell()
            self._wake.set()
        self._look_for_news(now)

    def _look_for_news(self, now: float) -> None:
        """Brokers have told of newer metadata: topics may have grown. With acks=0 none tells."""
        cluster = self._cluster
        is_news = cluster.newest_version > cluster.routes.version or self._options.acks == 0
        if is_news and now >= self._news_at:
            self._news_at = now + NEWS_SECONDS_MIN
            for topic in self.accumulator.topics:
                self._refresh_soon(topic)

    def _refresh_soon(self, topic: str) -> None:
        assert self._tasks is not None
        if topic not in self._refreshing:
            self._refreshing.add(topic)
            self._tasks.start_soon(self._refresh, topic)

    async def _refresh(self, topic: str) -> None:
        deadline = anyio.current_time() + self._options.request_timeout_ms / 1000
        try:
            await self._cluster.refresh(topic, deadline=deadline)
        except RaftmqError as error:
            logger.info("metadata: topic=%s reason=%s", topic, error)
            await anyio.sleep(self._options.retry_backoff_ms / 1000)
        finally:
            self._refreshing.discard(topic)
            self._wake.set()

    async def _ask_id(self) -> None:
        ids = self.accumulator.ids
        assert ids is not None, "nobody needs one"
        deadline = anyio.current_time() + self._options.request_timeout_ms / 1000
        try:
            ids.on_id(await ask_producer_id(self._cluster, deadline=deadline))
        except RaftmqError as error:
            logger.info("no producer id: reason=%s", error)
            self._sending.on_no_id(error)
            self._tell()
            await anyio.sleep(self._options.retry_backoff_ms / 1000)
        finally:
            self._is_asking_id = False
            self._wake.set()

    def _fence_soon(self, topic: str) -> None:
        assert self._tasks is not None
        if topic not in self._fencing:
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
            if len(fences.missing) < missing_before:
                topic.fence_backoff.reset()
            if fences.missing:
                logger.info("not fenced yet: topic=%s reason=%s", topic.name, fences.problem)
                await anyio.sleep(topic.fence_backoff.next_seconds())
        finally:
            self._fencing.discard(topic.name)
            self._wake.set()

    def _is_led(self, topic: str, partition: int) -> bool:
        place = self._cluster.routes.find(topic, partition)
        return place is None or place.leader != ABSENT

    # -- what became of it -----------------------------------------------------------------

    def _on_settled(self, batch: ProducerBatch, outcome: Outcome) -> None:
        self.statistics.on_settled(outcome, batch.unskipped_count, skipped=batch.skipped)
        self.room.give_back(batch.byte_count)
        if isinstance(outcome, RaftmqError):
            self.failures.add(outcome, lambda: batch.unclaimed)
        for index, on_delivery in batch.settle(outcome):
            self._calls.append(partial(_call_back, on_delivery, batch, index))

    def _tell(self) -> None:
        """Everybody who waits for something that has happened."""
        self.room.let_in()
        settled, self._settled = self._settled, anyio.Event()
        settled.set()
        while self._calls:
            calls, self._calls = self._calls, []
            for call in calls:
                _call(call)

    def _times_of_unsettled(self) -> Iterator[float]:
        """When they were handed in: the first record of each batch."""
        for topic in self.accumulator.topics.values():
            yield from (waiting.since for waiting in topic.waiting)
            for queue in topic.busy.values():
                yield from (batch.opened_at for batch in queue)
                yield from (batch.opened_at for batch in queue.on_their_way())


def _call_back(on_delivery: OnDelivery, batch: ProducerBatch, index: int) -> None:
    try:
        metadata = batch.metadata_of(index)
    except RaftmqError as error:
        on_delivery(error, None)
    else:
        on_delivery(None, metadata)


def _call(call: Callable[[], object]) -> None:
    """A program's own function must not stop the producer."""
    try:
        call()
    except Exception:
        logger.exception("on_delivery has failed")
