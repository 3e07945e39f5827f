"""One simulated machine with a whole broker on it, from `open_broker` to a stop in order.

Owns what a broker needs beyond a `Host` of the quorum's world: the stop in order and what it
promises, a disk that freezes, and the broker's name in log lines.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeVar

import trio

from raftmq.broker import broker as broker_module
from raftmq.broker.broker import open_broker
from raftmq.broker.groups.phases import CoordinatorSettings, GroupSettings
from raftmq.broker.settings import BrokerSettings, ListenerSettings
from raftmq.metadata.raft.net.messages import Standing
from raftmq.model import Address
from tests.simulation.brokers.log_starts import judge_log_starts, log_starts
from tests.simulation.disk_faults import PowerCut
from tests.simulation.raft.checks import demand
from tests.simulation.raft.hosts import Host
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from raftmq.broker.broker import Broker
    from raftmq.metadata.quorum import MetadataQuorum
    from tests.simulation.brokers.world import World
    from tests.simulation.network import NodeNetwork

T = TypeVar("T")
DIRECTORY = Path("/data")
CLUSTER = "simulated"
CLIENTS_PORT = 9292
LEAVING_SECONDS_MAX = 30.0  # for a stop in order, as a supervisor's before it kills
GROUPS = CoordinatorSettings(
    GroupSettings(session_timeout_ms_min=1000, initial_rebalance_delay_ms=200)
)
NAME: ContextVar[str] = ContextVar("name", default="-")  # of the machine that a task is on


def now_ms() -> int:
    return NOW_MS + int(trio.current_time() * 1000)


class BrokerHost(Host):
    """Attributes:
    broker: the running one.
    leaving: set when it shall stop in order.
    clock_ahead_ms: what its wall clock is ahead of everybody else's.
    """

    world: World

    def __init__(self, world: World, node_id: int) -> None:
        super().__init__(world, node_id)  # type: ignore[arg-type]
        self.is_voter = node_id in world.voter_addresses
        self.broker: Broker | None = None
        self.clock_ahead_ms = 0
        self.leaving = trio.Event()
        self._thawed: trio.Event | None = None
        self._log_starts: dict[str, int] = {}

    @property
    def leads(self) -> bool:
        """The quorum, whose leader is the controller."""
        return self.quorum is not None and self.quorum.leadership.is_leader

    @property
    def address(self) -> Address:
        return Address(self.name, CLIENTS_PORT)

    @property
    def has_failed_logs(self) -> bool:
        """What only a restart brings back."""
        broker = self.broker
        return broker is not None and any(
            replica.log.offline_reason for replica in broker.replicas.all()
        )

    @property
    def has_its_metadata(self) -> bool:
        """Whether its part of the quorum holds all that it ever promised."""
        node = getattr(self.quorum, "_node", None)
        return not self.is_voter or (
            node is not None and node.membership.standing is Standing.ESTABLISHED
        )

    def start(self) -> None:
        self.leaving = trio.Event()
        super().start()

    def lose_disk(self) -> bool:
        self._log_starts = {}
        return super().lose_disk()

    def _die(self, *, power_lost: bool) -> None:
        self._log_starts = log_starts(self)
        super()._die(power_lost=power_lost)

    async def leave(self) -> None:
        """Stop in order, as a supervisor does: a broker that takes too long is killed."""
        self.leaving.set()
        with trio.move_on_after(LEAVING_SECONDS_MAX):
            await self.ended.wait()
        self.crash(power_lost=False)
        await self.wait_dead()

    def now_ms(self) -> int:
        return now_ms() + self.clock_ahead_ms

    # The disk

    def freeze(self) -> None:
        if self._thawed is None:
            self._thawed = trio.Event()

    def thaw(self) -> None:
        if self._thawed is not None:
            self._thawed.set()
        self._thawed = None

    async def run_sync(self, function: Callable[[], T]) -> T:
        while self._thawed is not None:
            await self._thawed.wait()
        result = await super().run_sync(function)
        while self._thawed is not None:
            await self._thawed.wait()
        return result

    # A run

    async def _live(self, network: NodeNetwork) -> None:
        NAME.set(self.name)
        await super()._live(network)

    @asynccontextmanager
    async def _opened(self, network: NodeNetwork) -> AsyncIterator[MetadataQuorum]:
        random = Random(f"{self.world.seed}/run/{self.node_id}/{self.runs}")
        host = broker_module.NodeEnvironment(
            network, files=self.disk, random=random, run_sync=self.run_sync, now_ms=self.now_ms
        )
        try:
            async with open_broker(self._settings(), host) as self.broker:
                self._stand_still_when_paused(self.broker.quorum, network)
                judge_log_starts(self, self._log_starts)
                yield self.broker.quorum
        except BaseException as error:
            if not self.end or isinstance(error, trio.Cancelled):
                raise
            # A process that is dead cleans nothing up: what goes wrong with that has never been.
            raise PowerCut(f"{self.name} is dead") from error
        finally:
            self.broker = None

    def _settings(self) -> BrokerSettings:
        clients, brokers = self.address, Address(self.name, CLIENTS_PORT + 2)
        return BrokerSettings(
            DIRECTORY,
            CLUSTER,
            self.node_id,
            self.world.voter_addresses,
            (
                ListenerSettings("clients", clients, clients),
                ListenerSettings("brokers", brokers, brokers),
            ),
            groups=GROUPS,
            is_replacement=not self.is_whole,
        )

    def _stand_still_when_paused(self, quorum: MetadataQuorum, network: NodeNetwork) -> None:
        """A voter's timers are its driver's; all else meets a paused network or disk."""
        turns = getattr(quorum, "_turns", None)
        if turns is None:
            return
        wait = turns.wait

        async def wait_awake(seconds_max: float) -> None:
            await wait(seconds_max)
            await network.wait_awake()

        turns.wait = wait_awake

    async def _watch(self, quorum: MetadataQuorum) -> None:
        """Returns once the broker has stopped in order."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super()._watch, quorum)
            await self.leaving.wait()
            assert self.broker is not None, "it was opened"
            was_let_go = await self.broker.stop()
            self.world.trace(f"{self.name} stops in_order={was_let_go}")
            if was_let_go:
                self._judge_leaving()
            nursery.cancel_scope.cancel()

    def _judge_leaving(self) -> None:
        """A broker that has stopped in order leads nothing that another in-sync replica could."""
        image = self.world.newest_image()
        left = [
            f"{key}: {state}"
            for key, state in image.partitions.items()
            if state.leader == self.node_id
            and any(other != self.node_id and image.is_active(other) for other in state.isr)
        ]
        demand(not left, f"{self.name} was let go, and leads {left[:3]}")
