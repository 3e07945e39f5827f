"""The types of a group's account: ownerships, hand-outs, commits and fetched offsets, by key.

Owns the classes only; `group_account` fills them. Numbers called `began`, `ended`, `invoked` and
`completed` are indexes of events, as in `columns`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jepsen_like.checkers.columns import Value

Member: TypeAlias = str
BEFORE = "before"  # commit before processing: at most once, so that records may be left out
NEVER = math.inf
NOTHING = -1  # where nothing is committed


class End(StrEnum):
    """How a member ceased to own a partition; of a loss it is notified late."""

    NONE = ""
    REVOKED = "revoked"
    LOST = "lost"
    LEFT = "left"
    CRASHED = "crashed"


class Taken(NamedTuple):
    """Records of one key handed out at once; never empty. `invoked`: when they were asked for."""

    member: Member
    invoked: int
    completed: int
    offsets: tuple[int, ...]
    values: tuple[Value, ...]


@dataclass(eq=False, slots=True)
class Ownership:
    """From when to when a member owned a key, by its own rebalance events.

    Attributes:
        start: the offset at which the group went on, as the member had just heard; NOTHING: none
            was committed; None: it did not hear.
    """

    member: Member
    key: str
    generation: int
    began: int
    start: int | None = None
    ended: float = NEVER
    end: End = End.NONE
    taken: list[Taken] = field(default_factory=list)

    def __str__(self) -> str:
        ended = "" if self.end is End.NONE else f", {self.end} in event {self.ended:g}"
        return (
            f"{self.member} had it from event {self.began} on, generation {self.generation}{ended}"
        )


class Commit(NamedTuple):
    """One attempt. `outcome` INFO: unknown, or it never completed."""

    member: Member
    generation: int
    offsets: Mapping[str, int]
    invoked: int
    completed: float
    outcome: Type


class Fetch(NamedTuple):
    """What a coordinator said to be committed; NOTHING: nothing is."""

    member: Member
    offsets: Mapping[str, int]
    invoked: int
    completed: int


@dataclass(eq=False, slots=True)
class Group:
    """Attributes:
    commit: when its members commit.
    keys: that it reads, all of them from the beginning.
    ownerships: by key, as they began.
    unowned: records handed out to a member that did not own their key.
    generations: that members have seen.
    """

    name: str
    commit: str
    keys: tuple[str, ...]
    ownerships: dict[str, list[Ownership]] = field(default_factory=dict)
    unowned: list[tuple[str, Taken]] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    generations: set[int] = field(default_factory=set)

    def owned(self, key: str) -> list[tuple[Ownership, Taken]]:
        """All records of a key handed out to its owners, in order."""
        pairs = [(own, one) for own in self.ownerships.get(key, ()) for one in own.taken]
        return sorted(pairs, key=lambda pair: pair[1].completed)

    def values(self, key: str) -> set[Value]:
        """All values of a key handed out to any member."""
        found = {value for _, taken in self.owned(key) for value in taken.values}
        return found.union(*(taken.values for of, taken in self.unowned if of == key))

    @property
    def commits_done(self) -> int:
        return sum(commit.outcome is Type.OK for commit in self.commits)
