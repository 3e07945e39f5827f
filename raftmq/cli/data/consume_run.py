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
from raftmq.cli.data.silence import explain_silence
from raftmq.cli.data.sink import Sink
from raftmq.cli.data.streams import is_terminal
from raftmq.cli.data.topics_there import check_there
from raftmq.cli.exits import ExitCode
from raftmq.client.administration.checks import check_topic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.client.client import Client
    from raftmq.client.consumer.consumer import Consumer

BATCH_RECORDS_MAX = 10_000  # in one block of output
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
        offset = "start" if until_end else "end"
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
    for topic in wish.topics:
        await check_there(client, topic, () if wish.needs_bounds else wish.partitions)
    ranges = await find_ranges(client, wish) if wish.needs_bounds else {}
    extent = Extent(ranges, wish.records_max)
    if extent.is_over:
        return
    sink = Sink()
    form = wish.form or (write_readable if sink.is_terminal else write_values)
    async with open_consumer(client, wish, ranges) as consumer:
        begin(consumer, ranges)
        if is_terminal("stderr") and not quiet and wish.begin.place is Place.END:
            click.echo("raftmq: waiting for new records; -o start shows old ones", err=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sink.watch)
            if not quiet:
                asked = (client.admin, wish.topics, wish.partitions, lambda: sink.blocks)
                tasks.start_soon(explain_silence, *asked)
            await _write_all(consumer, extent, form, sink)
            tasks.cancel_scope.cancel()


async def _write_all(consumer: Consumer, extent: Extent, form: Format, sink: Sink) -> None:
    async for batch in consumer.batches(max_records=BATCH_RECORDS_MAX):
        key = (batch.topic, batch.partition)
        rows = extent.take(key, batch.offsets, batch.end_offset)
        if rows.stop > rows.start:
            await sink.write(form(batch, rows))
        if extent.is_over:
            return
        if not extent.is_open(key):
            consumer.pause(key)


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
    start = _start(wish.begin)
    if wish.partitions:
        assign = [(topic, one) for topic in wish.topics for one in wish.partitions]
        return client.consumer(assign=assign, start=start, **options)
    return client.consumer(*wish.topics, start=start, **options)


def begin(consumer: Consumer, ranges: Mapping[Key, Range]) -> None:
    for (topic, partition), one in ranges.items():
        if not one.is_empty:
            consumer.seek(topic, partition, offset=one.start)


def _start(wanted: From) -> str | int | datetime:
    if wanted.place is Place.TIME:
        return _EPOCH + timedelta(milliseconds=wanted.number)
    return "latest" if wanted.place is Place.END else "earliest"
