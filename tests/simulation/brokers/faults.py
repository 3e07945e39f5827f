"""Faults of whole brokers by role: leader, controller, lone follower; disks, topics, operators.

Faults of machines and links are those of each world of whole nodes.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import trio

from tests.simulation.brokers.plan import draw_topic
from tests.simulation.fault_table import by_name
from tests.simulation.machine_faults import die
from tests.simulation.nemesis import CALM_SECONDS_MAX, until

if TYPE_CHECKING:
    from tests.simulation.brokers.hosts import BrokerHost
    from tests.simulation.brokers.injector import BrokerInjector
    from tests.simulation.brokers.ledger import Spot
    from tests.simulation.brokers.world import World
    from tests.simulation.machine_faults import CrashFaults

TOPICS_MAX = 5  # of a world, so that clients meet at them
RECOVERY_SECONDS_MAX = 20.0  # for an ISR to be whole again before a disk may be lost
OPERATIONS = ("write", "write", "sync", "sync", "truncate", "create", "sync_directory", "rename")
PATTERNS = ("*.log", "*.log", "*", "*.json", "*epoch*", "*.index")


class RoleFaults:
    """A broker is cut off, paused or killed for what it is at the moment."""

    def __init__(self, world: World, injector: BrokerInjector, crashes: CrashFaults) -> None:
        self._world, self._network, self._crashes = world, world.network, crashes
        self._injector, self._random = injector, injector.random
        self.faults = by_name(
            self.leader_off_controller, self.leader_off_follower, self.leader_off_clients,
            self.leader_off_brokers, self.controller_off, self.kill_leader, self.pause_leader,
        )  # fmt: skip

    async def part(self, kind: str, first: BrokerHost | None, others: list[str]) -> None:
        """Nothing, or nothing in one direction, gets from one to the others."""
        others = [name for name in others if first is None or name != first.name]
        if first is None or not others:
            return
        way = self._random.choice(("both", "both", "to", "from"))
        self._injector.struck(kind, f"{first.name} {way} {others}")
        for name in others:
            if way in ("both", "to"):
                self._network.cut(first.name, name)
            if way in ("both", "from"):
                self._network.cut(name, first.name)
        await self._injector.wait(0.5, 6.0)
        for name in others:
            self._network.heal_both(first.name, name)

    async def leader_off_controller(self) -> None:
        controller = self._injector.controller()
        names = [controller.name] if controller else []
        await self.part("leader_off_controller", self._injector.leader(), names)

    async def leader_off_follower(self) -> None:
        spot = self._injector.spot()
        follower = self._injector.follower_of(spot)
        names = [follower.name] if follower else []
        await self.part("leader_off_follower", self._injector.leader_of(spot), names)

    async def leader_off_clients(self) -> None:
        others = self._world.client_names
        await self.part("leader_off_clients", self._injector.leader(), others)

    async def leader_off_brokers(self) -> None:
        """It goes on to talk with its clients, and knows of nothing."""
        others = [host.name for host in self._world.hosts]
        await self.part("leader_off_brokers", self._injector.leader(), others)

    async def controller_off(self) -> None:
        others = [host.name for host in self._world.hosts]
        await self.part("controller_off", self._injector.controller(), others)

    async def kill_leader(self) -> None:
        leader = self._injector.leader()
        if leader is not None:
            await self._crashes.crash("kill_leader", [leader], power_lost=False)

    async def pause_leader(self) -> None:
        """Long enough to be replaced; it wakes up and believes that it leads."""
        await self.pause_past_session("pause_leader", self._injector.leader())

    async def pause_past_session(self, kind: str, host: BrokerHost | None) -> None:
        if host is None or not host.is_up or host.is_paused or host.end:
            return
        self._injector.struck(kind, host.name)
        host.pause()
        run = host.runs
        await trio.sleep(self._world.plan.session_seconds + self._random.uniform(0.5, 3.0))
        if host.runs == run and host.is_up:
            host.resume()


class BrokerCrashFaults:
    """Losses of power that page caches can stand, and brokers that are stopped in order."""

    def __init__(self, world: World, injector: BrokerInjector, crashes: CrashFaults) -> None:
        self._world, self._crashes = world, crashes
        self._injector, self._random = injector, injector.random
        self.faults = by_name(self.power, self.restart, self.restart_all)

    async def power(self) -> None:
        """Where page caches are trusted, only one is lost, and only if the others have it all."""
        if not self._world.plan.trusts_page_cache:
            await self._crashes.power()
        elif await until(lambda: self._world.is_whole, seconds=3.0):
            victim = self._random.choice(self._world.hosts)
            await self._crashes.crash("power", [victim], power_lost=True)
            await until(lambda: self._world.is_whole, seconds=30.0)

    async def restart(self) -> None:
        host = self._injector.victim()
        if not host.is_up or host.is_paused or host.broker is None:
            return
        self._injector.struck("restart", host.name)
        await host.leave()
        await self._crashes.bring_back([host])

    async def restart_all(self) -> None:
        """One after the other, as an upgrade does."""
        self._injector.struck("restart_all")
        for host in list(self._world.hosts):
            if host.is_up and host.broker is not None and not host.is_paused:
                await host.leave()
                await self._crashes.bring_back([host])
                await trio.sleep(self._random.choice((0.1, 1.0, 3.0)))


class BrokerDiskFaults:
    """Disks that stand still, fail, are full or lost."""

    def __init__(self, world: World, injector: BrokerInjector, crashes: CrashFaults) -> None:
        self._world, self._crashes = world, crashes
        self._injector, self._random = injector, injector.random
        self.faults = by_name(self.frozen_disk, self.failing_disk, self.full_disk, self.lost_disk)

    async def frozen_disk(self) -> None:
        host = self._injector.victim()
        self._injector.struck("frozen_disk", host.name)
        host.freeze()
        await self._injector.wait(1.0, 8.0)
        host.thaw()

    async def failing_disk(self) -> None:
        host = self._injector.victim()
        operation, pattern = self._random.choice(OPERATIONS), self._random.choice(PATTERNS)
        self._injector.struck("failing_disk", f"{host.name} {operation} {pattern}")
        host.disk.fail(operation, pattern, nth=self._random.randint(1, 4))
        await self._replace_failed(host)

    async def full_disk(self) -> None:
        host = self._injector.victim()
        self._injector.struck("full_disk", host.name)
        for nth in range(1, self._random.randint(2, 8)):
            host.disk.fail("write", "*", nth=nth, error=errno.ENOSPC)
        await self._replace_failed(host)

    async def lost_disk(self) -> None:
        """One at a time: the next one only when all that was promised stands everywhere again."""
        if not await until(self.may_lose_a_disk, seconds=CALM_SECONDS_MAX):
            return
        victim = self._injector.victim()
        self._injector.struck("lost_disk", victim.name)
        await self.lose_disk(victim)
        await self._crashes.bring_back([victim])
        await until(self.may_lose_a_disk, seconds=RECOVERY_SECONDS_MAX)

    async def lose_disk(self, victim: BrokerHost) -> None:
        """It stays down, unless another fault has started it."""
        await die(victim, power_lost=True)
        victim.lose_disk()

    def may_lose_a_disk(self) -> bool:
        """Every partition is in sync everywhere, and every voter holds what it promised."""
        states = map(self._world.state_of, self._world.spots())
        return all(map(self.serves, self._world.hosts)) and all(
            state is not None and len(state.isr) == len(state.replicas) for state in states
        )

    def serves(self, host: BrokerHost) -> bool:
        """Under its present registration, so that what is known is no older than that."""
        known = self._world.newest_image().brokers.get(host.node_id)
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
        await self._injector.wait(1.0, 5.0)
        if self._random.random() < 0.7:
            return
        if host.is_up and not host.end and host.has_failed_logs:
            host.crash(power_lost=False)
            await self._crashes.bring_back([host])


class TopicFaults:
    """What operators do to topics, while brokers are away."""

    def __init__(self, world: World, injector: BrokerInjector, crashes: CrashFaults) -> None:
        self._world, self._network, self._crashes = world, world.network, crashes
        self._injector, self._random = injector, injector.random
        self.faults = by_name(self.churn, self.recreate, self.delete_records, self.absence)

    async def churn(self) -> None:
        operator, topics = self._world.operator, self._world.living_topics()
        self._injector.struck("churn")
        if len(topics) > 1 and self._random.random() < 0.5:
            await operator.delete_topic(self._random.choice(topics))
        elif len(self._world.topics) < TOPICS_MAX:
            durability = "" if self._world.plan.trusts_page_cache else "fsync"
            plan = draw_topic(self._random, self._world.plan.broker_count, durability=durability)
            await operator.make_topic(plan._replace(partition_count=1))

    async def recreate(self) -> None:
        """A topic is recreated under the same name; a broker may miss both changes."""
        topics = [name for name in self._world.living_topics() if name not in self._world.reborn]
        if not topics:
            return
        name, absent = self._random.choice(topics), self._injector.victim()
        self._injector.struck("recreate", name)
        misses_it = self._random.random() < 0.5 and absent.is_up and not absent.end
        if misses_it:
            await die(absent, power_lost=self._random.random() < 0.5)
        await self._world.operator.recreate_topic(name)
        await self._injector.wait(0.1, 2.0)
        if misses_it:
            await self._crashes.bring_back([absent])

    async def delete_records(self) -> None:
        spot = self._injector.spot()
        if spot is None:
            return
        known = sorted(self._world.ledger.of(spot).stands)
        if known:
            self._injector.struck("delete_records", spot)
            share = self._random.random()
            before = known[-1] + 1 if share < 0.4 else self._random.choice(known)
            await self._world.operator.delete_records(spot, before)

    async def absence(self) -> None:
        """A follower is away until its leader has deleted what it would need next."""
        spot = self._injector.spot()
        follower = self._injector.follower_of(spot)
        if spot is None or follower is None or not follower.is_up or follower.end:
            return
        self._injector.struck("absence", f"{follower.name} {spot}")
        is_dead = self._random.random() < 0.5
        if is_dead:
            await die(follower, power_lost=False)
        else:
            self._network.isolate(follower.name)
        await trio.sleep(self._world.plan.session_seconds + self._random.uniform(1.0, 3.0))
        await self.delete_records_of(spot)
        await self._injector.wait(0.1, 3.0)
        if is_dead:
            await self._crashes.bring_back([follower])
        else:
            self._network.rejoin(follower.name)

    async def delete_records_of(self, spot: Spot) -> None:
        known = self._world.ledger.of(spot).stands
        if known:
            await self._world.operator.delete_records(spot, max(known) + 1)
