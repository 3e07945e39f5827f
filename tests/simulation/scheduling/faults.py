"""Faults that aim at scheduled records: at who delivers just now, its clock, lists on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.partition.scheduling.lists import LIST_SUFFIX
from tests.simulation.brokers.hosts import DIRECTORY
from tests.simulation.fault_table import by_name
from tests.simulation.machine_faults import CrashFaults, die

if TYPE_CHECKING:
    from tests.simulation.brokers.hosts import BrokerHost
    from tests.simulation.brokers.injector import BrokerInjector
    from tests.simulation.scheduling.world import SchedulingWorld

CAST_SECONDS_MAX = 4.0  # for something to be due where it is wanted
LOOK_SECONDS = 0.005
WRONG_MS = (-100_000, -3_000, -500, 500, 3_000, 100_000)


class ScheduleFaults:
    def __init__(self, world: SchedulingWorld, injector: BrokerInjector) -> None:
        self._world, self._network = world, world.network
        self._injector, self._random = injector, injector.random
        self._crashes = CrashFaults(world, injector)
        self.faults = by_name(
            self.wrong_clock, self.clock_back, self.kill_due, self.depose_due, self.cold_disk,
            self.rotten_list,
        )  # fmt: skip

    async def wrong_clock(self) -> None:
        """A leader delivers by its own clock, early or late by that of others."""
        host = self._injector.victim()
        assert hasattr(host, "clock_ahead_ms")
        host.clock_ahead_ms = self._random.choice(WRONG_MS)
        self._injector.struck("wrong_clock", f"{host.name} {host.clock_ahead_ms}")
        await self._injector.wait(1.0, 8.0)
        host.clock_ahead_ms = 0

    async def clock_back(self) -> None:
        """It is ahead when originals are taken, and right again until they are read."""
        leader = await self._delivering()
        if leader is None:
            return
        self._injector.struck("clock_back", leader.name)
        disk, before = leader.disk, leader.disk_seconds
        disk.cold, leader.disk_seconds = True, (0.1, 0.3)
        leader.clock_ahead_ms = self._random.choice((500, 3_000, 10_000))
        await trio.sleep(self._random.uniform(0.05, 0.5))
        leader.clock_ahead_ms = 0
        await self._injector.wait(0.3, 1.0)
        disk.cold, leader.disk_seconds = False, before

    async def kill_due(self) -> None:
        """A leader dies that has deliveries in hand, or in its log and not committed."""
        leader = await self._delivering()
        if leader is not None:
            power_lost = self._random.random() < 0.3
            await self._crashes.crash("kill_due", [leader], power_lost=power_lost)

    async def depose_due(self) -> None:
        """It delivers on, into a log that is cut later."""
        leader = await self._delivering()
        if leader is None:
            return
        self._injector.struck("depose_due", leader.name)
        others = [host.name for host in self._world.hosts if host is not leader]
        for name in others:
            self._network.cut_both(leader.name, name)
        seconds = self._world.plan.session_seconds + self._random.uniform(0.5, 4.0)
        await trio.sleep(seconds)
        for name in others:
            self._network.heal_both(leader.name, name)

    async def cold_disk(self) -> None:
        """Originals are not in the page cache: much may happen until they are read."""
        host = self._injector.leader() or self._random.choice(self._world.hosts)
        disk = host.disk
        self._injector.struck("cold_disk", host.name)
        disk.cold, host.disk_seconds = True, (0.0, self._random.choice((0.05, 0.3, 1.0)))
        await self._injector.wait(1.0, 8.0)
        disk.cold, host.disk_seconds = False, self._world.plan.disk_seconds

    async def rotten_list(self) -> None:
        """Of a segment; the next opening reads the batches."""
        host = self._random.choice(self._world.hosts)
        if not host.is_up or host.end:
            return
        paths = [path for path in host.disk.paths(DIRECTORY) if path.name.endswith(LIST_SUFFIX)]
        paths = [path for path in paths if host.disk.size(path)]
        if not paths:
            return
        path = self._random.choice(paths)
        size = host.disk.size(path)
        self._injector.struck("rotten_list", f"{host.name} {path}")
        if self._random.random() < 0.3:
            host.disk.cut(path, self._random.randrange(size))
        else:
            host.disk.flip_bit(path, self._random.randrange(size), self._random.randrange(8))
        await die(host, power_lost=False)
        await self._crashes.bring_back([host])

    async def _delivering(self) -> BrokerHost | None:
        with trio.move_on_after(CAST_SECONDS_MAX):
            while not (found := list(filter(self._delivers, self._world.hosts))):  # noqa: ASYNC110
                await trio.sleep(LOOK_SECONDS)
            return self._random.choice(found)
        return None

    @staticmethod
    def _delivers(host: BrokerHost) -> bool:
        """Something is due within the next moment."""
        if host.broker is None or host.end or host.is_paused:
            return False
        return any(
            replica.log.schedule._taken
            or (replica.log.schedule.next_due() or 1 << 62) <= host.now_ms() + 10
            for replica in host.broker.replicas.all()
            if replica.leader is not None
        )
