"""A consumer group that works, with members that are badly treated: histories without any wrong.

Owns everything that is legal and looks suspicious: members that are put out and hear of it late,
that crash with records in hand, commits of unknown outcome that take effect late or never, commits
of old generations that are refused, fetches while all of that is under way. Seeded: the same seed
makes the same history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from jepsen_like.history.event import RUN, Type
from tests.jepsen_like.checkers.group_script import GroupScript

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from jepsen_like.history.event import Event

VALUES = 40
MEMBERS_MAX = 3
STEPS = 80


@dataclass(eq=False)
class Owner:
    """Whoever has "k".

    Attributes:
        position: of the next record.
        done: what it may commit.
    """

    name: str
    generation: int
    position: int
    done: int
    open_commits: list[Callable[[], None]] = field(default_factory=list)


class GroupModel:
    """Plays a history of one partition; `commit` is the mode of the group."""

    def __init__(self, random: Random, commit: str) -> None:
        self.script = GroupScript(commit=commit)
        self._random, self._commit_mode = random, commit
        self._committed: int | None = None
        self._generation = self._names = 0
        self._owner: Owner | None = None
        self._late_losses: list[str] = []
        self._fetches: list[Callable[[], None]] = []

    def play(self) -> list[Event]:
        script, random = self.script, self._random
        script._add(RUN, Type.INFO, "phase", "load")
        script.send_many(VALUES)
        for _ in range(STEPS):
            if self._owner is None:
                self._begin()
            step = random.choice(
                [self._take, self._take, self._commit, self._fetch, self._end_something]
            )
            step()
            if random.random() < 0.1:
                self._end_ownership()
        self._finish()
        return script.events

    # -- members ---------------------------------------------------------------------------

    def _begin(self) -> None:
        self._names += 1
        self._generation += self._random.randint(1, 2)
        name = f"g/{self._names}"
        self.script.tell(name, "member", {"group": "g"})
        self.script.fetch(name, self._committed)
        self.script.assign_to(name, self._generation)
        at = self._committed or 0
        self._owner = Owner(name, self._generation, at, at)

    def _end_ownership(self) -> None:
        owner, self._owner = self._owner, None
        assert owner is not None, "nobody has it"
        how = self._random.choice(["revoked", "lost", "late", "crash", "leave"])
        if how == "late":
            self._late_losses.append(owner.name)
        elif how in ("crash", "leave"):
            self.script.tell(owner.name, how)
        else:
            self.script.take_away(owner.name, how=how)
        for end in owner.open_commits:
            end()
        if how not in ("crash", "leave") and self._random.random() < 0.3:
            self._begin()
            self.script.commit(owner.name, owner.done, owner.generation, kind=Type.FAIL)

    def _take(self) -> None:
        owner = self._owner
        assert owner is not None, "nobody takes"
        end = min(VALUES, owner.position + self._random.randint(1, 3))
        if end == owner.position:
            return
        if self._commit_mode == "before":
            end = owner.done = max(end, owner.done)  # not less than was tried before
            self._commit()
            if (self._committed or 0) < end:
                return  # not known to be committed: not handed out
        self.script.take(owner.name, range(owner.position, end))
        owner.position = end
        if self._commit_mode != "before":
            owner.done = self._random.randint(max(owner.done, end - 3), end)

    def _finish(self) -> None:
        """All that is left is read."""
        self.script.phase("final")
        while self._owner is None or self._owner.position < VALUES:
            if self._owner is None:
                self._begin()
            self._take()
        for name in self._late_losses:
            self.script.take_away(name, how="lost")

    # -- offsets ---------------------------------------------------------------------------

    def _commit(self) -> None:
        owner = self._owner
        assert owner is not None, "nobody commits"
        script, offset = self.script, owner.done
        for end in owner.open_commits:  # one is under way at a time
            end()
        owner.open_commits = []
        number = script.begin_commit(owner.name, offset, owner.generation)
        ways: list[Callable[[], None]] = [
            partial(self._commit_well, owner, number, offset),
            partial(self._commit_well, owner, number, offset),
            partial(script.end_commit, owner.name, number, Type.FAIL),
            partial(self._commit_in_doubt, owner, number, offset),
        ]
        self._random.choice(ways)()

    def _commit_well(self, owner: Owner, number: int, offset: int) -> None:
        self._committed = offset
        if self._commit_mode == "before" or self._random.random() < 0.5:
            self.script.end_commit(owner.name, number)
        else:
            owner.open_commits.append(partial(self.script.end_commit, owner.name, number))

    def _commit_in_doubt(self, owner: Owner, number: int, offset: int) -> None:
        """It was carried out, or never will be; in neither case the member is told."""
        if self._random.random() < 0.5 and self._commit_mode != "before":
            self._committed = offset
        if self._random.random() < 0.7:
            self.script.end_commit(owner.name, number, Type.INFO)

    def _fetch(self) -> None:
        number, found = self.script.begin_fetch("asking"), self._committed
        self._fetches.append(partial(self.script.end_fetch, "asking", number, found))

    def _end_something(self) -> None:
        if self._late_losses and self._random.random() < 0.5:
            self.script.take_away(self._late_losses.pop(), how="lost")
        elif self._fetches:
            self._fetches.pop()()


def clean_group_history(random: Random, commit: str) -> list[Event]:
    return GroupModel(random, commit).play()
