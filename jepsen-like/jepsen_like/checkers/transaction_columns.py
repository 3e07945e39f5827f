"""The types of a transaction's account: owners, transactions, their ends, what logs say of them.

Owns the classes only; `transaction_account` fills them. Numbers called `began`, `invoked` and
`completed` are indexes of events, as in `columns`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from jepsen_like.history.event import Type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.checkers.columns import Send, Value
    from jepsen_like.history.event import Process

NEVER = math.inf
NO_VERSION = -1


class Told(StrEnum):
    """What its client knows in the end. `BEFORE`: another one had committed the version."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    BEFORE = "before"
    UNKNOWN = "unknown"


class Mark(StrEnum):
    """What the log of a partition says of a record in a transaction. `OPEN`: no marker ends it."""

    COMMIT = "commit"
    ABORT = "abort"
    OPEN = "open"


class GroupOffset(NamedTuple):
    group: str
    key: str
    offset: int


class Input(NamedTuple):
    """A record that was read within a group, and of which a transaction sent the result."""

    group: str
    key: str
    offset: int


class Sent(NamedTuple):
    """One value of a transaction. `of`: the input of which it is the result."""

    key: str
    value: Value
    send: Send
    of: Input | None


@dataclass(eq=False, slots=True)
class Owner:
    """One producer. `completed` is NEVER where the opening was not answered."""

    process: Process
    id: str
    invoked: int
    completed: float = NEVER

    def is_replaced_before(self, event: float, by: Owner) -> bool:
        """For certain: it had opened before the other began to, which was answered by then."""
        return by is not self and self.completed < by.invoked and by.completed < event


@dataclass(eq=False, slots=True)
class Transaction:
    """Attributes:
    commit_asked: NEVER: the program did not ask for it, so that it is aborted.
    told: what its client was answered; `told_at`: in this event.
    over_at: from then on its client does nothing for it any more.
    is_member: of a version of a shared transaction: the commit of that says what became of it.
    """

    number: int
    owner: Owner
    version: int
    began: int
    is_done: bool = False
    sent: list[Sent] = field(default_factory=list)
    offsets: list[GroupOffset] = field(default_factory=list)
    commit_asked: float = NEVER
    told: Told = Told.UNKNOWN
    told_at: float = NEVER
    over_at: float = NEVER
    is_member: bool = False

    @property
    def is_committed(self) -> bool:
        return self.told is Told.COMMITTED

    @property
    def is_aborted(self) -> bool:
        """For certain: nobody asked for its commit, or it was answered so."""
        return self.commit_asked == NEVER or self.told in (Told.ABORTED, Told.BEFORE)

    @property
    def has_effects(self) -> bool:
        return bool(self.sent or self.offsets)

    def values(self) -> Iterator[tuple[str, Value]]:
        return ((one.key, one.value) for one in self.sent)

    def __str__(self) -> str:
        how = "aborted" if self.is_aborted else self.told
        version = "" if self.version == NO_VERSION else f", version {self.version}"
        return (
            f"transaction {self.number} of {self.owner.id!r} (process {self.owner.process}"
            f"{version}, begun in event {self.began}, {how})"
        )


class Poll(NamedTuple):
    """One poll, also one that brought nothing. `keys`: of which it brought something."""

    process: Process
    invoked: int
    completed: int
    keys: frozenset[str]


class Stroke(NamedTuple):
    """A fault that began."""

    f: str
    event: int
    nodes: frozenset[int]


def told_of(kind: Type, outcome: str | None) -> Told:
    if kind is Type.OK:
        return Told(outcome or Told.UNKNOWN)
    return Told.ABORTED if kind is Type.FAIL else Told.UNKNOWN
