"""Which groups have dead letters, which of these are still there, and reading them in order.

The letters of a group are what stands in its topic behind those that a redrive has sent back. Its
offset is that of a group of its own, and counts where it is beyond the beginning of the log.
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.cli.terminal.output import Row, put_bytes
from raftmq.cli.terminal.times import parse_time
from raftmq.client.administration.groups.checks import check_group
from raftmq.client.dead_letters.letters import (
    DEAD_PREFIX,
    REDRIVE_PREFIX,
    DeadLetter,
    dead_letter_topic,
    group_part,
    plain_headers,
)
from raftmq.errors import GroupIdNotFound, UnknownTopicOrPartition

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping

    from raftmq.client.administration.admin import Admin
    from raftmq.client.client import Client
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.consumer.record import AnyRecord, ConsumerRecord

LOOK_SECONDS = 0.2  # between looks at the position, which also moves where no record is left
SILENCE_SECONDS_MAX = 30.0  # without anything of a partition: its leader does not answer


class Span(NamedTuple):
    """Offsets [start, end) of a partition that may have letters."""

    partition: int
    start: int
    end: int


class Box(NamedTuple):
    """The topic of a group's dead letters.

    Attributes:
        name: that stands for the group.
        spans: of each partition, by number; the topic has one, if nobody has made it otherwise.
        sent: by partition, behind what was sent back and still stands there.
    """

    topic: str
    name: str
    spans: tuple[Span, ...] = ()
    sent: Mapping[int, int] = MappingProxyType({})

    @property
    def redrive_group(self) -> str:
        return REDRIVE_PREFIX + self.name

    @property
    def offset_count(self) -> int:
        return sum(one.end - one.start for one in self.spans)


class LetterFilter(NamedTuple):
    """Which letters are meant.

    Attributes:
        error: a part of what `raftmq.error` says, whatever its capital letters.
        since, until: when they were set aside, in milliseconds; the end is exclusive.
    """

    error: str | None = None
    since: int | None = None
    until: int | None = None

    def passes(self, record: AnyRecord, letter: DeadLetter) -> bool:
        if self.error is not None and self.error.casefold() not in letter.error.casefold():
            return False
        if self.since is not None and record.timestamp < self.since:
            return False
        return self.until is None or record.timestamp < self.until


def filter_of(
    error: str | None, since: str | None = None, until: str | None = None
) -> LetterFilter:
    """Raises CommandError: a time that is none, or an empty error."""
    if error == "":  # of a variable of a script that is not set, most likely
        raise CommandError("--error is empty: leave it out for all", ExitCode.USAGE)
    return LetterFilter(error, time_of("--since", since), time_of("--until", until))


def time_of(option: str, text: str | None) -> int | None:
    """Raises CommandError."""
    try:
        # Other commands write times with an @, to tell them from offsets.
        return None if text is None else parse_time(text.removeprefix("@"))
    except ValueError as error:
        raise CommandError(f"{option}: {error}", ExitCode.USAGE) from error


async def all_boxes(admin: Admin) -> list[Box]:
    names = [one.name for one in await admin.list_topics() if one.name.startswith(DEAD_PREFIX)]
    return [await _box(admin, name, name.removeprefix(DEAD_PREFIX)) for name in names]


async def find_box(admin: Admin, group: str) -> Box:
    """
    Raises:
        CommandError: the group has no dead letters.
    """
    if group.startswith(DEAD_PREFIX):
        raise CommandError(
            f"{group} is a topic: give the group, as `raftmq dlq list` shows it", ExitCode.USAGE
        )
    check_group(group)
    topic = dead_letter_topic(group)
    try:
        return await _box(admin, topic, group_part(group))
    except UnknownTopicOrPartition:
        line = (
            f"group {group!r} has no dead letters: there is no topic {topic}; `raftmq dlq list`"
            " shows which groups have some"
        )
        raise CommandError(line, ExitCode.NOT_FOUND) from None


async def _box(admin: Admin, topic: str, name: str) -> Box:
    box = Box(topic, name)
    sent_back = await positions(admin, box)
    starts = await admin.offsets(topic, "earliest")
    ends = await admin.offsets(topic, "latest")
    spans = [
        Span(number, starts.get(number) or 0, end or 0) for number, end in sorted(ends.items())
    ]
    sent = {
        one.partition: at
        for one in spans
        if one.start < (at := min(sent_back.get(one.partition, 0), one.end))
    }
    spans = [one._replace(start=sent.get(one.partition, one.start)) for one in spans]
    left = tuple(one for one in spans if one.start < one.end)
    return box._replace(spans=left, sent=sent)


async def positions(admin: Admin, box: Box) -> dict[int, int]:
    """How far a redrive has come, by partition."""
    try:
        found = await admin.group_offsets(box.redrive_group)
    except GroupIdNotFound:  # there was none, or its offsets were forgotten
        return {}
    return {number: one.offset for (topic, number), one in found.items() if topic == box.topic}


async def read_letters(
    client: Client, topic: str, spans: Iterable[Span], take: Callable[[ConsumerRecord], bool]
) -> None:
    """Partition by partition, in order.

    Args:
        take: called with each of them; False: it wants no more.

    Raises:
        CommandError: a leader does not answer.
    """
    for span in spans:
        async with open_span(client, topic, span) as letters:
            async for record in letters:
                if not take(record):
                    return


@asynccontextmanager
async def open_span(
    client: Client, topic: str, span: Span
) -> AsyncIterator[AsyncIterator[ConsumerRecord]]:
    """Its letters, in order. Reading them raises CommandError: the leader does not answer."""
    key = topic, span.partition
    async with client.consumer(assign=[key], start="earliest") as consumer:
        consumer.seek(*key, offset=span.start)
        async with aclosing(_letters(consumer, key, span.end)) as letters:
            yield letters


async def _letters(
    consumer: Consumer[bytes, bytes | str | int], key: tuple[str, int], end: int
) -> AsyncGenerator[ConsumerRecord, None]:
    batches, heard_at = consumer.batches(), anyio.current_time()
    while (position := consumer.position(*key)) is None or position < end:
        batch: Iterable[ConsumerRecord] = ()
        with anyio.move_on_after(LOOK_SECONDS) as silence:
            batch = await anext(batches)
        for record in batch:
            if record.offset >= end:
                return
            yield record
        if not silence.cancelled_caught:  # also whoever takes them may take its time
            heard_at = anyio.current_time()
        elif anyio.current_time() > heard_at + SILENCE_SECONDS_MAX:
            line = f"{key[0]}-{key[1]}: nothing has come for {SILENCE_SECONDS_MAX:g} s"
            raise CommandError(line, ExitCode.UNREACHABLE)


def letter_object(record: ConsumerRecord, letter: DeadLetter) -> Row:
    """For JSON."""
    origin = letter.origin
    row: Row = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "origin": None if origin is None else origin._asdict(),
        "attempts": letter.attempts,
        "error": letter.error or None,
        "group": letter.group or None,
        "redriven": letter.redriven,
    }
    put_bytes(row, "key", record.key)
    put_bytes(row, "value", record.value)
    headers: list[Row] = []
    for name, value in plain_headers(record.headers):
        headers.append({"name": name})
        put_bytes(headers[-1], "value", value)
    row["headers"], row["tags"] = headers, list(record.tags)
    return row
