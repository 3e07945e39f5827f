"""The generator of a queue process: its next operation, drawn by chance. Pure and deterministic.

Half of all operations send, half poll; a few replace the assigned keys, and now and then the
process crashes. A process is often assigned keys with acknowledged values that were not read yet: a
value that is never read proves nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from random import Random

    from jepsen_like.workloads.keys import Keys
    from jepsen_like.workloads.seen import Seen

BEGINNING, END = "beginning", "end"
COMMITTED, UNCOMMITTED = "committed", "uncommitted"
ASSIGN_CHANCE = 1 / 64  # of an operation: a consumer lives for some thirty polls
UNSEEN_CHANCE = 1 / 3  # that an assign prefers keys with unread values
KEYS_PER_ASSIGN_MAX = 4  # several, so that one poll mixes partitions


class Send(NamedTuple):
    key: str
    values: tuple[int, ...]


class Poll(NamedTuple):
    pass


class Assign(NamedTuple):
    """`start`: "beginning" or "end"; `level`: whether to read what is open and aborted, too."""

    keys: tuple[str, ...]
    start: str
    level: str = COMMITTED

    @property
    def told(self) -> dict[str, object]:
        """As the history says it."""
        level = {} if self.level == COMMITTED else {"level": self.level}
        return {"keys": list(self.keys), "from": self.start, **level}


class Crash(NamedTuple):
    pass


Operation: TypeAlias = Send | Poll | Assign | Crash


class Generator:
    """Of one process."""

    def __init__(
        self,
        random: Random,
        keys: Keys,
        seen: Seen,
        *,
        now: float,
        crash_seconds: float = 30.0,
        values_per_send_max: int = 8,
    ) -> None:
        """`crash_seconds`: on the average until it crashes."""
        self._random, self._keys, self._seen = random, keys, seen
        self._values_per_send_max = values_per_send_max
        self._crash_at = now + random.expovariate(1 / crash_seconds)

    def first(self) -> Assign:
        """A process begins with something to read."""
        return self._assign()

    def next(self, *, now: float) -> Operation:
        if now >= self._crash_at:
            return Crash()
        if self._random.random() < ASSIGN_CHANCE:
            return self._assign()
        if self._random.random() < 0.5:
            return Poll()
        key = self._keys.choose()
        count = self._random.randint(1, self._values_per_send_max)
        return Send(key, self._keys.take(key, count))

    def _assign(self) -> Assign:
        """From the beginning where values are unread: they may be at any offset."""
        count = self._random.randint(1, KEYS_PER_ASSIGN_MAX)
        chosen = [self._keys.choose() for _ in range(count)]
        start = self._random.choice((BEGINNING, END))
        if self._random.random() < UNSEEN_CHANCE and (behind := self._seen.behind()):
            few = min(len(behind), KEYS_PER_ASSIGN_MAX)
            chosen, start = chosen + self._random.sample(behind, few), BEGINNING
        return Assign(tuple(sorted(set(chosen))), start)
