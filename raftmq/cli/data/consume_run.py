"""`raftmq consume` at work: the offsets where reading begins and ends, and the bytes of each batch.

Where all that was asked for is known beforehand (an end, or a number of records before it) the
bounds of all partitions are looked up first. Else the consumer resets its own offsets, so that
partitions without a leader do not hold it up, and partitions that are added are read, too.
"""

from __future__ import annotations

import os
import stat
import sys
from bisect import bisect_left
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import anyio
import click
from anyio.to_thread import run_sync

from raftmq.cli.clusters.connected import run_connected
from raftmq.cli.clusters.wait_reason import WaitedFor, WaitReason
from raftmq.cli.data.log_bounds import check_all_read, find_bounds, give_up_silent
from raftmq.cli.data.offset_option import From, StartPlace, parse_from
from raftmq.cli.data.record_format import (
    Format,
    compile_format,
    write_json_lines,
    write_readable,
    write_values,
)
from raftmq.cli.data.topic_check import check_all_there
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.cli.terminal.output import is_terminal
from raftmq.cli.terminal.program import as_called
from raftmq.client.administration.checks import check_topic
from raftmq.client.options import isolation_of
from raftmq.tag_filter import TagExpressionError, tag_filter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    from raftmq.cli.data.log_bounds import Key, LogBounds
    from raftmq.client.client import Client
    from raftmq.client.consumer.batch import ConsumedBatch
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.consumer.partition_state import GivenStart


# -- Streams --------------------------------------------------------------------------------------
# Standard streams as the shell hands them over: closed, a file, a pipe, or a terminal.


def file_of(name: str) -> int:
    """The descriptor of `stdin` or `stdout`.

    Raises:
        CommandError: it is closed.
    """
    stream = getattr(sys, name)
    # Python sets a closed stream to None; `main.py` replaces it by /dev/null, but not
    # `sys.__stdin__`.
    if stream is None or getattr(sys, f"__{name}__") is None:
        raise CommandError(f"{name} is closed: give it a file, or a pipe", ExitCode.FAILED)
    return int(stream.fileno())


# -- Extent ---------------------------------------------------------------------------------------
# Which records are still to be taken: from where, up to where, and how many. Pure.
#
# Ends are exclusive. A partition without an end is read for ever. An offset before an end need not
# be a record: control batches take offsets, too, and are never handed out, nor are records that a
# filter leaves out. So an end is reached by the records that are taken, or by the position of the
# consumer (`reach`).


class Range(NamedTuple):
    """Attributes:
    start: where reading begins.
    end: None: nowhere.
    first: records before it are not wanted. It is beyond `start` where the log end offset is
        still lower than the offset that was asked for.
    """

    start: int
    end: int | None
    first: int = 0

    @property
    def is_empty(self) -> bool:
        return self.end is not None and max(self.start, self.first) >= self.end

    @property
    def is_beyond(self) -> bool:
        """The offset that was asked for is not there yet, and is not waited for."""
        return self.end is not None and self.first > self.end


def range_of(wanted: From, bounds: LogBounds, *, until_end: bool) -> Range:
    end = bounds.end if until_end else None
    match wanted.place:
        case StartPlace.START:
            return Range(bounds.start, end)
        case StartPlace.END:
            return Range(bounds.end, end)
        case StartPlace.OFFSET:
            # An offset outside of the log would be OffsetOutOfRange: begin at the nearest one.
            start = min(max(wanted.number, bounds.start), bounds.end)
            return Range(start, end, wanted.number)
        case StartPlace.LAST:
            return Range(max(bounds.start, bounds.end - wanted.number), end)
        case StartPlace.TIME:
            return Range(bounds.end if bounds.at_time is None else bounds.at_time, end)


