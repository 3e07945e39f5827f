"""Three real voters on simulated disks and a simulated network, for tests of one scenario.

Owns what is done to them from outside: start, crash, isolate, heal. Everything between the
quorum's interface and the disk is real. Time is that of MockClock; chance is seeded.
For tests of what one scenario should do; the sweep over seeds has a world of its own.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from raftmq.metadata.raft.engine.timing import QuorumLimits, Timing
from raftmq.metadata.raft.net.observer_service import ask_status
from raftmq.metadata.raft.observer import open_observer
from raftmq.metadata.raft.opening import QuorumSettings, open_quorum
from raftmq.model import Address
from tests.simulation.deterministic import run_inline
from tests.simulation.disk import SimulatedFiles
from tests.simulation.disk_faults import PowerCut
from tests.simulation.network import SimulatedNetwork
from tests.simulation.network_pipe import Latency

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from raftmq.metadata.raft.observer import ObserverQuorum
    from raftmq.metadata.raft.quorum import RaftQuorum
    from raftmq.metadata.raft.status import QuorumStatus

DIRECTORY = Path("/quorum")
PATIENCE_SECONDS = 60.0
STEADY = Latency(tail_probability=0.0)


class RaftCluster:
    """Attributes:
    nodes: the quorums of the running voters by node id.
    disks: by node id, of voters and observers; outlive their nodes.
    run_sync: what stands for worker threads; a test may put its own in front.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        seed: int = 0,
        limits: QuorumLimits | None = None,
        timing: Timing | None = None,
    ) -> None:
        self._nursery, self.seed = nursery, seed
        self.limits, self.timing = limits or QuorumLimits(), timing or Timing()
        self.network = SimulatedNetwork(Random(seed), latency=STEADY, silence_seconds_max=20.0)
        self.voters = {node_id: Address(name_of(node_id), 9000) for node_id in (1, 2, 3)}
        self.nodes: dict[int, RaftQuorum] = {}
        self.disks: dict[int, SimulatedFiles] = {}
        self.run_sync: Callable[[Callable[[], Any]], Awaitable[Any]] = run_inline
        self._isolated: set[int] = set()
        self._scopes: dict[int, trio.CancelScope] = {}
        self._starts = 0

    # Opening

    def open(self, node_id: int, /, **changes: Any) -> AbstractAsyncContextManager[RaftQuorum]:
        """A voter in the hands of the test; `changes` replace settings."""
        network = self.network.node(name_of(node_id))
        return open_quorum(self._settings(node_id, changes), network, **self._border(node_id))

    def observe(
        self, node_id: int = 9, /, **changes: Any
    ) -> AbstractAsyncContextManager[ObserverQuorum[Address]]:
        network = self.network.node(name_of(node_id))
        return open_observer(self._settings(node_id, changes), network, **self._border(node_id))

    def _settings(self, node_id: int, changes: dict[str, Any]) -> QuorumSettings[Address]:
        values = {"cluster_id": "c", "voters": self.voters, "node_id": node_id, **changes}
        return QuorumSettings(DIRECTORY, timing=self.timing, limits=self.limits, **values)

    def _border(self, node_id: int) -> dict[str, Any]:
        """The start counts, too: a node must not draw the same numbers after every restart."""
        self._starts += 1
        random = Random(f"{self.seed}/{node_id}/{self._starts}")
        return {"files": self.disk(node_id), "random": random, "run_sync": self.run_sync}

    def disk(self, node_id: int) -> SimulatedFiles:
        return self.disks.setdefault(node_id, SimulatedFiles(Random(f"{self.seed}/{node_id}")))

    # Voters that run by themselves

    async def start(self, *node_ids: int, **changes: Any) -> None:
        for node_id in node_ids:
            await self._nursery.start(self._run, node_id, changes)

    async def _run(
        self, node_id: int, changes: dict[str, Any], task_status: trio.TaskStatus[None]
    ) -> None:
        with trio.CancelScope() as self._scopes[node_id]:
            try:
                async with self.open(node_id, **changes) as self.nodes[node_id]:
                    task_status.started()
                    await trio.sleep_forever()
            except* PowerCut:
                pass  # what a dead process still tried

    def crash(self, node_id: int, *, power_lost: bool = False) -> RaftQuorum:
        """kill -9, or the cable. Restart it with `start`."""
        self._scopes.pop(node_id).cancel()
        self.network.crash(name_of(node_id), power_lost=power_lost)
        self.disks[node_id] = self.disk(node_id).after_crash(power_lost=power_lost, reorder=True)
        return self.nodes.pop(node_id)

    def isolate(self, node_id: int) -> None:
        """From all other nodes, observers included."""
        self._isolated.add(node_id)
        self.network.isolate(name_of(node_id))

    def heal(self) -> None:
        self._isolated.clear()
        self.network.heal()

    # Looking at them

    async def leader_id(self) -> int:
        """Of the leader of the voters that are connected to each other."""
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                for node_id in self.nodes.keys() - self._isolated:
                    if self.nodes[node_id].leadership.is_leader and self._is_followed(node_id):
                        return node_id
                await trio.sleep(0.01)

    def _is_followed(self, leader_id: int) -> bool:
        believers = [node.leadership.leader_id == leader_id for node in self.nodes.values()]
        return 2 * sum(believers) > len(self.voters)

    async def leader(self) -> RaftQuorum:
        return self.nodes[await self.leader_id()]

    async def follower_id(self) -> int:
        leader_id = await self.leader_id()
        return min(node_id for node_id in self.nodes if node_id != leader_id)

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                if condition():
                    return
                await trio.sleep(0.01)

    async def level(self) -> None:
        """Wait until all that run show what the leader shows now, or more."""
        version = (await self.leader()).image.version
        with trio.fail_after(PATIENCE_SECONDS):
            for node in list(self.nodes.values()):
                await node.wait_changed(version - 1)

    async def status(self, node_id: int) -> QuorumStatus:
        """As a visitor is told."""
        visitor = self.network.node("visitor")
        return await ask_status(await visitor.dial(self.voters[node_id]))


def name_of(node_id: int) -> str:
    return f"node-{node_id}"


@asynccontextmanager
async def open_cluster(*started: int, **options: Any) -> AsyncIterator[RaftCluster]:
    """With these voters running; an error of one of them is the test's."""
    async with trio.open_nursery() as nursery:
        cluster = RaftCluster(nursery, **options)
        await cluster.start(*started)
        yield cluster
        nursery.cancel_scope.cancel()
