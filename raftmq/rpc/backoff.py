"""Exponential backoff with jitter: seconds to wait before the next attempt.

Pure: sleeps never, and draws from the Random that it is given, so that simulations repeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from random import Random


class Pauses(NamedTuple):
    """Seconds between attempts: the first pause and the longest.

    The first retry comes soon, for a connection that broke by chance; a broker that was down for
    long is found again about a second after it is back.
    """

    seconds_min: float = 0.05
    seconds_max: float = 1.0


class Backoff:
    """Each pause is twice the last one, +-20 %, so that nodes do not retry in lockstep."""

    def __init__(self, random: Random, pauses: Pauses) -> None:
        self._random, self._pauses = random, pauses
        self._seconds = pauses.seconds_min

    def reset(self) -> None:
        self._seconds = self._pauses.seconds_min

    def next_seconds(self) -> float:
        seconds = self._seconds
        self._seconds = min(2 * seconds, self._pauses.seconds_max)
        return seconds * self._random.uniform(0.8, 1.2)
