"""Three whole brokers on a simulated network, and model members of groups that use them.

Everything of a broker is real except its disk, its network and its clock, which the test brings.
"""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from raftmq.broker.broker import NodeEnvironment, open_broker
from raftmq.broker.groups.phases import CoordinatorSettings, GroupSettings
from raftmq.broker.settings import BrokerSettings, ListenerSettings
from raftmq.errors import ErrorCode, RaftmqError, error_for
from raftmq.metadata.image import slot_of
from raftmq.model import Address
from raftmq.rpc.peers import Peers
from raftmq.rpc.trio_channel import TrioConnector
from raftmq.wire.messages.group_offsets import OffsetCommit, OffsetFetch, OffsetToCommit
from raftmq.wire.messages.groups import (
    FindCoordinator,
    Heartbeat,
    JoinGroup,
    MemberAssignment,
    Protocol,
    SyncGroup,
)
from raftmq.wire.messages.hello import Hello
from tests.simulation.deterministic import run_inline
from tests.simulation.disk import SimulatedFiles
from tests.simulation.disk_faults import PowerCut
from tests.simulation.network import SimulatedNetwork
from tests.simulation.network_pipe import Latency
from tests.unit.storage.batches import NOW_MS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq.broker.broker import Broker
    from raftmq.wire.bodies import Request

DIRECTORY, CLUSTER = Path("/data"), "whole"
NODES = (1, 2, 3)
VOTERS = {number: Address(f"n{number}", 9000) for number in NODES}
CLIENTS, BROKERS = 9292, 9294
PROMPT = Latency(0.0005, 0.0005, 0.0, 0.0)
GROUPS = CoordinatorSettings(GroupSettings(initial_rebalance_delay_ms=200))
GROUP, TOPIC = "billing", b"t" * 16
PATIENCE_SECONDS = 60.0


class WholeNode:
    """Attributes:
    broker: while it runs.
    """

    def __init__(
        self, nursery: trio.Nursery, network: SimulatedNetwork, number: int, **settings: int
    ) -> None:
        self._nursery, self._network, self.number = nursery, network, number
        self._more_settings: dict[str, Any] = {**settings}
        self.files = SimulatedFiles(Random(number))
        self.broker: Broker | None = None
        self._scope = trio.CancelScope()
        self._runs, self._is_killed = 0, False

    def start(self) -> None:
        self._nursery.start_soon(self._run)

    def kill(self) -> None:
        """With kill -9; the machine stays."""
        self._is_killed = True
        self._scope.cancel()
        self._network.crash(f"n{self.number}", power_lost=False)
        self.broker = None

    def stop(self) -> None:
        """In order; it has ended a moment later."""
        self._scope.cancel()
        self.broker = None

    async def _run(self) -> None:
        self._runs += 1
        host = NodeEnvironment(
            self._network.node(f"n{self.number}"),
            files=self.files,
            random=Random(100 * self._runs + self.number),
            run_sync=run_inline,
            now_ms=lambda: NOW_MS + int(trio.current_time() * 1000),
        )
        self._is_killed = False
        try:
            with trio.CancelScope() as self._scope:
                async with open_broker(self._settings(), host) as self.broker:
                    await trio.sleep_forever()
        except* PowerCut:  # it cleans nothing up: it is dead
            assert self._is_killed, "only the dead are without a network"

    def _settings(self) -> BrokerSettings:
        name = f"n{self.number}"
        listeners = tuple(
            ListenerSettings(what, Address(name, port), Address(name, port))
            for what, port in (("clients", CLIENTS), ("brokers", BROKERS))
        )
        return BrokerSettings(
            DIRECTORY,
            CLUSTER,
            self.number,
            VOTERS,
            listeners,
            groups=GROUPS,
            **self._more_settings,
        )