class RemainingRecords:
    """The records that one command still has to take.

    Args:
        ranges: of some partitions; from all others every record is taken.
        records_max: of all partitions together; None: no limit.
        given_up: partitions that have an end and cannot be read, and why.
    """

    def __init__(
        self,
        ranges: Mapping[Key, Range],
        records_max: int | None = None,
        given_up: Mapping[Key, str] | None = None,
    ) -> None:
        self._ranges = {key: one for key, one in ranges.items() if not one.is_empty}
        self._open = {key for key, one in self._ranges.items() if one.end is not None}
        self._given_up = dict(given_up or {})
        ends = [one.end for one in ranges.values()]
        self._has_end = bool(self._given_up) or any(end is not None for end in ends)
        self._left = records_max

    @property
    def is_over(self) -> bool:
        return self._left == 0 or (self._has_end and not self._open)

    def take(self, key: Key, offsets: Sequence[int], end_offset: int) -> slice:
        """Which of these records are wanted; they count as taken.

        Args:
            end_offset: the consumer's position after them.
        """
        start, stop = 0, len(offsets)
        # A partition without a range is taken whole.
        if (wanted := self._ranges.get(key)) is not None:
            if offsets[0] < wanted.first:
                # Reading began before the wanted offset, which did not exist yet.
                start = bisect_left(offsets, wanted.first)
            if wanted.end is not None and end_offset >= wanted.end:
                stop = bisect_left(offsets, wanted.end)
                self._end(key)
        if self._left is not None:
            stop = min(stop, start + self._left)
            self._left -= max(stop - start, 0)
        return slice(start, max(start, stop))

    @property
    def unread(self) -> list[Key]:
        """Partitions that have an end which is not reached yet."""
        return sorted(self._open)

    def reach(self, key: Key, position: int | None) -> None:
        """The consumer's position: offsets before it that were not taken are no records.

        Args:
            position: None: where reading begins is not known yet.
        """
        if position is None or (wanted := self._ranges.get(key)) is None:
            return
        if wanted.end is not None and position >= wanted.end:
            self._end(key)

    def _end(self, key: Key) -> None:
        self._open.discard(key)
        self._given_up.pop(key, None)

    def give_up(self, key: Key, why: str) -> None:
        """What is left of it is not waited for; it counts as read if it comes nevertheless."""
        self._open.discard(key)
        self._given_up[key] = why

    @property
    def missed(self) -> Mapping[Key, str]:
        """Partitions that were given up, and why; empty where all records asked for were taken."""
        return {} if self._left == 0 else self._given_up

    def is_open(self, key: Key) -> bool:
        """Whether more of that partition is wanted."""
        return key in self._open or (key not in self._ranges or self._ranges[key].end is None)


# -- Sink -----------------------------------------------------------------------------------------
# Standard output for blocks of bytes, without blocking the event loop.
#
# A slow reader holds up the writing task only (back-pressure). One that is gone is noticed at once,
# also when there is nothing to write, as behind `| head`. A write into a pipe or a terminal can be
# cancelled, and `byte_count` then says to the byte what the reader has got.


class Sink:
    """Attributes:
    is_terminal: stdout is a terminal.
    blocks: the number of blocks written.
    byte_count: bytes written, also of a block that was cancelled before its end.
    """

    def __init__(self) -> None:
        self._file = file_of("stdout")
        self.is_terminal = is_terminal("stdout")
        self.blocks = self.byte_count = 0
        self._mode = os.fstat(self._file).st_mode
        self._own = _open_again(self._file, self._mode)

    async def write(self, data: bytes) -> None:
        """Write all of it.

        Raises:
            BrokenPipeError: the reader has closed its end.
            CommandError: it cannot be written, as where a disk is full.
        """
        try:
            # Without a descriptor of our own, a blocking write is for a worker thread.
            await (self._write_whole(data) if self._own is None else self._hand(self._own, data))
        except BrokenPipeError:  # `main.py` ends without a message then
            raise
        except OSError as error:
            line = f"cannot write to stdout: {error.strerror}"
            raise CommandError(line, ExitCode.FAILED) from error
        self.blocks += 1

    async def watch(self) -> None:
        """Raises BrokenPipeError once the reader of a pipe has gone; returns for other files."""
        if not stat.S_ISFIFO(self._mode):
            return
        # The writing end of a pipe never has data to read: it becomes "readable" by an error, when
        # the last reader has closed its end.
        await anyio.wait_readable(self._file)
        raise BrokenPipeError

    async def _write_whole(self, data: bytes) -> None:
        """In a worker thread, a file to its end even when cancelled: the count is right then."""
        is_file = stat.S_ISREG(self._mode)
        await run_sync(_write_all, self._file, data, abandon_on_cancel=not is_file)
        self.byte_count += len(data)

    async def _hand(self, own: int, data: bytes) -> None:
        """Write to a non-blocking descriptor, as much as the pipe has room for at a time."""
        rest = memoryview(data)
        while rest:
            # Until the reader has made room, or has gone (then the write raises BrokenPipeError).
            await anyio.wait_writable(own)
            # Another process that shares the pipe may have filled it in between.
            with suppress(BlockingIOError):
                count = os.write(own, rest)
                self.byte_count += count
                rest = rest[count:]


