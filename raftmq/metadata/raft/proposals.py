"""Proposals whose place in the log is known and whose fate is not.

Owns the three ends of a proposal. It is applied once its own entry is (same index, same term);
discarded once another term's entry is applied in its place; unknown once a snapshot has gone
past it, or this node stops. Whoever waits no longer says so (`forget`): what nobody waits for
takes no room. Timeouts are the caller's.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Fate(Enum):
    """What comes with it: the answer of an applied one, the reason where it is unknown."""

    APPLIED = "applied"
    DISCARDED = "discarded"  # definite: it will never be applied
    UNKNOWN = "unknown"


class Proposal(NamedTuple):
    term: int
    done: Callable[[Fate, object], None]


class Proposals:
    """By index; after a change of leader one index may have been proposed twice."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Proposal]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, index: int, term: int, done: Callable[[Fate, object], None]) -> None:
        self._waiting.setdefault(index, []).append(Proposal(term, done))
        self._count += 1

    def forget(self, index: int, done: Callable[[Fate, object], None]) -> None:
        """Nobody waits for it any more; does nothing if its fate has been told."""
        rest = [proposal for proposal in self._take(index) if proposal.done != done]
        if rest:
            self._waiting[index] = rest
            self._count += len(rest)

    def on_applied(self, index: int, term: int, result: object) -> None:
        for proposal in self._take(index):
            if proposal.term == term:
                proposal.done(Fate.APPLIED, result)
            else:
                proposal.done(Fate.DISCARDED, None)

    def on_skipped(self, index: int) -> None:
        """A snapshot stands for everything up to `index`."""
        passed = [at for at in self._waiting if at <= index]
        self._give_up(passed, "a snapshot went past it")

    def abandon(self) -> None:
        """Nobody will ever tell more."""
        self._give_up(list(self._waiting), "this node stops")

    def _give_up(self, indexes: list[int], reason: str) -> None:
        for index in indexes:
            for proposal in self._take(index):
                proposal.done(Fate.UNKNOWN, reason)

    def _take(self, index: int) -> list[Proposal]:
        taken = self._waiting.pop(index, [])
        self._count -= len(taken)
        return taken