class Whole:
    """The cluster. `peers`: the connections of all members that a test plays."""

    def __init__(self, nursery: trio.Nursery, **settings: int) -> None:
        self.network = SimulatedNetwork(Random(0), latency=PROMPT)
        self.nodes = {
            number: WholeNode(nursery, self.network, number, **settings) for number in NODES
        }
        connector = TrioConnector(
            self.network.node("members"),
            lambda: Hello(CLUSTER, client_id="test"),
        )
        self.peers = Peers(connector, random=Random(7))
        self.peers.set_addresses({n: Address(f"n{n}", CLIENTS) for n in NODES})

    async def wait_slots(self) -> None:
        """Until all slots are with brokers that run, as many with one as with another."""
        with trio.fail_after(PATIENCE_SECONDS):
            while not self._are_slots_settled():  # noqa: ASYNC110  # what is looked at has no event
                await trio.sleep(0.1)

    def _are_slots_settled(self) -> bool:
        brokers = [node.broker for node in self.nodes.values() if node.broker]
        if not brokers:
            return False
        image = max((broker.quorum.image for broker in brokers), key=lambda it: it.version)
        running = {number for number, node in self.nodes.items() if node.broker}
        counts = Counter(slot.broker_id for slot in image.slots)
        return counts.keys() == running and max(counts.values()) - min(counts.values()) < 2

    async def ask(self, node_id: int, request: Request) -> Any:
        """The body of the answer; raises what a client would see."""
        answer = await self.peers.request(node_id, request, timeout_seconds=30.0)
        body = answer.body
        code = getattr(body, "error", ErrorCode.NONE)
        if code:
            raise error_for(code, body.message)
        return body

    async def coordinator(self, group: str = GROUP) -> int:
        """Whom the brokers that run name."""
        for number, node in self.nodes.items():
            if node.broker is not None:
                try:
                    reply = await self.ask(number, FindCoordinator((group,)))
                except RaftmqError:
                    continue
                (found,) = reply.coordinators
                if not found.error:
                    return int(found.broker_id)
        raise error_for(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody says")

    async def ask_coordinator(self, request: Request, group: str = GROUP) -> Any:
        """Retried while the answer says so, at the coordinator of that moment."""
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                try:
                    return await self.ask(await self.coordinator(group), request)
                except RaftmqError as error:
                    if not error.retriable:
                        raise
                await trio.sleep(0.1)


class Member:
    """One member of the group, step by step."""

    def __init__(self, whole: Whole, group: str = GROUP) -> None:
        self._whole, self.group = whole, group
        self.member_id, self.generation, self.assignment = "", -1, b""
        self.is_leader = False

    async def join(self) -> None:
        """And sync: the leader gives every member its own id."""
        joined = await self._joined()
        self.generation, self.is_leader = joined.generation, bool(joined.members)
        plan = tuple(MemberAssignment(it.member_id, it.member_id.encode()) for it in joined.members)
        request = SyncGroup(self.group, self.generation, self.member_id, assignments=plan)
        self.assignment = (await self._whole.ask_coordinator(request, self.group)).assignment

    async def _joined(self) -> Any:
        protocols = (Protocol("range", b"topics"),)
        while True:
            request = JoinGroup(self.group, self.member_id, protocols, 10_000, 30_000)
            node_id = await self._whole.coordinator(self.group)
            answer = await self._whole.peers.request(node_id, request, timeout_seconds=60.0)
            if not answer.body.error:
                self.member_id = answer.body.member_id
                return answer.body
            if answer.body.error == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.body.member_id
            elif answer.body.error == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""  # the one that was to be used went with its coordinator
            elif not error_for(answer.body.error, answer.body.message).retriable:
                raise error_for(answer.body.error, answer.body.message)
            else:
                await trio.sleep(0.1)

    async def beat(self) -> None:
        request = Heartbeat(self.group, self.generation, self.member_id)
        await self._whole.ask_coordinator(request, self.group)

    async def commit(self, offset: int, partition: int = 0, timeout_ms: int = 5_000) -> None:
        request = OffsetCommit(
            self.group,
            self.generation,
            self.member_id,
            (OffsetToCommit(TOPIC, partition, offset),),
            timeout_ms=timeout_ms,
        )
        reply = await self._whole.ask_coordinator(request, self.group)
        assert [it.error for it in reply.partitions] == [ErrorCode.NONE]

    async def fetched(self) -> dict[int, int]:
        reply = await self._whole.ask_coordinator(OffsetFetch(self.group), self.group)
        return {it.partition: it.offset for it in reply.partitions}


@asynccontextmanager
async def whole_brokers(**settings: int) -> AsyncIterator[Whole]:
    """All of them active, and every slot has a coordinator. `settings`: of all nodes."""
    async with trio.open_nursery() as nursery:
        whole = Whole(nursery, **settings)
        for node in whole.nodes.values():
            node.start()
        await nursery.start(whole.peers.run)
        await whole.wait_slots()
        yield whole
        nursery.cancel_scope.cancel()


def group_of(broker_id: int, whole: Whole, *, prefix: str) -> str:
    """The name of a group that this broker coordinates now."""
    node = whole.nodes[broker_id]
    assert node.broker is not None, f"broker {broker_id} does not run"
    slots = node.broker.quorum.image.slots
    names = (f"{prefix}-{number}" for number in range(10_000))
    return next(name for name in names if slots[slot_of(name)].broker_id == broker_id)
