"""How long to wait before the next attempt.

Waits for nobody itself, and draws from the Random that it is handed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from random import Random


class Pauses(NamedTuple):
    """Seconds between attempts: the first pause and the longest."""

    seconds_min: float = 0.05
    seconds_max: float = 1.0


class Backoff:
    """Each pause is twice the last one, give or take a fifth, so that nodes do not march."""

    def __init__(self, random: Random, pauses: Pauses) -> None:
        self._random, self._pauses = random, pauses
        self._seconds = pauses.seconds_min

    def reset(self) -> None:
        self._seconds = self._pauses.seconds_min

    def next_seconds(self) -> float:
        seconds = self._seconds
        self._seconds = min(2 * seconds, self._pauses.seconds_max)
        return seconds * self._random.uniform(0.8, 1.2)
