"""One broker's replicas on a fake quorum and a simulated disk, without any network."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import trio

from raftmq.broker.lifetime import BrokerEpoch
from raftmq.broker.replication.isr_proposals import IsrProposals
from raftmq.broker.replication.replica_repair import DamageReports
from raftmq.broker.replication.replicas import HighWatermarks, Replicas
from raftmq.broker.transactions.resolving import TransactionResolving
from raftmq.errors import ErrorCode, NotController, Unreachable
from raftmq.metadata.commands import (
    SUPPORTED_LEVEL,
    BrokerRegistered,
    CreateTopic,
    Done,
    Loss,
    RegisterBroker,
)
from raftmq.metadata.controller import Controller, ProbeBroker, ProbeOutcome
from raftmq.metadata.liveness import BrokerContact
from raftmq.partition.replica_environment import PartitionKey
from raftmq.partition.storage.directory import open_log_directory
from raftmq.rpc.reply import Answer
from raftmq.wire.messages.corruption import ReportCorruption
from raftmq.wire.messages.fetch import Fetch, FetchReply, PartitionFetched
from tests.simulation.deterministic import run_inline
from tests.unit.storage.batches import NOW_MS
from tests.unit.storage.directories import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from raftmq.disk.thread import RunSync
    from raftmq.errors import RaftmqError
    from raftmq.metadata.commands import AnyCommand, AnyResult, CommandId
    from raftmq.metadata.controller import Effect
    from raftmq.metadata.image import PartitionState
    from raftmq.partition.leader import ProposeIsr
    from raftmq.partition.replica import Replica
    from raftmq.partition.storage.directory import LogDirectory
    from raftmq.wire.bodies import Request
    from tests.simulation.disk import SimulatedFiles
    from tests.simulation.quorum_fake import FakeCluster, FakeQuorum

TOPIC_ID = bytes(range(16))


class Followed:
    """Notes who follows whom, and who is added; fetches nothing."""

    def __init__(self) -> None:
        self.replicas: dict[PartitionKey, Replica] = {}
        self.added: set[PartitionKey] = set()
        self.held: list[PartitionKey] = []
        self.let_go: list[PartitionKey] = []

    def follow(self, key: PartitionKey, replica: Replica, *, is_added: bool = False) -> None:
        self.replicas[key] = replica
        self.added -= {key}
        if is_added:
            self.added.add(key)

    def unfollow(self, key: PartitionKey, *, is_let_go: bool = False) -> None:
        self.replicas.pop(key, None)
        self.added.discard(key)
        if is_let_go:
            self.let_go.append(key)

    def on_held(self, key: PartitionKey) -> None:
        self.held.append(key)


class Donor:
    """Answers in the place of the leaders that are not here.

    Attributes:
        batches: what the leader holds, by base offset, of one record each; nothing: no connection.
        start_offset: where its log starts.
        unreadable: offsets that have rotted there, too.
        asked: offsets of fetches. `reports`: what was said of its bytes.
    """

    def __init__(self) -> None:
        self.batches: dict[int, bytes] = {}
        self.start_offset = 0
        self.unreadable: set[int] = set()
        self.asked: list[int] = []
        self.reports: list[ReportCorruption] = []

    async def request(
        self,
        broker_id: int,
        body: Request,
        *,
        timeout_seconds: float,  # as in the protocol
    ) -> Answer:
        assert isinstance(body, Fetch)
        if not self.batches:
            raise Unreachable(f"broker {broker_id} is not here")
        [wanted] = body.partitions
        self.asked.append(offset := wanted.fetch_offset)
        error, payload = ErrorCode.NONE, b""
        if not self.start_offset <= offset <= max(self.batches) + 1:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        elif offset in self.unreadable:
            error = ErrorCode.CORRUPT_MESSAGE
        while error == ErrorCode.NONE and offset in self.batches.keys() - self.unreadable:
            payload += self.batches[offset]
            offset += 1
            if len(payload) >= wanted.bytes_max:
                break
        told = PartitionFetched(
            wanted.topic_id,
            wanted.partition,
            error=error,
            log_start_offset=self.start_offset,
            length=len(payload),
        )
        return Answer(FetchReply(partitions=(told,)), payload, -1, 0)

    def ask(
        self,
        broker_id: int,  # as in the protocol
        body: Request,
        on_outcome: Callable[[Answer | RaftmqError], None],
        *,
        timeout_seconds: float,
    ) -> bool:
        assert isinstance(body, ReportCorruption)
        self.reports.append(body)
        return True

    def send_one_way(self, broker_id: int, body: Request) -> bool:
        raise AssertionError(f"{body} for broker {broker_id}")


class DirectLink:
    """The leader of the quorum is next door. `wishes`: every proposal for an in-sync set."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    async def propose(
        self,
        command: AnyCommand,
        *,
        timeout: float = 5.0,  # noqa: ASYNC109  # as in the protocol
        command_id: CommandId | None = None,
    ) -> AnyResult:
        if self._cluster.leader_id is None:
            raise NotController("nobody leads")
        leader = self._cluster.leader
        return await leader.propose(command, timeout=timeout, command_id=command_id)

    async def read_barrier(self, *, timeout: float = 5.0) -> int:  # noqa: ASYNC109  # as in the protocol
        with trio.fail_after(timeout):
            return (await self._cluster.leader.read_barrier()).version


