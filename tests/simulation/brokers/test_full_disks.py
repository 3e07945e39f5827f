"""One follower's disk is full, for as long as the world has faults: no other broker is to suffer.

A full disk can be read, so the log that failed is soon open again, and fails at the next append.
What producers must not notice is asked here, where `full_disk` among the faults of other worlds is
over after a few writes.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import trio

from tests.simulation.brokers.clients import Program, send
from tests.simulation.brokers.ledger import ACKS_ALL, Outcome
from tests.simulation.brokers.plan import TopicPlan
from tests.simulation.brokers.world import World
from tests.simulation.disk_faults import Fault
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.client.routing.cluster import Cluster
    from raftmq.metadata.image import PartitionState
    from tests.simulation.brokers.hosts import BrokerHost
    from tests.simulation.brokers.ledger import Spot

FULL_SECONDS = 30.0
GAP_SECONDS_MAX = 2.0  # between acknowledgements; a replica may lag for five times as long
EPOCHS_MAX = 10  # of one partition: one for each failure at most, after pauses that grow
TOPIC = TopicPlan(
    partition_count=2,
    replication_factor=3,
    configs={
        "durability": "fsync",
        "min.insync.replicas": "2",
        "segment.bytes": "1000000",
        "index.interval.bytes": "4096",
        "record.format": "columns",
    },
)
TEETH = pytest.mark.teeth  # too long for `make check`


class Full(Fault):
    """One append in `room_every` finds room, or none does; what there is can be read."""

    def __init__(self, room_every: int) -> None:
        super().__init__("write", "Partition-*/*.log", nth=0, error=errno.ENOSPC)
        self._room_every, self._count = room_every, 0

    def strikes(self, operation: str, path: Path) -> bool:
        if operation != self._operation or not path.match(self._pattern):
            return False
        self._count += 1
        return not self._room_every or self._count % self._room_every != 0


class Lasting(list[Fault]):
    """Faults that strike until they are cleared."""

    def remove(self, fault: Fault, /) -> None:
        pass


class Loader(Program):
    """Sends one record after the other to each partition, and notes when each was acknowledged."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "p0")
        self._acknowledged_at: defaultdict[Spot, list[float]] = defaultdict(list)

    async def run(self) -> None:
        async with self._cluster() as cluster, trio.open_nursery() as nursery:
            for spot in self.world.spots():
                nursery.start_soon(self._load, cluster, spot)

    async def _load(self, cluster: Cluster, spot: Spot) -> None:
        number = 0
        while not self.world.is_repaired:
            values = (f"p0/{spot.partition}/{number}".encode(),)
            sent = await send(self.world, cluster, spot, values, acks=ACKS_ALL, seconds=1.0)
            if sent.outcome is Outcome.OK:
                self._acknowledged_at[spot].append(trio.current_time())
            number += 1
            await trio.sleep(0.1)

    def longest_gap(self, spot: Spot, begin: float, end: float) -> float:
        """Seconds between two acknowledgements."""
        times = [at for at in self._acknowledged_at[spot] if begin < at < end]
        return max(later - earlier for earlier, later in pairwise([begin, *times, end]))


class FullDisks:
    """A broker that only follows has no space left; nothing else is wrong."""

    def __init__(self, seed: int, *, room_every: int) -> None:
        self._room_every = room_every
        world = self.world = World(seed, scenario=self._inject)
        world.tasks = []
        world.plan = world.plan._replace(topics=(TOPIC,), lag_seconds=10.0, ends_dark=False)

    async def _inject(self) -> None:
        await self.world.wait_whole("before the disk is full")
        loader = Loader(self.world)
        async with trio.open_nursery() as clients:
            clients.start_soon(loader.run)
            await trio.sleep(2.0)
            await self._fill_up(loader)
            self.world.repair()
            began_at = trio.current_time()
            await self.world.wait_whole("after the repairs", is_busy=True)
            self.world.heal_seconds = trio.current_time() - began_at
            await self.world.probe()
            self.world.is_closing = True

    async def _fill_up(self, loader: Loader) -> None:
        before, begin = self._states(), trio.current_time()
        victim = self._follower(before)
        self.world.trace(f"the disk of {victim.name} is full")
        victim.disk._faults = Lasting([Full(self._room_every)])
        await trio.sleep(FULL_SECONDS)
        for spot, after in self._states().items():
            gap = loader.longest_gap(spot, begin, trio.current_time())
            epochs = after.leader_epoch - before[spot].leader_epoch
            told = f"{gap:.3f} s without an acknowledgement, {epochs} leader epochs"
            self.world.trace(f"{spot}: {told}")
            demand(gap <= GAP_SECONDS_MAX, f"{spot}: no acknowledgement for {gap:.1f} s")
            demand(epochs <= EPOCHS_MAX, f"{spot}: {epochs} leader epochs")
            demand(after.leader == before[spot].leader, f"{spot}: {before[spot]} became {after}")
        demand(victim.disk.has_failed, "no append has failed")

    def _states(self) -> dict[Spot, PartitionState]:
        return {spot: state for spot in self.world.spots() if (state := self.world.state_of(spot))}

    def _follower(self, states: dict[Spot, PartitionState]) -> BrokerHost:
        leaders = {state.leader for state in states.values()}
        followers = {number for state in states.values() for number in state.replicas} - leaders
        return next(host for host in self.world.hosts if host.node_id in followers)


@pytest.mark.parametrize(
    ("room_every", "seed"),
    [(0, 1), pytest.param(0, 2, marks=TEETH), pytest.param(2, 3, marks=TEETH), (5, 4)],
)
def test_a_follower_whose_disk_is_full_holds_up_nobody(seed: int, room_every: int) -> None:
    """Producers that wait for all replicas go on with the others; it comes back when it can."""
    FullDisks(seed, room_every=room_every).world.play()
