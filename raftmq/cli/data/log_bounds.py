"""Where partitions begin and end, as their leaders say; where none answers, the reason.

A command that reads to the end leaves those out, goes on with the others, and says so in the end.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.cli.clusters.wait_reason import WAY_OUT
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.cli.terminal.output import show_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from raftmq.client.administration.admin import Admin

LEADER_SECONDS_MAX = 5.0  # for leaders to answer; an election takes one or two
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
    topics: Collection[str],
    partitions: Collection[int] = (),
    *,
    is_patient: bool = False,
) -> FoundBounds:
    """The bounds of all partitions, as the logs are now.

    Args:
        partitions: of each topic; empty: all of them.
        is_patient: wait for all leaders, up to ALL_SECONDS_MAX.

    Raises:
        UnknownTopicOrPartition: there is no such topic.
        RaftmqError: no broker has answered.
    """
    seconds_max = ALL_SECONDS_MAX if is_patient else LEADER_SECONDS_MAX
    deadline = anyio.current_time() + seconds_max
    while True:
        found = await _ask(admin, topics, partitions)
        if not found.silent or anyio.current_time() >= deadline:
            return found
        await anyio.sleep(PAUSE_SECONDS)


async def _ask(admin: Admin, topics: Collection[str], wanted: Collection[int]) -> FoundBounds:
    found = FoundBounds({}, {})
    for topic in topics:
        for one in (await admin.describe_topic(topic)).partitions:
            key = topic, one.partition
            if wanted and one.partition not in wanted:
                continue
            if one.start_offset is not None and one.end_offset is not None:
                found.bounds[key] = LogBounds(one.start_offset, one.end_offset)
            elif one.leader is None:
                found.silent[key] = "no leader"
            else:
                found.silent[key] = f"broker {one.leader}, the leader, does not answer"
    return found


async def give_up_silent(
    admin: Admin,
    positions: Callable[[], dict[Key, int | None]],
    give_up: Callable[[Key, str], None],
) -> None:
    """Until cancelled: give up partitions whose leaders have died while they were read.

    Args:
        positions: of the partitions that are not read to their ends.
        give_up: called for each partition, with the reason.
    """
    while True:
        before = positions()
        await anyio.sleep(STUCK_SECONDS)
        stuck = {key for key, at in positions().items() if key in before and before[key] == at}
        # A reader of stdout that is slow holds up all of them: their leaders answer.
        if stuck:
            found = await find_bounds(admin, sorted({topic for topic, _ in stuck}))
            for key in sorted(stuck & found.silent.keys()):
                give_up(key, found.silent[key])


def check_all_read(silent: Mapping[Key, str]) -> None:
    """Raises CommandError: some partitions are not read; names them, and why."""
    if not silent:
        return
    by_reason = groupby(sorted(silent, key=lambda key: (silent[key], key)), key=silent.__getitem__)
    told = "; ".join(f"{show_partitions(list(keys))} ({why})" for why, keys in by_reason)
    raise CommandError(f"not read to the end: {told}; {WAY_OUT}", ExitCode.UNREACHABLE)
