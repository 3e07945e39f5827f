"""Record accumulator: which batch a record joins, and the buffer pool that bounds memory. Pure.

Owns the queues of each topic and the choice of the partition for each record (Kafka:
RecordAccumulator; `BufferPool` is Kafka's BufferPool). Records that come before the number of
partitions is known wait in the topic's `waiting` and join batches in the order in which they came.
Sends nothing and reads no clock: `sender.py` decides what leaves.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

import anyio

from raftmq.client.producer.named_producer import Named, NamedNumbering, TopicFences
from raftmq.client.producer.numbering import Numbering, ProducerIdentity
from raftmq.client.producer.partition_queue import PartitionQueue
from raftmq.client.producer.partitioners import (
    HASHES,
    ReplayablePartitioner,
    StickyPartitioner,
    checked_partition,
)
from raftmq.client.producer.record import (
    NO_EXTRAS,
    RECORD_OVERHEAD_BYTES,
    Extras,
    hashed_bytes,
)
from raftmq.client.transactions.machine import TransactionMachine
from raftmq.client.transactions.numbering import TransactionNumbering
from raftmq.client.transactions.records import TransactionRecords
from raftmq.errors import InvalidRecord
from raftmq.rpc.backoff import Backoff, Pauses
from raftmq.wire.batch.header import RECORDS_MAX
from raftmq.wire.bodies import ABSENT, ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random

    from raftmq.client.producer.batch import ProducerBatch
    from raftmq.client.producer.options import ProducerOptions
    from raftmq.client.producer.partition_queue import AnyNumbering, RecordColumns
    from raftmq.errors import RaftmqError
    from raftmq.wire.batch.arguments import GivenHeaders
    from raftmq.wire.batch.columns import Key, Value


class MetadataWait(Protocol):
    """A record or task that waits until the number of partitions of a topic is known."""

    @property
    def since(self) -> float: ...

    def on_known(self, error: RaftmqError | None) -> None:
        """Called once; with an error, when the wait is given up."""


# Between two attempts where a leader has not heard yet how the transaction before has ended;
# brokers hear of it within milliseconds.
CONCURRENT_PAUSES = Pauses(0.005, 0.1)


class TopicQueues:
    """The partition queues of one topic.

    Attributes:
        count: number of partitions; 0 until metadata has answered.
        fences: of a producer with a name: what each partition has reported of it.
        replayable_partitioner: of a producer with a name: chooses for its records without a key.
        queues: by partition, those that were ever used.
        busy: by partition, those that hold batches or have requests in flight.
        waiting: records and tasks that came before `count` was known, oldest first.
        version: of the newest metadata that named its partitions.
        problem: why no broker has answered with its metadata; None after an answer.
        missing_since: since when metadata answers that there is no such topic.
        is_fence_wanted: a task waits for the fences, with or without records.
        fence_backoff: between two attempts to get them.
    """

    def __init__(
        self,
        name: str,
        options: ProducerOptions,
        random: Random,
        is_led: Callable[[str, int], bool],
        identity: ProducerIdentity | Named | TransactionRecords | None = None,
    ) -> None:
        self.name, self.count, self.version = name, 0, ABSENT
        self.problem: RaftmqError | None = None
        self.queues: dict[int, PartitionQueue] = {}
        self.busy: dict[int, PartitionQueue] = {}
        self.waiting: deque[MetadataWait] = deque()
        self.missing_since: float | None = None
        self._options, self._random, self._is_led = options, random, is_led
        self.dealer = StickyPartitioner(self._queued_bytes, random)
        self.fences: TopicFences | None = None
        self.replayable_partitioner: ReplayablePartitioner | None = None
        self.is_fence_wanted, self.fence_backoff = False, self._new_backoff()
        self._deal = self.dealer.current
        self._identity = identity
        # A later run must find each record in the same partition, so nothing random may choose it.
        if isinstance(identity, Named):
            self.fences = TopicFences(identity)
            self.replayable_partitioner = ReplayablePartitioner(identity.name, identity.generation)
            self._deal = self.replayable_partitioner.take_one
        # The program's own function
        self.choose = options.partitioner if callable(options.partitioner) else None
        self._is_crc32 = options.partitioner == "crc32"
        self.hash = HASHES.get(str(options.partitioner), HASHES["crc32"])

    @property
    def is_unfenced(self) -> bool:
        """The producer has a name, and not all partitions have confirmed it yet."""
        return self.fences is not None and self.count > 0 and not self.fences.is_complete

    @property
    def is_uncounted_name(self) -> bool:
        """The number of partitions must be asked for now, not taken from the cache: a producer with
        a name keeps the first number for good.
        """
        return self.fences is not None and not self.count

    def know(self, count: int) -> None:
        """Set the number of partitions. With a name only the first number counts: with another one,
        records would go to other partitions than the first ones of the same key.
        """
        if self.fences is None:
            self.count = count
        elif not self.count:  # only the first count
            self.count = self.fences.count = count

    def partition_for(self, value: Value, key: Key, extras: Extras) -> int:
        """By the record's own partition, the program's partitioner, the key's hash, or in turn.

        Raises:
            InvalidRecord: there is no such partition.
        """
        # The most frequent case first, without a function call: this runs once per record.
        if key is not None and self._is_crc32 and extras.partition is None:
            return crc32(key if type(key) is bytes else hashed_bytes(key)) % self.count
        if extras.partition is not None:
            return checked_partition(extras.partition, self.count, self.name)
        if self.choose is not None:
            return self.chosen(value, key, extras.headers)
        if key is None:
            return self._deal(self.count)
        return self.hash(key if type(key) is bytes else hashed_bytes(key), self.count)

    def chosen(self, value: Value, key: Key, headers: GivenHeaders) -> int:
        """The choice of the program's own partitioner.

        Raises:
            InvalidRecord: it has failed, or chose a partition that does not exist.
        """
        assert self.choose is not None, "no function to ask"
        try:
            found = self.choose(self.name, key, value, headers, self.count)
        # The program's own function may raise anything; only this record must fail.
        except Exception as error:
            raise InvalidRecord(
                f"topic {self.name!r}: the partitioner failed: {error!r}"
            ) from error
        return checked_partition(found, self.count, self.name)

    def is_dealt(self, key: Key, extras: Extras) -> bool:
        """The sticky partitioner chooses, which may have moved on to another partition by now."""
        is_free = key is None and extras.partition is None and self.choose is None
        return is_free and self.replayable_partitioner is None

    def take_out_idle(self) -> bool:
        """Whether the topic has nothing left to send, fence or wait for."""
        for queue in [queue for queue in self.busy.values() if queue.is_idle]:
            del self.busy[queue.partition]
        is_fenced = not self.is_fence_wanted or not self.is_unfenced
        return not self.busy and not self.waiting and is_fenced

    def queue(self, partition: int) -> PartitionQueue:
        found = self.queues.get(partition)
        if found is None:
            backoffs = self._new_backoff(), Backoff(self._random, CONCURRENT_PAUSES)
            found = PartitionQueue(
                self.name,
                partition,
                self._options,
                backoffs,
                self.busy,
                self._numbering(partition),
            )
            self.queues[partition] = found
        return found

    def check_replayed(self) -> None:
        """Of a named producer, once everything is settled: the program has sent again all records
        of an earlier run.

        Raises:
            ReplayMismatch: it sent fewer records than the log has of this generation.
        """
        if self.fences is not None:  # only a named producer replays
            numbered = {number: queue.numbering for number, queue in self.queues.items()}
            sent = {
                partition: numbering.position
                for partition, numbering in numbered.items()
                if isinstance(numbering, NamedNumbering)
            }
            self.fences.check_replayed(self.name, sent)

    def why_waiting(self) -> str:
        """What its records wait for, for people; empty: not known. Any thread may call this."""
        if self.missing_since is not None:
            return ": brokers know no such topic so far"
        if self.waiting:
            return f": {self.problem or 'no broker has named its partitions yet'}"
        problems = [(one.partition, one.problem) for one in list(self.busy.values())]
        told = [f": partition {number}: {error}" for number, error in problems if error is not None]
        return told[0] if told else ""

    def _new_backoff(self) -> Backoff:
        options = self._options
        pauses = Pauses(options.retry_backoff_ms / 1000, options.retry_backoff_max_ms / 1000)
        return Backoff(self._random, pauses)

    def _numbering(self, partition: int) -> AnyNumbering | None:
        if self.fences is not None:  # its sequences continue those of earlier runs
            return NamedNumbering(self.fences, partition)
        if isinstance(self._identity, TransactionRecords):
            return TransactionNumbering(self._identity)
        if isinstance(self._identity, ProducerIdentity):
            return Numbering(self._identity)
        return None

    def _queued_bytes(self, partition: int) -> float:
        if not self._is_led(self.name, partition):
            # No leader: the sticky partitioner passes such a partition over.
            return math.inf
        queue = self.queues.get(partition)
        return queue.queued_bytes if queue else 0


class Accumulator:
    """All topics of one producer.

    Args:
        random: order in which partitions are used, and jitter of the backoff.
        is_led: whether a partition has a leader, as far as the cached metadata say.
        on_end: called when a producer with a name ends, or a transaction must be aborted.
        member: the one transaction of a producer that is a member of a shared one.

    Attributes:
        topics: by name, those that were ever written to.
        is_filled: a batch was closed, as it was full, since the dispatcher's last step.
        ids: the producer's identity; None without idempotence, and where it has a name or
            transactions.
        named: the producer's name and generation; None without a name.
        machine: its transactions; None where it sends outside of them.
    """

    def __init__(
        self,
        options: ProducerOptions,
        random: Random,
        is_led: Callable[[str, int], bool],
        on_end: Callable[[], None],
        member: TransactionRecords | None = None,
    ) -> None:
        self._options, self._random, self._is_led = options, random, is_led
        self._batch_size, self.is_filled = options.batch_size, False
        self.topics: dict[str, TopicQueues] = {}
        self.named: Named | None = None
        self.machine: TransactionRecords | None = None
        self.ids: ProducerIdentity | None = None
        if options.name is not None:
            self.named = Named(options.name, options.generation_number, on_end)
        elif member is not None:
            self.machine, member.on_end = member, on_end
        elif options.is_transactional:
            is_ephemeral = options.transaction_id is None
            self.machine = TransactionMachine(
                options.transaction_id or f"ephemeral-{random.randbytes(ID_BYTES).hex()}",
                random.randbytes(ID_BYTES),
                timeout_ms=options.transaction_timeout_ms,
                is_ephemeral=is_ephemeral,
                on_end=on_end,
            )
        elif options.is_idempotent:
            self.ids = ProducerIdentity()

    @property
    def ending(self) -> Named | TransactionRecords | None:
        """What a record that is given up ends."""
        return self.named or self.machine

    @property
    def takes_records(self) -> bool:
        """Outside of transactions always; a member of a shared one is in its only transaction."""
        return self.machine is None or self.machine.takes_records

    def topic(self, name: str) -> TopicQueues:
        found = self.topics.get(name)
        if found is None:
            identity = self.named or self.machine or self.ids
            found = self.topics[name] = TopicQueues(
                name, self._options, self._random, self._is_led, identity
            )
        return found

    def add(
        self,
        topic: TopicQueues,
        value: Value,
        key: Key,
        timestamp: int,
        size: int,
        clock: Callable[[], float],
        extras: Extras = NO_EXTRAS,
    ) -> tuple[ProducerBatch, int]:
        """Put one record into the open batch of its partition.

        Args:
            clock: read only where a batch is opened, as this runs once per record.

        Returns:
            Its batch, and its index there.

        Raises:
            InvalidRecord: there is no such partition.
        """
        partition = topic.partition_for(value, key, extras)
        queue = topic.queues.get(partition)
        if queue is None:  # a call less per record than `topic.queue`
            queue = topic.queue(partition)
        batch = queue.open
        if batch is None:
            batch = queue.open_batch(clock(), extras.due_ms)
        # it does not fit, or is due at another time than those in the batch
        elif (
            batch.payload_bytes + size - RECORD_OVERHEAD_BYTES > self._batch_size
            # Nearly all records have no extras: for them one look at the batch is enough.
            or (
                (batch.due_ms is not None or extras is not NO_EXTRAS)
                and batch.due_ms != extras.due_ms
            )
        ):
            # The closed batch ends the sticky partition's turn, so a record without a key goes
            # where the next batch is opened.
            self._close(topic, queue)
            if topic.is_dealt(key, extras):  # a keyed record stays with its partition
                queue = self._dealt_queue(topic, size, extras.due_ms)
            batch = queue.open
            if batch is None:
                batch = queue.open_batch(clock(), extras.due_ms)
        position = batch.add(value, key, timestamp, size)
        queue.queued_bytes += size
        if extras is not NO_EXTRAS:
            batch.add_extras(extras)
        # A full batch leaves at once instead of lingering.
        if batch.payload_bytes >= self._batch_size or position + 1 == RECORDS_MAX:
            self._close(topic, queue)
        return batch, position

    def add_columns(
        self,
        topic: TopicQueues,
        partition: int | None,
        columns: RecordColumns,
        sizes: Sequence[int],
        now_ms: int,
        now: float,
    ) -> Iterator[tuple[ProducerBatch, int, int]]:
        """Put many records of one partition, or of the sticky partitioner, into batches, in order.

        Args:
            partition: None: where the sticky partitioner says.
            sizes: of each record, in bytes.

        Yields:
            A batch, the index there of the first record that joined it, and how many joined.
        """
        start, count = 0, len(sizes)
        ends = [0, *accumulate([size - RECORD_OVERHEAD_BYTES for size in sizes])]
        while start < count:
            queue = topic.queue(
                topic.dealer.current(topic.count) if partition is None else partition
            )
            batch = queue.open or queue.open_batch(now)
            if batch.due_ms is not None:  # of scheduled records, which these are not
                self._close(topic, queue)
                continue
            space = self._batch_size - batch.payload_bytes
            # How many records still fit is found in the running sums, without a loop over records.
            end = bisect_right(ends, ends[start] + space, lo=start) - 1
            end = min(end, start + batch.space)
            # Not even one fits into what is left of this batch: go on with an empty one.
            if end == start and len(batch):
                self._close(topic, queue)
                continue
            end = max(end, start + 1)  # a record larger than batch_size has a batch of its own
            size = ends[end] - ends[start] + RECORD_OVERHEAD_BYTES * (end - start)
            position = len(batch)
            stamps = columns.timestamps
            batch.extend(
                columns.values[start:end],
                columns.keys and columns.keys[start:end],
                # Records that come without a timestamp have that of the call.
                [now_ms] * (end - start) if stamps is None else stamps[start:end],
                size,
            )
            # Most records have neither, and a batch without them has no such columns.
            if columns.headers or columns.tags:
                batch.extend_extras(
                    columns.headers and columns.headers[start:end],
                    columns.tags and columns.tags[start:end],
                )
            queue.queued_bytes += size
            if batch.payload_bytes >= self._batch_size or batch.is_full:  # full: it need not linger
                self._close(topic, queue)
            yield batch, position, end - start
            start = end

    def check_replayed(self) -> None:
        """Raises ReplayMismatch, unless the producer has ended with an error, which is why records
        are missing.
        """
        if self.named is not None and self.named.error is None:
            for topic in self.topics.values():
                topic.check_replayed()

    def on_count(self, topic: TopicQueues, count: int) -> None:
        """Metadata has answered with the number of partitions: waiting records join batches."""
        topic.know(count)
        topic.missing_since = None
        for waiting in take_all(topic.waiting):
            waiting.on_known(None)

    def fail_waiting(self, topic: TopicQueues, error: RaftmqError) -> None:
        """Fail all records and tasks that wait for this topic's metadata."""
        for waiting in take_all(topic.waiting):
            waiting.on_known(error)

    def _dealt_queue(self, topic: TopicQueues, size: int, due_ms: int | None) -> PartitionQueue:
        """The queue that the sticky partitioner uses now; its open batch takes the record, or is
        closed.
        """
        queue = topic.queue(topic.dealer.current(topic.count))
        bytes_max = self._batch_size - (size - RECORD_OVERHEAD_BYTES)
        batch = queue.open
        if batch is not None and (batch.payload_bytes > bytes_max or batch.due_ms != due_ms):
            self._close(topic, queue)
        return queue

    def _close(self, topic: TopicQueues, queue: PartitionQueue) -> None:
        batch, self.is_filled = queue.close_batch(), True
        topic.dealer.turn(queue.partition, batch.byte_count)


