"""The clients of a world of transactions: the programs of real runs, on a simulated network.

Owns what of a real run is another thing here: networks, clocks, when it stops.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import trio

from jepsen_like.workloads.bench import Bench, QueueSettings
from jepsen_like.workloads.final import read_everything
from jepsen_like.workloads.generator import COMMITTED, UNCOMMITTED
from jepsen_like.workloads.keys import Keys, key_of
from jepsen_like.workloads.pulse import run_pulses
from jepsen_like.workloads.readers import run_reader
from jepsen_like.workloads.transaction_bench import TransactionBench
from jepsen_like.workloads.transaction_owners import run_owners
from jepsen_like.workloads.version_drivers import NAME as SHARED_ID
from jepsen_like.workloads.version_drivers import run_drivers
from raftmq.client.client import Client
from raftmq.errors import RaftmqError
from tests.simulation.brokers.hosts import NAME, now_ms
from tests.simulation.client_network import ClientNetwork
from tests.simulation.transacting.helpers import Helper

if TYPE_CHECKING:
    from raftmq.client.network.network import AnyioNetwork
    from tests.simulation.transacting.world import TransactionWorld

FINAL_SECONDS = 30.0  # for a reader to get to the end of everything, when all is well


@dataclass(frozen=True, kw_only=True)
class WorldBench(Bench):
    """Of simulated machines, one for each name."""

    world: TransactionWorld

    def new_network(self, name: str) -> AnyioNetwork:
        self.world.machines.add(name)
        return ClientNetwork(self.world.network.node(name))

    def new_client(self, name: str, network: AnyioNetwork | None = None) -> Client:
        NAME.set(name)
        return Client(
            [host.address for host in self.world.hosts],
            client_id=name,
            connect_timeout_ms=3000,
            network=network or self.new_network(name),
            random=Random(self.random.getrandbits(64)),
            now_ms=now_ms,
        )


class Programs:
    """Made within the world: there is no clock before."""

    def __init__(self, world: TransactionWorld) -> None:
        self._world, plan = world, world.transactions
        chance = Random(f"{world.seed}/programs")
        self._keys = Keys(
            Random(chance.getrandbits(64)),
            matrix=("all",),
            active_max=sum(topic.partition_count for topic in world.plan.topics),
            topics_max=len(world.plan.topics),
            partitions=world.plan.topics[0].partition_count,
        )
        names = (self._keys.next_topic() for _ in world.plan.topics)
        self.topics = [name for name in names if name is not None]
        settings = QueueSettings(
            processes=plan.id_count,
            rate=plan.blocks_per_second,
            pulses_max=plan.pulse_count,
            pulse_seconds=0.2,
            padding_bytes=plan.padding_bytes,
            request_timeout_ms=plan.request_timeout_ms,
            delivery_timeout_ms=plan.delivery_timeout_ms,
            final_seconds=FINAL_SECONDS,
        )
        self._bench = WorldBench(
            bootstrap=(),
            recorder=world.history.recorder,
            random=chance,
            settings=settings,
            keys=self._keys,
            world=world,
        )
        source, target = (
            [key_of(topic, at) for at in range(world.plan.topics[0].partition_count)]
            for topic in self.topics
        )
        self._shared = TransactionBench(
            bench=self._bench, input_topic=self.topics[0], inputs=source, outputs=target
        )

    def on_made(self, topic: str) -> None:
        self._keys.on_made(topic)

    async def run(self, stop: trio.Event) -> None:
        """Until `stop` is set; then the blocks under way are ended."""
        plan = self._world.transactions
        async with trio.open_nursery() as nursery:
            if plan.pulse_count:
                nursery.start_soon(run_pulses, self._bench, stop)
            for number in range(plan.reader_count):
                nursery.start_soon(run_reader, self._bench, stop, f"reader-{number}")
            nursery.start_soon(self._read_all, stop)
            for place in range(plan.id_count):
                nursery.start_soon(run_owners, self._shared, place, stop)
            if count := plan.member_processes:
                nursery.start_soon(partial(run_drivers, self._shared, stop, process_count=count))

    async def help(self, stop: trio.Event) -> None:
        """Until `stop` is set."""
        async with trio.open_nursery() as nursery:
            for number in range(self._world.transactions.helper_count):
                helper = Helper(self._world, self._bench, number, self.input_topic)
                nursery.start_soon(helper.run, stop)

    async def abort_version(self) -> None:
        """By an operator, who does not know whether one is open."""
        async with self._bench.new_client("operator-of-versions") as client:
            with suppress(RaftmqError):
                await client.admin.abort_transaction(SHARED_ID)

    @property
    def input_topic(self) -> str:
        return self.topics[0]

    async def _read_all(self, stop: trio.Event) -> None:
        await run_reader(self._bench, stop, "reader-of-all", level=UNCOMMITTED)

    async def read_everything(self) -> None:
        for level in (COMMITTED, UNCOMMITTED):
            await read_everything(self._bench, f"final-{level}", level=level)
