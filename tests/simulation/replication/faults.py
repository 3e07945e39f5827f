"""Faults of the world of replication, each kind a method that picks its target by chance.

Owns when they come and how long they last. Prefers leaders, and never checks whether it is a good
moment.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.replication.network import CLIENTS, CONTROLLER
from tests.simulation.replication.plan import STORM

if TYPE_CHECKING:
    from random import Random

    from raftmq.metadata.commands import PartitionId
    from tests.simulation.replication.broker import Broker
    from tests.simulation.replication.network import Link
    from tests.simulation.replication.world import World


class Faults:
    """Attributes:
    counts: how often each kind struck.
    """

    def __init__(self, world: World, chance: Random) -> None:
        self._world, self._chance = world, chance
        self.counts: Counter[str] = Counter()

    def strike(self) -> None:
        """Now, and again soon."""
        world = self._world
        if world.is_calm:
            return
        kind = self._chance.choice(world.plan.kinds)
        world.timeline.say(f"-- {kind}")
        self.counts[kind] += 1
        getattr(self, kind)()
        world.timeline.after(self._chance.random() * 2 * world.plan.strike_seconds, self.strike)

    def _seconds(self, most: float) -> float:
        return most * self._chance.random() ** 2 + 0.01

    def _key(self) -> PartitionId:
        return self._chance.choice(self._world.keys)

    def _leader(self) -> Broker:
        """Of some partition; or any broker."""
        leader = self._world.quorum.image.partitions[self._key()].leader
        if leader >= 0 and self._chance.random() < 0.6:
            return self._world.brokers[leader]
        return self._chance.choice(self._world.brokers)

    def _back_later(self, victim: Broker, most: float) -> None:
        if self._chance.random() < 0.8:
            self._world.quorum.reset_connection(victim.broker_id)
        self._world.timeline.after(self._seconds(most), victim.start)

    # Processes

    def kill(self) -> None:
        victim = self._leader()
        victim.kill()
        self._back_later(victim, 4.0)

    def restart(self) -> None:
        """It is back before its session has expired."""
        victim = self._leader()
        victim.kill()
        self._back_later(victim, 0.2)

    def power(self) -> None:
        victim = self._leader()
        victim.cut_power()
        self._back_later(victim, 3.0)

    def blackout(self) -> None:
        """Several at once."""
        for victim in self._world.brokers:
            if self._chance.random() < 0.7:
                victim.cut_power()
                self._back_later(victim, 2.0)

    def pause(self) -> None:
        self._leader().pause(self._seconds(9.0))

    def shut_down(self) -> None:
        victim = self._leader()
        if victim.process is not None:
            victim.process.wants_shutdown = True

    def reset(self) -> None:
        """A connection breaks, though both brokers live."""
        self._world.quorum.reset_connection(self._leader().broker_id)

    def depose(self) -> None:
        self._world.quorum.take_office()

    # Disks

    def slow_disk(self) -> None:
        victim = self._leader()
        victim.slow_until = self._world.timeline.now + self._seconds(6.0)

    def freeze(self) -> None:
        victim = self._leader()
        victim.frozen_until = self._world.timeline.now + self._seconds(6.0)

    def old_directory(self) -> None:
        """Of a process before the last one that was in service: that one's epoch is missing."""
        victim = self._chance.choice(self._world.brokers)
        known = self._world.quorum.image.brokers[victim.broker_id]
        copies = [copy for copy in victim.copies if copy.broker_epoch < known.disk_epoch]
        if not copies:
            self.restart()
            return
        victim.put_back(self._chance.choice(copies).copy())
        self._back_later(victim, 3.0)

    def damage(self) -> None:
        victim = self._chance.choice(self._world.brokers)
        if victim.directory.logs:
            victim.damage(*self._chance.choice(sorted(victim.directory.logs.items(), key=_first)))
            self._back_later(victim, 3.0)

    # Links

    def storm(self) -> None:
        """Connections break and come back all the time: much is late, and comes twice."""
        self._world.network.weather = STORM
        self._world.timeline.after(self._seconds(6.0), self._calm_down)

    def _calm_down(self) -> None:
        if not self._world.is_calm:
            self._world.network.weather = self._world.plan.weather

    def _cut(self, *links: Link, most: float = 5.0) -> None:
        network = self._world.network
        network.cut.update(links)
        self._world.timeline.after(self._seconds(most), network.cut.difference_update, links)

    def _one_way_or_both(self, one: int, other: int) -> tuple[Link, ...]:
        both = ((one, other), (other, one))
        return self._chance.choice([both, both[:1], both[1:]])

    def cut_controller(self) -> None:
        """It cannot tell a dead broker from this one."""
        self._cut(*self._one_way_or_both(self._leader().broker_id, CONTROLLER), most=9.0)

    def cut_follower(self) -> None:
        state = self._world.quorum.image.partitions[self._key()]
        follower = self._chance.choice(state.replicas)
        if state.leader not in (follower, -1):
            self._cut(*self._one_way_or_both(state.leader, follower))

    def cut_clients(self) -> None:
        self._cut(*self._one_way_or_both(self._leader().broker_id, CLIENTS))

    def isolate(self) -> None:
        """From everybody but the clients."""
        victim = self._leader().broker_id
        others = [CONTROLLER, *(b.broker_id for b in self._world.brokers)]
        links = [(victim, it) for it in others] + [(it, victim) for it in others]
        self._cut(*links, most=9.0)


def _first(item: tuple[PartitionId, object]) -> PartitionId:
    return item[0]
