"""The consumer groups of a run: commit modes, assignors, and the fate of each member. Pure.

The same for the same random numbers.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

COMMITS = ("batch", "before", "manual", "record")
ASSIGNORS = ("cooperative_sticky", "cooperative_sticky", "sticky", "range")

LIFE_SECONDS_MIN = 4.0  # time to join and to commit something
# Seconds. A session times out after 6 s, `max.poll.interval` is 8 s: some spans are shorter, some
# longer than these.
IDLE_SECONDS = (2.0, 12.0)
MUTE_SECONDS = (1.0, 10.0)


class GroupPlan(NamedTuple):
    """Attributes:
    assignor: an incremental one (cooperative), or one for which all members give up everything.
    """

    name: str
    topics: tuple[str, ...]
    commit: str
    assignor: str


class End(Enum):
    LEAVE = "leave"
    CRASH = "crash"


class Fate(NamedTuple):
    """Attributes:
    end: how it ends, after `seconds`.
    idle_at: when it asks for nothing for `idle_seconds`; None: it is never idle.
    mute_at: when no coordinator hears it for `mute_seconds`, while it reads on; None: never.
    """

    seconds: float
    end: End
    idle_at: float | None = None
    idle_seconds: float = 0.0
    mute_at: float | None = None
    mute_seconds: float = 0.0


def draw_groups(random: Random, topics: Sequence[str], *, count: int) -> list[GroupPlan]:
    """In the first one all members read all topics; each group has another commit mode."""
    commits = random.sample(COMMITS, len(COMMITS))
    assignors = [ASSIGNORS[0], *(random.choice(ASSIGNORS) for _ in range(count - 1))]
    return [
        GroupPlan(
            f"group-{number + 1}",
            tuple(topics) if number % 2 == 0 else tuple(topics[:-1] or topics),
            commits[number % len(commits)],
            assignors[number],
        )
        for number in range(count)
    ]


def draw_fate(random: Random, *, life_seconds: float) -> Fate:
    """`life_seconds`: on the average, from LIFE_SECONDS_MIN on."""
    seconds = LIFE_SECONDS_MIN + random.expovariate(1 / max(life_seconds - LIFE_SECONDS_MIN, 0.1))
    fate = Fate(seconds, random.choice((End.LEAVE, End.CRASH)))
    at, draw = random.uniform(0, seconds), random.random()
    if draw < 1 / 4:
        return fate._replace(idle_at=at, idle_seconds=random.uniform(*IDLE_SECONDS))
    if draw < 1 / 2:
        return fate._replace(mute_at=at, mute_seconds=random.uniform(*MUTE_SECONDS))
    return fate
