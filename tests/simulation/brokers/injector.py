"""Whom faults pick in the world of brokers: by role, and those with records to lose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.nemesis import Injector

if TYPE_CHECKING:
    from raftmq.metadata.image import PartitionState
    from tests.simulation.brokers.hosts import BrokerHost
    from tests.simulation.brokers.ledger import Spot
    from tests.simulation.brokers.world import World


class BrokerInjector(Injector):
    _world: World

    def victim(self) -> BrokerHost:
        """A broker with records to lose, more often than chance would have it."""
        draw = self.random.random()
        if draw < 0.3:
            return self.leader() or self.random.choice(self._world.hosts)
        if draw < 0.5:
            controllers = [host for host in self._world.hosts if host.leads]
            return self.random.choice(controllers or self._world.hosts)
        return self.random.choice(self._world.hosts)

    def spot(self) -> Spot | None:
        spots = self._world.spots()
        return self.random.choice(spots) if spots else None

    def leader(self) -> BrokerHost | None:
        """Of some partition."""
        return self.leader_of(self.spot())

    def leader_of(self, spot: Spot | None) -> BrokerHost | None:
        state = self.state(spot)
        leaders = [host for host in self._world.hosts if state and host.node_id == state.leader]
        return leaders[0] if leaders else None

    def follower_of(self, spot: Spot | None) -> BrokerHost | None:
        state = self.state(spot)
        if state is None:
            return None
        followers = [
            host
            for host in self._world.hosts
            if host.node_id in state.replicas and host.node_id != state.leader
        ]
        return self.random.choice(followers) if followers else None

    def state(self, spot: Spot | None) -> PartitionState | None:
        return None if spot is None else self._world.state_of(spot)

    def controller(self) -> BrokerHost | None:
        controllers = [host for host in self._world.hosts if host.leads]
        return self.random.choice(controllers) if controllers else None
