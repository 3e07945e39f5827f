"""Bulk sends: many rows or columns into batches in portions, one result per run of records.

Owns the way of a portion: checked and counted as a whole, memory awaited once, divided among
partitions in a few passes that run in C where they can. Keeps only runs that are not settled yet,
and results, never single records.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice, repeat
from reprlib import repr as short
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import anyio
import anyio.lowlevel

from raftmq.client.producer.batch import BatchMetadata
from raftmq.client.producer.partition_queue import RecordColumns, column_length, portion_of
from raftmq.client.producer.partitioners import checked_partition, partitions_of
from raftmq.errors import InvalidRecord, InvalidTransaction, MessageTooLarge, RaftmqError
from raftmq.extras import require_extra
from raftmq.wire.bodies import ABSENT
from raftmq.words import kind_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence

    from raftmq.client.producer.accumulator import TopicQueues
    from raftmq.client.producer.batch import ProducerBatch
    from raftmq.client.producer.dispatcher import Dispatcher
    from raftmq.client.producer.options import ProducerOptions
    from raftmq.client.producer.partition_queue import Prepared

    Progress: TypeAlias = bool | Callable[[int], object] | None
    Functions: TypeAlias = tuple[Callable[[Any], Any] | None, ...]

    Report = Callable[[int], object]


# -- Progress -------------------------------------------------------------------------------------
# Progress of a long call: a bar on stderr, or the program's own function.


@contextmanager
def reporting(progress: Progress, total: int | None) -> Iterator[Report]:
    """Yields the function to call with the number of records accepted so far."""
    if callable(progress):
        yield progress
    elif progress:
        with _bar(total) as report:
            yield report
    else:
        yield _nothing


def _nothing(_count: int) -> None:
    pass


@contextmanager
def _bar(total: int | None) -> Iterator[Report]:
    require_extra("cli", "progress=True")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("records"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("records", total=total)
        yield lambda count: bar.update(task, completed=count)


# -- Bulk -----------------------------------------------------------------------------------------


# Few at first, as rows may be large; more than 4096 at once would delay other tasks
PORTION_RECORDS_FIRST, PORTION_RECORDS_MAX = 64, 4096
# Of memory, or a quarter of a smaller buffer, so that filling and sending overlap
PORTION_BYTES_MAX = 2 << 20
PORTION_SECONDS_MAX = 0.02  # rows that come slowly leave after 20 ms, however few they are


class BulkProducer(Protocol):
    """The methods of the producer that a bulk call uses."""

    def _topic(self, name: str) -> TopicQueues: ...
    def _check_open(self) -> None: ...
    def _check_size(self, size: int) -> None: ...


class BulkRun:
    """Records of one call that follow each other in one batch."""

    __slots__ = ("batch", "record_count", "start")

    def __init__(self, batch: ProducerBatch, start: int, record_count: int) -> None:
        self.batch, self.start, self.record_count = batch, start, record_count

    def pieces(self) -> list[BulkRun]:
        """This run, or one for each batch if its batch was split meanwhile."""
        if not self.batch.pieces:
            return [self]  # the same object, as it may still grow
        found, start, left = [], self.start, self.record_count
        while left:
            batch, place = self.batch.holder_of(start)
            count = min(left, len(batch) - place)
            found.append(BulkRun(batch, place, count))
            start, left = start + count, left - count
        return found

    def cut_skipped(self) -> BatchMetadata | None:
        """Remove from the run's start the records that were not sent, as an earlier run wrote them,
        and return their metadata; None if there are none.
        """
        batch = self.batch
        count = min(batch.skipped - self.start, self.record_count)
        if count <= 0:  # its records were all sent
            return None
        self.start, self.record_count = self.start + count, self.record_count - count
        return BatchMetadata(batch.topic, batch.partition, ABSENT, count, is_skipped=True)


class Bulk:
    """One call of `send_many` or `send_columns`."""

    def __init__(
        self,
        host: BulkProducer,
        dispatcher: Dispatcher,
        options: ProducerOptions,
        now_ms: Callable[[], int],
    ) -> None:
        self._host, self._dispatcher = host, dispatcher
        self._now_ms, self._serializers = now_ms, options.serializers
        # A quarter: one portion is filled while others are sent
        self._bytes_max = min(PORTION_BYTES_MAX, options.buffer_memory // 4)
        self._records_max = PORTION_RECORDS_FIRST  # of the next portion
        self._runs: deque[BulkRun] = deque()  # not known to be settled, oldest first
        self._last_runs: dict[int, BulkRun] = {}  # by partition
        self._results: list[BatchMetadata] = []
        self._error: RaftmqError | None = None
        self._count = self._transaction = 0

    async def send_rows(
        self,
        topic_name: str,
        rows: Iterable[Any] | AsyncIterable[Any],
        *,
        functions: Functions,
        partition: int | None,
        progress: Progress,
        total: int | None,
    ) -> list[BatchMetadata]:
        """See `Producer.send_many`."""
        # It has rows, its characters; but it is most likely one value in place of a list.
        if isinstance(rows, (str, bytes, bytearray, memoryview)):
            given = kind_of(rows)
            raise InvalidRecord(f"rows is {given}, expected a list: send() takes a single value")
        _check_functions(functions)
        total = column_length(rows) if total is None else total
        with self._answerable(), reporting(progress, total) as report:
            # Before rows are read: with an unknown topic none must be lost.
            topic = await self._open(topic_name)
            portions = _Portions(rows)
            while portion := await portions.next(self._records_max):
                await self._take(topic, _columns_of(portion, functions, partition))
                report(self._count)
            return await self._finish_all(topic)

    async def send_columns(
        self, topic_name: str, columns: tuple[Any, ...], *, progress: Progress
    ) -> list[BatchMetadata]:
        """See `Producer.send_columns`."""
        given = RecordColumns.checked(*columns)
        with self._answerable(), reporting(progress, len(given.values)) as report:
            topic = await self._open(topic_name)
            await self._take_all(topic, given, report)
            return await self._finish_all(topic)

    async def enqueue_columns(self, topic_name: str, columns: tuple[Any, ...]) -> None:
        """See `Producer.enqueue_columns`."""
        given = RecordColumns.checked(*columns)
        with self._answerable():
            topic = await self._open(topic_name)
            await self._take_all(topic, given, _nothing)
            await self._know_fences(topic)

    async def _take_all(
        self, topic: TopicQueues, given: RecordColumns, report: Callable[[int], object]
    ) -> None:
        while self._count < len(given.values):  # in portions, so that memory stays bounded
            end = self._count + self._records_max
            await self._take(topic, portion_of(given, self._count, end))
            report(self._count)

    async def _open(self, topic_name: str) -> TopicQueues:
        """The topic, once its number of partitions is known: records are divided among them at
        once.
        """
        self._host._check_open()
        self._transaction = self._dispatcher.transaction_count
        topic = self._host._topic(topic_name)
        # A cancellation shows here even when the topic is known and memory is free.
        await anyio.lowlevel.checkpoint()
        if not topic.count:  # metadata have not answered yet
            await self._dispatcher.wait_known(topic)
        return topic

    async def _take(self, topic: TopicQueues, columns: RecordColumns) -> None:
        """Put one portion into batches."""
        # An earlier record has failed: accept no more, and raise once all are settled.
        if self._error is not None:
            await self._finish()  # raises the failure
        if self._serializers is not None:
            columns = columns._replace(
                values=self._serializers.values(columns.values, self._count),
                keys=self._serializers.keys(columns.keys, self._count),
            )
        try:
            prepared = columns.prepared(self._count)
            self._check_sizes(prepared.sizes)
            await self._take_prepared(topic, prepared)
        except (InvalidRecord, MessageTooLarge) as error:
            error.add_note(f"the {self._count} records before were handed in, and are sent")
            raise
        self._plan(prepared.sizes)

    def _check_sizes(self, sizes: list[int]) -> None:
        try:
            self._host._check_size(max(sizes))
        except MessageTooLarge as error:  # the program must learn which row it was
            error.add_note(f"it is record {self._count + sizes.index(max(sizes))}")
            raise

    def _plan(self, sizes: list[int]) -> None:
        """Size of the next portion: as many records as fit if they are like these, but at most four
        times as many, as they may be larger.
        """
        fitting = self._bytes_max * len(sizes) // sum(sizes)
        self._records_max = max(1, min(PORTION_RECORDS_MAX, 4 * self._records_max, fitting))

    async def _take_prepared(self, topic: TopicQueues, prepared: Prepared) -> None:
        size, count = sum(prepared.sizes), len(prepared.sizes)
        # Larger than expected: reserve memory for halves, so that a full buffer cannot block for
        # ever.
        if size > self._bytes_max and count > 1:
            # The second half may wait until the first has left.
            await self._take_prepared(topic, prepared.part(0, count // 2))
            await self._take_prepared(topic, prepared.part(count // 2, count))
            return
        await self._reserve(size)
        try:
            dealt = deal(topic, *prepared)
        # Also a partitioner of the program that fails, or a bad partition: nothing was added.
        except BaseException:
            self._dispatcher.buffer_pool.give_back_now(size)
            raise
        self._put(topic, dealt)
        self._count += count
        self._look_at_runs()

    async def _reserve(self, size: int) -> None:
        """Reserve memory. Always a checkpoint, so that full batches can leave."""
        await anyio.lowlevel.checkpoint()  # lets the sending task run between portions
        pool = self._dispatcher.buffer_pool
        if not pool.take_now(size):  # full: what lingers must leave first
            self._dispatcher.wake()
            # Ends when settled batches give memory back, or when the producer closes.
            await pool.take(size)
        try:
            self._host._check_open()
            # Rows came slowly, or memory was short, and another one has begun since.
            if self._dispatcher.transaction_count != self._transaction:
                raise InvalidTransaction(
                    f"the transaction has ended before all rows were taken; the {self._count} "
                    "before belong to it, the others to none"
                )
        except RaftmqError:
            self._dispatcher.buffer_pool.give_back(size)
            ending = self._dispatcher.accumulator.ending
            # ended, rather than closed by the program
            if ending is not None and ending.error is not None:
                await self._finish()  # raises the failure of this call's records
            raise

    def _put(
        self, topic: TopicQueues, dealt: Iterable[tuple[int | None, RecordColumns, list[int]]]
    ) -> None:
        """Add records to the open batches of their partitions."""
        now, now_ms = anyio.current_time(), self._now_ms()
        for partition, columns, sizes in dealt:
            added = self._dispatcher.accumulator.add_columns(
                topic, partition, columns, sizes, now_ms, now
            )
            for batch, start, count in added:
                self._note(batch, start, count)
        self._dispatcher.wake()

    def _note(self, batch: ProducerBatch, start: int, count: int) -> None:
        last = self._last_runs.get(batch.partition)
        # The run goes on: one object for many records.
        if last and last.batch is batch and last.start + last.record_count == start:
            last.record_count += count
            return
        self._last_runs[batch.partition] = run = BulkRun(batch, start, count)
        self._runs.append(run)

    # -- results ---------------------------------------------------------------------------

    def _look_at_runs(self) -> None:
        """Turn runs at the front into results, as far as they are settled."""
        while self._runs and self._first_run().batch.outcome is not None:
            run = self._runs.popleft()
            outcome = run.batch.outcome
            if run.batch.skipped and (result := run.cut_skipped()):
                self._results.append(result)
            if not run.record_count:  # all of it was skipped
                continue
            if isinstance(outcome, RaftmqError):
                self._error = self._error or outcome
            elif outcome is not None:
                self._results.append(_result(run, outcome))

    def _first_run(self) -> BulkRun:
        pieces = self._runs.popleft().pieces()
        self._runs.extendleft(reversed(pieces))
        return pieces[0]

    async def _finish_all(self, topic: TopicQueues) -> list[BatchMetadata]:
        await self._know_fences(topic)
        return await self._finish()

    async def _know_fences(self, topic: TopicQueues) -> None:
        """A named producer without any record must still be fenced: only then is it known that an
        earlier run wrote none either.
        """
        if not self._count and topic.fences is not None:
            await self._dispatcher.wait_fenced(topic)

    async def _finish(self) -> list[BatchMetadata]:
        """Wait until all records of this call are settled. Raises the first failure."""
        self._dispatcher.hurry(+1)
        try:
            self._look_at_runs()  # some were settled while rows came
            while self._runs:  # oldest first, so the wait ends with the last one
                settled = anyio.Event()
                self._first_run().batch.watch(settled.set)
                # Ends when the first run's batch is settled or split; delivery_timeout_ms bounds
                # it.
                await settled.wait()
                self._look_at_runs()
        finally:
            self._dispatcher.hurry(-1)
        if self._error is not None:
            error, self._error = self._error.copied(), None
            done = sum([result.record_count for result in self._results])
            error.add_note(f"of {self._count} records {done} were delivered")
            raise error
        return self._results

    @contextmanager
    def _answerable(self) -> Iterator[None]:
        """If the call ends early, hand failures that it did not raise to the producer's `Failures`,
        for `flush` to raise.
        """
        try:
            yield
        finally:
            failures = self._dispatcher.failures
            # The call was cancelled before it could raise it.
            if self._error is not None:
                failures.add(self._error, lambda: 1)
            for run in [piece for whole in self._runs for piece in whole.pieces()]:
                # Failed already: the batch will not be settled again, so report it here.
                if isinstance(run.batch.outcome, RaftmqError):
                    failures.add(run.batch.outcome, partial(int, run.record_count))
                else:
                    run.batch.claim(run.start, run.record_count, is_claimed=False)


def _result(run: BulkRun, outcome: BatchMetadata) -> BatchMetadata:
    """Metadata of the run alone: its batch may hold records of other calls."""
    base = outcome.base_offset
    first = ABSENT if base == ABSENT else base + run.start - run.batch.skipped
    return outcome._replace(base_offset=first, record_count=run.record_count)


class _Portions:
    """Rows, a portion at a time."""

    def __init__(self, rows: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._rows = rows.__aiter__() if hasattr(rows, "__aiter__") else iter(rows)
        # Of iterables that buffer rows themselves
        self._next_portion = getattr(rows, "next_portion", None)

    async def next(self, count: int) -> list[Any]:
        """At most `count` rows; an empty list at the end."""
        if self._next_portion is not None:  # without an await per row
            return cast("list[Any]", await self._next_portion(count))
        if not hasattr(self._rows, "__anext__"):  # an iterable that never waits
            return list(islice(self._rows, count))
        portion: list[Any] = []
        end = anyio.current_time() + PORTION_SECONDS_MAX
        while len(portion) < count and (not portion or anyio.current_time() < end):
            try:
                portion.append(await self._rows.__anext__())
            except StopAsyncIteration:  # the rows have ended; send what there is
                break
        return portion


def _check_functions(functions: Functions) -> None:
    """Raises TypeError: one is given what is for all rows, or what `send` takes."""
    names = ("value", "key", "headers", "tags", "timestamp")
    for name, given in zip(names, functions, strict=True):
        if given is not None and not callable(given):
            raise TypeError(
                f"{name} is {kind_of(given)}, expected a function of a row: "
                f"`{name}=lambda row: {short(given)}`"
            )


def _columns_of(
    portion: Sequence[Any], functions: Functions, partition: int | None
) -> RecordColumns:
    value, *others = functions
    values = portion if value is None else list(map(value, portion))
    columns = [None if function is None else list(map(function, portion)) for function in others]
    partitions = None if partition is None else [partition] * len(portion)
    return RecordColumns._make([values, *columns, partitions])


# -- Columns by partition -------------------------------------------------------------------------


Dealt = tuple[int | None, RecordColumns, list[int]]


def deal(topic: TopicQueues, columns: RecordColumns, sizes: list[int]) -> Iterable[Dealt]:
    """Divide prepared columns by partition, each in its order. Partition None: the sticky
    partitioner chooses when they join a batch.

    Raises:
        InvalidRecord: a partition that the topic does not have.
    """
    chosen = _chosen(topic, columns)
    if chosen is not None:
        return list(_grouped(columns, sizes, chosen))
    if topic.replayable_partitioner is not None:  # a later run must find the same partitions
        return list(
            _in_runs(topic.replayable_partitioner.take(len(sizes), topic.count), columns, sizes)
        )
    return [(None, columns, sizes)]


def _in_runs(
    runs: Sequence[tuple[int, int]], columns: RecordColumns, sizes: list[int]
) -> Iterator[Dealt]:
    start = 0
    for partition, count in runs:
        end = start + count
        yield partition, portion_of(columns, start, end), sizes[start:end]
        start = end


def _chosen(topic: TopicQueues, columns: RecordColumns) -> list[int | None] | None:
    """The partition of each record; None where no record has a key or a partition."""
    if columns.partitions is not None:
        return [checked_partition(found, topic.count, topic.name) for found in columns.partitions]
    if topic.choose is not None:  # a program's function needs a call per record
        return [_choice(topic, columns, index) for index in range(len(columns.values))]
    keys = columns.keys
    given = [key for key in keys or () if key is not None]
    if keys is None or not given:  # the sticky partitioner chooses
        return None
    found = partitions_of(given, topic.hash, topic.count)
    # Every record has a key: the most frequent case needs no merge.
    if len(found) == len(keys):
        return found  # type: ignore[return-value]
    following = iter(found)
    if topic.replayable_partitioner is not None:
        return _with_runs(topic, keys, following)
    return [None if key is None else next(following) for key in keys]


def _with_runs(
    topic: TopicQueues, keys: Sequence[Any], following: Iterator[int]
) -> list[int | None]:
    assert topic.replayable_partitioner is not None, "only for a named producer"
    runs = topic.replayable_partitioner.take(keys.count(None), topic.count)
    others = chain.from_iterable([repeat(partition, count) for partition, count in runs])
    return [next(others) if key is None else next(following) for key in keys]


def _choice(topic: TopicQueues, columns: RecordColumns, index: int) -> int:
    key = columns.keys[index] if columns.keys is not None else None
    headers = columns.headers[index] if columns.headers is not None else None
    return topic.chosen(columns.values[index], key, headers)


def _grouped(
    columns: RecordColumns, sizes: list[int], chosen: Sequence[int | None]
) -> Iterator[Dealt]:
    present = [column for column in (*columns[:5], sizes) if column is not None]
    groups: dict[int | None, list[list[Any]]] = {
        partition: [[] for _ in present] for partition in dict.fromkeys(chosen)
    }
    for number, column in enumerate(present):
        appends = {partition: lists[number].append for partition, lists in groups.items()}
        for partition, item in zip(chosen, column, strict=True):
            appends[partition](item)
    for partition, lists in groups.items():
        parts = iter(lists)
        found = [None if column is None else next(parts) for column in columns[:5]]
        yield partition, RecordColumns(*found), next(parts)  # type: ignore[arg-type]
