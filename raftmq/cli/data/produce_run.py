"""`raftmq produce` at work: records of lines, read ahead with back-pressure, and the final count.

Exit code 0 means that every record was acknowledged. Where it ends earlier, the last line says how
many were delivered, how many were not, and for how many the outcome is unknown.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter, deque
from contextlib import suppress
from datetime import timedelta
from functools import partial
from operator import itemgetter
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import anyio
import click
from anyio.to_thread import run_sync

from raftmq.cli.clusters.connected import run_connected
from raftmq.cli.clusters.wait_reason import WaitedFor, WaitReason
from raftmq.cli.data.consume_run import file_of
from raftmq.cli.data.record_format import unescape
from raftmq.cli.data.record_lines import LineShape, Splitter, text_of
from raftmq.cli.data.stopping import Stopping
from raftmq.cli.data.topic_check import check_there
from raftmq.cli.terminal.exits import CommandError, ExitCode, exit_code_of
from raftmq.cli.terminal.output import is_terminal
from raftmq.cli.terminal.progress import Progress, show_progress, show_rates
from raftmq.cli.terminal.times import parse_time
from raftmq.client.administration.checks import check_topic
from raftmq.client.producer.options import producer_options
from raftmq.client.producer.record import checked_extras
from raftmq.client.producer.statistics import Statistics
from raftmq.errors import InvalidRecord, RaftmqError
from raftmq.wire.batch.compression import compress
from raftmq.words import DURATION_FORM, parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from raftmq.cli.data.record_lines import Row
    from raftmq.client.client import Client
    from raftmq.client.producer.producer import Producer
    from raftmq.client.transactions.transaction import Transaction


# -- Sources --------------------------------------------------------------------------------------
# Files and standard input, a block at a time, without blocking the event loop.
#
# Pipes and terminals are read when they are readable, so that the wait can be cancelled at once;
# files, which are always readable and may be slow, in a worker thread.


STANDARD_INPUT = "-"
PIPE_BLOCK_BYTES = 64 << 10  # what a Linux pipe holds
FILE_BLOCK_BYTES = 1 << 20  # larger, as each read is handed to a worker thread


class Source:
    """`async with Source(path):`

    Attributes:
        is_prompt: the next block is there already (a file); a pipe may have to wait for its writer.
    """

    def __init__(self, path: str) -> None:
        self._path, self._file = path, -1
        self.is_prompt = False

    async def __aenter__(self) -> Self:
        if self._path == STANDARD_INPUT:
            self._file = file_of("stdin")
        else:  # in a thread: opening a named pipe waits until another process opens it to write
            self._file = await run_sync(_open, self._path, abandon_on_cancel=True)
        self.is_prompt = stat.S_ISREG(os.fstat(self._file).st_mode)
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._path != STANDARD_INPUT:
            os.close(self._file)

    async def read(self) -> bytes:
        """The next block; empty at the end. Raises OSError."""
        if not self.is_prompt:
            try:
                # Until the writer of the pipe, or the person at the terminal, has sent something,
                # or has closed it.
                await anyio.wait_readable(self._file)
            except OSError as error:
                if error.errno != errno.EPERM:  # epoll's answer for files and some devices
                    raise
                self.is_prompt = True  # a device that is always ready, as /dev/null
        if self.is_prompt:
            return await run_sync(os.read, self._file, FILE_BLOCK_BYTES, abandon_on_cancel=True)
        return os.read(self._file, PIPE_BLOCK_BYTES)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def total_bytes(paths: tuple[str, ...]) -> int | None:
    """The size of all inputs; None where one is no regular file, so that it is not known."""
    found = [
        os.fstat(file_of("stdin")) if path == STANDARD_INPUT else os.stat(path)  # noqa: PTH116
        for path in paths
    ]
    if not all(stat.S_ISREG(one.st_mode) for one in found):
        return None
    return sum(one.st_size for one in found)


# -- Feed -----------------------------------------------------------------------------------------
# Records as they come in, in bursts that end where the input pauses.
#
# A task reads ahead into a queue of bounded size (back-pressure on the input). A burst is what one
# call of `send_many` gets: it goes on as long as more comes, and ends after the linger time without
# input, so that a record never waits for the next one to be typed. Input that comes while a burst
# is being delivered is the next burst: the slower the cluster, the longer they are.


# Read ahead: four blocks of a file, enough to keep the producer busy while a worker thread reads.
QUEUE_BYTES_MAX = 4 << 20
# Rows of one `send_many` call, which keeps a result for each of them: an endless stream must not
# collect them without end.
BURST_ROWS_MAX = 1_000_000
LINGER_SECONDS = 0.005  # not felt by a person who types; input that comes fast makes batches


class Feed:
    """Reads all inputs ahead, and hands their rows out in bursts.

    Attributes:
        read_bytes, read_records: so far.
    """

    def __init__(self, paths: Sequence[str], delimiter: bytes, shape: LineShape) -> None:
        self._paths, self._delimiter, self._shape = paths, delimiter, shape
        self._queue: deque[tuple[list[Row], int]] = deque()
        self._queued_bytes = 0
        self._is_over = self._is_prompt = False
        self._error: OSError | CommandError | RaftmqError | None = None
        self._changed = anyio.Event()
        self.read_bytes = self.read_records = 0

    async def run(self) -> None:
        """Read everything. An error is raised by `wait`, after the records before it were taken."""
        try:
            for path in self._paths:
                await self._read(path)
        # Kept for `wait`: the records before it are still to be delivered.
        except (OSError, CommandError, RaftmqError) as error:
            self._error = error
        self._is_over = True
        self._tell()

    async def wait(self) -> bool:
        """Wait for the first row of a burst; False: the input is at its end.

        Raises:
            OSError, CommandError: the input could not be read.
            MessageTooLarge: a record that does not end.
        """
        while not self._queue and not self._is_over:
            await self._changed.wait()
        if not self._queue and self._error is not None:
            raise self._error
        return bool(self._queue)

    def burst(self, rows_max: int | None = None) -> Burst:
        return Burst(self, min(rows_max or BURST_ROWS_MAX, BURST_ROWS_MAX))

    async def next_rows(self, deadline: float) -> list[Row]:
        """The next rows; none by the deadline, which a file does not have."""
        with anyio.CancelScope() as scope:
            while not self._queue and not self._is_over:
                if not self._is_prompt:
                    scope.deadline = deadline
                # Until rows are queued, the input has ended, or the deadline has cancelled the
                # scope.
                await self._changed.wait()
        return self._take() if self._queue else []

    def put_back(self, rows: list[Row]) -> None:
        """The next burst begins with them."""
        self._queue.appendleft((rows, 0))

    def _take(self) -> list[Row]:
        rows, size = self._queue.popleft()
        self._queued_bytes -= size
        self._tell()
        return rows

    async def _read(self, path: str) -> None:
        splitter = Splitter(self._delimiter)
        async with Source(path) as source:
            while block := await source.read():
                self._is_prompt = source.is_prompt
                self.read_bytes += len(block)
                await self._put(splitter.feed(block), len(block))
        self._is_prompt = False
        await self._put(splitter.end(), 0)

    async def _put(self, lines: list[bytes], size: int) -> None:
        # Back-pressure: reading pauses until the producer has taken some.
        while self._queued_bytes > QUEUE_BYTES_MAX:
            await self._changed.wait()
        if lines:
            self.read_records += len(lines)
            self._queue.append((self._shape.rows(lines), size))
            self._queued_bytes += size
            self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class Burst:
    """The rows of one `send_many` call, to be iterated over once."""

    def __init__(self, feed: Feed, rows_max: int = BURST_ROWS_MAX) -> None:
        self._feed, self._rows_max = feed, rows_max
        self._rows: Iterator[Row] = iter(())
        self._count = 0
        self._linger_until = anyio.current_time() + LINGER_SECONDS

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Row:
        for row in self._rows:
            return row
        rows: list[Row] = []
        # Beyond it the burst ends, and the rows that are queued begin the next one.
        if (left := self._rows_max - self._count) > 0:
            rows = await self._feed.next_rows(self._linger_until)
            if len(rows) > left:
                self._feed.put_back(rows[left:])
                del rows[left:]
        if not rows:
            raise StopAsyncIteration
        self._count += len(rows)
        self._rows = iter(rows)
        return next(self._rows)


# -- The command ----------------------------------------------------------------------------------


EXPLAIN_SECONDS_MAX = 2.0  # for a remark in the summary
AT_ONCE_MAX = 10_000  # scheduled records that are waited for together


class ProduceOrder(NamedTuple):
    """What is to be sent. Every problem with it that needs no cluster has been reported."""

    topic: str
    files: tuple[str, ...]
    delimiter: bytes
    shape: LineShape
    headers: tuple[tuple[str, bytes], ...]
    tags: tuple[str, ...]
    partition: int | None
    options: dict[str, Any]
    transaction_records: int | None = None  # of each transaction; None: all of them are one
    due: Mapping[str, Any] = MappingProxyType({})  # how `send` is told when records are due

    @property
    def is_transactional(self) -> bool:
        return "transactions" in self.options

    @property
    def is_typed(self) -> bool:
        return STANDARD_INPUT in self.files and is_terminal("stdin")


def order_of(
    topic: str,
    timeout: float,
    *,
    key: str | None,
    key_delimiter: str | None,
    headers: tuple[str, ...],
    tags: tuple[str, ...],
    partition: int | None,
    delay: str | None,
    deliver_at: str | None,
    files: tuple[str, ...],
    delimiter: str,
    is_null: bool,
    acks: int | str,
    compression: str | None,
    preset: str | None,
    max_request_size: int | None,
    transaction: str | None,
    transaction_records: int | None,
    transaction_timeout: float,
) -> ProduceOrder:
    """Raises click.UsageError, RaftmqError."""
    shape = LineShape(
        None if key is None else text_of(os.fsencode(key)),
        None if key_delimiter is None else _delimiter("-K", key_delimiter),
        is_null,
    )
    options = {"acks": acks, "compression": compression, "delivery_timeout_ms": timeout * 1000}
    # Passed only if given: a `preset` of None is not a producer option, and one has a request size.
    options |= {} if preset is None else {"preset": preset}
    options |= {} if max_request_size is None else {"max_request_size": max_request_size}
    if transaction is not None or transaction_records is not None:
        timeout_ms = int(transaction_timeout * 1000)
        options |= {"transactions": True, "transaction_timeout_ms": timeout_ms}
        options |= {"transaction_id": transaction} if transaction else {}
    order = ProduceOrder(
        check_topic(topic),
        files or (STANDARD_INPUT,),
        _delimiter("-D", delimiter),
        shape,
        tuple(map(_header, headers)),
        tags,
        partition,
        options,
        transaction_records,
        _due(delay, deliver_at),
    )
    _check(order)
    return order


def _due(delay: str | None, deliver_at: str | None) -> dict[str, Any]:
    """As `send` takes it. A delay runs from each record's own call."""
    if delay is not None and deliver_at is not None:
        raise click.UsageError("--delay and --at: give one of them")
    if delay is not None:
        milliseconds = parse_duration(delay)
        if milliseconds is None:
            problem = f"{delay!r} is no duration: write it {DURATION_FORM}"
            raise click.BadParameter(problem, param_hint="--delay")
        try:
            return {"delay": timedelta(milliseconds=milliseconds)}
        except OverflowError as error:
            problem = f"{delay!r} is longer than {timedelta.max.days} days"
            raise click.BadParameter(problem, param_hint="--delay") from error
    if deliver_at is not None:
        try:
            return {"deliver_at": parse_time(deliver_at.removeprefix("@"), is_ago_allowed=False)}
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--at") from error
    return {}


