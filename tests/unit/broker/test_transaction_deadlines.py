"""A leader that has had a transaction open for too long has it aborted (A11.3)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.transactions.deadlines import (
    LOOK_SECONDS,
    PAUSE_SECONDS_MIN,
    TransactionDeadlines,
)
from raftmq.errors import ErrorCode, NotCoordinator, Unreachable
from raftmq.metadata.commands import AssignSlot, EndTransactions, TransactionEnd
from raftmq.metadata.image import slot_of
from raftmq.metadata.transactions import block_of, present_of
from raftmq.model import AbortReason
from raftmq.wire.batch.control import ControlType
from raftmq.wire.messages.transactions import EndTxnReply
from tests.unit.broker.asking import said
from tests.unit.broker.hosting import TOPIC_ID, settle
from tests.unit.broker.transacting import HERE, ID, end, join, leading, markers, open_id

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.wire.messages.transactions import EndTxn
    from tests.simulation.quorum_fake import FakeCluster
    from tests.unit.broker.hosting import Node

TIMEOUT_MS = 10_000
ELSEWHERE = 1


class Coordinator:
    """Decides in the quorum what it is asked for, or refuses.

    Attributes:
        asked: what came, with the time and the broker that it was sent to.
        refusals: errors of the next answers.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.asked: list[tuple[float, int, EndTxn]] = []
        self.refusals: list[ErrorCode] = []
        self.is_there = True

    async def ask(self, broker_id: int, body: EndTxn) -> EndTxnReply:
        self.asked.append((trio.current_time(), broker_id, body))
        if not self.is_there:
            raise Unreachable("not there")
        if self.refusals:
            return EndTxnReply(self.refusals.pop(0))
        state = self._cluster.leader.image.transactions[body.transaction_id]
        if present_of(state) == (body.producer_id, body.producer_epoch):
            await self._cluster.leader.propose(_abort(self._cluster, body))
        return EndTxnReply()


def _abort(cluster: FakeCluster, body: EndTxn) -> EndTransactions:
    number = slot_of(body.transaction_id)
    told = TransactionEnd(
        body.transaction_id,
        body.producer_id,
        body.producer_epoch,
        is_commit=body.is_commit,
        owner=body.owner,
        reason=AbortReason(body.reason),
    )
    return EndTransactions(number, cluster.leader.image.slots[number].epoch, (told,))


def keeping(node: Node, coordinator: Coordinator) -> TransactionDeadlines:
    return TransactionDeadlines(node.replicas, node.cluster.nodes[HERE], coordinator.ask)


async def move_slot(cluster: FakeCluster, broker_id: int) -> None:
    number = slot_of(ID)
    await said(cluster, AssignSlot(number, cluster.leader.image.slots[number].epoch, broker_id))


@pytest.mark.parametrize("broker_id", [HERE, ELSEWHERE])
async def test_the_coordinator_is_asked_at_the_end_of_the_time(
    autojump_clock: MockClock, broker_id: int
) -> None:
    """Once, wherever it is; the transaction is aborted and the partition's readers go on."""
    async with leading() as (cluster, node), trio.open_nursery() as nursery:
        coordinator = Coordinator(cluster)
        await move_slot(cluster, broker_id)
        nursery.start_soon(keeping(node, coordinator).run)
        replica = node.replicas.get(TOPIC_ID, 0)
        producer = await open_id(cluster, timeout_ms=TIMEOUT_MS)
        began_at = trio.current_time()
        producer.send(replica)
        await trio.sleep(5.0)
        producer.send(replica, sequence=1)
        await trio.sleep(4.9)
        assert coordinator.asked == []
        await trio.sleep(1.0)
        [(asked_at, asked_of, request)] = coordinator.asked
        assert began_at + 10 <= asked_at <= began_at + 10 + LOOK_SECONDS
        assert asked_of == broker_id
        assert (request.transaction_id, request.producer_id, request.producer_epoch) == (
            ID, *producer
        )  # fmt: skip
        assert (request.is_commit, request.owner) == (False, b"")
        assert request.reason == AbortReason.TIMEOUT
        assert markers(replica) == [(producer.producer_id, ControlType.ABORT)]
        await trio.sleep(60.0)
        assert len(coordinator.asked) == 1
        nursery.cancel_scope.cancel()


