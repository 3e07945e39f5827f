"""`raftmq consume` at work: from which offsets to read, and what becomes of each batch.

Where everything that was asked for is known beforehand (an end, a number of records before it) all
partitions are looked up first; else the consumer finds its own way, which also goes past partitions
that nobody leads, and takes in those that are added.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import click

from raftmq.cli.connected import run_connected
from raftmq.cli.data.extent import Bounds, Extent, Key, Range, range_of
from raftmq.cli.data.offset_option import From, Place, parse_from
from raftmq.cli.data.record_format import (
    Format,
    compile_format,
    write_json_lines,
    write_readable,
    write_values,
)
from raftmq.cli.data.sink import Sink
from raftmq.cli.data.streams import is_terminal
from raftmq.cli.data.topics_there import check_there
from raftmq.cli.exits import ExitCode
from raftmq.cli.silence import Silence, Wanted
from raftmq.client.administration.checks import check_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from raftmq.client.client import Client
    from raftmq.client.consumer.batch import ConsumedBatch
    from raftmq.client.consumer.consumer import Consumer

BATCH_RECORDS_MAX = 10_000  # in one block of output
LOOK_SECONDS = 0.2  # while nothing comes, whether the end is reached
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Wish(NamedTuple):
    """What is to be read.

    Attributes:
        partitions: none: all.
        form: None: as the output likes it.
    """

    topics: tuple[str, ...]
    begin: From
    partitions: tuple[int, ...]
    records_max: int | None
    until_end: bool
    form: Format | None = None

    @property
    def needs_bounds(self) -> bool:
        return self.until_end or self.begin.place in (Place.OFFSET, Place.LAST)


def wish_of(
    topics: tuple[str, ...],
    offset: str | None,
    partitions: tuple[int, ...],
    records_max: int | None,
    form: str | None,
    *,
    until_end: bool,
) -> Wish:
    """Raises click.BadParameter, RaftmqError."""
    for topic in topics:
        check_topic(topic)
    if offset is None:
        offset = "earliest" if until_end else "latest"
    try:
        begin = parse_from(offset)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="-o") from error
    found = _format(form)
    each_topic_once = tuple(dict.fromkeys(topics))
    each_partition_once = tuple(sorted(set(partitions)))
    return Wish(each_topic_once, begin, each_partition_once, records_max, until_end, found)


def _format(text: str | None) -> Format | None:
    if text is None:
        return None
    if text == "json":
        return write_json_lines
    try:
        return compile_format(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="-f") from error


def run_consume(wish: Wish, bootstrap: str | None, *, quiet: bool) -> int:
    run_connected(lambda client: _consume(client, wish, quiet=quiet), bootstrap)
    return ExitCode.OK


async def _consume(client: Client, wish: Wish, *, quiet: bool) -> None:
    wanted = Wanted(wish.topics, wish.partitions)
    silence = Silence(client.admin, wanted, is_told=not quiet)
    async with silence.explained():
        await _write_wanted(client, wish, silence, quiet=quiet)


async def _write_wanted(client: Client, wish: Wish, silence: Silence, *, quiet: bool) -> None:
    for topic in wish.topics:
        await check_there(client, topic, () if wish.needs_bounds else wish.partitions)
    ranges = await find_ranges(client, wish) if wish.needs_bounds else {}
    extent = Extent(ranges, wish.records_max)
    if extent.is_over:
        return
    sink = Sink()
    silence.taken = lambda: sink.blocks
    form = wish.form or (write_readable if sink.is_terminal else write_values)
    async with open_consumer(client, wish, ranges) as consumer:
        begin(consumer, ranges)
        if is_terminal("stderr") and not quiet and wish.begin.place is Place.END:
            click.echo("raftmq: waiting for new records; -o earliest shows old ones", err=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sink.watch)
            await write_all(consumer, extent, form, sink.write)
            tasks.cancel_scope.cancel()


async def write_all(
    consumer: Consumer, extent: Extent, form: Format, write: Callable[[bytes], Awaitable[None]]
) -> None:
    batches = consumer.batches(max_records=BATCH_RECORDS_MAX)
    while (batch := await next_batch(consumer, batches, extent)) is not None:
        rows = take(consumer, batch, extent)
        if rows.stop > rows.start:
            await write(form(batch, rows))
        key = (batch.topic, batch.partition)
        if not (extent.is_over or extent.is_open(key)):
            consumer.pause(key)


async def next_batch(
    consumer: Consumer, batches: AsyncIterator[ConsumedBatch], extent: Extent
) -> ConsumedBatch | None:
    """None: the extent is over.

    The last offsets before an end may be no records: then no batch reaches it, the position does.
    """
    while not extent.is_over:
        with anyio.move_on_after(LOOK_SECONDS if extent.unread else None):
            return await anext(batches)
        for key in extent.unread:
            extent.reach(key, consumer.position(*key))
    return None


def take(consumer: Consumer, batch: ConsumedBatch, extent: Extent) -> slice:
    """Which of its records are wanted, the batch having been handed out last."""
    position = consumer.position(batch.topic, batch.partition) or batch.end_offset
    return extent.take((batch.topic, batch.partition), batch.offsets, position)


# -- where to begin ----------------------------------------------------------------------------


async def find_ranges(client: Client, wish: Wish) -> dict[Key, Range]:
    """Of all partitions that are wanted, as they are now."""
    ranges: dict[Key, Range] = {}
    for topic in wish.topics:
        for partition, bounds in (await _bounds(client, topic, wish)).items():
            ranges[topic, partition] = range_of(wish.begin, bounds, until_end=wish.until_end)
    return ranges


async def _bounds(client: Client, topic: str, wish: Wish) -> dict[int, Bounds]:
    """Ends first: what is deleted meanwhile is before them."""
    admin, partitions = client.admin, wish.partitions or None
    ends = await admin.offsets(topic, "latest", partitions=partitions)
    starts = await admin.offsets(topic, "earliest", partitions=partitions)
    times: Mapping[int, int | None] = {}
    if wish.begin.place is Place.TIME:
        times = await admin.offsets(topic, wish.begin.number, partitions=partitions)
    return {
        partition: Bounds(starts.get(partition) or 0, end or 0, times.get(partition))
        for partition, end in ends.items()
    }


def open_consumer(client: Client, wish: Wish, ranges: Mapping[Key, Range]) -> Consumer:
    """Of partitions whose ranges are known, only those in which there is something to read."""
    options: dict[str, Any] = {"max_poll_records": BATCH_RECORDS_MAX}
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


def start_of(wanted: From) -> str | int | datetime:
    """As consumers say it, but for places that depend on a partition."""
    if wanted.place is Place.TIME:
        return _EPOCH + timedelta(milliseconds=wanted.number)
    return "latest" if wanted.place is Place.END else "earliest"
