"""One simulated machine of the quorum: its disk and its process, started, killed, paused, armed.

Owns a process from start to end: the real voter or observer on a simulated disk and network, the
ways to kill it, and which ends are allowed. A crash strikes between two steps, or in the midst of
an operation on the disk, as `arm` asks. A paused process stands still: its driver, its streams and
its disk.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from raftmq.errors import CorruptJournal, StorageError
from raftmq.metadata.raft.observer import open_observer
from raftmq.metadata.raft.opening import QuorumSettings, open_quorum
from tests.simulation.disk import SimulatedFiles
from tests.simulation.disk_faults import PowerCut
from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from raftmq.metadata.quorum import MetadataQuorum
    from raftmq.metadata.raft.engine.node import RaftNode
    from raftmq.metadata.raft.quorum import RaftQuorum
    from tests.simulation.disk_faults import Moment
    from tests.simulation.network import NodeNetwork
    from tests.simulation.raft.world import World

T = TypeVar("T")
DIRECTORY = Path("/quorum")
CLUSTER = "simulated"


class Host:
    """Attributes:
    end: how the last run ended: "killed", "power", "storage", "refused" or "stopped".
    disk_seconds: how long an operation on the disk takes, before it happens and after.
    is_whole: it holds everything that it ever promised: its disk was not lost since.
    must_be_refused: it was started with an old copy of its directory.
    enrolments_before: how often it had been enrolled when an empty directory took its seat; its own
        is back and may be refused if another enrolment is committed since. None: none took it.
    """

    is_voter = False

    def __init__(self, world: World, node_id: int) -> None:
        self.world, self.node_id, self.name = world, node_id, f"n{node_id}"
        self.quorum: MetadataQuorum | None = None
        self.is_up = self.is_paused = False
        self.must_be_refused = False
        self.enrolments_before: int | None = None
        self.is_whole = True
        self.runs = self.disks = 0
        self.end = ""
        self.ended = trio.Event()
        self.disk_seconds = world.plan.disk_seconds
        self.disk = self.new_disk()
        self._random = Random(f"{world.seed}/host/{node_id}")
        self._armed: tuple[int, Moment] | None = None
        self._power_lost = False
        self._scope = trio.CancelScope()

    def new_disk(self) -> SimulatedFiles:
        self.disks += 1
        return SimulatedFiles(Random(f"{self.world.seed}/disk/{self.node_id}/{self.disks}"))

    # Life

    def start(self) -> None:
        assert not self.is_up, f"{self.name} runs"
        self.is_up, self.end, self.ended = True, "", trio.Event()
        self.runs += 1
        self.disk.interrupt = self._on_operation
        self._power_lost = False
        self._scope = trio.CancelScope()
        self.world.trace(f"{self.name} start {self.runs}")
        self._network = self.world.network.node(self.name)
        self.world.nursery.start_soon(self._live, self._network)

    def crash(self, *, power_lost: bool) -> None:
        """Kill -9, or the power fails, between two steps."""
        if self.is_up and not self.end:
            self._die(power_lost=power_lost)

    def arm(self, operations: int, moment: Moment, *, power_lost: bool) -> None:
        """Die so many operations of the disk from now, before it, in its midst, or after."""
        self._armed, self._power_lost = (self.disk.count + operations, moment), power_lost

    def disarm(self) -> None:
        self._armed = None

    async def wait_dead(self) -> None:
        """Of a process that was killed: another fault may have started the next one already."""
        if self.is_up and self.end:
            await self.ended.wait()

    def lose_disk(self) -> bool:
        """While it is down; whether it was."""
        if self.is_up:
            return False
        self.disk, self.is_whole = self.new_disk(), not self.is_voter
        return True

    def stop(self) -> None:
        self._scope.cancel()

    def pause(self) -> None:
        self.is_paused = True
        self.world.network.pause(self.name)

    def resume(self) -> None:
        self.is_paused = False
        self.world.network.resume(self.name)

    def _on_operation(self, count: int, moment: Moment) -> None:
        if self._armed and ((count, moment) == self._armed or count > self._armed[0]):
            self._die(power_lost=self._power_lost)
            raise PowerCut(f"{moment} operation {count} of {self.name}")

    def _die(self, *, power_lost: bool) -> None:
        self.end, self._armed = "power" if power_lost else "killed", None
        self.disk.crash()
        self.world.network.crash(self.name, power_lost=power_lost)
        self._scope.cancel()

    async def _live(self, network: NodeNetwork) -> None:
        try:
            with self._scope:
                async with self._opened(network) as self.quorum:
                    await self._watch(self.quorum)
        except* PowerCut:
            demand(self.end, f"{self.name}: a power cut that nobody made")
        except* CorruptJournal as group:
            demand(
                self.must_be_refused or self._is_replaced, f"{self.name}: {group.exceptions[0]!r}"
            )
            self._ends("refused")
        except* StorageError as group:
            demand(self.disk.has_failed, f"{self.name}: {group.exceptions[0]!r}")
            self._ends("storage")
        finally:
            self.quorum, self.is_paused = None, False
        self._ends("stopped")
        self._after_end()

    @property
    def _is_replaced(self) -> bool:
        before = self.enrolments_before
        return before is not None and self.world.ledger.enrolments[self.node_id] > before

    def _ends(self, how: str) -> None:
        self.end = self.end or how

    def _after_end(self) -> None:
        """What the next run finds, and whether a supervisor starts it."""
        digest = sha256("\n".join(self.disk.trace).encode()).hexdigest()[:12]
        self.world.trace(f"{self.name} end {self.end} operations {self.disk.count} {digest}")
        if self.end in ("storage", "refused", "stopped"):
            self.world.network.crash(self.name)
        reorder = self._random.random() < 0.5
        self.disk = self.disk.after_crash(power_lost=self.end == "power", reorder=reorder)
        self.is_up = False
        self.ended.set()
        if self.end == "refused" and self._is_replaced:  # then its operator gives it up
            self.lose_disk()
            self.world.nursery.start_soon(self._start_again)
        if self.end == "storage":
            self.world.nursery.start_soon(self._start_again)

    async def _start_again(self) -> None:
        await trio.sleep(self._random.uniform(0.05, 0.5))
        if not self.is_up:
            self.start()

    async def run_sync(self, function: Callable[[], T]) -> T:
        """What a worker thread does: slowly, and not at all while the process is paused."""
        network = self._network
        await trio.sleep(self._random.uniform(*self.disk_seconds))
        await network.wait_awake()
        result = function()
        await trio.sleep(self._random.uniform(*self.disk_seconds))
        await network.wait_awake()
        return result

    async def _watch(self, quorum: MetadataQuorum) -> None:
        """A reader on this machine: versions rise."""
        seen = quorum.image.version
        while True:
            image = await quorum.wait_changed(seen)
            demand(image.version > seen, f"{self.name}: version {image.version} after {seen}")
            delta = quorum.delta_since(seen)
            demand(delta.image.version >= image.version, f"{self.name}: an old delta")
            seen = image.version

    def _arguments(self, network: NodeNetwork) -> dict[str, Any]:
        world, plan = self.world, self.world.plan
        return {
            "settings": QuorumSettings(
                DIRECTORY,
                CLUSTER,
                self.node_id,
                world.addresses,
                timing=plan.timing,
                limits=plan.limits,
                is_replacement=not self.is_whole,
            ),
            "network": network,
            "files": self.disk,
            "random": Random(f"{world.seed}/run/{self.node_id}/{self.runs}"),
            "run_sync": self.run_sync,
            "make_machine": lambda: world.ledger.machine_for(self.name),
        }

    def _opened(self, network: NodeNetwork) -> Any:
        raise NotImplementedError


class Voter(Host):
    is_voter = True

    @property
    def node(self) -> RaftNode:
        assert self.quorum is not None, f"{self.name} is down"
        return self.quorum._node  # type: ignore[attr-defined]

    @property
    def leads(self) -> bool:
        return self.quorum is not None and self.quorum.leadership.is_leader

    def knows(self, other: Voter) -> bool:
        """Whether this voter has a connection to the present run of `other`."""
        return self.quorum is not None and self.node.is_connected(other.node_id)

    @asynccontextmanager
    async def _opened(self, network: NodeNetwork) -> AsyncIterator[RaftQuorum]:
        async with open_quorum(**self._arguments(network)) as quorum:
            self._hook(quorum, network)
            yield quorum

    def _hook(self, quorum: RaftQuorum, network: NodeNetwork) -> None:
        """See every turn; let none begin while the process is paused."""
        turns, node, checked = quorum._turns, quorum._node, 0
        wait = turns.wait

        async def wait_awake(seconds_max: float) -> None:
            on_turn()
            await wait(seconds_max)
            await network.wait_awake()

        def on_turn() -> None:
            nonlocal checked
            checked = self.world.ledger.on_turn(self.name, node, checked)
            if not self.is_whole and node.membership.standing.name == "ESTABLISHED":
                self.is_whole = True
                self.world.trace(f"{self.name} is whole again")

        turns.wait = wait_awake


class Observer(Host):
    def _opened(self, network: NodeNetwork) -> Any:
        return open_observer(**self._arguments(network))