class Reports(DamageReports):
    """Attributes:
    told: what was to be told, in order.
    """

    def __init__(self, node: Node) -> None:
        super().__init__(
            node.broker_id,
            DirectLink(node.cluster),
            broker_epoch=node.epoch.get,
            catch_up=node.catch_up,
        )
        self.told: list[tuple[PartitionKey, Loss]] = []

    async def tell(self, key: PartitionKey, loss: Loss) -> None:
        self.told.append((key, loss))
        await super().tell(key, loss)


class Node:
    """Attributes:
    followed: the replicas that follow.
    donor: whoever leads elsewhere.
    """

    def __init__(
        self, broker_id: int, cluster: FakeCluster, directory: LogDirectory, files: SimulatedFiles
    ) -> None:
        self.broker_id, self.cluster, self.directory = broker_id, cluster, directory
        self.followed, self.epoch = Followed(), BrokerEpoch()
        self.high_watermarks = HighWatermarks(files, ROOT, run_inline)
        quorum = cluster.nodes[broker_id]
        self.proposals = IsrProposals(
            broker_id,
            DirectLink(cluster),
            broker_epoch=self.epoch.get,
            random=Random(broker_id),
        )
        self.wishes: list[ProposeIsr] = []
        self.reports = Reports(self)
        self.donor = Donor()
        self.replicas = Replicas(
            broker_id,
            quorum,
            directory,
            self.high_watermarks,
            broker_epoch=self.epoch.get,
            following=self.followed,
            proposing=self,
            reports=self.reports,
            peers=self.donor,
            random=Random(broker_id),
        )
        self.repairs, self.rot_watch = self.replicas.repair, self.replicas.rot_watch
        self.resolving = TransactionResolving(self.replicas, quorum, catch_up=self.catch_up)

    def propose(self, replica: Replica, proposal: ProposeIsr) -> None:
        self.wishes.append(proposal)
        self.proposals.propose(replica, proposal)

    async def catch_up(self) -> None:
        if self.cluster.leader_id is None:
            raise NotController("nobody leads")
        newest = (await self.cluster.leader.read_barrier()).version
        image = self.cluster.nodes[self.broker_id].image
        while image.version < newest:
            image = await self.cluster.nodes[self.broker_id].wait_changed(image.version)

    async def register(self) -> None:
        """And unfence: the controller is not here to do it."""
        damaged = tuple(self.replicas.damaged())
        self.epoch.value = await register(self.cluster, self.broker_id, damaged)


