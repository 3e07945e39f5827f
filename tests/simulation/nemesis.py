"""The nemesis of a simulated world of whole nodes: the pace of its faults, and what they share.

Owns when a fault is injected, and which one; the families of the world own how. One row of random
numbers serves all of them, so that a seed is one order of faults.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, TypeAlias

import trio

from tests.simulation.fault_table import composed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from tests.simulation.raft.hosts import Host
    from tests.simulation.simulated_world import SimulatedWorld

    Family: TypeAlias = Mapping[str, Callable[[], Awaitable[None]]]

CALM_SECONDS_MAX = 8.0


async def until(condition: Callable[[], bool], *, seconds: float = CALM_SECONDS_MAX) -> bool:
    """Whether it came true in time."""
    with trio.move_on_after(seconds):
        while not condition():  # noqa: ASYNC110  # of many nodes: there is no one event
            await trio.sleep(0.02)
        return True
    return False


class Injector:
    """What all families of faults of one world use.

    Attributes:
        counts: how often each fault struck.
    """

    def __init__(self, world: SimulatedWorld) -> None:
        self.random, self.counts = Random(f"{world.seed}/nemesis"), Counter[str]()
        self._world = world

    def struck(self, kind: str, what: object = "") -> None:
        self.counts[kind] += 1
        self._world.on_struck(kind, what)

    def victim(self) -> Host:
        raise NotImplementedError

    def pair(self) -> tuple[str, str]:
        first = self.victim()
        others = [host for host in self._world.hosts if host is not first]
        return first.name, self.random.choice(others).name

    async def wait(self, least: float, most: float) -> None:
        """Mostly short, as it is the beginning and the end of a fault that does harm."""
        share = self.random.random() ** 2
        await trio.sleep((least + (most - least) * share) * self._world.plan.pace)


class Nemesis:
    """Attributes:
    faults: all that the world has, by name.
    counts: how often each struck.
    ease: how much longer the pauses between faults are than the plan has them.
    """

    def __init__(
        self,
        world: SimulatedWorld,
        injector: Injector,
        *families: Family,
        exclusive: Collection[str] = (),
    ) -> None:
        """`exclusive`: faults that have to be alone, among nodes that are well.

        Raises:
            ValueError: two families have a fault of the same name, or one is planned that none has.
        """
        self._world, self._random, self._exclusive = world, injector.random, exclusive
        self.faults = composed(*families, kinds=world.plan.kinds)
        self.counts, self.ease = injector.counts, 1.0
        self._under_way = 0

    async def run(self) -> None:
        """Until cancelled; the caller repairs what is broken then."""
        random, plan = self._random, self._world.plan
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(random.expovariate(1 / plan.gap_seconds) * self.ease)
                if self._under_way >= plan.at_once:
                    continue
                kind = random.choice(plan.kinds)
                if kind in self._exclusive:
                    await self._alone(kind)
                else:
                    nursery.start_soon(self._strike, kind)

    async def _strike(self, kind: str) -> None:
        self._under_way += 1
        try:
            with self._world.fault_span():
                await self.faults[kind]()
        finally:
            self._under_way -= 1

    async def _alone(self, kind: str) -> None:
        """When the others are over, and all nodes see each other."""
        if await until(lambda: not self._under_way and self._world.is_calm):
            await self._strike(kind)
