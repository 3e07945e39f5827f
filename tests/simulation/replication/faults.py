"""Faults of the world of replication, each a method that picks its target by chance.

Own how long they last. They prefer leaders, and never check whether it is a good moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.fault_table import by_name
from tests.simulation.replication.network import CLIENTS, CONTROLLER
from tests.simulation.replication.plan import STORM
from tests.simulation.timeline_nemesis import mostly_short

if TYPE_CHECKING:
    from random import Random

    from raftmq.metadata.commands import PartitionId
    from tests.simulation.replication.broker import Broker
    from tests.simulation.replication.network import Link
    from tests.simulation.replication.world import World


class Victims:
    """Whom faults pick."""

    def __init__(self, world: World, chance: Random) -> None:
        self._world, self._chance = world, chance

    def key(self) -> PartitionId:
        return self._chance.choice(self._world.keys)

    def leader(self) -> Broker:
        """Of some partition; or any broker."""
        leader = self._world.quorum.image.partitions[self.key()].leader
        if leader >= 0 and self._chance.random() < 0.6:
            return self._world.brokers[leader]
        return self._chance.choice(self._world.brokers)

    def back_later(self, victim: Broker, most: float) -> None:
        if self._chance.random() < 0.8:
            self._world.quorum.reset_connection(victim.broker_id)
        self._world.timeline.after(mostly_short(self._chance, most), victim.start)


class ProcessFaults:
    """Brokers that die, stand still, stop, or lose a connection; controllers that are deposed."""

    def __init__(self, world: World, chance: Random, victims: Victims) -> None:
        self._world, self._chance, self._victims = world, chance, victims
        self.faults = by_name(
            self.kill, self.restart, self.power, self.blackout, self.pause, self.shut_down,
            self.reset, self.depose,
        )  # fmt: skip

    def kill(self) -> None:
        victim = self._victims.leader()
        victim.kill()
        self._victims.back_later(victim, 4.0)

    def restart(self) -> None:
        """It is back before its session has expired."""
        victim = self._victims.leader()
        victim.kill()
        self._victims.back_later(victim, 0.2)

    def power(self) -> None:
        victim = self._victims.leader()
        victim.cut_power()
        self._victims.back_later(victim, 3.0)

    def blackout(self) -> None:
        """Several at once."""
        for victim in self._world.brokers:
            if self._chance.random() < 0.7:
                victim.cut_power()
                self._victims.back_later(victim, 2.0)

    def pause(self) -> None:
        self._victims.leader().pause(mostly_short(self._chance, 9.0))

    def shut_down(self) -> None:
        victim = self._victims.leader()
        if victim.process is not None:
            victim.process.wants_shutdown = True

    def reset(self) -> None:
        """A connection breaks, though both brokers live."""
        self._world.quorum.reset_connection(self._victims.leader().broker_id)

    def depose(self) -> None:
        self._world.quorum.take_office()


class DiskFaults:
    """Disks that are slow, stand still, are older than they were, or damaged."""

    def __init__(
        self, world: World, chance: Random, victims: Victims, processes: ProcessFaults
    ) -> None:
        self._world, self._chance = world, chance
        self._victims, self._processes = victims, processes
        self.faults = by_name(self.slow_disk, self.freeze, self.old_directory, self.damage)

    def slow_disk(self) -> None:
        victim = self._victims.leader()
        victim.slow_until = self._world.timeline.now + mostly_short(self._chance, 6.0)

    def freeze(self) -> None:
        victim = self._victims.leader()
        victim.frozen_until = self._world.timeline.now + mostly_short(self._chance, 6.0)

    def old_directory(self) -> None:
        """Of a process before the last one that was in service: that one's epoch is missing."""
        victim = self._chance.choice(self._world.brokers)
        known = self._world.quorum.image.brokers[victim.broker_id]
        copies = [copy for copy in victim.copies if copy.broker_epoch < known.disk_epoch]
        if not copies:
            self._processes.restart()
            return
        victim.put_back(self._chance.choice(copies).copy())
        self._victims.back_later(victim, 3.0)

    def damage(self) -> None:
        victim = self._chance.choice(self._world.brokers)
        if victim.directory.logs:
            victim.damage(*self._chance.choice(sorted(victim.directory.logs.items(), key=_first)))
            self._victims.back_later(victim, 3.0)


class LinkFaults:
    """Links that are cut, and a network that loses and doubles."""

    def __init__(self, world: World, chance: Random, victims: Victims) -> None:
        self._world, self._chance, self._victims = world, chance, victims
        self.faults = by_name(
            self.storm, self.cut_controller, self.cut_follower, self.cut_clients, self.isolate
        )

    def storm(self) -> None:
        """Connections break and come back all the time: much is late, and comes twice."""
        self._world.network.weather = STORM
        self._world.timeline.after(mostly_short(self._chance, 6.0), self._calm_down)

    def _calm_down(self) -> None:
        if not self._world.is_calm:
            self._world.network.weather = self._world.plan.weather

    def _cut(self, *links: Link, most: float = 5.0) -> None:
        cut, seconds = self._world.network.cut, mostly_short(self._chance, most)
        cut.update(links)
        self._world.timeline.after(seconds, cut.difference_update, links)

    def _one_way_or_both(self, one: int, other: int) -> tuple[Link, ...]:
        both = ((one, other), (other, one))
        return self._chance.choice([both, both[:1], both[1:]])

    def cut_controller(self) -> None:
        """It cannot tell a dead broker from this one."""
        self._cut(*self._one_way_or_both(self._victims.leader().broker_id, CONTROLLER), most=9.0)

    def cut_follower(self) -> None:
        state = self._world.quorum.image.partitions[self._victims.key()]
        follower = self._chance.choice(state.replicas)
        if state.leader not in (follower, -1):
            self._cut(*self._one_way_or_both(state.leader, follower))

    def cut_clients(self) -> None:
        self._cut(*self._one_way_or_both(self._victims.leader().broker_id, CLIENTS))

    def isolate(self) -> None:
        """From everybody but the clients."""
        victim = self._victims.leader().broker_id
        others = [CONTROLLER, *(b.broker_id for b in self._world.brokers)]
        links = [(victim, it) for it in others] + [(it, victim) for it in others]
        self._cut(*links, most=9.0)


def _first(item: tuple[PartitionId, object]) -> PartitionId:
    return item[0]
