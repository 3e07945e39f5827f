"""`Consumer`: iterate over records, commit, seek, pause; opening and closing.

Kafka: KafkaConsumer. Handing out a record costs no checkpoint; a new batch is one. Cancelling a
wait loses nothing: records that were not handed out come next time.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from raftmq.client.administration.offsets import find_ends
from raftmq.client.block_tasks import BlockTasks
from raftmq.client.consumer.fetch_collector import FetchCollector
from raftmq.client.consumer.fetch_plan import FetchPlan
from raftmq.client.consumer.fetch_response import FetchResponses
from raftmq.client.consumer.fetcher import Fetcher, FetchLeaders, MetadataWatch, RecordSignal
from raftmq.client.consumer.group_consumption import GroupConsumption, HandOutForm, Processing
from raftmq.client.consumer.group_reader import GroupReader, InFlightRecords
from raftmq.client.consumer.options import consumer_options, named
from raftmq.client.consumer.partition_state import FROM_LATEST, ReadingEvents, seek_start
from raftmq.client.consumer.record_iterator import RecordIterator, SharedBatch
from raftmq.client.consumer.subscription import Subscription
from raftmq.client.dead_letters.rejecting import MovedRecords, Moving
from raftmq.client.openable import Openable
from raftmq.client.type_parameters import Generic, KeyT_co, ValueT_co
from raftmq.errors import (
    Closed,
    InvalidConfig,
    InvalidRequest,
    RaftmqError,
    UndecodableRecord,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from types import TracebackType

    from raftmq.client.consumer.batch import AnyBatch, ConsumedBatch, Work
    from raftmq.client.consumer.partition_state import Key
    from raftmq.client.consumer.record import AnyRecord, ConsumerRecord
    from raftmq.client.dead_letters.rejecting import LetterProducer
    from raftmq.client.routing.cluster import Cluster

Found = TypeVar("Found")


class Consumer(Moving, Openable, Generic[ValueT_co, KeyT_co]):
    """Reads records: `async with mq.consumer("orders", start="earliest") as c:`, then `async for
    record in c:`

    One task iterates at a time. An error of a partition or a topic is raised where the next record
    is asked for; the program can go on after it, and if the cause lasts it is raised again. Reading
    changes nothing, so these errors are definite, whatever their class; those of commits say more.

    As a member of a group it gets its first records once the group has dealt out its partitions:
    a group that begins waits for others (`groups.initial_rebalance_delay_ms`, 3 s by default).

    Args:
        topics: all partitions of these are read, including those that are added later.
        options: see `ConsumerOptions`.
        make_producer: for the records that a group moves.

    Raises:
        TypeError: an unknown option.
        InvalidConfig: values that are out of bounds or contradict each other; all of them at once.
    """

    def __init__(
        self,
        cluster: Cluster,
        topics: Sequence[str],
        options: Mapping[str, Any],
        *,
        random: Random | None = None,
        make_producer: Callable[[dict[str, Any]], LetterProducer] | None = None,
    ) -> None:
        self._cluster = cluster
        self._moved = MovedRecords(cluster, make_producer)
        self._options = consumer_options(topics, options)
        routes, random, events = cluster.routes, random or Random(), ReadingEvents()
        self._subscription = Subscription(topics, self._options, routes, random, events)
        self._plan = FetchPlan(self._subscription, self._options, routes)
        watch = MetadataWatch(cluster, self._subscription)
        self._leaders = FetchLeaders(self._plan, watch, cluster.now)
        self._collector = FetchCollector(self._leaders.on_change)
        self._signal = RecordSignal(self._collector)
        self._in_flight_records = InFlightRecords(events.on_finished)
        self._one = RecordIterator(self._collector, self._in_flight_records.take)
        self._fetcher = Fetcher(
            cluster,
            watch,
            self._plan,
            self._leaders,
            FetchResponses(self._subscription, routes, self._one.put_back),
            self._signal.on_news,
        )
        self._membership = self._member_of(events, watch, random)
        self._as_records: HandOutForm[Iterator[AnyRecord]] = HandOutForm(
            self._collector.open, iter, is_whole=False
        )
        self._as_batch = HandOutForm(self._collector.take, lambda batch: batch, is_whole=True)
        self._as_shared = HandOutForm(
            partial(self._collector.open_as, make=SharedBatch), SharedBatch, is_whole=False
        )
        self._is_waiting = self._is_open = self._is_leaving = False
        self._block: BlockTasks | None = None  # only a running loop has one
        self._named = named(topics, self._options)

    def __repr__(self) -> str:
        return f"<Consumer of {self._named}, {self._state(was_opened=self._block is not None)}>"

    def _member_of(
        self, events: ReadingEvents, watch: MetadataWatch, random: Random
    ) -> GroupConsumption | None:
        group = self._options.as_member
        if group is None:
            return None
        reader = GroupReader(
            self._subscription,
            self._one,
            self._in_flight_records,
            self._leaders,
            self._signal,
            events,
            watch,
        )
        return GroupConsumption(
            self._cluster,
            group,
            self._subscription,
            reader,
            self._collector,
            random=random,
            reject=self.reject,
        )

    async def __aenter__(self) -> Self:
        """Wait until the partitions are known, and the offset of "latest". A member joins its group
        meanwhile, and gets its partitions later.

        Raises:
            Closed: it was opened before.
        """
        # Its tasks, and its membership, cannot be started again.
        if self._block is not None:
            raise Closed("this consumer has been opened before: make another one")
        self._cluster.check_open()
        self._cluster.check_loop()
        self._block = BlockTasks(self._run)
        await self._block.open()
        self._cluster.at_close.add(self._signal.on_news)
        self._is_open = True  # from here on its member may join, and has to leave
        try:
            if self._membership is not None:
                # Ends when committed offsets are known: a wait only with `assign`.
                await self._membership.begin()
            while not self._is_started:
                await self._signal.wait()
                self._cluster.check_open()
        except BaseException as error:  # also when cancelled: the tasks are running
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Raises the error of `on_rebalance`, if it has failed over the last revocation."""
        assert self._block is not None, "left before it was entered"
        self._block.check_loop()
        self._cluster.at_close.discard(self._signal.on_news)
        try:
            problem = await self._leave(error)
        except BaseException as cut:  # through every shield: asyncio's cancellation, and Ctrl-C
            kind, error, traceback = type(cut), cut, cut.__traceback__
            raise
        finally:
            self._one.close()
            try:
                await self._moved.close()
            finally:
                try:
                    await self._block.close(kind, error, traceback)
                finally:
                    self._signal.on_news()  # a waiting task gets the error that ended the block
        if problem is not None and error is None:  # an error of the program comes first
            raise problem
        return False

    async def _run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._fetcher.run, self._on_metadata)
            if self._membership is not None:
                tasks.start_soon(self._membership.run)

    async def _leave(self, error: BaseException | None) -> Exception | None:
        """Leave the group, if there is one; callbacks may still commit meanwhile. Its error is
        returned, not raised: the tasks have to end in any case.
        """
        was_open, self._is_open = self._is_open, False
        if self._membership is None or not was_open:  # never joined
            return None
        # A block that ends without an error has finished what it had in hand. `aclose` may be
        # called from another task, or in `finally`, in the midst of a record.
        is_finished = error is None and self._background is None
        newest = self._one.in_flight
        self._one.stop()
        if is_finished:
            self._in_flight_records.end(newest)
        self._is_leaving = True
        try:
            return await self._membership.leave(error, is_finished=is_finished)
        except Exception as problem:  # from `on_rebalance`
            return problem
        finally:
            self._is_leaving = False

    # -- records ---------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord[ValueT_co, KeyT_co]:
        """The next record.

        Raises:
            Closed: the consumer is not open, or not any more.
            InvalidRequest: another task waits for a record of this consumer. Definite.
            UnknownTopicOrPartition: for 5 s brokers have said that there is no such topic or
                partition; raised again 5 s later if it is still missing.
            UndecodableRecord: a deserializer has failed with this record, which is its `record`;
                the next call goes on behind it.
            RaftmqError: the error of a partition, which it names.
        """
        one = self._one
        try:
            # The fast path: one record of the open batch, without an await or a call.
            for record in one.records:
                one.last = record
                return record
            # The open batch is used up: finish it and wait for the next one.
            one.records = await self._next_open(self._as_records)
            record = one.last = next(one.records)
        except UndecodableRecord as error:
            one.last = error.record  # handed out with the error: the next call goes on behind it
            raise
        except InvalidRequest:  # another event loop: nothing is touched
            raise
        except RaftmqError:
            one.close()  # a column failed to decode: the rest cannot be iterated
            raise
        except BaseException:
            one.stop()  # a deserializer was interrupted, or a wait: its record comes again
            raise
        return record

    def batches(self, *, max_records: int | None = None) -> Batches[ValueT_co, KeyT_co]:
        """`async for batch in c.batches():` records of one partition at a time, as columns.

        Args:
            max_records: of one batch; None: `max_poll_records`.

        Returns:
            An asynchronous iterator; breaking off and iterating again loses nothing.

        Raises:
            InvalidConfig: `max_records` is not a whole number from 1. Definite.
        """
        count = self._options.max_poll_records if max_records is None else max_records
        # True is an int for Python
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidConfig([f"max_records = {count!r}: expected a whole number from 1"])
        return Batches(self, count)

    async def _next_shared(self) -> SharedBatch:
        """The next records of a partition, for other threads to take until the loop wants something
        else of it; each record that is taken finishes the one before.
        """
        shared = await self._next_open(self._as_shared)
        self._one.lend(shared)
        return shared

    async def _next_batch(self, records_max: int) -> ConsumedBatch[ValueT_co, KeyT_co]:
        batch = await self._next(self._as_batch, records_max)
        self._in_flight_records.take(batch)
        return batch

    def _take_back(self, batch: AnyBatch) -> None:
        """A batch was not handed out after all: read its partition again from there, unless the
        partition was another member's since, which has gone on from the committed offset.
        """
        state = self._subscription.states.get((batch.topic, batch.partition))
        offset = batch.base_offset
        # Still this member's, without interruption.
        if state is not None and state.ownership is batch.ownership:
            state.take_back(offset, epoch=batch.epoch_before(offset))
            self._leaders.on_change(state)

    async def _next_open(self, way: HandOutForm[Found]) -> Found:
        """As `_next`, for a batch that stays open: a rebalance may close it before this task runs
        again.
        """
        while True:
            found = await self._next(way)
            if self._one.is_open:  # else a rebalance has closed it: wait for another
                return found

    async def _next(self, way: HandOutForm[Found], records_max: int | None = None) -> Found:
        """The next records, once there are any; what was handed out before is finished now."""
        self._check_open()
        self._cluster.check_loop()
        if self._is_waiting:  # positions would depend on which task is faster
            raise InvalidRequest(
                "another task is iterating over this consumer: let one task ask for records and "
                "hand them on, or give each a consumer of its own"
            )
        self._is_waiting = True
        try:
            # Even where records are always ready, other tasks must run, and a cancellation show.
            await checkpoint()
            self._finish()
            count = records_max or self._options.max_poll_records
            if self._membership is None:
                return await self._wait_for(way.take, count)
            return await self._membership.next(way, count, self._wait_for)
        finally:
            self._is_waiting = False

    async def _wait_for(self, take: Callable[[int], Found | None], records_max: int) -> Found:
        """What `take` finds, as soon as it finds something."""
        while True:
            self._check_open()
            self._one.close()
            # After a pause of the process the session may have ended: drop partitions first.
            if self._membership is not None:
                self._membership.on_look()
            if problem := self._problem():
                raise problem
            found = take(records_max)
            if found is not None:  # otherwise nothing is ready yet
                return found
            # Ends with new records, an error, a change of the assignment, or at close.
            await self._signal.wait()

    def _problem(self) -> Exception | None:
        if self._membership is not None and self._membership.member.problem is not None:
            return self._membership.member.problem
        return self._subscription.take_problem()

    def _missing(self) -> UnknownTopicOrPartition | None:
        """For blocking programs that wait no longer: why nothing has come, if that is certain."""
        return self._subscription.missing()

    def _finish(self) -> None:
        """A program that asks for more has finished what it was handed."""
        self._one.stop()
        self._in_flight_records.put_down()

    # -- as a member of a group ------------------------------------------------------------

    async def commit(self, work: Work | None = None) -> None:
        """Commit everything up to and including `work`; without it, all that was handed out.

        Returns once the coordinator has it in the quorum: the next member to read the partition
        begins behind it, also if more was committed before. During a rebalance it waits, as long as
        this member keeps the partition.

        Args:
            work: a record or batch as it was handed out, not a copy.

        Raises:
            IllegalGeneration: the partition is not this member's any more, or was another member's
                since, which began at the offset committed then; nothing was committed. Definite.
            UnknownMemberId: with `assign`, while the group has members; nothing was committed.
                Definite.
            OutcomeUnknown: it may have been committed. Indefinite.
            InvalidTransaction: with `commit="transaction"`, where only transactions commit.
                Definite.
            InvalidRequest: `work` is a copy of what was handed out. Definite.
            InvalidConfig: the consumer is not in a group. Definite.
        """
        commits = self._group("commit").commits
        self._cluster.check_loop()
        await commits.commit(work)

    async def committed(self, topic: str, partition: int) -> int | None:
        """The committed offset of a partition, where the group goes on; None: nothing is committed.

        Raises:
            UnknownTopicOrPartition: there is no such partition. Definite.
            InvalidConfig: the consumer is not in a group. Definite.
        """
        return await self._group("committed").member.offsets.find_one((topic, partition))

    def processing(self, work: Work) -> Processing:
        """`with consumer.processing(batch):` for work that takes long, or runs beside the
        iteration.

        `work` is not finished before the block ends, even if more is asked for: until then it is
        not committed, and its partition is not given to another member. If the block fails, the
        group does not wait for it, and it is not committed before more is asked for. While any
        block is open, `max_poll_interval_ms` does not count.

        Args:
            work: a record or batch as it was handed out, not a copy.

        Raises:
            InvalidRequest: `work` is a copy of what was handed out. Definite.
        """
        return self._group("processing").processing(work)

    @property
    def generation(self) -> int:
        """The group's generation, as this member knows it; -1 while it is not a member."""
        return self._group("generation").member.membership.generation

    @property
    def member_id(self) -> str:
        """The id that the coordinator has given this member; empty before it has joined."""
        return self._group("member_id").member.membership.member_id

    def _group(self, call: str) -> GroupConsumption:
        if self._membership is None:
            raise InvalidConfig([f'{call}: needs a group, as in group="billing"'])
        self._check_open_or_leaving()
        return self._membership

    def _check_open_or_leaving(self) -> None:
        if not self._is_leaving:  # `on_rebalance` may commit while the consumer closes
            self._check_open()

    # -- positions -------------------------------------------------------------------------

    @property
    def assignment(self) -> list[Key]:
        """The partitions that are read, as pairs of topic and number."""
        return sorted(self._subscription.states)

    @property
    def paused(self) -> list[Key]:
        """The partitions that are paused, as pairs of topic and number."""
        return sorted(key for key, one in self._subscription.states.items() if one.is_paused)

    def position(self, topic: str, partition: int) -> int | None:
        """Offset of the next record to hand out; None: where to start is not known yet.

        Raises:
            InvalidConfig: the partition is not read by this consumer. Definite.
        """
        return self._one.position(self._subscription.find(topic, partition))

    def last_consumed(self, topic: str, partition: int) -> int | None:
        """Offset of the record that was handed out last; None: none was, since the partition is
        read. A seek leaves it until the next record.

        What `commit` commits of it is the offset after it.

        Raises:
            InvalidConfig: the partition is not read by this consumer. Definite.
        """
        return self._one.last_consumed(self._subscription.find(topic, partition))

    def high_watermark(self, topic: str, partition: int) -> int | None:
        """End of the partition as of the last fetch; None: not fetched yet.

        Raises:
            InvalidConfig: the partition is not read by this consumer. Definite.
        """
        return self._subscription.find(topic, partition).high_watermark

    def lag(self, topic: str, partition: int) -> int | None:
        """Offsets between the position and the end of what this consumer may read, as of the last
        fetch; None: not known yet. With "read_committed" that end is the first transaction that is
        still open, if there is one, and the high watermark otherwise.

        Raises:
            InvalidConfig: the partition is not read by this consumer. Definite.
        """
        return self._lag_from(self.position(topic, partition), topic, partition)

    def _lag_from(self, position: int | None, topic: str, partition: int) -> int | None:
        end = self._subscription.find(topic, partition).end_offset
        return None if position is None or end is None else max(0, end - position)

    async def end_offsets(self) -> dict[Key, int]:
        """The end offset of each assigned partition now, as its leader says.

        Returns:
            By pair of topic and partition: one past the last committed record; with
            "read_committed" the first transaction that is still open, if there is one.

        Raises:
            RaftmqError: a leader has not answered, or refused. Nothing was changed.
        """
        self._check_open()
        return await find_ends(self._cluster, self.assignment, self._options.isolation)

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

        Raises:
            InvalidConfig: the partition is not read by this consumer, or not exactly one place is
                given. Definite.
        """
        self._cluster.check_loop()
        start = seek_start(offset=offset, timestamp=timestamp)
        state = self._subscription.find(topic, partition)
        self._one.put_back(state)
        state.seek(start)
        self._leaders.on_change(state)

    def pause(self, *partitions: Key) -> None:
        """Hand out and fetch nothing of these partitions until `resume`.

        Args:
            partitions: pairs of topic and number.

        Raises:
            TypeError: not a pair.
            InvalidConfig: the partition is not read by this consumer. Definite.
        """
        self._cluster.check_loop()
        for state in self._subscription.find_all("pause", partitions):
            self._one.put_back(state)
            state.is_paused = True

    def resume(self, *partitions: Key) -> None:
        """Go on with paused partitions where they stopped; others stay as they are.

        Args:
            partitions: pairs of topic and number.

        Raises:
            TypeError: not a pair.
            InvalidConfig: the partition is not read by this consumer. Definite.
        """
        self._cluster.check_loop()
        for state in self._subscription.find_all("resume", partitions):
            state.is_paused = False
            self._signal.on_news([state])
            self._leaders.on_change(state)

    # -- inside ----------------------------------------------------------------------------

    def _on_metadata(self) -> None:
        if self._membership is not None:
            self._membership.on_metadata()

    def _check_open(self) -> None:
        if not self._is_open:
            raise self._why_closed("the consumer", was_opened=self._block is not None)
        self._cluster.check_open()

    @property
    def _is_started(self) -> bool:
        """Whether the start of every partition is known, so that all that is sent from now on is
        "later" than "latest", unless some leader cannot be reached.
        """
        return self._subscription.is_told and not any(
            state.start == FROM_LATEST
            and state.position is None
            and not state.failures
            and state.error is None
            and self._plan.leader_of(state) is not None
            for state in self._subscription.states.values()
        )


class Batches(Generic[ValueT_co, KeyT_co]):
    """What `Consumer.batches` returns; breaking off and iterating again loses nothing."""

    def __init__(self, consumer: Consumer[ValueT_co, KeyT_co], max_records: int) -> None:
        self._consumer, self._max_records = consumer, max_records

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumedBatch[ValueT_co, KeyT_co]:
        return await self._consumer._next_batch(self._max_records)
