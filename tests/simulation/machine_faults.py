"""Faults of links and machines, in each world of whole nodes: injected, and repaired after a while.

Several may be under way at a time; the nemesis schedules them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from tests.simulation.fault_table import by_name
from tests.simulation.network_pipe import Latency

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.nemesis import Injector
    from tests.simulation.raft.hosts import Host
    from tests.simulation.simulated_world import SimulatedWorld

HALF_OPEN_SECONDS = (0.5, 5.0)
SLOW = Latency(0.05, 0.3, 0.05, 0.5)


async def die(host: Host, *, power_lost: bool) -> None:
    host.crash(power_lost=power_lost)
    await host.wait_dead()


class LinkFaults:
    def __init__(self, world: SimulatedWorld, injector: Injector) -> None:
        self._world, self._injector, self._random = world, injector, injector.random
        self._network = world.network
        self.faults = by_name(
            self.cut, self.cut_one_way, self.isolate, self.split, self.reset, self.half_open,
            self.slow_link,
        )  # fmt: skip

    async def cut(self) -> None:
        names, refuses = self._injector.pair(), self._random.random() < 0.3
        self._injector.struck("cut", names)
        self._network.cut_both(*names, refuses=refuses)
        await self._injector.wait(0.1, 4.0)
        self._network.heal_both(*names)

    async def cut_one_way(self) -> None:
        names = self._injector.pair()
        self._injector.struck("cut_one_way", names)
        self._network.cut(*names)
        await self._injector.wait(0.1, 4.0)
        self._network.heal(*names)

    async def isolate(self) -> None:
        name = self._injector.victim().name
        self._injector.struck("isolate", name)
        self._network.isolate(name)
        await self._injector.wait(0.2, 4.0)
        self._network.rejoin(name)

    async def split(self) -> None:
        names = [host.name for host in self._world.hosts]
        self._random.shuffle(names)
        middle = self._random.randrange(1, len(names))
        self._injector.struck("split", names[:middle])
        self._network.partition(names[:middle], names[middle:])
        await self._injector.wait(0.2, 4.0)
        self._network.heal()

    async def reset(self) -> None:
        names, late = self._injector.pair(), self._random.choice((0.0, 0.2, 2.0))
        seconds = [self._random.choice((None, None, 0.3, 1.0)) for _ in names]
        self._injector.struck("reset", names)
        self._network.reset(
            *names, first_seconds=seconds[0], second_seconds=seconds[1], late_seconds=late
        )

    async def half_open(self) -> None:
        """One end does not learn of it before its kernel gives up."""
        names = self._injector.pair()
        self._injector.struck("half_open", names)
        seconds = self._random.choice((self._random.uniform(*HALF_OPEN_SECONDS), math.inf))
        self._network.reset(*names, first_seconds=seconds, late_seconds=0.5)

    async def slow_link(self) -> None:
        names = self._injector.pair()
        self._injector.struck("slow_link", names)
        self._network.slow(*names, SLOW)
        await self._injector.wait(0.5, 5.0)
        self._network.slow(*names, self._world.plan.latency)


class StallFaults:
    """Nodes that go on, but later."""

    def __init__(self, world: SimulatedWorld, injector: Injector) -> None:
        self._world, self._injector, self._random = world, injector, injector.random
        self.faults = by_name(self.pause, self.slow_disk)

    async def pause(self) -> None:
        host = self._injector.victim()
        if host.is_up and not host.is_paused:
            self._injector.struck("pause", host.name)
            host.pause()
            run = host.runs
            await self._injector.wait(0.1, 4.0)
            if host.runs == run and host.is_up:
                host.resume()

    async def slow_disk(self) -> None:
        host, most = self._injector.victim(), self._random.choice((0.02, 0.1, 1.0))
        self._injector.struck("slow_disk", host.name)
        host.disk_seconds = (0.0, most)
        await self._injector.wait(0.5, 4.0)
        host.disk_seconds = self._world.plan.disk_seconds


class CrashFaults:
    """Of processes and machines, which come back.

    `power` is none of its table: some worlds cannot stand it at all times.
    """

    def __init__(self, world: SimulatedWorld, injector: Injector) -> None:
        self._world, self._injector, self._random = world, injector, injector.random
        self.faults = by_name(self.kill, self.power_of_all, self.kill_midway, self.power_midway)

    async def kill(self) -> None:
        await self.crash("kill", [self._injector.victim()], power_lost=False)

    async def power(self) -> None:
        await self.crash("power", self._some((1, 1, 2)), power_lost=True)

    async def power_of_all(self) -> None:
        counts = self._injector.counts
        if counts["power_of_all"] > counts.total() // 5:
            return  # or little would ever be done
        await self.crash("power_of_all", self._world.hosts, power_lost=True)

    async def kill_midway(self) -> None:
        await self._crash_midway("kill_midway", [self._injector.victim()], power_lost=False)

    async def power_midway(self) -> None:
        victims = self._some((1, 1, 2, len(self._world.hosts)))
        await self._crash_midway("power_midway", victims, power_lost=True)

    def _some(self, counts: Sequence[int]) -> list[Host]:
        hosts = self._world.hosts
        return self._random.sample(hosts, min(self._random.choice(counts), len(hosts)))

    async def crash(self, kind: str, victims: Sequence[Host], *, power_lost: bool) -> None:
        victims = [host for host in victims if host.is_up and not host.end]
        if victims:
            self._injector.struck(kind, [host.name for host in victims])
        for host in victims:
            host.crash(power_lost=power_lost)
        await self.bring_back(victims)

    async def _crash_midway(self, kind: str, victims: Sequence[Host], *, power_lost: bool) -> None:
        """In the midst of what the disk does; after a while without any, between two steps."""
        victims = [host for host in victims if host.is_up and not host.end]
        if victims:
            self._injector.struck(kind, [host.name for host in victims])
        for host in victims:
            moment = self._random.choice(("before", "torn", "torn", "after"))
            host.arm(self._random.randint(1, 6), moment, power_lost=power_lost)
        with trio.move_on_after(0.5):
            for host in victims:
                await host.ended.wait()
        for host in victims:
            host.crash(power_lost=power_lost)
        await self.bring_back(victims)

    async def bring_back(self, victims: Sequence[Host]) -> None:
        together = self._random.random() < 0.5
        await self._injector.wait(0.02, 3.0)
        for host in victims:
            await host.wait_dead()
            if not host.is_up:
                host.start()
                self._maybe_crash_again(host)
            if not together:
                await self._injector.wait(0.02, 1.0)

    def _maybe_crash_again(self, host: Host) -> None:
        """While it reads its journal and makes it whole."""
        if self._random.random() < 0.2:
            power_lost = self._random.random() < 0.5
            host.arm(self._random.randint(1, 8), "torn", power_lost=power_lost)
            self._world.nursery.start_soon(self._restart_later, host)

    async def _restart_later(self, host: Host) -> None:
        with trio.move_on_after(1.0):
            await host.ended.wait()
        host.disarm()
        await trio.sleep(0.05)
        if not host.is_up:
            host.start()
