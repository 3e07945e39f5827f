"""`raftmq group reset-offsets`: plan the new offsets, ask, and commit them as compare-and-set.

Invariant: what a person has confirmed is what is done, namely the offsets that were shown, in place
of those that were shown; if one has changed meanwhile, nothing is done. With --yes one call plans
and commits. Where an offset that was asked for lies outside of a log, stderr says what is set.
"""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

from raftmq.cli.clusters.connected import run_admin
from raftmq.cli.clusters.group_reads import hinting
from raftmq.cli.data.offset_option import OTHER_WORDS, TIME_MAX, WORDS
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.cli.terminal.output import NOTHING, Row, check_can_ask, confirm, write_json, write_table
from raftmq.cli.terminal.times import parse_time, time_within
from raftmq.client.administration.checks import check_topic
from raftmq.client.administration.groups.checks import check_group
from raftmq.client.administration.groups.descriptions import check_empty
from raftmq.errors import GroupIdNotFound, NonEmptyGroup
from raftmq.wire.bodies import NUMBER_MAX
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from raftmq.client.administration.admin import Admin
    from raftmq.client.administration.results import OffsetReset, TopicPartition

    To: TypeAlias = Literal["earliest", "latest"] | int | datetime
    Plan: TypeAlias = dict[TopicPartition, OffsetReset]

T = TypeVar("T")
TITLES = ("topic", "partition", "old", "new", "log start", "log end")
NAMED_MAX = 10  # warnings in full; the table has all of them
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)  # an int64 has 19 digits
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ResetSelection(NamedTuple):
    """`topics` or `partitions`; both None: all that the group has committed."""

    name: str
    to: To | None
    shift: int | None
    topics: tuple[str, ...] | None
    partitions: tuple[TopicPartition, ...] | None


class ResetOrder(NamedTuple):
    """The options of one call."""

    wish: ResetSelection
    bootstrap: str | None
    timeout: float
    as_json: bool


def wish_of(
    name: str,
    to: str | None,
    shift: int | None,
    topics: Sequence[str],
    partitions: Sequence[int],
) -> ResetSelection:
    """Raises CommandError, InvalidGroupId, InvalidTopic."""
    check_group(name)
    for topic in topics:
        check_topic(topic)
    if (to is None) == (shift is None):
        raise CommandError(
            "give --to earliest, latest, an offset or @TIME, or --shift N", ExitCode.USAGE
        )
    if partitions and len(set(topics)) != 1:
        raise CommandError("--partition: say of which topic, with one --topic", ExitCode.USAGE)
    pairs = tuple((topics[0], number) for number in partitions)
    found = None if to is None else parse_to(to)
    return ResetSelection(
        name, found, shift, None if pairs else tuple(topics) or None, pairs or None
    )