def _open_again(file: int, mode: int) -> int | None:
    """A non-blocking descriptor of our own for the same pipe or terminal.

    O_NONBLOCK on the descriptor that the shell gave us would be seen by all processes that share
    it. None: there is none (no /proc), or it is a file.
    """
    if not (stat.S_ISFIFO(mode) or os.isatty(file)):
        return None
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        return os.open(f"/proc/self/fd/{file}", flags)
    return None


def _write_all(file: int, data: bytes) -> None:
    for piece in _pieces(data):
        rest = piece
        while rest:
            rest = rest[os.write(file, rest) :]


def _pieces(data: bytes, size: int = 1 << 20) -> Iterator[memoryview]:
    """Pieces of 1 MiB: a worker thread that was abandoned ends after the piece it is writing."""
    view = memoryview(data)
    return (view[start : start + size] for start in range(0, len(view), size))


# -- The command ----------------------------------------------------------------------------------


Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]
BATCH_RECORDS_MAX = 10_000  # formatted as one block of output: a few MB, written with one call
LOOK_SECONDS = 0.2  # between checks of the position, while no batch comes: the delay at the end
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ConsumeOrder(NamedTuple):
    """What is to be read.

    Attributes:
        partitions: empty: all of them.
        form: None: values, and on a terminal printable ones.
        isolation_level, tags: the options of a consumer.
    """

    topics: tuple[str, ...]
    begin: From
    partitions: tuple[int, ...]
    records_max: int | None
    until_end: bool
    form: Format | None = None
    isolation_level: Isolation = "read_committed"
    tags: str | None = None

    @property
    def needs_bounds(self) -> bool:
        """The partitions' bounds must be looked up before the first record is read."""
        return self.until_end or self.begin.place in (StartPlace.OFFSET, StartPlace.LAST)


def wish_of(
    topics: tuple[str, ...],
    offset: str | None,
    partitions: tuple[int, ...],
    records_max: int | None,
    form: str | None,
    *,
    until_end: bool,
    isolation_level: Isolation = "read_committed",
    tags: str | None = None,
) -> ConsumeOrder:
    """Raises click.BadParameter, RaftmqError."""
    for topic in topics:
        check_topic(topic)
    # Up to the end there is something to read only from the start; else a person waits for new
    # records.
    if offset is None:
        offset = "earliest" if until_end else "latest"
    try:
        begin = parse_from(offset)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="-o") from error
    found = _format(form)
    _check_tags(tags)
    each_topic_once = tuple(dict.fromkeys(topics))
    each_partition_once = tuple(sorted(set(partitions)))
    return ConsumeOrder(
        each_topic_once,
        begin,
        each_partition_once,
        records_max,
        until_end,
        found,
        isolation_level,
        tags,
    )


def _format(text: str | None) -> Format | None:
    if text is None:
        return None
    if text == "json":
        return write_json_lines
    try:
        return compile_format(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="-f") from error


def _check_tags(text: str | None) -> None:
    if text is None:
        return
    try:
        tag_filter(text)
    except TagExpressionError as error:
        raise click.BadParameter(str(error), param_hint="--tags") from error


def run_consume(wish: ConsumeOrder, bootstrap: str | None, *, quiet: bool) -> int:
    run_connected(lambda client: _consume(client, wish, quiet=quiet), bootstrap)
    return ExitCode.OK