def _delimiter(name: str, text: str) -> bytes:
    try:
        found = unescape(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=name) from error
    if not found:
        raise click.BadParameter("it is empty: say what to split at", param_hint=name)
    return found


def _header(text: str) -> tuple[str, bytes]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise click.BadParameter(f"{text!r}: expected NAME=VALUE", param_hint="-H")
    return name, os.fsencode(value)


def _check(order: ProduceOrder) -> None:
    """Fail as the first record would, but before any input is read and lost."""
    compress(producer_options(order.options).codec, b"")
    try:
        checked_extras(order.headers, order.tags, order.partition)
    except InvalidRecord as error:
        raise click.UsageError(str(error)) from error


class ProduceRun:
    """One run of the command: the input, the producer's statistics, and the summary."""

    def __init__(self, order: ProduceOrder, *, quiet: bool) -> None:
        self._order, self._quiet = order, quiet
        self._feed = Feed(order.files, order.delimiter, order.shape)
        self._statistics = Statistics()
        self._by_partition = Counter[int]()
        self._committed = 0  # records of transactions
        self._where = ""  # why all records are in one partition, if they are
        self._start = monotonic()

    async def go(self, client: Client) -> None:
        """Raises KeyboardInterrupt, CommandError: a signal has ended it before the end."""
        stopping = Stopping()
        async with anyio.create_task_group() as tasks:
            await tasks.start(stopping.listen)
            with stopping.whole, stopping.breaking_off():
                await self._explained(client)
                tasks.cancel_scope.cancel()
                return
        stopping.end()

    async def _explained(self, client: Client) -> None:
        order = self._order
        partitions = () if order.partition is None else (order.partition,)
        wanted = WaitedFor((order.topic,), partitions, is_quorum_needed=True)
        silence = WaitReason(client.admin, wanted, self._undelivered, is_told=not self._quiet)
        async with silence.explained():
            await self._go(client, partitions)

    async def _go(self, client: Client, partitions: tuple[int, ...]) -> None:
        order = self._order
        await check_there(client, order.topic, partitions)
        self._start = monotonic()
        if order.is_typed and not self._quiet:
            _say("a record per line; Ctrl-D ends")
        async with client.producer(**order.options) as producer:
            self._statistics = producer.statistics
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._feed.run)
                tasks.start_soon(partial(show_progress, self._progress(), quiet=self._is_silent))
                if order.is_transactional:
                    await self._send_in_transactions(producer)
                else:
                    await self._send_all(producer)
                tasks.cancel_scope.cancel()
        if not self._quiet:
            await self._explain_partition(client)

    async def _explain_partition(self, client: Client) -> None:
        """For people who expected records without keys to be spread over the partitions."""
        order, used = self._order, self._by_partition
        if order.partition is not None or order.shape.has_key or used.total() < 2 or len(used) > 1:
            return
        admin = client.admin.with_timeout(EXPLAIN_SECONDS_MAX)
        with suppress(RaftmqError):  # all is delivered; only a remark is missing
            counts = {one.name: one.partition_count for one in await admin.list_topics()}
            if counts.get(order.topic, 1) > 1:
                self._where = (
                    f"; all in partition {next(iter(used))} of {counts[order.topic]}: without keys"
                    " (-K, -k) a whole batch goes to one"
                )

    async def _send_in_transactions(self, producer: Producer) -> None:
        """Each counts as a whole: what fails, or breaks it off, aborts the one that is on."""
        while await self._feed.wait():
            async with producer.transaction() as tx:
                await self._send_all(tx, self._order.transaction_records)
            self._committed = self._statistics.records

    async def _send_all(
        self, producer: Producer | Transaction[Any, Any], records_max: int | None = None
    ) -> None:
        send, left = self._send_scheduled if self._order.due else self._send_burst, records_max
        while (left is None or left > 0) and await self._feed.wait():
            count = await send(producer, left)
            left = None if left is None else left - count

    async def _send_burst(
        self, producer: Producer | Transaction[Any, Any], records_max: int | None
    ) -> int:
        """Until every record of the burst is acknowledged, or one has failed for good. Returns how
        many there were."""
        order = self._order
        headers, tags = order.headers or None, order.tags or None
        sent = await producer.send_many(
            order.topic,
            self._feed.burst(records_max),
            value=itemgetter(1),
            key=itemgetter(0) if order.shape.has_key else None,
            headers=None if headers is None else lambda _row: headers,
            tags=None if tags is None else lambda _row: tags,
            partition=order.partition,
        )
        for run in sent:
            self._by_partition[run.partition] += run.record_count
        return sum([run.record_count for run in sent])

    async def _send_scheduled(
        self, producer: Producer | Transaction[Any, Any], records_max: int | None
    ) -> int:
        """The same one by one, as the records of a batch have one due time."""
        order, sent = self._order, []
        async for key, value in self._feed.burst(min(records_max or AT_ONCE_MAX, AT_ONCE_MAX)):
            delivery = await producer.enqueue(
                order.topic,
                value,
                key=key,
                headers=order.headers or None,
                tags=order.tags or None,
                partition=order.partition,
                **order.due,
            )
            sent.append(delivery)
        for delivery in sent:
            self._by_partition[(await delivery).partition] += 1
        return len(sent)

    # -- progress and summary --------------------------------------------------------------

    def _undelivered(self) -> int | None:
        """Grows with each delivery; None: nothing that was read is undelivered."""
        delivered = self._statistics.records
        return delivered if self._feed.read_records > delivered else None

    @property
    def _is_silent(self) -> bool:
        """A progress bar would be in the way of a person who types records."""
        return self._quiet or self._order.is_typed

    def _progress(self) -> Progress:
        total = None
        # The feed will report an input that cannot be read; the bar only lacks its total.
        with suppress(OSError, CommandError):
            total = total_bytes(self._order.files)
        return Progress(lambda: self._feed.read_bytes, self._rates, total)

    def _rates(self) -> str:
        records, seconds = self._statistics.records, monotonic() - self._start
        rates = show_rates(records=records, byte_count=self._feed.read_bytes, seconds=seconds)
        return f"{records} records, {rates}"

    def summary(self) -> str:
        statistics, seconds = self._statistics, monotonic() - self._start
        verb = "sent without acknowledgements" if self._is_blind else "delivered"
        verb = "stored for later" if self._order.due else verb
        verb = "committed" if self._order.is_transactional else verb
        rates = show_rates(
            records=statistics.records, byte_count=self._feed.read_bytes, seconds=seconds
        )
        line = f"{_counted(statistics.records)} {verb} in {seconds:.2f} s: {rates}"
        repeated = statistics.repeated_records
        twice = f"; {repeated} of them may stand in the log twice" if repeated else ""
        return line + twice + self._where

    @property
    def _is_blind(self) -> bool:
        """With acks=0 no broker says whether a record has arrived."""
        return bool(self._order.options["acks"] == 0)

    def fate(self) -> str:
        """What became of the records where the run ended early; empty if none was read."""
        if not self._feed.read_records:
            return ""
        if self._order.is_transactional:
            others = self._feed.read_records - self._committed
            return f"{_counted(self._committed)} committed, {others} read and not committed"
        statistics = self._statistics
        unknown = statistics.unknown_records
        others = self._feed.read_records - statistics.records - unknown
        parts = [f"{_counted(statistics.records)} {'sent' if self._is_blind else 'delivered'}"]
        parts += [f"{unknown} perhaps delivered"] if unknown else []
        parts += [f"{others} read and not delivered"] if others else []
        return ", ".join(parts)


def run_produce(order: ProduceOrder, bootstrap: str | None, *, quiet: bool) -> int:
    run = ProduceRun(order, quiet=quiet)
    try:
        run_connected(run.go, bootstrap)
    except (RaftmqError, OSError) as error:
        # The producer's option by the name that it has here.
        told = str(error).replace("max_request_size", "--max-request-size")
        line = "; ".join(filter(None, (" ".join(told.split()), run.fate())))
        raise CommandError(line, exit_code_of(error)) from error
    # Before `main.py` says what has ended it: how many records are delivered.
    except (KeyboardInterrupt, CommandError):
        if fate := run.fate():
            _say(fate)
        raise
    if not quiet:
        _say(run.summary())
    return ExitCode.OK


def _counted(count: int) -> str:
    return f"{count} record" if count == 1 else f"{count} records"


def _say(line: str) -> None:
    click.echo(f"raftmq: {line}", err=True)
