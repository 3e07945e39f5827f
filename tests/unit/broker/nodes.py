"""Nodes of a small cluster: office, link, registration and the requests between them.

Everything is real but the borders: the quorum and the network are simulated, the disk is in memory.
A node is killed and started again at will; its disk stays. Time is virtual: tests take
`autojump_clock`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import trio

from raftmq.broker.broker_clock import BrokerClock
from raftmq.broker.controller_leadership import ControllerLeadership, address_of
from raftmq.broker.controller_link import ControllerLink
from raftmq.broker.lifetime import BrokerEpoch, BrokerProfile, Lifetime, LifetimeEnvironment
from raftmq.broker.meta import MetaFile, open_meta
from raftmq.broker.requests.proposals import ControllerRequests
from raftmq.metadata.clocks import DIFFERENCE_MS_MAX
from raftmq.metadata.commands import Endpoint
from raftmq.model import Address
from raftmq.rpc.context import Listener, ServerIdentity
from raftmq.rpc.peers import Peers
from raftmq.rpc.server import RpcServer
from raftmq.rpc.trio_channel import TrioConnector
from raftmq.wire.messages.hello import Hello
from tests.simulation.deterministic import run_inline
from tests.simulation.disk import SimulatedFiles
from tests.simulation.network import SimulatedNetwork
from tests.simulation.network_pipe import Latency
from tests.simulation.quorum_fake import FakeCluster
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from raftmq.metadata.image import BrokerState, MetadataImage
    from raftmq.rpc.context import RequestContext
    from raftmq.wire.bodies import Request
    from tests.simulation.quorum_fake import FakeQuorum

CLUSTER = "cluster-a"
BROKERS = Listener("brokers", is_for_brokers=True)
DIRECTORY = Path("/data")
PORT = 9293
PROMPT = Latency(0.001, 0.001, 0.0, 0.0)


def allow(_context: RequestContext, _body: Request) -> None:
    """Whoever asks may."""


class World:
    """Node ids are from 1 on; node 1 leads the quorum at first. Nothing runs yet.

    Attributes:
        clock_difference_ms_max: in the settings of nodes that are started.
    """

    clock_difference_ms_max = DIFFERENCE_MS_MAX

    def __init__(self, nursery: trio.Nursery, node_count: int = 1) -> None:
        self.nursery = nursery
        self.cluster = FakeCluster(node_count)
        self.network = SimulatedNetwork(Random(0), latency=PROMPT)
        self.nodes = {number: Node(self, number) for number in self.cluster.nodes}

    @property
    def image(self) -> MetadataImage:
        """What is committed."""
        return self.cluster.leader.image

    async def start(
        self, *node_ids: int, with_lifetime: bool = True, with_office: bool = True
    ) -> None:
        """These, or all of them."""
        for node_id in node_ids or self.nodes:
            node = self.nodes[node_id]
            await node.start(with_lifetime=with_lifetime, with_office=with_office)

    async def all_in_service(self) -> None:
        await eventually(lambda: all(map(self.image.is_active, self.nodes)))


@asynccontextmanager
async def open_world(node_count: int = 1) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        yield World(nursery, node_count)
        nursery.cancel_scope.cancel()


class Node:
    """Attributes:
    files: its disk, whatever process runs.
    slow_flush_seconds, damaged: what its next process says of its logs.
    clock_ahead_ms: what its wall clock is ahead of the true one.
    epochs: all that its present process was told.
    """

    quorum: FakeQuorum
    office: ControllerLeadership
    link: ControllerLink
    lifetime: Lifetime
    clock: BrokerClock
    file: MetaFile
    peers: Peers
    proposals: ControllerRequests

    def __init__(self, world: World, node_id: int) -> None:
        self._world, self.node_id, self.host = world, node_id, f"n{node_id}"
        self.quorum = world.cluster.nodes[node_id]
        self.files = SimulatedFiles(Random(node_id))
        self.files.make_directory(DIRECTORY)
        self.slow_flush_seconds = 0.0
        self.damaged: list[tuple[bytes, int]] = []
        self.epochs: list[int] = []
        self.run_sync = run_inline
        self.clock_ahead_ms = 0
        self._starts = 0
        self._scope = trio.CancelScope()

    @property
    def registered(self) -> BrokerState | None:
        """What the metadata says of it."""
        return self._world.image.brokers.get(self.node_id)

    @property
    def is_active(self) -> bool:
        return self._world.image.is_active(self.node_id)

    def now_ms(self) -> int:
        return NOW_MS + int(trio.current_time() * 1000) + self.clock_ahead_ms

    async def start(self, *, with_lifetime: bool = True, with_office: bool = True) -> None:
        self._starts += 1
        self.epochs = []
        await self._world.nursery.start(self._run, with_lifetime, with_office)

    def kill(self, *, power_lost: bool = False) -> None:
        """Unless the power is lost its kernel lives on."""
        self._scope.cancel()
        self._world.network.crash(self.host, power_lost=power_lost)

    async def _run(
        self, with_lifetime: bool, with_office: bool, task_status: trio.TaskStatus[None]
    ) -> None:
        network = self._world.network.node(self.host)
        random = Random(100 * self._starts + self.node_id)
        hello = Hello(CLUSTER, self.node_id)
        connector = TrioConnector(network, lambda: hello)
        self.peers = Peers(connector, random=random)
        self.office = ControllerLeadership(
            self.node_id,
            self.quorum,
            network,
            clock_difference_ms_max=self._world.clock_difference_ms_max,
        )
        self.link = ControllerLink(
            self.node_id, self.quorum, self.peers, beat_here=self.office.on_heartbeat
        )
        self.proposals = ControllerRequests(self.quorum, self.office)
        server = RpcServer(
            ServerIdentity(CLUSTER, self.node_id),
            self.proposals.handlers(),
            authorize=allow,
            run_sync=run_inline,
        )

        async def handle(stream: trio.abc.Stream) -> None:
            await server.serve_stream(stream, BROKERS)

        with trio.CancelScope() as self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(network.serve, handle, Address(self.host, PORT))
                await nursery.start(self.peers.run)
                if with_office:
                    nursery.start_soon(self.office.run)
                nursery.start_soon(self._follow_addresses)
                if with_lifetime:
                    await self.open_lifetime()
                    nursery.start_soon(self.lifetime.run)
                task_status.started()

    async def open_lifetime(self, listener: str = "brokers") -> None:
        """What the next process begins with; `start` runs it."""

        async def run_sync(function: Callable[[], object], /) -> object:
            return await self.run_sync(function)

        owner, random = (CLUSTER, self.node_id), Random(100 * self._starts + self.node_id)
        self.file = await open_meta(self.files, DIRECTORY, owner, random=random, run_sync=run_sync)
        endpoint = Endpoint(listener, self.host, PORT)
        profile = BrokerProfile(self.node_id, (endpoint,), self.files.boot_id(), logs_max=1000)
        self.clock = BrokerClock(self.node_id, self.now_ms)
        around = LifetimeEnvironment(
            lambda: self.damaged, lambda: self.slow_flush_seconds, self.epochs.append, self.clock
        )
        self.lifetime = Lifetime(
            profile, self.file, self.quorum, self.link, around, epoch=BrokerEpoch(), random=random
        )

    async def _follow_addresses(self) -> None:
        """The others are always known, so that a test can begin without registrations."""
        known = {number: Address(f"n{number}", PORT) for number in self._world.nodes}
        image = self.quorum.image
        while True:
            told = {
                broker_id: address
                for broker_id, broker in image.brokers.items()
                if (address := address_of(broker, "brokers"))
            }
            self.peers.set_addresses({**known, **told})
            image = await self.quorum.wait_changed(image.version)


async def eventually(check: Callable[[], object], *, within: float = 10.0) -> None:
    """On the clock that jumps (autojump_clock)."""
    with trio.fail_after(within):
        while not check():  # noqa: ASYNC110  # what is looked at has no event
            await trio.sleep(0.01)
