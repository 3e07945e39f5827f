"""Clock skew: which brokers' wall clocks a majority confirms, for retention by age (decision 0026).

Every broker sends its wall clock with each heartbeat. The controller notes how far each clock is
ahead of its own monotonic one, and answers whether the sender's clock is confirmed. Clocks are
compared, never set. Pure.

    confirmed   more than half of all registered brokers, itself counted, are alive and within the
                bound of it. A silent broker confirms no clock
    wrong       at least half of the clocks that were received are not within the bound: an alarm

Two confirmed clocks agree with a common third, so they differ by twice the bound at most; and while
more than half of the clocks are right, a confirmed one is ahead by no more than the bound. (A late
heartbeat makes its sender's clock look behind, and no clock that is ahead agrees with that.) A
broker relies on a confirmation for a few seconds, and only while its wall clock and its monotonic
one advance alike: it detects by itself that its clock has jumped since.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

# Default of `node.clock_difference_ms_max`, five minutes: far above the delay of a heartbeat, which
# the comparison cannot tell from skew, and nothing against a retention of days.
DIFFERENCE_MS_MAX = 300_000
# Lifetime of a confirmation: several heartbeats (1 s), so that one change of the controller or a
# lost answer does not stop retention.
CONFIRMED_SECONDS_MAX = 6.0
# Larger steps of the wall clock against the monotonic one end a confirmation. Not less: NTP slews a
# clock, and a process may be suspended between the two readings.
JUMP_MS_MAX = 1_000


class ClockOffset(NamedTuple):
    """`ahead_ms`: against the median of the other clocks; negative: the clock is behind."""

    broker_id: int
    ahead_ms: int


class ClockVerdict(NamedTuple):
    """What the controller answers to one broker.

    Attributes:
        is_confirmed: whether the clock that this broker sent is confirmed.
        wrong: all clocks that are wrong, of any broker.
        ahead_ms: how far its clock is ahead of the confirmed ones; None: none is confirmed.
    """

    is_confirmed: bool = False
    wrong: tuple[ClockOffset, ...] = ()
    ahead_ms: int | None = None


class Clocks(NamedTuple):
    """All clocks that the controller knows at one moment.

    Attributes:
        heard: how many milliseconds the clock of each live broker is ahead of the controller's
            monotonic one.
        registered_count: brokers, dead or alive. A majority of the living alone could be wrong
            alike (decision 0026).
        awaited_count: brokers that may be alive and have sent no heartbeat yet in this term.
    """

    heard: Mapping[int, int]
    registered_count: int
    awaited_count: int = 0
    difference_ms_max: int = DIFFERENCE_MS_MAX

    def verdict(self, broker_id: int) -> ClockVerdict:
        own_ms = self.heard.get(broker_id)
        if own_ms is None:  # its version sends no clock
            return ClockVerdict()
        ordered = sorted(self.heard.values())
        if ordered[-1] - ordered[0] <= self.difference_ms_max:  # the usual case: all agree
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
        """A clock is not wrong while the brokers still awaited might agree with it."""
        count = len(ordered) + self.awaited_count
        return [
            ClockOffset(broker_id, clock_ms - _median_of_others(ordered, clock_ms))
            for broker_id, clock_ms in sorted(self.heard.items())
            if 2 * (self._agreeing(ordered, clock_ms) + self.awaited_count) <= count
        ]

    def _agreeing(self, ordered: list[int], clock_ms: int) -> int:
        """How many clocks are within the bound of this one, itself counted."""
        first = bisect_left(ordered, clock_ms - self.difference_ms_max)
        return bisect_right(ordered, clock_ms + self.difference_ms_max) - first


def _median_of_others(ordered: list[int], clock_ms: int) -> int:
    others = list(ordered)
    others.remove(clock_ms)
    return others[len(others) // 2]


class ClockReading(NamedTuple):
    """Both clocks of one process, read together: the wall clock, and the monotonic one (`now`)."""

    wall_ms: int
    now: float


def still_holds(confirmed: ClockReading, reading: ClockReading) -> bool:
    """Whether a confirmation of one reading of a clock also holds for a later one."""
    seconds = reading.now - confirmed.now
    jumped_ms = reading.wall_ms - confirmed.wall_ms - seconds * 1000
    return 0 <= seconds <= CONFIRMED_SECONDS_MAX and abs(jumped_ms) <= JUMP_MS_MAX
