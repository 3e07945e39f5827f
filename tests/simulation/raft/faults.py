"""Faults of voters' disks in the quorum's world, and which node a fault picks there.

At most a minority of the voters loses its disk at a time: no quorum survives more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.fault_table import by_name
from tests.simulation.machine_faults import die
from tests.simulation.nemesis import Injector

if TYPE_CHECKING:
    from tests.simulation.machine_faults import CrashFaults
    from tests.simulation.raft.hosts import Host, Voter
    from tests.simulation.raft.world import World


class VoterInjector(Injector):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._voters, self._hosts = world.voters, world.hosts

    def victim(self, *, with_observer: bool = True) -> Host:
        """The leader, more often than chance would have it."""
        leaders = [voter for voter in self._voters if voter.leads]
        if leaders and self.random.random() < 0.4:
            return self.random.choice(leaders)
        return self.random.choice(self._hosts if with_observer else self._voters)

    def leader(self) -> Voter | None:
        leaders = [voter for voter in self._voters if voter.leads and not voter.end]
        return self.random.choice(leaders) if leaders else None


class VoterDiskFaults:
    def __init__(self, world: World, injector: VoterInjector, crashes: CrashFaults) -> None:
        self._voters, self._crashes = world.voters, crashes
        self._injector, self._random = injector, injector.random
        self.faults = by_name(self.failing_disk, self.lost_disk)

    async def failing_disk(self) -> None:
        host = self._injector.victim()
        operation = self._random.choice(("write", "sync", "sync", "sync_directory", "rename"))
        pattern = self._random.choice(("*", "*.journal", "*.part", "*.incoming"))
        self._injector.struck("failing_disk", f"{host.name} {operation} {pattern}")
        host.disk.fail(operation, pattern, nth=self._random.randint(1, 3))

    async def lost_disk(self) -> None:
        victim = self._injector.victim(with_observer=self._random.random() < 0.1)
        if victim.is_up and not victim.end and self.may_lose_disk(victim):
            self._injector.struck("lost_disk", victim.name)
            await die(victim, power_lost=True)
            victim.lose_disk()
            await self._crashes.bring_back([victim])

    def may_lose_disk(self, victim: Host) -> bool:
        """A minority at a time, counting those that have not been made whole since."""
        lost = sum(not voter.is_whole for voter in self._voters)
        return victim not in self._voters or (
            victim.is_whole and 2 * (lost + 1) < len(self._voters)
        )
