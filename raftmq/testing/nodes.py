"""The brokers of a test cluster in one event loop: start, stop, kill, and wait until all are ready.

Owns their tasks, their ports and their directory. A node that fails ends all of them: its error is
the test's.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import trio

from raftmq.broker.broker import NodeEnvironment, open_broker
from raftmq.broker.groups.phases import CoordinatorSettings, GroupSettings
from raftmq.broker.node_config_keys import BROKERS
from raftmq.broker.settings import CLIENTS, BrokerSettings, ListenerSettings
from raftmq.errors import InvalidRequest, RequestTimedOut, UnknownTopicOrPartition
from raftmq.local.plan import HOST
from raftmq.local.ports import keep_any_ports
from raftmq.metadata.commands import NO_BROKER, PartitionId
from raftmq.metadata.raft.engine.timing import Timing
from raftmq.metadata.raft.gc_control import COLLECTOR
from raftmq.model import Address
from raftmq.rpc.network import TcpNetwork
from raftmq.testing.unsynced import UnsyncedFiles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from raftmq.broker.broker import Broker
    from raftmq.metadata.image import MetadataImage


READY_SECONDS_MAX = 30.0  # a second on an idle machine; many tests at once are slower
# Seconds: shorter than in production, as all nodes share one loop and elections wait for no disk.
TIMING = Timing(retry_seconds=(0.02, 0.1))
# Milliseconds in place of seconds: tests have few members, which join at once.
GROUPS = CoordinatorSettings(GroupSettings(initial_rebalance_delay_ms=50))
_PORTS_PER_NODE = 3  # for voters, clients, brokers


class NodeRun:
    """One start of a node, until it has ended.

    Attributes:
        broker: once it listens.
        leaving: set to stop it in order.
    """

    def __init__(self) -> None:
        self.broker: Broker | None = None
        self.opened, self.leaving, self.ended = trio.Event(), trio.Event(), trio.Event()
        self._scope = trio.CancelScope()

    async def live(self, settings: BrokerSettings) -> None:
        host = NodeEnvironment(TcpNetwork(), files=UnsyncedFiles(), timing=TIMING)
        try:
            with self._scope:
                async with open_broker(settings, host) as self.broker:
                    self.opened.set()
                    # Until `leave`; a kill cancels the scope instead.
                    await self.leaving.wait()
                    await self.broker.stop()
        finally:
            self.ended.set()

    async def leave(self) -> None:
        """Stop in order; a start that waits for the rest of a quorum is cancelled."""
        self.leaving.set()
        # It has not opened: there is nothing to stop in order, and without a quorum it never opens.
        if self.broker is None:
            self._scope.cancel()
        await self.ended.wait()

    async def die(self) -> None:
        """End at once, as a crash: no leadership is handed over, nothing is flushed or recorded."""
        self._scope.cancel()
        await self.ended.wait()


class Nodes:
    """Attributes:
    running: by node id.
    """

    def __init__(self, settings: Iterable[BrokerSettings], nursery: trio.Nursery) -> None:
        self._settings = {one.node_id: one for one in settings}
        self._nursery = nursery
        self.running: dict[int, NodeRun] = {}

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(self._settings)

    @property
    def addresses(self) -> tuple[Address, ...]:
        """For clients."""
        return tuple(one.listeners[0].advertised for one in self._settings.values())

    def check_majority(self, starting: int | None = None) -> None:
        """Raises InvalidRequest if the nodes that run, and the one that starts, are too few."""
        count, needed = len({*self.running, starting} - {None}), len(self._settings) // 2 + 1
        if count < needed:
            raise InvalidRequest(
                f"no node would become ready: {count} of {len(self._settings)} nodes would run,"
                f" {needed} are needed; begin with start_node(..., wait=False)"
            )

    def begin(self, node_id: int) -> None:
        self._check_known(node_id)
        if node_id in self.running:
            raise InvalidRequest(f"node {node_id} runs already")
        run = self.running[node_id] = NodeRun()
        self._nursery.start_soon(run.live, self._settings[node_id])

    async def stop(self, node_id: int) -> None:
        run = self._run_of(node_id)
        await run.leave()
        self._remove(node_id, run)

    async def kill(self, node_id: int) -> None:
        run = self._run_of(node_id)
        await run.die()
        self._remove(node_id, run)

    def _remove(self, node_id: int, run: NodeRun) -> None:
        if self.running.get(node_id) is run:  # else another thread has started the node again
            del self.running[node_id]

    def _run_of(self, node_id: int) -> NodeRun:
        self._check_known(node_id)
        if node_id not in self.running:
            raise InvalidRequest(f"node {node_id} does not run, {sorted(self.running)} do")
        return self.running[node_id]

    def _check_known(self, node_id: int) -> None:
        if node_id not in self._settings:
            raise InvalidRequest(f"node {node_id}: there is none, only {list(self._settings)}")

    async def wait_ready(self) -> None:
        """Until each node that runs knows that all nodes that run are active.

        Raises:
            InvalidRequest: too few run.
            RequestTimedOut: that has taken too long.
        """
        self.check_majority()  # without one the wait would always time out
        with trio.move_on_after(READY_SECONDS_MAX) as scope:
            for run in list(self.running.values()):
                await run.opened.wait()
                await self._wait_all_known(run)
        if scope.cancelled_caught:
            raise RequestTimedOut(
                f"nodes {sorted(self.running)} of {list(self._settings)} run, and are not ready"
                f" after {READY_SECONDS_MAX:g} s; the log says what they wait for"
            )

    async def _wait_all_known(self, run: NodeRun) -> None:
        assert run.broker is not None, "opened"
        quorum = run.broker.quorum
        image = quorum.image
        while not all(_is_in_service(image, *each) for each in self.running.items()):
            # Until the next change of the metadata; `wait_ready` bounds the time.
            image = await quorum.wait_changed(image.version)

    def leader_of(self, topic: str, partition: int) -> int | None:
        """As the running node with the newest metadata knows it."""
        images = [run.broker.quorum.image for run in self.running.values() if run.broker]
        if not images:
            raise InvalidRequest("no node runs")
        # A node that was just restarted, or is cut off, knows an older state.
        image = max(images, key=lambda image: image.version)
        topic_id = image.topic_ids.get(topic)
        state = image.partitions.get(PartitionId(topic_id, partition)) if topic_id else None
        if state is None:
            raise UnknownTopicOrPartition(f"{topic}-{partition}: there is none")
        return None if state.leader == NO_BROKER else state.leader


def _is_in_service(image: MetadataImage, node_id: int, run: NodeRun) -> bool:
    """Whether the metadata has this very run of the node as active, not the run before it."""
    known = image.brokers.get(node_id)
    epoch = run.broker.lifetime.broker_epoch if run.broker else None
    return known is not None and known.broker_epoch == epoch and image.is_active(node_id)


@asynccontextmanager
async def open_nodes(count: int) -> AsyncIterator[Nodes]:
    """All of them running and ready; at the end they are killed and their files removed."""
    with (
        _temporary_directory() as directory,
        keep_any_ports(count * _PORTS_PER_NODE) as ports,
        COLLECTOR.left_alone(),
    ):
        async with trio.open_nursery() as nursery:
            nodes = Nodes(_settings(directory, count, ports), nursery)
            for node_id in nodes.node_ids:
                nodes.begin(node_id)
            # Until all are active; raises after READY_SECONDS_MAX.
            await nodes.wait_ready()
            yield nodes
            nursery.cancel_scope.cancel()


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    """tempfile's own also cleans up at the exit of the process: too early, and twice."""
    directory = Path(mkdtemp(prefix="raftmq-testing-"))
    try:
        yield directory
    finally:
        rmtree(directory)


def _settings(directory: Path, count: int, ports: list[int]) -> list[BrokerSettings]:
    addresses = [Address(HOST, port) for port in ports]
    voting, for_clients, for_brokers = (addresses[at::_PORTS_PER_NODE] for at in range(3))
    voters = dict(enumerate(voting, start=1))
    return [
        BrokerSettings(
            directory / f"node-{node_id}",
            "testing",
            node_id,
            voters,
            (
                ListenerSettings(CLIENTS, clients, clients),
                ListenerSettings(BROKERS, brokers, brokers),
            ),
            groups=GROUPS,
        )
        for node_id, clients, brokers in zip(voters, for_clients, for_brokers, strict=True)
    ]
