"""What one version of a shared transaction does, and how it ends: drawn by chance. Pure.

Owns the draw. How many rows each task has follows from the number of the version alone, so that
whoever tries it again has as many; where they go, and what becomes of each attempt, does not.
"""

from __future__ import annotations

from enum import Enum
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.workloads.transaction_plan import Send

if TYPE_CHECKING:
    from collections.abc import Sequence

TASK_COUNTS = {0: 5, 1: 20, 2: 35, 3: 25, 4: 15}  # in a hundred versions
ROWS_MAX = 5  # of a task
MORE_ATTEMPTS = 0.4  # share of tasks that have another attempt beside the one that counts
CHANGED_SHARE = 0.03  # of tries in which a task has one row more than before


class Fate(Enum):
    """Of an attempt of a task."""

    DONE = "done"
    LOST = "lost"  # it is done, and its receipt is lost
    FAILS = "fails"  # an error of the program
    DIES = "dies"  # nothing more leaves the process, with all that runs in it
    LATE = "late"  # a copy: half of its records are sent when the version is over


class VersionEnd(Enum):
    COMMIT = "commit"
    TWICE = "twice"  # it is asked once more
    ABORT = "abort"  # by its driver
    STALE = "stale"  # aborted and written again, and first committed with the receipts from before
    PAUSE = "pause"  # beyond the timeout, then the commit is tried
    KILLED_BEFORE = "killed before"  # its driver, before it asks for the commit
    KILLED_AS = "killed as"  # the answer is lost, or the commit
    KILLED_AFTER = "killed after"  # before it has noted that
    HELD = "held"  # the commit arrives when another driver is at work
    RIVAL = "rival"  # another driver works on the same version
    STRANGER = "stranger"  # a driver of another lineage comes by
    SKIPPED = "skipped"  # a later number is taken in its place


# In a hundred.
_ENDS = {
    VersionEnd.COMMIT: 44, VersionEnd.TWICE: 6, VersionEnd.ABORT: 4, VersionEnd.STALE: 7,
    VersionEnd.PAUSE: 2, VersionEnd.KILLED_BEFORE: 5, VersionEnd.KILLED_AS: 8,
    VersionEnd.KILLED_AFTER: 8, VersionEnd.HELD: 3, VersionEnd.RIVAL: 6, VersionEnd.STRANGER: 5,
    VersionEnd.SKIPPED: 2,
}  # fmt: skip
_OTHER_FATES = {Fate.LOST: 35, Fate.FAILS: 20, Fate.DIES: 15, Fate.LATE: 30}


class AttemptPlan(NamedTuple):
    sends: tuple[Send, ...]
    fate: Fate


class VersionPlan(NamedTuple):
    """
    Attributes:
        tasks: attempts of each; one of them, the last, is to be done.
        begins_with_abort: of what a driver before has left open.
        has_echo: a task of the version before is begun once more.
        is_visible_first: the commit is answered when readers get it.
    """

    tasks: tuple[tuple[AttemptPlan, ...], ...]
    end: VersionEnd
    begins_with_abort: bool = False
    has_echo: bool = False
    is_visible_first: bool = False


def draw_version(random: Random, version: int, keys: Sequence[str]) -> VersionPlan:
    rows = _rows_of(version)
    if rows and random.random() < CHANGED_SHARE:
        rows[0] += 1
    return VersionPlan(
        tasks=tuple(_draw_task(random, count, keys) for count in rows),
        end=random.choices(list(_ENDS), list(_ENDS.values()))[0],
        begins_with_abort=random.random() < 0.5,
        has_echo=random.random() < 0.1,
        is_visible_first=random.random() < 0.3,
    )


def draw_attempt(
    random: Random, rows: int, keys: Sequence[str], fate: Fate = Fate.DONE
) -> AttemptPlan:
    """All rows, in one part or two."""
    first = random.randint(0, rows)
    parts = [count for count in (first, rows - first) if count]
    return AttemptPlan(tuple(Send(random.choice(keys), count) for count in parts), fate)


def row_count(attempts: Sequence[AttemptPlan]) -> int:
    """Of their task."""
    return sum(send.values for send in attempts[-1].sends)


def _rows_of(version: int) -> list[int]:
    """Some tasks have none, some versions have no tasks."""
    same = Random(version)
    count = same.choices(list(TASK_COUNTS), list(TASK_COUNTS.values()))[0]
    return [same.randint(0, ROWS_MAX) for _ in range(count)]


def _draw_task(random: Random, rows: int, keys: Sequence[str]) -> tuple[AttemptPlan, ...]:
    attempts = []
    while random.random() < MORE_ATTEMPTS:
        fate = random.choices(list(_OTHER_FATES), list(_OTHER_FATES.values()))[0]
        attempts.append(draw_attempt(random, rows, keys, fate))
    return (*attempts, draw_attempt(random, rows, keys))
