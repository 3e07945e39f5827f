"""Records into batches. Pure.

Owns which batch a record joins. Whoever comes before the partitions of a topic are known waits in
line, and is told in that order. How much memory all of it may take, `BufferPool` below knows.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

import anyio

from raftmq.client.producer.batch import Numbering, ProducerIdentity
from raftmq.client.producer.named_producer import Named, NamedNumbering, TopicFences
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
from raftmq.errors import InvalidRecord
from raftmq.rpc.backoff import Backoff, Pauses
from raftmq.wire.batch.header import RECORDS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random

    from raftmq.client.producer.batch import ProducerBatch
    from raftmq.client.producer.options import ProducerOptions
    from raftmq.client.producer.partition_queue import RecordColumns
    from raftmq.errors import RaftmqError
    from raftmq.wire.batch.arguments import GivenHeaders
    from raftmq.wire.batch.columns import Key, Value


class MetadataWait(Protocol):
    """Whoever waits until it is known how many partitions a topic has."""

    @property
    def since(self) -> float: ...

    def on_known(self, error: RaftmqError | None) -> None:
        """Called once; with an error, when there is nothing to wait for."""


class TopicQueues:
    """The queues of one topic.

    Attributes:
        count: of partitions; 0 as long as nobody knows.
        fences: ... if the producer has a name.
        rounds: ... where its records without a key go.
        queues: by partition, those that were ever used.
        busy: ... those that may have something to do.
        waiting: who came before `count` was known, in line.
        missing_since: since when the cluster has said that there is no such topic.
        is_fence_wanted: somebody waits for the fences, with or without records.
        fence_backoff: between two attempts to get them.
    """

    def __init__(
        self,
        name: str,
        options: ProducerOptions,
        random: Random,
        is_led: Callable[[str, int], bool],
        identity: ProducerIdentity | Named | None = None,
    ) -> None:
        self.name, self.count = name, 0
        self.queues: dict[int, PartitionQueue] = {}
        self.busy: dict[int, PartitionQueue] = {}
        self.waiting: deque[MetadataWait] = deque()
        self.missing_since: float | None = None
        self._options, self._random, self._is_led = options, random, is_led
        self.dealer = StickyPartitioner(self._queued_bytes, random)
        self.fences: TopicFences | None = None
        self.rounds: ReplayablePartitioner | None = None
        self.is_fence_wanted, self.fence_backoff = False, self._new_backoff()
        self._deal = self.dealer.current
        self._ids = identity if isinstance(identity, ProducerIdentity) else None
        if isinstance(identity, Named):
            self.fences = TopicFences(identity)
            self.rounds = ReplayablePartitioner(identity.name, identity.generation)
            self._deal = self.rounds.take_one
        self.choose = options.partitioner if callable(options.partitioner) else None
        self._is_crc32 = options.partitioner == "crc32"
        self.hash = HASHES.get(str(options.partitioner), HASHES["crc32"])

    @property
    def is_unfenced(self) -> bool:
        """The producer has a name of which not all partitions were told; there are some."""
        return self.fences is not None and self.count > 0 and not self.fences.is_complete

    @property
    def is_uncounted_name(self) -> bool:
        """How many partitions it has must be asked for now: the producer has a name, and what was
        known before would be taken for good.
        """
        return self.fences is not None and not self.count

    def know(self, count: int) -> None:
        """So many partitions it has. What has a name goes on as it has begun: with others, records
        would go elsewhere than the first ones of the same key.
        """
        if self.fences is None:
            self.count = count
        elif not self.count:
            self.count = self.fences.count = count

    def partition_for(self, value: Value, key: Key, extras: Extras) -> int:
        """Raises InvalidRecord: there is no such partition."""
        if key is not None and self._is_crc32 and extras.partition is None:  # most of them
            return crc32(key if type(key) is bytes else hashed_bytes(key)) % self.count
        if extras.partition is not None:
            return checked_partition(extras.partition, self.count, self.name)
        if self.choose is not None:
            return self.chosen(value, key, extras.headers)
        if key is None:
            return self._deal(self.count)
        return self.hash(key if type(key) is bytes else hashed_bytes(key), self.count)

    def chosen(self, value: Value, key: Key, headers: GivenHeaders) -> int:
        """By the program's own function. Raises InvalidRecord: by no means."""
        assert self.choose is not None, "no function to ask"
        try:
            found = self.choose(self.name, key, value, headers, self.count)
        except Exception as error:
            raise InvalidRecord(
                f"topic {self.name!r}: the partitioner failed: {error!r}"
            ) from error
        return checked_partition(found, self.count, self.name)

    def is_dealt(self, key: Key, extras: Extras) -> bool:
        """The record goes wherever records are dealt to, which may be elsewhere by now."""
        is_free = key is None and extras.partition is None and self.choose is None
        return is_free and self.rounds is None

    def take_out_idle(self) -> bool:
        """Whether nothing is left to do."""
        for queue in [queue for queue in self.busy.values() if queue.is_idle]:
            del self.busy[queue.partition]
        is_fenced = not self.is_fence_wanted or not self.is_unfenced
        return not self.busy and not self.waiting and is_fenced

    def queue(self, partition: int) -> PartitionQueue:
        found = self.queues.get(partition)
        if found is None:
            backoff, numbering = self._new_backoff(), self._numbering(partition)
            found = PartitionQueue(
                self.name, partition, self._options, backoff, self.busy, numbering
            )
            self.queues[partition] = found
        return found

    def check_replayed(self) -> None:
        """Of a named producer, once everything is settled: it has left out nothing.

        Raises:
            ReplayMismatch: fewer records than stand there.
        """
        if self.fences is not None:
            numbered = {number: queue.numbering for number, queue in self.queues.items()}
            sent = {
                partition: numbering.position
                for partition, numbering in numbered.items()
                if isinstance(numbering, NamedNumbering)
            }
            self.fences.check_replayed(self.name, sent)

    def _new_backoff(self) -> Backoff:
        options = self._options
        pauses = Pauses(options.retry_backoff_ms / 1000, options.retry_backoff_max_ms / 1000)
        return Backoff(self._random, pauses)

    def _numbering(self, partition: int) -> Numbering | NamedNumbering | None:
        if self.fences is not None:
            return NamedNumbering(self.fences, partition)
        return Numbering(self._ids) if self._ids is not None else None

    def _queued_bytes(self, partition: int) -> float:
        if not self._is_led(self.name, partition):
            return math.inf
        queue = self.queues.get(partition)
        return queue.queued_bytes if queue else 0


