"""Single faults of the quorum's world: machines, disks and links, each injected and repaired.

Each is a method that injects the fault, waits, and repairs it. Several may be active at a time;
the nemesis schedules them. At most a minority loses its disk at a time: no quorum survives more.
"""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import trio

from tests.simulation.network_pipe import Latency

if TYPE_CHECKING:
    from tests.simulation.raft.hosts import Host, Voter
    from tests.simulation.raft.world import World

HALF_OPEN_SECONDS = (0.5, 5.0)
SLOW = Latency(0.05, 0.3, 0.05, 0.5)


class Faults:
    """Attributes:
    counts: how often each fault struck.
    """

    def __init__(self, world: World) -> None:
        self.world, self.counts = world, Counter[str]()
        self._random = Random(f"{world.seed}/nemesis")

    def _struck(self, kind: str, what: object = "") -> None:
        self.counts[kind] += 1
        self.world.trace(f"fault {kind} {what}")

    def _victim(self, *, with_observer: bool = True) -> Host:
        """The leader, more often than chance would have it."""
        leaders = [voter for voter in self.world.voters if voter.leads]
        if leaders and self._random.random() < 0.4:
            return self._random.choice(leaders)
        return self._random.choice(self.world.hosts if with_observer else self.world.voters)

    def _leader(self) -> Voter | None:
        leaders = [voter for voter in self.world.voters if voter.leads and not voter.end]
        return self._random.choice(leaders) if leaders else None

    def _pair(self) -> tuple[str, str]:
        first = self._victim()
        others = [host for host in self.world.hosts if host is not first]
        return first.name, self._random.choice(others).name

    async def _wait(self, least: float, most: float) -> None:
        """Mostly short, as it is the beginning and the end of a fault that does harm."""
        share = self._random.random() ** 2
        await trio.sleep((least + (most - least) * share) * self.world.plan.pace)

    async def _die(self, host: Host, *, power_lost: bool) -> None:
        host.crash(power_lost=power_lost)
        await host.wait_dead()

    # The network

    async def cut(self) -> None:
        names, refuses = self._pair(), self._random.random() < 0.3
        self._struck("cut", names)
        self.world.network.cut_both(*names, refuses=refuses)
        await self._wait(0.1, 4.0)
        self.world.network.heal(*names)
        self.world.network.heal(*reversed(names))

    async def cut_one_way(self) -> None:
        names = self._pair()
        self._struck("cut_one_way", names)
        self.world.network.cut(*names)
        await self._wait(0.1, 4.0)
        self.world.network.heal(*names)

    async def isolate(self) -> None:
        name = self._victim().name
        self._struck("isolate", name)
        self.world.network.isolate(name)
        await self._wait(0.2, 4.0)
        self.world.network.heal(source=name)
        self.world.network.heal(target=name)

    async def split(self) -> None:
        names = [host.name for host in self.world.hosts]
        self._random.shuffle(names)
        middle = self._random.randrange(1, len(names))
        self._struck("split", names[:middle])
        self.world.network.partition(names[:middle], names[middle:])
        await self._wait(0.2, 4.0)
        self.world.network.heal()

    async def reset(self) -> None:
        names, late = self._pair(), self._random.choice((0.0, 0.2, 2.0))
        seconds = [self._random.choice((None, None, 0.3, 1.0)) for _ in names]
        self._struck("reset", names)
        self.world.network.reset(
            *names, first_seconds=seconds[0], second_seconds=seconds[1], late_seconds=late
        )

    async def half_open(self) -> None:
        """One end does not learn of it before its kernel gives up."""
        names = self._pair()
        self._struck("half_open", names)
        seconds = self._random.choice((self._random.uniform(*HALF_OPEN_SECONDS), math.inf))
        self.world.network.reset(*names, first_seconds=seconds, late_seconds=0.5)

    async def slow_link(self) -> None:
        names = self._pair()
        self._struck("slow_link", names)
        self.world.network.slow(*names, SLOW)
        await self._wait(0.5, 5.0)
        self.world.network.slow(*names, self.world.plan.latency)

    # Processes and machines

    async def kill(self) -> None:
        await self._crash("kill", [self._victim()], power_lost=False)

    async def power(self) -> None:
        count = self._random.choice((1, 1, 2))
        victims = self._random.sample(self.world.hosts, min(count, len(self.world.hosts)))
        await self._crash("power", victims, power_lost=True)

    async def power_of_all(self) -> None:
        if self.counts["power_of_all"] > self.counts.total() // 5:
            return  # or little would ever be done
        await self._crash("power_of_all", list(self.world.hosts), power_lost=True)

    async def kill_midway(self) -> None:
        await self._crash_midway("kill_midway", [self._victim()], power_lost=False)

    async def power_midway(self) -> None:
        count = self._random.choice((1, 1, 2, len(self.world.hosts)))
        victims = self._random.sample(self.world.hosts, min(count, len(self.world.hosts)))
        await self._crash_midway("power_midway", victims, power_lost=True)

    async def pause(self) -> None:
        host = self._victim()
        if host.is_up and not host.is_paused:
            self._struck("pause", host.name)
            host.pause()
            run = host.runs
            await self._wait(0.1, 4.0)
            if host.runs == run and host.is_up:
                host.resume()

    async def _crash(self, kind: str, victims: list[Host], *, power_lost: bool) -> None:
        victims = [host for host in victims if host.is_up and not host.end]
        if victims:
            self._struck(kind, [host.name for host in victims])
        for host in victims:
            host.crash(power_lost=power_lost)
        await self._bring_back(victims)

    async def _crash_midway(self, kind: str, victims: list[Host], *, power_lost: bool) -> None:
        """In the midst of what the disk does; after a while without any, between two steps."""
        victims = [host for host in victims if host.is_up and not host.end]
        if victims:
            self._struck(kind, [host.name for host in victims])
        for host in victims:
            moment = self._random.choice(("before", "torn", "torn", "after"))
            host.arm(self._random.randint(1, 6), moment, power_lost=power_lost)
        with trio.move_on_after(0.5):
            for host in victims:
                await host.ended.wait()
        for host in victims:
            host.crash(power_lost=power_lost)
        await self._bring_back(victims)

    async def _bring_back(self, victims: list[Host]) -> None:
        together = self._random.random() < 0.5
        await self._wait(0.02, 3.0)
        for host in victims:
            await host.wait_dead()
            if not host.is_up:
                host.start()
                self._maybe_crash_again(host)
            if not together:
                await self._wait(0.02, 1.0)

    def _maybe_crash_again(self, host: Host) -> None:
        """While it reads its journal and makes it whole."""
        if self._random.random() < 0.2:
            power_lost = self._random.random() < 0.5
            host.arm(self._random.randint(1, 8), "torn", power_lost=power_lost)
            self.world.nursery.start_soon(self._restart_later, host)

    async def _restart_later(self, host: Host) -> None:
        with trio.move_on_after(1.0):
            await host.ended.wait()
        host.disarm()
        await trio.sleep(0.05)
        if not host.is_up:
            host.start()

    # Disks

    async def slow_disk(self) -> None:
        host, most = self._victim(), self._random.choice((0.02, 0.1, 1.0))
        self._struck("slow_disk", host.name)
        host.disk_seconds = (0.0, most)
        await self._wait(0.5, 4.0)
        host.disk_seconds = self.world.plan.disk_seconds

    async def failing_disk(self) -> None:
        host = self._victim()
        operation = self._random.choice(("write", "sync", "sync", "sync_directory", "rename"))
        pattern = self._random.choice(("*", "*.journal", "*.part", "*.incoming"))
        self._struck("failing_disk", f"{host.name} {operation} {pattern}")
        host.disk.fail(operation, pattern, nth=self._random.randint(1, 3))

    async def lost_disk(self) -> None:
        victim = self._victim(with_observer=self._random.random() < 0.1)
        if victim.is_up and not victim.end and self._may_lose_disk(victim):
            self._struck("lost_disk", victim.name)
            await self._die(victim, power_lost=True)
            victim.lose_disk()
            await self._bring_back([victim])

    def _may_lose_disk(self, victim: Host) -> bool:
        """A minority at a time, counting those that have not been made whole since."""
        voters = self.world.voters
        lost = sum(not voter.is_whole for voter in voters)
        return victim not in voters or (victim.is_whole and 2 * (lost + 1) < len(voters))
