"""The network model of replication: messages in flight may be late, lost, doubled or overtaken.

Owns the links, each with a direction. A link keeps the order, as a connection does, except for
strays: bytes of an older connection that are read after their requests have ended. Names are
broker ids, CONTROLLER and CLIENTS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.simulation.replication.timeline import Timeline

CONTROLLER, CLIENTS = -1, -2
Link = tuple[int, int]  # from, to


@dataclass
class Weather:
    """How likely what is; all zero in a calm world."""

    loss: float = 0.0
    doubles: float = 0.0
    strays: float = 0.0
    stray_seconds_max: float = 3.0
    delay_seconds_max: float = 0.01


class Network:
    """Attributes:
    cut: links that swallow everything.
    """

    def __init__(self, timeline: Timeline, chance: Random, weather: Weather) -> None:
        self._timeline, self._chance, self.weather = timeline, chance, weather
        self.cut: set[Link] = set()
        self._last_arrival: dict[Link, float] = {}

    def send(
        self,
        link: Link,
        act: Callable[..., None],
        *arguments: Any,
        may_double: bool = True,
    ) -> None:
        """`act` is called at the other end, if the message gets there."""
        weather, dice = self.weather, self._chance.random()
        if link in self.cut or dice < weather.loss:
            return
        self._deliver(link, act, arguments)
        if may_double and dice > 1.0 - weather.doubles:
            self._deliver(link, act, arguments)

    def _deliver(self, link: Link, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        now, weather = self._timeline.now, self.weather
        if self._chance.random() < weather.strays:
            late = now + self._chance.random() * weather.stray_seconds_max
            self._timeline.at(late, act, *arguments)
            return
        arrival = now + 0.0005 + self._chance.random() * weather.delay_seconds_max
        arrival = max(arrival, self._last_arrival.get(link, 0.0))
        self._last_arrival[link] = arrival
        self._timeline.at(arrival, act, *arguments)
