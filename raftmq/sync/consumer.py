"""Blocking consumer: iteration shared by threads, commit, seek, pause, run in the loop's thread.

Owns what lies between the consumer in the loop and the program's threads: a shared batch, or a
batch of columns. Invariants: records are stored here before a waiting thread is woken, so an
interrupted wait loses nothing; before a seek, pause or commit, records that no thread has taken go
back to the consumer. Parameters and docstrings of the calls, and most bodies that only ask the
consumer in the loop, are written by `python -m tests.sync_source`.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import trio

from raftmq.client.blocks import BlockingBlock
from raftmq.client.type_parameters import Generic, KeyT_co, ValueT_co
from raftmq.errors import Closed
from raftmq.sync.block import Block
from raftmq.sync.loop import limit_of
from raftmq.sync.moving import MovingCalls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from raftmq.client.consumer.batch import ConsumedBatch, Work
    from raftmq.client.consumer.consumer import Batches
    from raftmq.client.consumer.consumer import Consumer as AsyncConsumer
    from raftmq.client.consumer.group_consumption import Processing as AsyncProcessing
    from raftmq.client.consumer.partition_state import Key
    from raftmq.client.consumer.record import AnyRecord, ConsumerRecord
    from raftmq.client.consumer.record_iterator import SharedBatch
    from raftmq.sync.loop import Loop


# -- Processing blocks ----------------------------------------------------------------------------
# `processing`: a block of the program's thread.


class Processing:
    """What `Consumer.processing` returns, for a `with` block. Work that fails is not finished."""

    def __init__(
        self, ask: Callable[[Callable[[], object]], object], block: AsyncProcessing
    ) -> None:
        """`ask` runs a function in the loop."""
        self._ask, self._block = ask, block

    def __enter__(self) -> Self:
        self._ask(self._block.__enter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(Closed):  # a closed consumer holds nothing any more
            self._ask(lambda: self._block.__exit__(kind, error, traceback))


# -- Records --------------------------------------------------------------------------------------


class _Deserialized(Iterator["AnyRecord"]):
    """Records as deserializers make them, in the program's thread.

    A class, as a generator would end with its first error.
    """

    def __init__(
        self,
        found: Generator[AnyRecord, None, None],
        make: Callable[[AnyRecord], AnyRecord],
        on_interrupted: Callable[[AnyRecord], None],
    ) -> None:
        """`on_interrupted` gets a record whose deserializer has not ended, as by Ctrl-C."""
        self._found, self._make, self._on_interrupted = found, make, on_interrupted

    def __next__(self) -> AnyRecord:
        record = next(self._found)
        try:
            return self._make(record)
        except Exception:
            raise
        except BaseException:
            self._on_interrupted(record)
            raise

    def close(self) -> None:
        """End it, as `close` of a generator does."""
        self._found.close()


# -- Consumer -------------------------------------------------------------------------------------


T = TypeVar("T")


class Consumer(MovingCalls, BlockingBlock, Generic[ValueT_co, KeyT_co]):
    """The calls of `raftmq.Consumer`, blocking. It opens when it is first used.

    It is closed at the end of its `with` block, if it has one, or with its client. `timeout` is in
    seconds; None waits for ever. Threads that iterate at the same time share the records; a thread
    that asks for the next batch has finished the one before, also for the others, unless they use
    `processing`.

    As a member of a group it gets its first records once the group has dealt out its partitions:
    a group that begins waits for others (`groups.initial_rebalance_delay_ms`, 3 s by default). Such
    a wait counts in `timeout`.
    """

    def __init__(
        self,
        loop: Loop,
        consumer: AsyncConsumer[ValueT_co, KeyT_co],
        open_ones: set[Consumer[Any, Any]],
    ) -> None:
        """`open_ones`: the client's set of open consumers, which this one joins and leaves."""
        self._loop, self._consumer, self._open_ones = loop, consumer, open_ones
        self._block = Block(loop, consumer)
        self._lock = Lock()  # guards the attributes below
        self._is_open = self._is_closed = False
        self._turn = trio.Lock()  # of threads that ask for more
        # Not handed out yet, one at most
        self._batches: deque[ConsumedBatch[ValueT_co, KeyT_co]] = deque()
        # Threads take from it without the loop; may be used up
        self._shared: SharedBatch | None = None

    def __repr__(self) -> str:
        return repr(self._consumer)

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(error)

    def open(self) -> Self:
        """Open it as `with` does, until `close()`; the first call opens it otherwise."""
        return self.__enter__()

    def close(self) -> None:
        """Fetch nothing more. Does nothing the second time.

        A member of a group leaves it; records that were handed out count as done. While the
        program handles an error, as in `finally`, what was handed out last does not.
        """
        self._close(sys.exception())

    def _close(self, error: BaseException | None) -> None:
        with self._lock:
            is_open, self._is_open, self._is_closed = self._is_open, False, True
        # A fork must not touch the parent's connections.
        if is_open and self._loop.is_ours:
            self._open_ones.discard(self)
            # Before the group commits: a batch that no thread got is not done.
            if not isinstance(error, BaseException) or isinstance(error, Exception):
                self._loop.call_soon(self._give_back)
            self._block.close(error)
        if self._shared is not None:
            self._shared.stop()
        self._batches.clear()

    # -- records ---------------------------------------------------------------------------

    def __iter__(self) -> Iterator[ConsumerRecord[ValueT_co, KeyT_co]]:
        return self.records()

    def records(
        self, *, timeout: float | None = None
    ) -> Iterator[ConsumerRecord[ValueT_co, KeyT_co]]:
        """The next records, one by one; ends when none has come for `timeout` seconds.

        A program that breaks off gets the next record later, also from another call.

        Args:
            timeout: seconds without a record after which it ends; None: never.

        Raises:
            Closed: the consumer or its client is closed, or this is a fork.
            UnknownTopicOrPartition: there is no such topic or partition: brokers have said so for
                5 s, or until `timeout` was over.
            UndecodableRecord: a deserializer has failed with this record, which is its `record`;
                the iteration goes on behind it, also in another call.
            RaftmqError: the error of a partition, which it names.
        """
        found, deserializers = self._records(timeout), self._consumer._options.deserializers
        if deserializers is None:
            return found
        return _Deserialized(found, deserializers.record_of, self._not_handed_out)

    def _records(self, timeout: float | None) -> Generator[AnyRecord, None, None]:
        """As they were sent."""
        limit_of(timeout)  # refused before anything is opened
        self._open()
        taker = get_ident()
        while (shared := self._shared) or self._loop.call(self._fill, timeout):
            # The fast path: a record under a lock, without the loop.
            while shared is not None and (record := shared.take(taker)) is not None:
                yield record
                self._loop.check_process()

    def batches(
        self, *, max_records: int | None = None, timeout: float | None = None
    ) -> Iterator[ConsumedBatch[ValueT_co, KeyT_co]]:
        """`for batch in c.batches():` records of one partition at a time, as columns.

        Where there is no such topic or partition, UnknownTopicOrPartition is raised when `timeout`
        is over.

        Args:
            max_records: of one batch; None: `max_poll_records`.
            timeout: seconds without records after which it ends; None: never.

        Returns:
            An iterator; breaking off and iterating again loses nothing.

        Raises:
            InvalidConfig: `max_records` is not a whole number from 1. Definite.
        """
        limit_of(timeout)
        self._open()
        found = self._consumer.batches(max_records=max_records)
        while self._loop.call(self._fetch, found, timeout):
            if (batch := _pop(self._batches)) is not None:
                yield batch

    # -- positions -------------------------------------------------------------------------

    @property
    def assignment(self) -> list[Key]:
        """The partitions that are read, as pairs of topic and number."""
        return self._ask(lambda: self._consumer.assignment)

    def last_consumed(self, topic: str, partition: int) -> int | None:
        """Offset of the record that was handed out last; None: none was, since the partition is
        read. A seek leaves it until the next record.

        What `commit` commits of it is the offset after it.

        Raises:
            InvalidConfig: the partition is not read by this consumer. Definite.
        """

        def last_consumed() -> int | None:
            self._give_back()  # a batch that no thread has got was not handed out
            return self._consumer.last_consumed(topic, partition)

        return self._ask(last_consumed)

    @property
    def paused(self) -> list[Key]:
        """The partitions that are paused, as pairs of topic and number."""
        return self._ask(lambda: self._consumer.paused)

    def position(self, topic: str, partition: int) -> int | None:
        """Offset of the next record to hand out; None: where to start is not known yet.

        Raises:
            InvalidConfig: the partition is not read by this consumer. Definite.
        """
        return self._ask(lambda: self._position(topic, partition))

    def high_watermark(self, topic: str, partition: int) -> int | None:
        """End of the partition as of the last fetch; None: not fetched yet.

        Raises:
            InvalidConfig: the partition is not read by this consumer. Definite.
        """
        return self._ask(lambda: self._consumer.high_watermark(topic, partition))

    def lag(self, topic: str, partition: int) -> int | None:
        """Offsets between the position and the end of what this consumer may read, as of the last
        fetch; None: not known yet. With "read_committed" that end is the first transaction that is
        still open, if there is one, and the high watermark otherwise.

        Raises:
            InvalidConfig: the partition is not read by this consumer. Definite.
        """
        return self._ask(lambda: self._lag(topic, partition))

    def end_offsets(self, *, timeout: float | None = None) -> dict[Key, int]:
        """The end offset of each assigned partition now, as its leader says.

        Args:
            timeout: seconds; None waits for ever.

        Returns:
            By pair of topic and partition: one past the last committed record; with
            "read_committed" the first transaction that is still open, if there is one.

        Raises:
            RaftmqError: a leader has not answered, or refused. Nothing was changed.
            RequestTimedOut: after `timeout` seconds.
        """
        return self._call(self._consumer.end_offsets, timeout=timeout)

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

        def seek() -> None:
            self._give_back()
            self._consumer.seek(topic, partition, offset=offset, timestamp=timestamp)

        self._ask(seek)

    def pause(self, *partitions: Key) -> None:
        """Hand out and fetch nothing of these partitions until `resume`.

        Args:
            partitions: pairs of topic and number.

        Raises:
            TypeError: not a pair.
            InvalidConfig: the partition is not read by this consumer. Definite.
        """

        def pause() -> None:
            self._give_back()
            self._consumer.pause(*partitions)

        self._ask(pause)

    def resume(self, *partitions: Key) -> None:
        """Go on with paused partitions where they stopped; others stay as they are.

        Args:
            partitions: pairs of topic and number.

        Raises:
            TypeError: not a pair.
            InvalidConfig: the partition is not read by this consumer. Definite.
        """
        self._ask(lambda: self._consumer.resume(*partitions))

    # -- as a member of a group ------------------------------------------------------------

    def commit(self, work: Work | None = None, *, timeout: float | None = None) -> None:
        """Commit everything up to and including `work`; without it, all that was handed out.

        Returns once the coordinator has it in the quorum: the next member to read the partition
        begins behind it, also if more was committed before. During a rebalance it waits, as long as
        this member keeps the partition.

        Args:
            work: a record or batch as it was handed out, not a copy.
            timeout: seconds; None waits for ever.

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
            RequestTimedOut: after `timeout` seconds; it may have been committed. Indefinite.
        """

        async def commit() -> None:
            # A batch that no thread has got yet does not count as handed out.
            if work is None:
                self._give_back()
            await self._consumer.commit(work)

        self._call(commit, timeout=timeout)

    def committed(self, topic: str, partition: int, *, timeout: float | None = None) -> int | None:
        """The committed offset of a partition, where the group goes on; None: nothing is committed.

        Args:
            timeout: seconds; None waits for ever.

        Raises:
            UnknownTopicOrPartition: there is no such partition. Definite.
            InvalidConfig: the consumer is not in a group. Definite.
            RequestTimedOut: after `timeout` seconds.
        """
        return self._call(lambda: self._consumer.committed(topic, partition), timeout=timeout)

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
        return Processing(self._ask, self._ask(lambda: self._consumer.processing(work)))

    @property
    def generation(self) -> int:
        """The group's generation, as this member knows it; -1 while it is not a member."""
        return self._ask(lambda: self._consumer.generation)

    @property
    def member_id(self) -> str:
        """The id that the coordinator has given this member; empty before it has joined."""
        return self._ask(lambda: self._consumer.member_id)

    # -- within ----------------------------------------------------------------------------

    def _open(self) -> None:
        self._loop.check_process()
        with self._lock:
            if self._is_closed:
                raise Closed("the consumer is closed: make another one")
            if self._is_open:
                return
            self._is_closed = True  # stays so if opening fails
            self._block.open()
            self._is_open, self._is_closed = True, False
            self._open_ones.add(self)

    def _for_transactions(self) -> AsyncConsumer[ValueT_co, KeyT_co]:
        """The one in the loop, open, which reads on where this one's threads have stopped."""
        self._ask(self._give_back)
        return self._consumer

    def _ask(self, question: Callable[[], T]) -> T:
        """Run it in the loop, where the consumer lives."""

        async def ask() -> T:
            return question()

        return self._call(ask)

    def _call(self, call: Callable[[], Awaitable[T]], *, timeout: float | None = None) -> T:
        self._open()
        return self._loop.call(call, timeout=timeout)

    # -- in the loop -----------------------------------------------------------------------

    async def _fill(self, seconds_max: float | None) -> bool:
        """Whether there are more records to hand out."""
        with anyio.move_on_after(seconds_max) as scope:
            # One thread at a time fetches; the others find what it has brought.
            async with self._turn:
                self._give_back()
                if not self._shared:  # another thread has fetched while this one waited
                    self._shared = await self._consumer._next_shared()
        # Other threads may have taken all of it
        return bool(self._shared) or not self._is_over(scope)

    async def _fetch(self, found: Batches[ValueT_co, KeyT_co], seconds_max: float | None) -> bool:
        """The same for batches."""
        with anyio.move_on_after(seconds_max) as scope:
            async with self._turn:
                if not self._batches:  # left from a wait that timed out
                    self._batches.append(await anext(found))
        return bool(self._batches) or not self._is_over(scope)

    def _is_over(self, wait: anyio.CancelScope) -> bool:
        """Whether the time for a record was over. Raises UnknownTopicOrPartition, if that is why:
        else a program would end as if it had read all.
        """
        if wait.cancelled_caught and (problem := self._consumer._missing()):
            raise problem
        return wait.cancelled_caught

    def _position(self, topic: str, partition: int) -> int | None:
        """A batch that waits here comes first."""
        for batch in tuple(self._batches):
            if (batch.topic, batch.partition) == (topic, partition):
                return batch.base_offset
        return self._consumer.position(topic, partition)

    def _lag(self, topic: str, partition: int) -> int | None:
        return self._consumer._lag_from(self._position(topic, partition), topic, partition)

    def _not_handed_out(self, record: ConsumerRecord) -> None:
        """It comes again, in this or another call."""
        if self._shared is not None:
            group = self._consumer._options.group
            may_repeat = group is None or group.commit != "before"
            self._shared.give_back(record, may_repeat=may_repeat)

    def _give_back(self) -> None:
        """Return a batch that no thread has got to the consumer. The consumer takes back the rest
        of a shared batch by itself.
        """
        if (batch := _pop(self._batches)) is not None:
            self._consumer._take_back(batch)


def _pop(line: deque[T]) -> T | None:
    """None if another thread has taken it."""
    try:
        return line.popleft()
    except IndexError:  # taken by another thread
        return None