async def test_a_transaction_that_ends_in_time_is_left_alone(autojump_clock: MockClock) -> None:
    """And the time of the next one counts from its own first batch."""
    async with leading() as (cluster, node), trio.open_nursery() as nursery:
        coordinator = Coordinator(cluster)
        await move_slot(cluster, HERE)
        nursery.start_soon(keeping(node, coordinator).run)
        replica = node.replicas.get(TOPIC_ID, 0)
        producer = await open_id(cluster, timeout_ms=TIMEOUT_MS)
        for _ in range(4):
            producer.send(replica)
            await trio.sleep(9.0)
            await end(cluster, producer)
            await settle()
            producer = producer.next
        assert coordinator.asked == []
        nursery.cancel_scope.cancel()


async def test_it_is_asked_again_with_pauses_until_it_decides(autojump_clock: MockClock) -> None:
    """Not there, not the coordinator any more, then it is; one partition of two asks for both."""
    async with leading(partitions=2) as (cluster, node), trio.open_nursery() as nursery:
        coordinator = Coordinator(cluster)
        await move_slot(cluster, ELSEWHERE)
        nursery.start_soon(keeping(node, coordinator).run)
        producer = await open_id(cluster, timeout_ms=TIMEOUT_MS)
        replicas = [node.replicas.get(TOPIC_ID, number) for number in range(2)]
        for replica in replicas:
            producer.send(replica)
        coordinator.is_there = False
        await trio.sleep(15.0)
        coordinator.is_there, coordinator.refusals = True, [NotCoordinator.code] * 2
        await trio.sleep(30.0)
        times = [at for at, _, _ in coordinator.asked]
        pauses = [late - early for early, late in pairwise(times)]
        assert pauses == sorted(pauses)
        assert pauses[0] >= PAUSE_SECONDS_MIN
        assert len(times) == 6
        kinds = [markers(replica) for replica in replicas]
        assert kinds == [[(producer.producer_id, ControlType.ABORT)]] * 2
        nursery.cancel_scope.cancel()


async def test_the_time_counts_anew_after_a_change_of_leaders(autojump_clock: MockClock) -> None:
    """The new leader has a clock of its own."""
    async with leading() as (cluster, node), trio.open_nursery() as nursery:
        coordinator = Coordinator(cluster)
        await move_slot(cluster, HERE)
        nursery.start_soon(keeping(node, coordinator).run)
        replica = node.replicas.get(TOPIC_ID, 0)
        producer = await open_id(cluster, timeout_ms=TIMEOUT_MS)
        producer.send(replica)
        await trio.sleep(8.0)
        assert replica.assignment is not None
        epoch, change = replica.assignment.leader_epoch, replica.assignment.partition_epoch
        await replica.take_up(
            replica.assignment._replace(leader_epoch=epoch + 1, partition_epoch=change + 1)
        )
        await trio.sleep(9.0)
        assert coordinator.asked == []
        await trio.sleep(2.0)
        assert len(coordinator.asked) == 1
        nursery.cancel_scope.cancel()


async def test_a_version_is_aborted_as_a_whole(autojump_clock: MockClock) -> None:
    """A14.3: once the first of its members that wrote here has been open for its time."""
    async with leading() as (cluster, node), trio.open_nursery() as nursery:
        coordinator = Coordinator(cluster)
        replica = node.replicas.get(TOPIC_ID, 0)
        await move_slot(cluster, ELSEWHERE)
        first, second = [await join(cluster, timeout_ms=TIMEOUT_MS) for _ in range(2)]
        nursery.start_soon(keeping(node, coordinator).run)
        first.send(replica)
        await trio.sleep(TIMEOUT_MS / 1000 - 1)
        second.send(replica)
        await trio.sleep(1 + 2 * LOOK_SECONDS)
        (_, _, asked), *_ = coordinator.asked
        assert (asked.transaction_id, asked.producer_id) == (ID, block_of(first.producer_id))
        assert sorted(markers(replica)) == [
            (first.producer_id, ControlType.ABORT), (second.producer_id, ControlType.ABORT)
        ]  # fmt: skip
        nursery.cancel_scope.cancel()