async def _consume(client: Client, wish: ConsumeOrder, *, quiet: bool) -> None:
    wanted = WaitedFor(wish.topics, wish.partitions)
    silence = WaitReason(client.admin, wanted, is_told=not quiet)
    async with silence.explained():
        await _write_wanted(client, wish, silence, quiet=quiet)


async def _write_wanted(
    client: Client, wish: ConsumeOrder, silence: WaitReason, *, quiet: bool
) -> None:
    await check_all_there(client, wish.topics, wish.partitions)
    ranges, silent = await find_ranges(client, wish) if wish.needs_bounds else ({}, {})
    if not quiet and wish.begin.place is StartPlace.OFFSET:
        _tell_deleted(ranges)
    extent = RemainingRecords(ranges, wish.records_max, silent)
    # Empty partitions: no consumer is opened, as it would wait for records.
    if not extent.is_over:
        await _write_records(client, wish, ranges, extent, silence, quiet=quiet)
    elif not quiet:
        _tell_beyond(ranges)
    check_all_read(extent.missed)


def _tell_deleted(ranges: Mapping[Key, Range]) -> None:
    """Of an offset that was given, and lies before the start of a log."""
    deleted = [(key, one) for key, one in ranges.items() if one.first < one.start]
    starts = [f"{topic}-{number} from {one.start}" for (topic, number), one in deleted]
    if deleted:
        what = f"offset {deleted[0][1].first} was deleted: reads {', '.join(starts[:10])}"
        click.echo(f"raftmq: {what}", err=True)


def _tell_beyond(ranges: Mapping[Key, Range]) -> None:
    beyond = [
        f"{topic}-{partition} ends at {one.end}"
        for (topic, partition), one in ranges.items()
        if one.is_beyond
    ]
    if beyond:
        click.echo(f"raftmq: nothing to read from there on: {', '.join(beyond[:10])}", err=True)


async def _write_records(
    client: Client,
    wish: ConsumeOrder,
    ranges: Mapping[Key, Range],
    extent: RemainingRecords,
    silence: WaitReason,
    *,
    quiet: bool,
) -> None:
    sink = Sink()
    silence.taken = lambda: sink.blocks
    form = wish.form or (write_readable if sink.is_terminal else write_values)
    async with open_consumer(client, wish, ranges) as consumer:
        begin(consumer, ranges)
        async with anyio.create_task_group() as tasks:
            if not quiet and not wish.until_end:
                tasks.start_soon(say_if_nothing_comes, sink, waits_for(wish.begin, wish.tags))
            if wish.until_end:
                positions = partial(_positions, consumer, extent)
                tasks.start_soon(give_up_silent, client.admin, positions, extent.give_up)
            # Ends the command when the reader has gone, also while no records come.
            tasks.start_soon(sink.watch)
            await write_all(consumer, extent, form, sink.write)
            tasks.cancel_scope.cancel()


async def write_all(
    consumer: Consumer,
    extent: RemainingRecords,
    form: Format,
    write: Callable[[bytes], Awaitable[None]],
) -> None:
    batches = consumer.batches(max_records=BATCH_RECORDS_MAX)
    while (batch := await next_batch(consumer, batches, extent)) is not None:
        rows = take(consumer, batch, extent)
        # A batch may lie before the first wanted record, or behind the end.
        if rows.stop > rows.start:
            await write(form(batch, rows))
        key = (batch.topic, batch.partition)
        # This partition is read to its end: fetch the others only.
        if not (extent.is_over or extent.is_open(key)):
            consumer.pause(key)


async def next_batch(
    consumer: Consumer, batches: AsyncIterator[ConsumedBatch], extent: RemainingRecords
) -> ConsumedBatch | None:
    """The next batch; None: the extent is over.

    The last offsets before an end may be no records, or such as the filter leaves out: then no
    batch reaches it, but the position does.
    """
    while not extent.is_over:
        # A partition with an end may end in what is no record: wake up to compare its position.
        with anyio.move_on_after(LOOK_SECONDS if extent.unread else None):
            return await anext(batches)
        for key, position in _positions(consumer, extent).items():
            extent.reach(key, position)
    return None


