"""What clients schedule: delays, how many records at a time, and which they cancel. Pure.

Most records are due within a few seconds, so that many fall due within each fault; some are due
when it is over, or the run is, and some long after it: these must be kept, and must not come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from random import Random

NEAR_SECONDS_MAX = 30.0  # of a delay of which a run may see the end
SOON_SECONDS_MAX = 3.0
FAR_SECONDS = (3_600.0, 86_400.0)  # of one of which it does not
AT_ONCE_CHANCE, SOON_CHANCE, FAR_CHANCE = 0.1, 0.5, 0.05
VALUES_MAX = 4  # of one send: of a batch some may be cancelled
KNOWN_MAX = 200  # to choose from for a cancel: the last ones
LATE_CHANCE = 1 / 4  # that what is cancelled may be due, or delivered

Handle = TypeVar("Handle")


def draw_delay(random: Random) -> float:
    """Seconds."""
    draw = random.random()
    if draw < AT_ONCE_CHANCE:
        return 0.0
    if draw < AT_ONCE_CHANCE + SOON_CHANCE:
        return round(random.uniform(0, SOON_SECONDS_MAX), 3)
    if draw < AT_ONCE_CHANCE + SOON_CHANCE + FAR_CHANCE:
        return round(random.uniform(*FAR_SECONDS))
    return round(random.uniform(0, NEAR_SECONDS_MAX), 3)


class Dues:
    """Attributes:
    last: when the last record is due that is due within the run; of all clients.
    """

    def __init__(self) -> None:
        self.last = 0.0

    def on_sent(self, delay: float, due: float) -> None:
        if delay <= NEAR_SECONDS_MAX:
            self.last = max(self.last, due)


class Known(Generic[Handle]):
    """What one client has scheduled, and may cancel."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._handles: list[tuple[float, Handle]] = []

    def on_acknowledged(self, due: float, handle: Handle) -> None:
        self._handles.append((due, handle))
        del self._handles[:-KNOWN_MAX]

    def take(self, *, now: float) -> Handle | None:
        """One to cancel, most often one that is not due yet. None: there is none of that kind. It
        is not given again, but for one in ten.
        """
        is_late = self._random.random() < LATE_CHANCE
        places = [n for n, (due, _) in enumerate(self._handles) if is_late or due > now]
        if not places:
            return None
        place = self._random.choice(places)
        if self._random.random() < 1 / 10:
            return self._handles[place][1]
        return self._handles.pop(place)[1]