class Accumulator:
    """Args:
    random: for which partition is dealt when, and for pauses.
    is_led: whether somebody leads a partition, as far as is known.

    Attributes:
        topics: by name, those that were ever written to.
        ids: of the producer; None without idempotence, and where it has a name.
        named: ... its name.
    """

    def __init__(
        self,
        options: ProducerOptions,
        random: Random,
        is_led: Callable[[str, int], bool] = lambda _topic, _partition: True,
    ) -> None:
        self._options, self._random, self._is_led = options, random, is_led
        self._batch_size = options.batch_size
        self.topics: dict[str, TopicQueues] = {}
        self.named: Named | None = None
        self.ids: ProducerIdentity | None = None
        if options.name is not None:
            self.named = Named(options.name, options.generation_number)
        elif options.is_idempotent:
            self.ids = ProducerIdentity()

    def topic(self, name: str) -> TopicQueues:
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicQueues(
                name, self._options, self._random, self._is_led, self.named or self.ids
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
        """Into the open batch of its partition.

        Args:
            clock: asked only where a batch is opened.

        Returns:
            Its batch, and its place there.

        Raises:
            InvalidRecord: there is no such partition.
        """
        partition = topic.partition_for(value, key, extras)
        queue = topic.queues.get(partition)
        if queue is None:
            queue = topic.queue(partition)
        batch = queue.open
        if batch is None:
            batch = queue.open_batch(clock())
        elif batch.payload_bytes + size - RECORD_OVERHEAD_BYTES > self._batch_size:
            self._close(topic, queue)
            if topic.is_dealt(key, extras):
                queue = self._dealt_queue(topic, size)
            batch = queue.open if queue.open is not None else queue.open_batch(clock())
        position = batch.add(value, key, timestamp, size)
        queue.queued_bytes += size
        if extras is not NO_EXTRAS:
            batch.add_extras(extras)
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
        """Many records to one partition, or to wherever those without a key go; in order.

        Args:
            sizes: of each record.

        Yields:
            A batch, and at which position how many records have joined it.
        """
        start, count = 0, len(sizes)
        ends = [0, *accumulate([size - RECORD_OVERHEAD_BYTES for size in sizes])]
        while start < count:
            queue = topic.queue(
                topic.dealer.current(topic.count) if partition is None else partition
            )
            batch = queue.open or queue.open_batch(now)
            space = self._batch_size - batch.payload_bytes
            end = bisect_right(ends, ends[start] + space, lo=start) - 1
            end = min(end, start + batch.room)
            if end == start and len(batch):
                self._close(topic, queue)
                continue
            end = max(end, start + 1)
            size = ends[end] - ends[start] + RECORD_OVERHEAD_BYTES * (end - start)
            position = len(batch)
            stamps = columns.timestamps
            batch.extend(
                columns.values[start:end],
                columns.keys and columns.keys[start:end],
                [now_ms] * (end - start) if stamps is None else stamps[start:end],
                size,
            )
            if columns.headers or columns.tags:
                batch.extend_extras(
                    columns.headers and columns.headers[start:end],
                    columns.tags and columns.tags[start:end],
                )
            queue.queued_bytes += size
            if batch.payload_bytes >= self._batch_size or batch.is_full:
                self._close(topic, queue)
            yield batch, position, end - start
            start = end

    def on_count(self, topic: TopicQueues, count: int) -> None:
        """So many partitions it has; whoever waited for that is told."""
        topic.know(count)
        topic.missing_since = None
        for waiting in take_all(topic.waiting):
            waiting.on_known(None)

    def fail_waiting(self, topic: TopicQueues, error: RaftmqError) -> None:
        """Whoever waits now."""
        for waiting in take_all(topic.waiting):
            waiting.on_known(error)

    def _dealt_queue(self, topic: TopicQueues, size: int) -> PartitionQueue:
        """Where records are dealt to now; what is open there has room, or is closed."""
        queue = topic.queue(topic.dealer.current(topic.count))
        bytes_max = self._batch_size - (size - RECORD_OVERHEAD_BYTES)
        if queue.open is not None and queue.open.payload_bytes > bytes_max:
            self._close(topic, queue)
        return queue

    def _close(self, topic: TopicQueues, queue: PartitionQueue) -> None:
        queue.close_batch()
        topic.dealer.turn(queue.partition)


def take_all(line: deque[MetadataWait]) -> list[MetadataWait]:
    taken = list(line)
    line.clear()
    return taken


# -- Room -----------------------------------------------------------------------------------------
# How much of the buffer is used, and who waits for room: first come, first served.
#
# Invariants: `used_bytes` is the sum over all records that were taken and not settled. Bytes are
# taken when somebody is let in, not when it wakes up, so nobody slips in between; who is cancelled
# after that gives them back.


class BufferPool:
    """Attributes:
    used_bytes: of records that wait or are on their way.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.used_bytes = 0
        self._line: deque[tuple[int, anyio.Event]] = deque()
        self._is_closed = False

    @property
    def is_wanted(self) -> bool:
        """Somebody waits."""
        return bool(self._line)

    def take_now(self, size: int) -> bool:
        """Whether there was room for `size` bytes; then they are taken.

        What is larger than all of it is let in alone: others bound its size.
        """
        used_bytes = self.used_bytes + size
        if self._line or (used_bytes > self._bytes_max and self.used_bytes):
            return False
        self.used_bytes = used_bytes
        return True

    async def take(self, size: int) -> None:
        """Wait until they are taken; after `close` they are at once."""
        if self._is_closed:
            self.take_anyway(size)
        if self._is_closed or self.take_now(size):
            return
        place = size, anyio.Event()
        self._line.append(place)
        try:
            await place[1].wait()
        except BaseException:
            if place[1].is_set():
                self.give_back(size)
            else:
                self._line.remove(place)
            self.let_in()
            raise

    def take_anyway(self, size: int) -> None:
        """Whether or not there is room: a little, for what is in already."""
        self.used_bytes += size

    def give_back_now(self, size: int) -> None:
        """And let in who has room now."""
        self.give_back(size)
        self.let_in()

    def give_back(self, size: int) -> None:
        """Whoever waits for it: `let_in`."""
        self.used_bytes -= size
        assert self.used_bytes >= 0, "more was given back than taken"

    def let_in(self) -> None:
        """Whoever is in line and has room now."""
        while self._line and self._has_room(self._line[0][0]):
            self._let_in_next()

    def close(self) -> None:
        """Let in all who wait; they will find that no record is taken any more."""
        self._is_closed = True
        while self._line:
            self._let_in_next()

    def _has_room(self, size: int) -> bool:
        return not self.used_bytes or self.used_bytes + size <= self._bytes_max

    def _let_in_next(self) -> None:
        size, event = self._line.popleft()
        self.used_bytes += size
        event.set()
