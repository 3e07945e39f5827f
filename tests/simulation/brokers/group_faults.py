"""Faults of the brokers that coordinate groups in a world: killed, paused, deposed, cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.metadata.image import slot_of
from tests.simulation.fault_table import by_name
from tests.simulation.nemesis import until
from tests.simulation.network_pipe import Latency

if TYPE_CHECKING:
    from tests.simulation.brokers.faults import RoleFaults
    from tests.simulation.brokers.group_life import Life
    from tests.simulation.brokers.hosts import BrokerHost
    from tests.simulation.brokers.injector import BrokerInjector
    from tests.simulation.brokers.world import World
    from tests.simulation.machine_faults import CrashFaults


TAKEOVER_SECONDS_MAX = 5.0  # until then connections to the absent broker still live
SPARSE = Latency(tail_probability=0.3, tail_mean=0.3)


class GroupFaults:
    def __init__(
        self, world: World, injector: BrokerInjector, crashes: CrashFaults, roles: RoleFaults
    ) -> None:
        self._world, self._network, self._crashes = world, world.network, crashes
        self._injector, self._random, self._roles = injector, injector.random, roles
        self.faults = by_name(
            self.kill_coordinator, self.pause_coordinator, self.coordinator_off_brokers,
            self.slow_coordinator, self.schism, self.zombie,
        )  # fmt: skip

    async def kill_coordinator(self) -> None:
        coordinator = self._coordinator()
        if coordinator is not None:
            await self._crashes.crash("kill_coordinator", [coordinator], power_lost=False)

    async def pause_coordinator(self) -> None:
        """Long enough for another one to take over; it wakes up and believes to be the one."""
        await self._roles.pause_past_session("pause_coordinator", self._coordinator())

    async def coordinator_off_brokers(self) -> None:
        """It goes on to talk with members, and gets nothing into the quorum."""
        others = [host.name for host in self._world.hosts]
        await self._roles.part("coordinator_off_brokers", self._coordinator(), others)

    async def slow_coordinator(self) -> None:
        """What the quorum decides reaches it late, and now and then an answer sooner."""
        coordinator, controller = self._coordinator(), self._injector.controller()
        if coordinator is None or controller is None or coordinator is controller:
            return
        self._injector.struck("slow_coordinator", f"{controller.name}>{coordinator.name}")
        self._network.slow(controller.name, coordinator.name, SPARSE)
        await self._injector.wait(2.0, 12.0)
        self._network.slow(controller.name, coordinator.name, self._world.plan.latency)

    async def schism(self) -> None:
        """It goes on with some members, and the others find the next one."""
        if not await until(self._are_all_reading):
            return
        await trio.sleep(self._random.uniform(0.3, 0.6))  # requests have timed out by then
        coordinator = self._coordinator()
        if coordinator is None:
            return
        names = [host.name for host in self._world.hosts]
        others = [name for name in names if name != coordinator.name]
        members = [life.name for life in self._lives]
        self._random.shuffle(members)
        faithful = self._random.randint(1, max(1, len(members) - 1))
        parted = [coordinator.name, *members[:faithful]], [*others, *members[faithful:]]
        self._injector.struck("schism", parted)
        self._network.partition(*parted)
        await trio.sleep(self._world.plan.session_seconds + self._random.uniform(3.5, 5.0))
        for first in parted[0]:
            for second in parted[1]:
                self._network.heal_both(first, second)

    async def zombie(self) -> None:
        """A member is away until others go on with what it has; what it sent then comes late."""
        lives = [life for life in self._lives if life.membership.held]
        if len(lives) < 2:
            return
        away = self._random.choice(lives)
        keys = away.membership.held
        self._injector.struck("zombie", away.name)
        self._network.isolate(away.name)
        await until(lambda: keys <= self._held_by_others(away), seconds=TAKEOVER_SECONDS_MAX)
        await trio.sleep(self._random.uniform(0.5, 2.0))
        self._network.rejoin(away.name)

    def _held_by_others(self, away: Life) -> frozenset[tuple[str, int]]:
        others = (life.membership.held for life in self._lives if life is not away)
        return frozenset().union(*others)

    @property
    def _lives(self) -> list[Life]:
        return [life for group in self._world.groups for life in group.ledger.lives]

    def _are_all_reading(self) -> bool:
        return bool(self._lives) and all(life.membership.held for life in self._lives)

    def _coordinator(self) -> BrokerHost | None:
        groups = self._world.plan.groups
        if not groups:
            return None
        slots = self._world.newest_image().slots
        broker_id = slots[slot_of(self._random.choice(groups).name)].broker_id
        return next((host for host in self._world.hosts if host.node_id == broker_id), None)
