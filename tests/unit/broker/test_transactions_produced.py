"""Produce with records of transactions: what the leader lets in, and what it answers (A11.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.requests.produce import ProduceRequests
from raftmq.errors import ErrorCode, error_for
from raftmq.wire.batch.control import ControlType
from raftmq.wire.bodies import ACKS_ALL
from raftmq.wire.messages.produce import PartitionProduced, Produce, ProducePartition
from tests.unit.broker.copying import CLIENT, answered
from tests.unit.broker.hosting import TOPIC_ID, settle
from tests.unit.broker.transacting import Producer, end, leading, markers, open_id

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.broker.hosting import Node


async def produce(
    node: Node, producer: Producer, *, sequence: int = 0, acks: int = ACKS_ALL
) -> PartitionProduced:
    data = producer.batch(b"x", sequence=sequence)
    request = Produce(acks, 1000, (ProducePartition(TOPIC_ID, 0, -1, len(data)),))
    result = ProduceRequests(node.replicas).produce(CLIENT, request, data)
    assert result is not None
    reply = await answered(result)
    found: PartitionProduced = reply.body.partitions[0]  # type: ignore[union-attr]
    return found


async def test_records_of_transactions_need_all_acks(autojump_clock: MockClock) -> None:
    """A commit must not lose what its producer takes for stored."""
    async with leading() as (cluster, node):
        producer = await open_id(cluster)
        refused = await produce(node, producer, acks=1)
        assert refused.error != ErrorCode.NONE
        assert not error_for(refused.error, "").retriable
        assert node.replicas.get(TOPIC_ID, 0).log.log_end_offset == 0
        assert (await produce(node, producer)).base_offset == 0


async def test_the_next_transaction_waits_for_word_of_the_one_before(
    autojump_clock: MockClock,
) -> None:
    """The client comes back until this broker has heard of the decision, which may be now."""
    async with leading() as (cluster, node):
        producer = await open_id(cluster)
        assert (await produce(node, producer)).base_offset == 0
        cluster.follow_seconds = 1.0
        await end(cluster, producer)
        refused = await produce(node, producer.next)
        assert refused.error == ErrorCode.CONCURRENT_TRANSACTIONS
        assert error_for(refused.error, "").retriable
        await trio.sleep(1.0)
        assert (await produce(node, producer.next)).base_offset == 2
        replica = node.replicas.get(TOPIC_ID, 0)
        assert markers(replica) == [(producer.producer_id, ControlType.COMMIT)]


@pytest.mark.parametrize("is_commit", [True, False])
async def test_what_comes_late_is_refused(autojump_clock: MockClock, *, is_commit: bool) -> None:
    """Of a transaction that is decided: it is no part of it any more, nor of the next one."""
    async with leading() as (cluster, node):
        producer = await open_id(cluster)
        assert (await produce(node, producer)).base_offset == 0
        await end(cluster, producer, is_commit=is_commit)
        refused = await produce(node, producer, sequence=1)
        assert refused.error != ErrorCode.NONE
        assert not error_for(refused.error, "").retriable
        await settle()
        refused = await produce(node, producer, sequence=1)
        assert refused.error != ErrorCode.NONE
        assert node.replicas.get(TOPIC_ID, 0).log.log_end_offset == 2