async def begin(node: Node, *replicas: int, **configs: str) -> Replica:
    """All brokers are registered, and there is a topic of one partition; the replica here."""
    await node.register()
    for broker_id in sorted({*replicas} - {node.broker_id}):
        await register(node.cluster, broker_id)
    await create_topic(node.cluster, replicas, **configs)
    await settle()
    return node.replicas.get(TOPIC_ID, 0)


def state_of(node: Node) -> PartitionState:
    """Of the partition of `begin`, as its metadata has it."""
    state = node.replicas.state_of(PartitionKey(TOPIC_ID, 0))
    assert state is not None
    return state


async def register(
    cluster: FakeCluster, broker_id: int, damaged: tuple[tuple[bytes, int], ...] = ()
) -> int:
    incarnation = Random(f"{broker_id}/{cluster.index}").randbytes(16)
    known = cluster.leader.image.brokers.get(broker_id)
    command = RegisterBroker(
        broker_id,
        incarnation,
        bytes([broker_id]) * 16,
        previous_broker_epoch=-1 if known is None else known.broker_epoch,
        boot_id="boot",
        damaged=damaged,
        feature_level_max=SUPPORTED_LEVEL,
    )
    registered = await cluster.leader.propose(command)
    assert isinstance(registered, BrokerRegistered)
    await reign(cluster)
    assert cluster.leader.image.is_active(broker_id)
    return registered.broker_epoch


async def reign(cluster: FakeCluster) -> None:
    """A controller for two seconds, to whom every broker is alive."""
    quorum, controller = cluster.leader, Controller()
    effects = controller.on_office(now=trio.current_time(), image=quorum.image)
    for _ in range(20):
        for broker in quorum.image.brokers.values():
            heartbeat = BrokerContact(broker.broker_id, broker.broker_epoch, quorum.image.version)
            controller.on_heartbeat(heartbeat, now=trio.current_time(), image=quorum.image)
        effects += controller.on_tick(now=trio.current_time(), image=quorum.image)
        for effect in effects:
            effects += await _perform(controller, effect, quorum)
        effects = []
        await trio.sleep(0.1)


async def _perform(controller: Controller, effect: Effect, quorum: FakeQuorum) -> list[Effect]:
    if isinstance(effect, ProbeBroker):
        now, image = trio.current_time(), quorum.image
        return controller.on_probe(effect, ProbeOutcome.ACCEPTED, now=now, image=image)
    result = await quorum.propose(effect.command)
    return controller.on_result(effect, result, now=trio.current_time(), image=quorum.image)


async def create_topic(
    cluster: FakeCluster, *replicas: tuple[int, ...], topic_id: bytes = TOPIC_ID, **configs: str
) -> None:
    """`configs`: underscores stand for dots."""
    changes = {name.replace("_", "."): value for name, value in configs.items()}
    command = CreateTopic(topic_id, f"t{topic_id[0]}", replicas, changes)
    result = await cluster.leader.propose(command)
    assert isinstance(result, Done), f"{result}"


@asynccontextmanager
async def opened(
    files: SimulatedFiles,
    cluster: FakeCluster,
    broker_id: int = 1,
    *,
    run_sync: RunSync = run_inline,
    now_ms: Callable[[], int] = lambda: NOW_MS,
) -> AsyncIterator[Node]:
    async with open_log_directory(ROOT, files=files, run_sync=run_sync, now_ms=now_ms) as directory:
        node = Node(broker_id, cluster, directory, files)
        await node.high_watermarks.load()
        await directory.remove_deleted()
        found = directory.found()
        node.high_watermarks.keep(map("/".join, found))
        await node.replicas.open_found(found)
        async with trio.open_nursery() as nursery:
            for task in (
                node.replicas.run,
                node.replicas.run_ticks,
                node.proposals.run,
                node.reports.run,
                node.repairs.run,
                node.rot_watch.run,
                node.replicas.scheduled.run,
                node.resolving.run,
            ):
                nursery.start_soon(task)
            yield node
            await node.replicas.checkpoint()
            nursery.cancel_scope.cancel()


async def settle() -> None:
    """A moment for tasks that have something to do, and nothing for clocks."""
    await trio.sleep(0.2)
