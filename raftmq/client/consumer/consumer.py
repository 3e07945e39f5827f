"""`Consumer`: records of topics or partitions, in order within each partition.

Owns what a program touches: iteration, positions, pausing, opening and closing. Handing out a
record costs no checkpoint; where a new batch begins there is one. Cancelling a wait loses nothing:
what was not handed out comes next time.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from raftmq.client.consumer.delivery import Delivery
from raftmq.client.consumer.fetch_plan import FetchPlan
from raftmq.client.consumer.fetcher import Fetcher
from raftmq.client.consumer.intake import Intake
from raftmq.client.consumer.options import consumer_options
from raftmq.client.consumer.starts import FROM_LATEST, seek_start
from raftmq.client.consumer.subscription import Subscription
from raftmq.client.fetching import list_offset
from raftmq.client.network.tasks import one_error
from raftmq.errors import Closed, InvalidConfig, RaftmqError
from raftmq.wire.messages.offsets import LATEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from types import TracebackType

    from anyio.abc import TaskGroup

    from raftmq.client.consumer.batch import ConsumedBatch, ConsumerRecord
    from raftmq.client.consumer.partition_state import Key, PartitionState
    from raftmq.client.routing.cluster import Cluster

Found = TypeVar("Found")
QUESTIONS_MAX = 32  # at a time, for the ends of partitions
_NOTHING: Iterator[Any] = iter(())


class Consumer:
    """`async with mq.consumer("orders", start="earliest") as c:`, then `async for record in c:`

    One task iterates at a time. An error of a partition or a topic is raised where the next record
    is asked for; one can go on after it, and if it lasts it is raised again.

    Args:
        topics: of which all partitions are read, also those that are added later.
        options: see `ConsumerOptions`.

    Raises:
        TypeError: an option that is not known.
        InvalidConfig: values that make no sense; all of them at once.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: Sequence[str],
        options: Mapping[str, Any],
        *,
        random: Random | None = None,
    ) -> None:
        self._cluster = cluster
        self._options = consumer_options(topics, options)
        routes = cluster.routes
        self._subscription = Subscription(topics, self._options, routes, random or Random())
        plan = FetchPlan(self._subscription, self._options, routes)
        intake = Intake(self._subscription, routes, self._put_back)
        self._fetcher = Fetcher(cluster, self._subscription, plan, intake, self._on_news)
        self._delivery = Delivery(self._fetcher.on_change)
        self._plan = plan
        self._records: Iterator[ConsumerRecord] = _NOTHING
        self._last: ConsumerRecord | None = None  # of those that were handed out from `_records`
        self._changed = anyio.Event()
        self._is_waiting = self._is_open = False
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        """Waits until the partitions are known, and where "latest" is.

        Raises:
            Closed: it was opened before.
        """
        if self._tasks is not None:
            raise Closed("this consumer has been opened before: make another one")
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._fetcher.run)
        try:
            while not self._is_started:
                await self._wait_for_change()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """An error of the body goes its own way, past the tasks, which would make it a group."""
        assert self._tasks is not None, "left before it was entered"
        self._is_open = False
        self._close_records()
        self._changed.set()
        self._tasks.cancel_scope.cancel()
        with one_error():
            if isinstance(error, Exception):
                await self._tasks.__aexit__(None, None, None)
                return False
            return await self._tasks.__aexit__(kind, error, traceback)
        raise AssertionError("one_error swallows nothing")

    # -- records ---------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """The next record.

        Raises:
            Closed: outside `async with`.
            RaftmqError: what went wrong with a partition; it is named.
        """
        try:
            for record in self._records:
                self._last = record
                return record
            self._records = await self._next(self._delivery.open)
            record = self._last = next(self._records)
        except RaftmqError:
            self._close_records()  # its columns do not run parallel any more
            raise
        return record

    def batches(self, *, max_records: int | None = None) -> Batches:
        """`async for batch in c.batches():` records of one partition at a time, as columns.

        Args:
            max_records: of one batch; `max_poll_records` if not said.
        """
        count = self._options.max_poll_records if max_records is None else max_records
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidConfig([f"max_records = {count!r}: expected a whole number from 1"])
        return Batches(self, count)

    async def _next_records(self) -> tuple[ConsumedBatch, list[ConsumerRecord]]:
        """The next ones of a partition, all at once, and what they are of; for other threads."""
        return await self._next(self._delivery.take_records)

    def _take_back(self, batch: ConsumedBatch, offset: int) -> None:
        """Of the batch that was handed out last of its partition: from `offset` on it is not."""
        state = self._subscription.find(batch.topic, batch.partition)
        state.take_back(offset, epoch=batch.epoch_before(offset))
        self._fetcher.on_change(state)

    async def _next(
        self, take: Callable[[int], Found | None], records_max: int | None = None
    ) -> Found:
        """What `take` finds, once there is something."""
        self._check_open()
        if self._is_waiting:
            raise RuntimeError("another task is iterating over this consumer: one at a time")
        self._is_waiting = True
        try:
            await checkpoint()
            while True:
                self._check_open()
                self._close_records()
                if problem := self._subscription.take_problem():
                    raise problem
                found = take(records_max or self._options.max_poll_records)
                if found is not None:
                    return found
                await self._wait_for_change()
        finally:
            self._is_waiting = False

    # -- positions -------------------------------------------------------------------------

    @property
    def assignment(self) -> list[Key]:
        """The partitions that are read, as pairs of topic and number."""
        return sorted(self._subscription.states)

    @property
    def paused(self) -> list[Key]:
        return sorted(key for key, one in self._subscription.states.items() if one.is_paused)

    def position(self, topic: str, partition: int) -> int | None:
        """Offset of the next record to hand out; None: where to start is not known yet."""
        return self._delivery.position(self._subscription.find(topic, partition), self._last)

    def high_watermark(self, topic: str, partition: int) -> int | None:
        """Where the partition ended when it was fetched last; None: it was not yet."""
        return self._subscription.find(topic, partition).high_watermark

    def lag(self, topic: str, partition: int) -> int | None:
        """Records between the position and the high watermark; None: not known yet."""
        position, end = self.position(topic, partition), self.high_watermark(topic, partition)
        return None if position is None or end is None else max(0, end - position)

    async def end_offsets(self) -> dict[Key, int]:
        """Where each partition ends now, as its leader says.

        Raises:
            RaftmqError: a leader has not answered.
        """
        self._check_open()
        found: dict[Key, int] = {}
        failures: list[RaftmqError] = []
        limiter = anyio.Semaphore(QUESTIONS_MAX)
        async with anyio.create_task_group() as tasks:
            for key in self.assignment:
                tasks.start_soon(self._find_end, key, limiter, found, failures)
        if failures:
            raise failures[0]
        return {key: found[key] for key in sorted(found)}

    async def _find_end(
        self,
        key: Key,
        limiter: anyio.Semaphore,
        found: dict[Key, int],
        failures: list[RaftmqError],
    ) -> None:
        async with limiter:
            try:
                if not failures:
                    found[key] = await list_offset(self._cluster, *key, LATEST)
            except RaftmqError as error:
                failures.append(error.at(*key))

    def seek(
        self,
        topic: str,
        partition: int,
        *,
        offset: int | None = None,
        timestamp: int | datetime | None = None,
    ) -> None:
        """Go on elsewhere: at `offset`, or at the first record at or after `timestamp`.

        Args:
            timestamp: milliseconds since 1970-01-01 UTC, or a datetime with a time zone. If no
                record is so young, at the end. It is looked up when the partition is fetched.
        """
        start = seek_start(offset=offset, timestamp=timestamp)
        state = self._subscription.find(topic, partition)
        self._put_back(state)
        state.seek(start)
        self._fetcher.on_change(state)

    def pause(self, *partitions: Key) -> None:
        """Hand out nothing of them, and fetch nothing, until `resume`."""
        for state in self._states_of("pause", partitions):
            self._put_back(state)
            state.is_paused = True

    def resume(self, *partitions: Key) -> None:
        for state in self._states_of("resume", partitions):
            state.is_paused = False
            self._on_news([state])
            self._fetcher.on_change(state)

    # -- inside ----------------------------------------------------------------------------

    def _states_of(self, call: str, partitions: Sequence[Key]) -> list[PartitionState]:
        for key in partitions:
            if not isinstance(key, tuple) or len(key) != 2:
                raise TypeError(
                    f'{call} takes pairs, as in {call}(("orders", 0), ("orders", 1)), not {key!r}'
                )
        return [self._subscription.find(*key) for key in partitions]

    def _put_back(self, state: PartitionState) -> None:
        """Records that are handed out one by one are, if they are of that partition."""
        if self._delivery.is_open(state):
            self._close_records()

    def _close_records(self) -> None:
        self._delivery.close(self._last)
        self._records, self._last = _NOTHING, None

    def _on_news(self, states: Iterable[PartitionState]) -> None:
        for state in states:
            self._delivery.offer(state)
        self._changed.set()

    async def _wait_for_change(self) -> None:
        self._changed = anyio.Event()
        await self._changed.wait()

    def _check_open(self) -> None:
        if not self._is_open:
            verb = "closed" if self._tasks is not None else "not open"
            raise Closed(f"the consumer is {verb}: use it inside `async with mq.consumer(...)`")

    @property
    def _is_started(self) -> bool:
        """Whatever is sent from now on is "later", unless some leader cannot be asked."""
        return self._subscription.is_told and not any(
            state.start == FROM_LATEST
            and state.position is None
            and not state.failures
            and state.error is None
            and self._plan.leader_of(state) is not None
            for state in self._subscription.states.values()
        )


class Batches:
    """What `Consumer.batches` returns; breaking off and going on later loses nothing."""

    def __init__(self, consumer: Consumer, max_records: int) -> None:
        self._consumer, self._max_records = consumer, max_records

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedBatch:
        consumer = self._consumer
        return await consumer._next(consumer._delivery.take, self._max_records)
