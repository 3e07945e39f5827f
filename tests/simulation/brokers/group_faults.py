"""Faults of the brokers that coordinate groups in a world: killed, paused, deposed, cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.metadata.image import slot_of
from tests.simulation.brokers.fault_scripts import Plots
from tests.simulation.network_pipe import Latency
from tests.simulation.raft.fault_scripts import until

if TYPE_CHECKING:
    from tests.simulation.brokers.group_life import Life
    from tests.simulation.brokers.hosts import BrokerHost


TAKEOVER_SECONDS_MAX = 5.0  # until then connections to the absent broker still live
SPARSE = Latency(tail_probability=0.3, tail_mean=0.3)


class GroupTroubles(Plots):
    async def kill_coordinator(self) -> None:
        coordinator = self._coordinator()
        if coordinator is not None:
            await self._crash("kill_coordinator", [coordinator], power_lost=False)

    async def pause_coordinator(self) -> None:
        """Long enough for another one to take over; it wakes up and believes to be the one."""
        coordinator = self._coordinator()
        if coordinator is None or not coordinator.is_up or coordinator.is_paused or coordinator.end:
            return
        self._struck("pause_coordinator", coordinator.name)
        coordinator.pause()
        run = coordinator.runs
        await trio.sleep(self.world.plan.session_seconds + self._random.uniform(0.5, 3.0))
        if coordinator.runs == run and coordinator.is_up:
            coordinator.resume()

    async def coordinator_off_brokers(self) -> None:
        """It goes on to talk with members, and gets nothing into the quorum."""
        others = [host.name for host in self.world.hosts]
        await self._part("coordinator_off_brokers", self._coordinator(), others)

    async def slow_coordinator(self) -> None:
        """What the quorum decides reaches it late, and now and then an answer sooner."""
        coordinator, controller = self._coordinator(), self._controller()
        if coordinator is None or controller is None or coordinator is controller:
            return
        self._struck("slow_coordinator", f"{controller.name}>{coordinator.name}")
        self.world.network.slow(controller.name, coordinator.name, SPARSE)
        await self._wait(2.0, 12.0)
        self.world.network.slow(controller.name, coordinator.name, self.world.plan.latency)

    async def schism(self) -> None:
        """It goes on with some members, and the others find the next one."""
        if not await until(self._are_all_reading):
            return
        await trio.sleep(self._random.uniform(0.3, 0.6))  # requests have timed out by then
        coordinator = self._coordinator()
        if coordinator is None:
            return
        network, names = self.world.network, [host.name for host in self.world.hosts]
        others = [name for name in names if name != coordinator.name]
        members = [life.name for life in self._lives]
        self._random.shuffle(members)
        faithful = self._random.randint(1, max(1, len(members) - 1))
        parted = [coordinator.name, *members[:faithful]], [*others, *members[faithful:]]
        self._struck("schism", parted)
        network.partition(*parted)
        await trio.sleep(self.world.plan.session_seconds + self._random.uniform(3.5, 5.0))
        for first in parted[0]:
            for second in parted[1]:
                network.heal(first, second)
                network.heal(second, first)

    async def zombie(self) -> None:
        """A member is away until others go on with what it has; what it sent then comes late."""
        lives = [life for life in self._lives if life.membership.held]
        if len(lives) < 2:
            return
        away = self._random.choice(lives)
        keys = away.membership.held
        self._struck("zombie", away.name)
        self.world.network.isolate(away.name)
        await until(lambda: keys <= self._held_by_others(away), seconds=TAKEOVER_SECONDS_MAX)
        await trio.sleep(self._random.uniform(0.5, 2.0))
        self.world.network.heal(source=away.name)
        self.world.network.heal(target=away.name)

    def _held_by_others(self, away: Life) -> frozenset[tuple[str, int]]:
        others = (life.membership.held for life in self._lives if life is not away)
        return frozenset().union(*others)

    @property
    def _lives(self) -> list[Life]:
        return [life for group in self.world.groups for life in group.book.lives]

    def _are_all_reading(self) -> bool:
        return bool(self._lives) and all(life.membership.held for life in self._lives)

    def _coordinator(self) -> BrokerHost | None:
        groups = self.world.plan.groups
        if not groups:
            return None
        slots = self.world.newest_image().slots
        broker_id = slots[slot_of(self._random.choice(groups).name)].broker_id
        return next((host for host in self.world.hosts if host.node_id == broker_id), None)
