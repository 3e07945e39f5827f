"""Faults that aim at transactions: at who decides, who holds what is open, and index files.

A transaction is open from its first batch until its marker: faults of this family wait for a moment
in which one is, and then strike its coordinator, the leader of one of its partitions, or both. A
broker whose metadata stand still knows of no decision, and leads on. Index files rot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.metadata.image import slot_of
from raftmq.metadata.transactions import outcome_of, transaction_id_of
from raftmq.model import TransactionOutcome
from tests.simulation.brokers.examination import replicas_of
from tests.simulation.brokers.hosts import DIRECTORY
from tests.simulation.fault_table import by_name
from tests.simulation.machine_faults import CrashFaults, die
from tests.simulation.nemesis import until
from tests.simulation.network_pipe import Latency

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.brokers.hosts import BrokerHost
    from tests.simulation.brokers.injector import BrokerInjector
    from tests.simulation.transacting.world import TransactionWorld

CAST_SECONDS_MAX = 4.0  # for something to be open where it is wanted
LATE = Latency(tail_probability=0.5, tail_mean=0.5)  # of what the quorum has decided
PATTERNS = (".aborted", ".producers")


class TransactionFaults:
    def __init__(self, world: TransactionWorld, injector: BrokerInjector) -> None:
        self._world, self._network = world, world.network
        self._injector, self._random = injector, injector.random
        self._crashes = CrashFaults(world, injector)
        self.faults = by_name(
            self.kill_decider, self.decider_off_brokers, self.pause_decider, self.kill_open,
            self.kill_both, self.power_of_open, self.kill_decided, self.late_metadata,
            self.still_metadata, self.rot, self.wrong_clock, self.abort_version,
        )  # fmt: skip

    # Who decides

    async def kill_decider(self) -> None:
        decider = await self._decider()
        if decider is not None:
            await self._crashes.crash("kill_decider", [decider], power_lost=False)

    async def decider_off_brokers(self) -> None:
        """It goes on to talk with programs, and gets nothing into the quorum."""
        decider = await self._decider()
        if decider is None:
            return
        self._injector.struck("decider_off_brokers", decider.name)
        others = [host.name for host in self._world.hosts if host is not decider]
        for name in others:
            self._network.cut_both(decider.name, name)
        await self._injector.wait(0.5, 6.0)
        for name in others:
            self._network.heal_both(decider.name, name)

    async def pause_decider(self) -> None:
        """Long enough for another one to take over; it wakes up and believes to be the one."""
        await self._pause("pause_decider", await self._decider())

    # Who has something open

    async def kill_open(self) -> None:
        leader = await self._leader()
        if leader is not None:
            await self._crashes.crash("kill_open", [leader], power_lost=False)

    async def power_of_open(self) -> None:
        """All replicas of a partition with something open lose their power."""
        hosts: list[BrokerHost] = []

        def look() -> bool:
            for spot in self._world.spots():
                replicas = replicas_of(self._world, spot)
                if any(replica.open_transactions() for replica in replicas.values()):
                    hosts[:] = [host for host in self._world.hosts if host.name in replicas]
            return bool(hosts)

        if await until(look, seconds=CAST_SECONDS_MAX):
            await self._crashes.crash("power_of_open", hosts, power_lost=True)

    async def kill_both(self) -> None:
        leader, decider = await self._leader(), await self._decider()
        victims = list(dict.fromkeys(host for host in (leader, decider) if host is not None))
        await self._crashes.crash("kill_both", victims, power_lost=self._random.random() < 0.5)

    async def kill_decided(self) -> None:
        """A commit is decided, and a leader does not know it yet: it is the one that dies."""
        found: list[BrokerHost] = []

        def look() -> bool:
            found[:] = [host for host in self._world.hosts if self._is_behind(host)]
            return bool(found)

        if await self._quickly(look):
            victim = self._random.choice(found)
            power_lost = self._random.random() < 0.5
            await self._crashes.crash("kill_decided", [victim], power_lost=power_lost)

    def _is_behind(self, host: BrokerHost) -> bool:
        """It has something open that was committed."""
        image = self._world.newest_image()
        return any(
            outcome_of(image, one.producer_id, one.producer_epoch) is TransactionOutcome.COMMITTED
            for replica in self._led_by(host)
            for one in replica.open_transactions()
        )

    # Metadata that stand still

    async def late_metadata(self) -> None:
        """What the quorum decides reaches a leader late, now and then an answer sooner."""
        leader, controller = await self._leader(), self._injector.controller()
        if leader is None or controller is None or leader is controller:
            return
        self._injector.struck("late_metadata", f"{controller.name}>{leader.name}")
        self._network.slow(controller.name, leader.name, LATE)
        await self._injector.wait(2.0, 10.0)
        self._network.slow(controller.name, leader.name, self._world.plan.latency)

    async def still_metadata(self) -> None:
        """Nothing of the quorum reaches a leader for a while; it leads on, and followers fetch."""
        leader = await self._leader()
        if leader is None or leader.leads:
            return
        self._injector.struck("still_metadata", leader.name)
        voters = [host.name for host in self._world.voters if host is not leader]
        replicas = {
            name
            for spot in self._world.spots()
            for name in replicas_of(self._world, spot)
            if self._injector.leader_of(spot) is leader
        }
        cut = [name for name in voters if name not in replicas] or voters[:1]
        for name in cut:
            self._network.cut(name, leader.name)
        await self._injector.wait(0.5, 6.0)
        for name in cut:
            self._network.heal(name, leader.name)

    # What is written down

    async def rot(self) -> None:
        """Of an index or a snapshot, which is read after a restart, or when a reader asks."""
        host, ending = self._random.choice(self._world.hosts), self._random.choice(PATTERNS)
        if not host.is_up or host.end:
            return
        paths = [path for path in host.disk.paths(DIRECTORY) if path.name.endswith(ending)]
        sizes = {path: host.disk.size(path) for path in paths}
        paths = [path for path in paths if sizes[path]]
        if not paths:
            return
        path = self._random.choice(paths)
        self._injector.struck("rot", f"{host.name} {path}")
        if self._random.random() < 0.3:
            host.disk.cut(path, self._random.randrange(sizes[path]))
        else:
            host.disk.flip_bit(path, self._random.randrange(sizes[path]), self._random.randrange(8))
        if ending == ".producers" or self._random.random() < 0.5:
            await die(host, power_lost=False)
            await self._crashes.bring_back([host])

    async def wrong_clock(self) -> None:
        """Wall clocks decide nothing about transactions."""
        host = self._random.choice(self._world.hosts)
        self._injector.struck("wrong_clock", host.name)
        host.clock_ahead_ms = self._random.choice((-100_000, -3_000, 3_000, 100_000))
        await self._injector.wait(2.0, 10.0)
        host.clock_ahead_ms = 0

    # Who may end what others have open

    async def abort_version(self) -> None:
        """An operator aborts a version while its members write, or as it is committed."""

        def look() -> bool:
            rows = self._world.newest_image().transactions.values()
            return any(row.shared is not None and row.shared.block >= 0 for row in rows)

        if await self._until(look):
            self._injector.struck("abort_version", "")
            await trio.sleep(self._random.uniform(0, 0.1))
            await self._world.programs.abort_version()

    # What these are made of

    async def _decider(self) -> BrokerHost | None:
        """The coordinator of an id that has something open."""
        found: list[BrokerHost] = []

        def look() -> bool:
            image = self._world.newest_image()
            ids = [transaction_id_of(image, one) for one in sorted(self._open_producers())]
            deciders = {image.slots[slot_of(name)].broker_id for name in ids if name is not None}
            found[:] = [host for host in self._world.hosts if host.node_id in deciders]
            return bool(found)

        return self._random.choice(found) if await self._until(look) else None

    async def _leader(self) -> BrokerHost | None:
        """Of a partition that has something open."""
        found: list[BrokerHost] = []

        def look() -> bool:
            found[:] = [
                host
                for host in self._world.hosts
                if any(replica.open_transactions() for replica in self._led_by(host))
            ]
            return bool(found)

        return self._random.choice(found) if await self._until(look) else None

    async def _pause(self, kind: str, host: BrokerHost | None) -> None:
        if host is None or not host.is_up or host.is_paused or host.end:
            return
        self._injector.struck(kind, host.name)
        host.pause()
        run = host.runs
        await trio.sleep(self._world.plan.session_seconds + self._random.uniform(0.5, 3.0))
        if host.runs == run and host.is_up:
            host.resume()

    @staticmethod
    async def _until(look: Callable[[], bool]) -> bool:
        return await until(look, seconds=CAST_SECONDS_MAX)

    @staticmethod
    async def _quickly(look: Callable[[], bool]) -> bool:
        """What lasts for a few milliseconds only."""
        with trio.move_on_after(CAST_SECONDS_MAX):
            while not look():  # noqa: ASYNC110  # of many brokers
                await trio.sleep(0.002)
            return True
        return False

    def _open_producers(self) -> set[int]:
        return {
            one.producer_id
            for host in self._world.hosts
            for replica in self._led_by(host)
            for one in replica.open_transactions()
        }

    def _led_by(self, host: BrokerHost) -> list:
        if host.broker is None or host.end:
            return []
        return [replica for replica in host.broker.replicas.all() if replica.leader is not None]
