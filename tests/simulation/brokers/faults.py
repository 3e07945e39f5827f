"""Faults of whole brokers by role: leader, controller, lone follower; disks, topics, operators.

Faults of machines and links are those of the quorum's world.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import trio

from tests.simulation.brokers.plan import draw_topic
from tests.simulation.raft.fault_scripts import CALM_SECONDS_MAX, Nemesis, until

if TYPE_CHECKING:
    from raftmq.metadata.image import PartitionState
    from tests.simulation.brokers.hosts import BrokerHost
    from tests.simulation.brokers.ledger import Spot
    from tests.simulation.brokers.world import World

TOPICS_MAX = 5  # of a world, so that clients meet at them
RECOVERY_SECONDS_MAX = 20.0  # for an ISR to be whole again before a disk may be lost
OPERATIONS = ("write", "write", "sync", "sync", "truncate", "create", "sync_directory", "rename")
PATTERNS = ("*.log", "*.log", "*", "*.json", "*epoch*", "*.index")


class Troubles(Nemesis):
    world: World  # type: ignore[assignment]

    def _struck(self, kind: str, what: object = "") -> None:
        super()._struck(kind, what)
        self.world.history.on_struck(kind, what)

    async def _strike(self, kind: str) -> None:
        with self.world.history.plot():
            await super()._strike(kind)

    # Who

    def _victim(self, *, with_observer: bool = True) -> BrokerHost:
        """A broker with records to lose, more often than chance would have it."""
        draw = self._random.random()
        if draw < 0.3:
            return self._leader_of(self._spot()) or self._random.choice(self.world.hosts)
        if draw < 0.5:
            controllers = [host for host in self.world.hosts if host.leads]
            return self._random.choice(controllers or self.world.hosts)
        return self._random.choice(self.world.hosts)

    def _spot(self) -> Spot | None:
        spots = self.world.spots()
        return self._random.choice(spots) if spots else None

    def _leader_of(self, spot: Spot | None) -> BrokerHost | None:
        state = self._state(spot)
        leaders = [host for host in self.world.hosts if state and host.node_id == state.leader]
        return leaders[0] if leaders else None

    def _follower_of(self, spot: Spot | None) -> BrokerHost | None:
        state = self._state(spot)
        if state is None:
            return None
        followers = [
            host
            for host in self.world.hosts
            if host.node_id in state.replicas and host.node_id != state.leader
        ]
        return self._random.choice(followers) if followers else None

    def _state(self, spot: Spot | None) -> PartitionState | None:
        return None if spot is None else self.world.state_of(spot)

    def _controller(self) -> BrokerHost | None:
        controllers = [host for host in self.world.hosts if host.leads]
        return self._random.choice(controllers) if controllers else None

    # Links between two parts

    async def _part(self, kind: str, first: BrokerHost | None, others: list[str]) -> None:
        """Nothing, or nothing in one direction, gets from one to the others."""
        others = [name for name in others if first is None or name != first.name]
        if first is None or not others:
            return
        way = self._random.choice(("both", "both", "to", "from"))
        self._struck(kind, f"{first.name} {way} {others}")
        for name in others:
            if way in ("both", "to"):
                self.world.network.cut(first.name, name)
            if way in ("both", "from"):
                self.world.network.cut(name, first.name)
        await self._wait(0.5, 6.0)
        for name in others:
            self.world.network.heal(first.name, name)
            self.world.network.heal(name, first.name)

    async def leader_off_controller(self) -> None:
        controller = self._controller()
        names = [controller.name] if controller else []
        await self._part("leader_off_controller", self._leader_of(self._spot()), names)

    async def leader_off_follower(self) -> None:
        spot = self._spot()
        follower = self._follower_of(spot)
        names = [follower.name] if follower else []
        await self._part("leader_off_follower", self._leader_of(spot), names)

    async def leader_off_clients(self) -> None:
        leader = self._leader_of(self._spot())
        await self._part("leader_off_clients", leader, self.world.client_names)

    async def leader_off_brokers(self) -> None:
        """It goes on to talk with its clients, and knows of nothing."""
        others = [host.name for host in self.world.hosts]
        await self._part("leader_off_brokers", self._leader_of(self._spot()), others)

    async def controller_off(self) -> None:
        others = [host.name for host in self.world.hosts]
        await self._part("controller_off", self._controller(), others)

    # Processes

    async def kill_leader(self) -> None:
        leader = self._leader_of(self._spot())
        if leader is not None:
            await self._crash("kill_leader", [leader], power_lost=False)

    async def pause_leader(self) -> None:
        """Long enough to be replaced; it wakes up and believes that it leads."""
        leader = self._leader_of(self._spot())
        if leader is None or not leader.is_up or leader.is_paused or leader.end:
            return
        self._struck("pause_leader", leader.name)
        leader.pause()
        run = leader.runs
        await trio.sleep(self.world.plan.session_seconds + self._random.uniform(0.5, 3.0))
        if leader.runs == run and leader.is_up:
            leader.resume()

    async def power(self) -> None:
        """Where page caches are trusted, only one is lost, and only if the others have it all."""
        if not self.world.plan.trusts_page_cache:
            await super().power()
        elif await until(lambda: self.world.is_whole, seconds=3.0):
            await self._crash("power", [self._random.choice(self.world.hosts)], power_lost=True)
            await until(lambda: self.world.is_whole, seconds=30.0)

    async def restart(self) -> None:
        host = self._victim()
        if not host.is_up or host.is_paused or host.broker is None:
            return
        self._struck("restart", host.name)
        await host.leave()
        await self._bring_back([host])

    async def restart_all(self) -> None:
        """One after the other, as an upgrade does."""
        self._struck("restart_all")
        for host in list(self.world.hosts):
            if host.is_up and host.broker is not None and not host.is_paused:
                await host.leave()
                await self._bring_back([host])
                await trio.sleep(self._random.choice((0.1, 1.0, 3.0)))

    # Disks

    async def frozen_disk(self) -> None:
        host = self._victim()
        self._struck("frozen_disk", host.name)
        host.freeze()
        await self._wait(1.0, 8.0)
        host.thaw()

    async def failing_disk(self) -> None:
        host = self._victim()
        operation, pattern = self._random.choice(OPERATIONS), self._random.choice(PATTERNS)
        self._struck("failing_disk", f"{host.name} {operation} {pattern}")
        host.disk.fail(operation, pattern, nth=self._random.randint(1, 4))
        await self._replace_failed(host)

    async def full_disk(self) -> None:
        host = self._victim()
        self._struck("full_disk", host.name)
        for nth in range(1, self._random.randint(2, 8)):
            host.disk.fail("write", "*", nth=nth, error=errno.ENOSPC)
        await self._replace_failed(host)

    async def lost_disk(self) -> None:
        """One at a time: the next one only when all that was promised stands everywhere again."""
        if not await until(self._may_lose_a_disk, seconds=CALM_SECONDS_MAX):
            return
        victim = self._victim()
        self._struck("lost_disk", victim.name)
        await self._lose_disk(victim)
        await self._bring_back([victim])
        await until(self._may_lose_a_disk, seconds=RECOVERY_SECONDS_MAX)

    async def _lose_disk(self, victim: BrokerHost) -> None:
        """It stays down, unless another fault has started it."""
        await self._die(victim, power_lost=True)
        victim.lose_disk()

    def _may_lose_a_disk(self) -> bool:
        """Every partition is in sync everywhere, and every voter holds what it promised."""
        states = map(self.world.state_of, self.world.spots())
        return all(map(self._serves, self.world.hosts)) and all(
            state is not None and len(state.isr) == len(state.replicas) for state in states
        )

    def _serves(self, host: BrokerHost) -> bool:
        """Under its present registration, so that what is known is no older than that."""
        known = self.world.newest_image().brokers.get(host.node_id)
        return (
            host.broker is not None
            and not host.end
            and host.has_its_metadata
            and known is not None
            and not known.fenced
            and known.broker_epoch == host.broker.lifetime.broker_epoch
        )

    async def _replace_failed(self, host: BrokerHost) -> None:
        """Now and then an operator restarts what has partitions offline."""
        await self._wait(1.0, 5.0)
        if self._random.random() < 0.7:
            return
        if host.is_up and not host.end and host.has_failed_logs:
            host.crash(power_lost=False)
            await self._bring_back([host])

    # Topics

    async def churn(self) -> None:
        operator, topics = self.world.operator, self.world.living_topics()
        self._struck("churn")
        if len(topics) > 1 and self._random.random() < 0.5:
            await operator.delete_topic(self._random.choice(topics))
        elif len(self.world.topics) < TOPICS_MAX:
            durability = "" if self.world.plan.trusts_page_cache else "fsync"
            plan = draw_topic(self._random, self.world.plan.broker_count, durability=durability)
            await operator.make_topic(plan._replace(partition_count=1))

    async def recreate(self) -> None:
        """A topic is recreated under the same name; a broker may miss both changes."""
        topics = [name for name in self.world.living_topics() if name not in self.world.reborn]
        if not topics:
            return
        name, absent = self._random.choice(topics), self._victim()
        self._struck("recreate", name)
        misses_it = self._random.random() < 0.5 and absent.is_up and not absent.end
        if misses_it:
            await self._die(absent, power_lost=self._random.random() < 0.5)
        await self.world.operator.recreate_topic(name)
        await self._wait(0.1, 2.0)
        if misses_it:
            await self._bring_back([absent])

    async def delete_records(self) -> None:
        spot = self._spot()
        if spot is None:
            return
        known = sorted(self.world.ledger.book(spot).stands)
        if known:
            self._struck("delete_records", spot)
            share = self._random.random()
            before = known[-1] + 1 if share < 0.4 else self._random.choice(known)
            await self.world.operator.delete_records(spot, before)

    async def absence(self) -> None:
        """A follower is away until its leader has deleted what it would need next."""
        spot = self._spot()
        follower = self._follower_of(spot)
        if spot is None or follower is None or not follower.is_up or follower.end:
            return
        self._struck("absence", f"{follower.name} {spot}")
        is_dead = self._random.random() < 0.5
        if is_dead:
            await self._die(follower, power_lost=False)
        else:
            self.world.network.isolate(follower.name)
        await trio.sleep(self.world.plan.session_seconds + self._random.uniform(1.0, 3.0))
        await self.delete_records_of(spot)
        await self._wait(0.1, 3.0)
        if is_dead:
            await self._bring_back([follower])
        else:
            self.world.network.heal(source=follower.name)
            self.world.network.heal(target=follower.name)

    async def delete_records_of(self, spot: Spot) -> None:
        known = self.world.ledger.book(spot).stands
        if known:
            await self.world.operator.delete_records(spot, max(known) + 1)
