"""Which registers exist, and which operation comes next on which of them. Pure.

A register lives once: several processes may try to make it, then it is changed and read, one day
deleted, and another one takes its place. So a late delete deletes nothing that was made since. Some
deleted registers are read again: they must not come back.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

DELETE_CHANCE = 1 / 50  # of an operation: a register lives for some fifty
CHANGE_CHANCE = 1 / 2  # the other half reads
GONE_CHANCE = 1 / 20  # that a deleted register is read in place of a current one
GONE_MAX = 20  # deleted ones to choose from: the last ones


class Deed(Enum):
    NOTHING = "nothing"
    CREATE = "create"
    CHANGE = "change"
    CONFIRM = "confirm"  # a linearizable read
    DELETE = "delete"


class Slots:
    """
    Attributes:
    current: the names of registers that are used now.
    gone: names of deleted ones.
    """

    def __init__(self, random: Random, *, count: int) -> None:
        self._random, self._made = random, 0
        self._value = 0
        self._doomed: set[str] = set()
        self.current = [self._new_name() for _ in range(count)]
        self.gone: list[str] = []

    def choose(self) -> str:
        is_old = bool(self.gone) and self._random.random() < GONE_CHANCE
        return self._random.choice(self.gone if is_old else self.current)

    def replication_factor(self, most: int) -> int:
        """Of a topic to be made: with one replica it can be made while others are down."""
        return self._random.choice((1, most))

    def new_value(self) -> int:
        """None is given twice."""
        self._value += 1
        return self._value

    def deed(self, name: str, *, is_there: bool) -> Deed:
        """What to do to a register that looks like that."""
        is_over = name in self._doomed or name not in self.current
        if not is_there:
            return Deed.NOTHING if is_over else Deed.CREATE
        if is_over:
            return Deed.CONFIRM
        draw = self._random.random()
        if draw < DELETE_CHANCE:
            self._doomed.add(name)
            return Deed.DELETE
        return Deed.CHANGE if draw < DELETE_CHANCE + CHANGE_CHANCE else Deed.CONFIRM

    def on_deleted(self, name: str) -> None:
        """For certain: another one takes its place."""
        if name in self.current:
            self.current[self.current.index(name)] = self._new_name()
            self.gone = [*self.gone, name][-GONE_MAX:]

    def on_spared(self, name: str) -> None:
        """It was not deleted, or that is unknown: it may be tried again."""
        self._doomed.discard(name)

    def _new_name(self) -> str:
        self._made += 1
        return f"register-{self._made}"
