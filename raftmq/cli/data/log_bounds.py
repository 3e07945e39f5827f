"""Where partitions begin and end, as their leaders say; where none answers, the reason.

A command that reads to the end leaves those out, goes on with the others, and says so in the end.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.cli.clusters.topic_reads import name_partitions
from raftmq.cli.clusters.wait_reason import WAY_OUT
from raftmq.cli.terminal.exits import CommandError, ExitCode, exit_code_of
from raftmq.client.administration.offsets import TIMEOUT_SECONDS, ends_of
from raftmq.client.administration.questions import find_topic, settle
from raftmq.errors import RaftmqError
from raftmq.model import IsolationLevel
from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from raftmq.client.administration.admin import Admin

# For leaders to answer. A broker whose machine has vanished counts as dead after 6 s; then come an
# election and a last question, which takes up to 5 s.
LEADER_SECONDS_MAX = 15.0
ALL_SECONDS_MAX = 30.0  # where no leader can be done without, as long as admin calls take
PAUSE_SECONDS = 0.5  # between questions
STUCK_SECONDS = 5.0  # without a record of a partition until its leader is asked

Key = tuple[str, int]  # topic and partition


class LogBounds(NamedTuple):
    """What a partition holds, and where a time lies in it.

    Attributes:
        at_time: None: no record is at or after that time, or no time is asked for.
    """

    start: int
    end: int
    at_time: int | None = None


class FoundBounds(NamedTuple):
    """`silent`: partitions without an answer, and why."""

    bounds: dict[Key, LogBounds]
    silent: dict[Key, str]


async def find_bounds(
    admin: Admin,
    wanted: Mapping[str, Collection[int]],
    *,
    is_patient: bool = False,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> FoundBounds:
    """The bounds of partitions: of each one as its leader tells them first.

    Args:
        wanted: partitions of each topic; empty: all of them. Leaders of others are not asked.
        is_patient: wait for all leaders, up to ALL_SECONDS_MAX.
        isolation: of the reader: with READ_COMMITTED a partition ends where a transaction is open.

    Raises:
        UnknownTopicOrPartition: there is no such topic.
        RaftmqError: no broker has answered.
    """
    seconds_max = ALL_SECONDS_MAX if is_patient else LEADER_SECONDS_MAX
    deadline = anyio.current_time() + seconds_max
    found = FoundBounds({}, {})
    while True:
        asks = [partial(_ask, admin, topic, wanted[topic], isolation, found) for topic in wanted]
        for outcome in await settle(asks):
            if isinstance(outcome, RaftmqError):
                raise outcome
        if not found.silent or anyio.current_time() >= deadline:
            return found
        await anyio.sleep(PAUSE_SECONDS)
        wanted = _by_topic(found.silent)


async def _ask(
    admin: Admin,
    topic: str,
    wanted: Collection[int],
    isolation: IsolationLevel,
    found: FoundBounds,
) -> None:
    """Adds to `found`."""
    # `describe_topic` would wait for all leaders of the topic, and for its configuration.
    cluster, deadline = admin._cluster, anyio.current_time() + TIMEOUT_SECONDS
    described = (await find_topic(cluster, topic, deadline=deadline)).partitions
    asked = [one for one in described if not wanted or one.partition in wanted]
    led = [one.partition for one in asked if one.leader != ABSENT]
    ends = await ends_of(cluster, topic, led, deadline=deadline, isolation=isolation)
    for one in asked:
        key = topic, one.partition
        if one.partition in ends:
            found.bounds[key] = LogBounds(*ends[one.partition])
            found.silent.pop(key, None)
        elif one.leader == ABSENT:
            found.silent[key] = "no leader"
        else:
            found.silent[key] = f"broker {one.leader}, the leader, does not answer"


def _by_topic(keys: Iterable[Key]) -> dict[str, list[int]]:
    topics = groupby(sorted(keys), key=lambda key: key[0])
    return {topic: [number for _, number in each] for topic, each in topics}


async def give_up_silent(
    admin: Admin,
    positions: Callable[[], dict[Key, int | None]],
    give_up: Callable[[Key, str], None],
) -> None:
    """Until cancelled: give up partitions whose leaders have died while they were read.

    Args:
        positions: of the partitions that are not read to their ends.
        give_up: called for each partition, with the reason.

    Raises:
        UnknownTopicOrPartition, RaftmqError: other than for lack of an answer, as for a topic that
            was deleted.
    """
    while True:
        before = positions()
        await anyio.sleep(STUCK_SECONDS)
        # A reader of stdout that is slow holds up all of them: their leaders answer.
        if stuck := _unmoved(before, positions()):
            silent = await _find_silent(admin, stuck)
            for key in sorted(_unmoved(before, positions()) & silent.keys()):
                give_up(key, silent[key])


def _unmoved(before: Mapping[Key, int | None], now: Mapping[Key, int | None]) -> set[Key]:
    return {key for key, position in now.items() if key in before and before[key] == position}


async def _find_silent(admin: Admin, keys: Collection[Key]) -> dict[Key, str]:
    """
    Raises:
        RaftmqError: other than for lack of an answer.
    """
    try:
        return (await find_bounds(admin, _by_topic(keys))).silent
    except RaftmqError as error:
        if exit_code_of(error) is not ExitCode.UNREACHABLE:
            raise
        return dict.fromkeys(keys, "no broker answers")


def check_all_read(silent: Mapping[Key, str], failure: str = "not read to the end") -> None:
    """Raises CommandError: of some partitions `failure` is true; names them, and why."""
    if not silent:
        return
    by_reason = groupby(sorted(silent, key=lambda key: (silent[key], key)), key=silent.__getitem__)
    told = "; ".join(f"{why} ({name_partitions(list(keys))})" for why, keys in by_reason)
    raise CommandError(f"{failure}: {told}; {WAY_OUT}", ExitCode.UNREACHABLE)
