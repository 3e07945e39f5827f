"""The nemesis of a world that is a heap of events: one fault after the other, until all is calm."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from tests.simulation.fault_table import composed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from tests.simulation.replication.timeline import Timeline


class TimelinePlan(Protocol):
    @property
    def kinds(self) -> tuple[str, ...]: ...
    @property
    def strike_seconds(self) -> float: ...


class TimelineWorld(Protocol):
    timeline: Timeline
    is_calm: bool

    @property
    def plan(self) -> TimelinePlan: ...


def mostly_short(chance: Random, most: float) -> float:
    """Seconds."""
    return most * chance.random() ** 2 + 0.01


class TimelineNemesis:
    """Attributes:
    faults: all that the world has, by name.
    counts: how often each struck.
    """

    def __init__(
        self, world: TimelineWorld, chance: Random, *families: Mapping[str, Callable[[], None]]
    ) -> None:
        """`chance`: the one of the families.

        Raises:
            ValueError: two families have a fault of the same name, or one is planned that none has.
        """
        self._world, self._chance = world, chance
        self.faults = composed(*families, kinds=world.plan.kinds)
        self.counts = Counter[str]()

    def strike(self) -> None:
        """Now, and again soon."""
        world = self._world
        if world.is_calm:
            return
        kind = self._chance.choice(world.plan.kinds)
        world.timeline.say(f"-- {kind}")
        self.counts[kind] += 1
        self.faults[kind]()
        world.timeline.after(self._chance.random() * 2 * world.plan.strike_seconds, self.strike)
