"""What leaders tell of transactions: to coordinators what is settled, to people what is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.broker.transactions.partition_requests import PartitionTransactionRequests
from raftmq.errors import ErrorCode
from raftmq.wire.bodies import TopicPartition
from raftmq.wire.messages.transactions import (
    CommittedTransaction,
    DescribeProducers,
    OpenInPartition,
    PartitionOpen,
    PartitionSettled,
    PartitionToSettle,
    TransactionsSettled,
)
from tests.unit.broker.asking import UNKNOWN, ask
from tests.unit.broker.hosting import TOPIC_ID, settle
from tests.unit.broker.transacting import HERE, ID, Producer, end, leading, open_id

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.broker.hosting import Node


async def settled(
    node: Node, leader_epoch: int, *producers: Producer, partition: int = 0
) -> PartitionSettled:
    wanted = tuple(CommittedTransaction(*one) for one in producers)
    request = TransactionsSettled((PartitionToSettle(TOPIC_ID, partition, leader_epoch, wanted),))
    reply = await ask(PartitionTransactionRequests(node.replicas).settled, request)
    found: PartitionSettled = reply.partitions[0]
    return found


async def opened_in(node: Node, partition: int = 0, topic_id: bytes = TOPIC_ID) -> PartitionOpen:
    request = DescribeProducers((TopicPartition(topic_id, partition),))
    reply = await ask(PartitionTransactionRequests(node.replicas).describe, request)
    found: PartitionOpen = reply.partitions[0]
    return found


async def test_what_is_settled(autojump_clock: MockClock) -> None:
    """Open, then with its marker; one that never was here is settled, too (A11.3)."""
    async with leading() as (cluster, node):
        replica = node.replicas.get(TOPIC_ID, 0)
        epoch = replica.leading().leader_epoch
        producer = await open_id(cluster)
        producer.send(replica)
        other = Producer(producer.producer_id + 1, 0)
        assert (await settled(node, epoch, producer, other)).settled == (False, True)
        await end(cluster, producer)
        await settle()
        assert (await settled(node, epoch, producer, other)).settled == (True, True)


async def test_only_the_leader_of_that_epoch_tells(autojump_clock: MockClock) -> None:
    """Another epoch, a partition that does not exist."""
    async with leading() as (cluster, node):
        producer = await open_id(cluster)
        epoch = node.replicas.get(TOPIC_ID, 0).leading().leader_epoch
        later = await settled(node, epoch + 1, producer)
        assert (later.error, later.settled) == (ErrorCode.UNKNOWN_LEADER_EPOCH, ())
        missing = await settled(node, epoch, producer, partition=7)
        assert missing.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_what_is_open(autojump_clock: MockClock) -> None:
    """With the id, the place and the time; what has no id any more has an empty one."""
    async with leading() as (cluster, node):
        replica = node.replicas.get(TOPIC_ID, 0)
        producer = await open_id(cluster)
        producer.send(replica, b"a", b"b")
        await trio.sleep(3.0)
        unknown = Producer(producer.producer_id + 1, 0)
        unknown.send(replica)
        await settle()
        found = await opened_in(node)
        assert found.transactions == (
            OpenInPartition(*producer, 0, 3200, ID),
            OpenInPartition(*unknown, 2, 200, ""),
        )
        assert (found.high_watermark, found.last_stable_offset, found.open_count) == (3, 0, 2)
        assert (found.leader, found.error) == (HERE, ErrorCode.NONE)


async def test_what_cannot_be_told(autojump_clock: MockClock) -> None:
    """A topic that is not known; the others are told."""
    async with leading() as (_, node):
        found = await opened_in(node, topic_id=UNKNOWN)
        assert found.error == ErrorCode.UNKNOWN_TOPIC_ID
        assert found.transactions == ()
        assert (await opened_in(node)).error == ErrorCode.NONE
