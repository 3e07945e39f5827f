"""Whose wall clock may be believed: the rule by which a broker deletes for age. Pure.

Every broker tells the active controller its time with each heartbeat. The controller notes how far
each clock is ahead of its own monotonic one, and answers whether the sender's clock is confirmed.
Clocks are compared, never set.

    confirmed   more than half of all registered brokers, itself counted, are alive and within the
                bound of it. Who is silent confirms nobody
    wrong       at least half of those that are heard are not within the bound of it: an alarm

Two confirmed clocks have a witness in common, so they differ by twice the bound at most; and while
more than half of the clocks are right, a confirmed one is ahead by no more than the bound. (A
heartbeat that comes late has its sender look behind, and nobody who is ahead agrees with that.) A
broker believes a confirmation for a few seconds, and only while its wall clock and its monotonic
one go on alike: it notices by itself that its clock has jumped since.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

DIFFERENCE_MS_MAX = 300_000  # a message takes a moment, which is nothing against this
CONFIRMED_SECONDS_MAX = 6.0  # so long a confirmation holds
JUMP_MS_MAX = 1_000  # a wall clock may be slewed, and a process may be slow to read two clocks


class ClockOffset(NamedTuple):
    """`ahead_ms`: of the median of the others that are heard; negative: it is behind."""

    broker_id: int
    ahead_ms: int


class ClockVerdict(NamedTuple):
    """What the controller answers to one broker.

    Attributes:
        is_confirmed: the clock that this broker has told.
        wrong: all clocks that are.
        ahead_ms: what its clock is ahead of those that are confirmed; None: none is.
    """

    is_confirmed: bool = False
    wrong: tuple[ClockOffset, ...] = ()
    ahead_ms: int | None = None


class Clocks(NamedTuple):
    """What the controller knows at one moment.

    Attributes:
        heard: how many milliseconds the clock of each live broker is ahead of the controller's
            monotonic one.
        registered_count: of brokers, dead or alive.
        awaited_count: of those that may be alive, and have said nothing yet in this term.
    """

    heard: Mapping[int, int]
    registered_count: int
    awaited_count: int = 0
    difference_ms_max: int = DIFFERENCE_MS_MAX

    def verdict(self, broker_id: int) -> ClockVerdict:
        own_ms = self.heard.get(broker_id)
        if own_ms is None:
            return ClockVerdict()
        ordered = sorted(self.heard.values())
        if ordered[-1] - ordered[0] <= self.difference_ms_max:  # as ever
            is_confirmed = 2 * len(ordered) > self.registered_count
            return ClockVerdict(is_confirmed, ahead_ms=0 if is_confirmed else None)
        confirmed = [
            clock_ms
            for clock_ms in ordered
            if 2 * self._agreeing(ordered, clock_ms) > self.registered_count
        ]
        ahead_ms = own_ms - confirmed[len(confirmed) // 2] if confirmed else None
        return ClockVerdict(own_ms in confirmed, tuple(self._wrong(ordered)), ahead_ms)

    def _wrong(self, ordered: list[int]) -> list[ClockOffset]:
        """While some are awaited, nobody is wrong whom they may yet agree with."""
        count = len(ordered) + self.awaited_count
        return [
            ClockOffset(broker_id, clock_ms - _median_of_others(ordered, clock_ms))
            for broker_id, clock_ms in sorted(self.heard.items())
            if 2 * (self._agreeing(ordered, clock_ms) + self.awaited_count) <= count
        ]

    def _agreeing(self, ordered: list[int], clock_ms: int) -> int:
        """How many are within the bound, itself counted."""
        first = bisect_left(ordered, clock_ms - self.difference_ms_max)
        return bisect_right(ordered, clock_ms + self.difference_ms_max) - first


def _median_of_others(ordered: list[int], clock_ms: int) -> int:
    others = list(ordered)
    others.remove(clock_ms)
    return others[len(others) // 2]


class ClockReading(NamedTuple):
    """Both clocks of one process at one moment: of the wall, and the monotonic one in seconds."""

    wall_ms: int
    now: float


def still_holds(confirmed: ClockReading, reading: ClockReading) -> bool:
    """Whether what was confirmed of a clock may be believed of its next reading."""
    seconds = reading.now - confirmed.now
    jumped_ms = reading.wall_ms - confirmed.wall_ms - seconds * 1000
    return 0 <= seconds <= CONFIRMED_SECONDS_MAX and abs(jumped_ms) <= JUMP_MS_MAX