def parse_to(text: str) -> To:
    """Raises CommandError."""
    if text in WORDS:
        return "earliest" if text == "earliest" else "latest"
    try:
        if (time := time_within(text)) is not None:
            return _time_of(parse_time(time))
    except ValueError as error:
        raise CommandError(f"--to: {error}", ExitCode.USAGE) from error
    # A negative number is --shift's.
    if _NUMBER.fullmatch(text) and int(text) <= NUMBER_MAX:
        return int(text)
    close = [OTHER_WORDS[text]] if text in OTHER_WORDS else get_close_matches(text, WORDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "see --shift for so many forward or back"
    raise CommandError(
        f"--to {text}: expected earliest, latest, an offset, or @TIME like @-1h or"
        f" @2026-11-21T10:00:00Z; {hint}",
        ExitCode.USAGE,
    )


def _time_of(milliseconds: int) -> datetime:
    if milliseconds > TIME_MAX:
        raise ValueError(f"{milliseconds} lies after the year 9999")
    return _EPOCH + timedelta(milliseconds=milliseconds)


def reset_offsets(order: ResetOrder, *, is_dry: bool, is_sure: bool) -> int:
    # Needs no terminal, and also shows what a group with members prevents.
    if is_dry:
        return _show_plan(order)
    name = order.wish.name
    check_can_ask(f"reset the offsets of group {name}", is_sure=is_sure)
    plan = _reset(order) if is_sure else _reset_if_wanted(order)
    _write(order, plan)
    return ExitCode.OK


def _show_plan(order: ResetOrder) -> int:
    plan, problem = _look_first(order)
    _write(order, plan)
    _warn(plan)
    if problem is not None:
        sys.stderr.write(f"raftmq: {problem}\n")
    return ExitCode.OK


def _reset(order: ResetOrder) -> Plan:
    plan = _run(order, lambda admin: _call(admin, order.wish, is_dry=False))
    _warn(plan)
    return plan


def _reset_if_wanted(order: ResetOrder) -> Plan:
    name = order.wish.name

    async def commit(admin: Admin) -> None:
        # Fails as a whole if one offset is no longer the old one that was shown.
        await admin.alter_group_offsets(
            name,
            {key: one.new for key, one in plan.items()},
            expected={key: one.old for key, one in plan.items()},
        )

    plan, problem = _look_first(order)
    if problem is not None:
        raise problem
    for (topic, partition), one in plan.items():
        old = NOTHING if one.old is None else one.old
        sys.stderr.write(f"{topic}-{partition}: offset {old} to {one.new}\n")
    _warn(plan)
    count = counted(len(plan), "offset")
    confirm(f"Set {'this' if len(plan) == 1 else 'these'} {count} of group {name}?", is_sure=False)
    _run(order, commit)
    return plan


def _look_first(order: ResetOrder) -> tuple[Plan, NonEmptyGroup | None]:
    return _run(order, lambda admin: _look(admin, order))


def _run(order: ResetOrder, ask: Callable[[Admin], Awaitable[T]]) -> T:
    return run_admin(ask, order.bootstrap, order.timeout, group=order.wish.name)


async def _look(admin: Admin, order: ResetOrder) -> tuple[Plan, NonEmptyGroup | None]:
    """The plan, and why it cannot be carried out, if so."""
    plan = await _call(admin, order.wish, is_dry=True)
    try:
        check_empty(await admin.describe_group(order.wish.name), "reset its offsets")
    # The plan is shown all the same: the person sees what stopping the members would allow.
    except NonEmptyGroup as error:
        return plan, error
    except GroupIdNotFound:  # a group may get its first offsets before its first member joins
        return plan, None
    return plan, None


async def _call(admin: Admin, wish: ResetSelection, *, is_dry: bool) -> Plan:
    async with hinting(admin, wish.name):
        return await admin.reset_group_offsets(
            wish.name,
            to=wish.to,
            shift=wish.shift,
            topics=wish.topics,
            partitions=wish.partitions,
            dry_run=is_dry,
        )


def _write(order: ResetOrder, plan: Plan) -> None:
    """A further column where an offset was asked for that lies outside of the log."""
    if order.as_json:
        write_json(_object(order.wish.name, key, one) for key, one in plan.items())
    else:
        is_cut = any(one.asked is not None for one in plan.values())
        rows = [_row(*key, one) for key, one in plan.items()]
        write_table((*TITLES, "asked") if is_cut else TITLES, rows if is_cut else _cut(rows))


def _row(topic: str, partition: int, one: OffsetReset) -> tuple[object, ...]:
    return topic, partition, one.old, one.new, one.start_offset, one.end_offset, one.asked


def _cut(rows: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return [row[:-1] for row in rows]


def _warn(plan: Plan) -> None:
    outside = [(*key, one) for key, one in plan.items() if one.asked is not None]
    for topic, partition, one in outside[:NAMED_MAX]:
        sys.stderr.write(
            f"raftmq: {topic}-{partition}: offset {one.asked} lies"
            f" {'beyond the end' if one.new == one.end_offset else 'before the start'} of the log:"
            f" {one.new} in place of it\n"
        )
    if len(outside) > NAMED_MAX:
        more = counted(len(outside) - NAMED_MAX, "more partition")
        sys.stderr.write(f"raftmq: and {more} likewise\n")


def _object(name: str, key: TopicPartition, change: OffsetReset) -> Row:
    return {
        "group": name,
        "topic": key[0],
        "partition": key[1],
        "old": change.old,
        "new": change.new,
        "start_offset": change.start_offset,
        "end_offset": change.end_offset,
        "asked": change.asked,
    }