def _positions(consumer: Consumer, extent: RemainingRecords) -> dict[Key, int | None]:
    """Of the partitions that are not read to their ends yet."""
    return {key: consumer.position(*key) for key in extent.unread}


def take(consumer: Consumer, batch: ConsumedBatch, extent: RemainingRecords) -> slice:
    """Which of its records are wanted, the batch having been handed out last."""
    position = consumer.position(batch.topic, batch.partition) or batch.end_offset
    return extent.take((batch.topic, batch.partition), batch.offsets, position)


NOTHING_SECONDS = 1.0  # until it is said that nothing has come: records that are there come sooner


async def say_if_nothing_comes(sink: Sink, what: str) -> None:
    """Once: a script, or a person, must not wonder why nothing is printed."""
    await anyio.sleep(NOTHING_SECONDS)
    if not sink.blocks:
        click.echo(f"raftmq: {as_called(what)}", err=True)


def waits_for(wanted: From, tags: str | None = None) -> str:
    """What is said where nothing comes."""
    if wanted.place is StartPlace.END:
        return (
            "waiting for new records, as it reads from the end on; -o earliest begins with the"
            " oldest, -e ends at the end"
        )
    which = "there are none yet" if tags is None else "none has passed --tags yet"
    return f"waiting for new records: {which} from there on; -e ends at the end"


# -- where to begin ----------------------------------------------------------------------------


async def find_ranges(
    client: Client, wish: ConsumeOrder
) -> tuple[dict[Key, Range], dict[Key, str]]:
    """The ranges of the partitions that are wanted, as the logs are now; and, where an end is
    wanted, why others cannot be read.

    Raises:
        CommandError: without an end, if some leader does not answer.
    """
    admin = client.admin
    wanted = dict.fromkeys(wish.topics, wish.partitions)
    isolation = isolation_of(wish.isolation_level)
    bounds, silent = await find_bounds(
        admin, wanted, is_patient=not wish.until_end, isolation=isolation
    )
    if not wish.until_end:
        check_all_read(silent, "their ends are not known")
    if wish.begin.place is StartPlace.TIME:
        for topic in wish.topics:
            partitions = [number for name, number in bounds if name == topic]
            if not partitions:
                continue
            times = await admin.offsets(
                topic,
                wish.begin.number,
                partitions=partitions,
                isolation_level=wish.isolation_level,
            )
            for number, offset in times.items():
                bounds[topic, number] = bounds[topic, number]._replace(at_time=offset)
    ranges = {
        key: range_of(wish.begin, one, until_end=wish.until_end) for key, one in bounds.items()
    }
    return ranges, silent


def open_consumer(client: Client, wish: ConsumeOrder, ranges: Mapping[Key, Range]) -> Consumer:
    """Of partitions whose ranges are known, assign only those with something to read."""
    options: dict[str, Any] = {
        "max_poll_records": BATCH_RECORDS_MAX,
        "isolation_level": wish.isolation_level,
        "tags": wish.tags,
    }
    # Positions are set by `begin`; "earliest" is for offsets that retention deletes before that.
    if ranges:
        assign = [key for key, one in ranges.items() if not one.is_empty]
        return client.consumer(assign=assign, start="earliest", **options)
    start = start_of(wish.begin)
    if wish.partitions:
        assign = [(topic, one) for topic in wish.topics for one in wish.partitions]
        return client.consumer(assign=assign, start=start, **options)
    return client.consumer(*wish.topics, start=start, **options)


def begin(consumer: Consumer, ranges: Mapping[Key, Range]) -> None:
    for (topic, partition), one in ranges.items():
        if not one.is_empty:
            consumer.seek(topic, partition, offset=one.start)


def start_of(wanted: From) -> GivenStart:
    """The consumer's `start`, for places that do not depend on a partition."""
    if wanted.place is StartPlace.TIME:
        return _EPOCH + timedelta(milliseconds=wanted.number)
    return "latest" if wanted.place is StartPlace.END else "earliest"