def take_all(line: deque[MetadataWait]) -> list[MetadataWait]:
    taken = list(line)
    line.clear()
    return taken


# -- Buffer pool ----------------------------------------------------------------------------------
# How much of the buffer is used, and which callers wait for memory: first come, first served
# (back-pressure on the program).
#
# Invariants: `used_bytes` is the sum over all records that were accepted and not settled. Memory is
# reserved for a waiter before its task runs again, so no later caller can take it first; a waiter
# that is cancelled after that gives its memory back.


class BufferPool:
    """The memory of one producer (option `buffer_memory`).

    Attributes:
        used_bytes: of records that wait or are in flight.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.used_bytes = 0
        self._line: deque[tuple[int, anyio.Event]] = deque()
        self._is_closed = False

    @property
    def is_wanted(self) -> bool:
        """A caller waits for memory."""
        return bool(self._line)

    def take_now(self, size: int) -> bool:
        """Whether `size` bytes were free; then they are reserved.

        A record larger than the whole pool is accepted while the pool is empty, as it could never
        be sent otherwise; `max_request_size` bounds its size.
        """
        used_bytes = self.used_bytes + size
        # Callers that wait already come first, even if this smaller record would fit.
        if self._line or (used_bytes > self._bytes_max and self.used_bytes):
            return False
        self.used_bytes = used_bytes
        return True

    def why_full(self, size: int) -> str:
        """For people, where `size` bytes were not free."""
        return (
            f"{self.used_bytes} bytes wait or are on their way, {size} more do not fit:"
            f" buffer_memory is {self._bytes_max}"
        )

    async def take(self, size: int) -> None:
        """Wait until `size` bytes are reserved; after `close` this returns at once."""
        # The caller finds the producer closed and gives the bytes back.
        if self._is_closed:
            self.take_anyway(size)
        if self._is_closed or self.take_now(size):
            return
        place = size, anyio.Event()
        self._line.append(place)
        try:
            # Ends when settled batches give memory back (`let_in`), or at `close`.
            await place[1].wait()
        except BaseException:
            if place[1].is_set():
                # Cancelled after the memory was reserved, before this task ran again.
                self.give_back(size)
            else:
                self._line.remove(place)
            self.let_in()
            raise

    def take_anyway(self, size: int) -> None:
        """Reserve without a check, for the small overhead of a record that was already accepted."""
        self.used_bytes += size

    def give_back_now(self, size: int) -> None:
        """Give back, and let waiting callers in."""
        self.give_back(size)
        self.let_in()

    def give_back(self, size: int) -> None:
        """Only counts; `let_in` wakes the callers that wait."""
        self.used_bytes -= size
        assert self.used_bytes >= 0, "more was given back than taken"

    def let_in(self) -> None:
        """Wake the callers that have waited longest, as far as there is memory."""
        while self._line and self._has_memory(self._line[0][0]):
            self._let_in_next()

    def close(self) -> None:
        """Wake all callers that wait: they find the producer closed."""
        self._is_closed = True
        self.turn_away()

    def turn_away(self) -> None:
        """Wake all callers that wait: what they send would belong to another transaction."""
        while self._line:
            self._let_in_next()

    def _has_memory(self, size: int) -> bool:
        return not self.used_bytes or self.used_bytes + size <= self._bytes_max

    def _let_in_next(self) -> None:
        size, event = self._line.popleft()
        self.used_bytes += size
        event.set()
