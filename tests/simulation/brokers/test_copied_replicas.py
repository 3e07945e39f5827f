"""Whole brokers move a partition: the new replica copies, joins, and the old one goes.

A10.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.metadata.commands import CreateTopic, Done, PartitionId, ReassignPartition
from tests.simulation.groups.whole_brokers import TOPIC, whole_brokers
from tests.unit.storage.batches import batch, values_of

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.broker.broker import Broker
    from raftmq.metadata.commands import Command
    from raftmq.metadata.image import PartitionState
    from tests.simulation.groups.whole_brokers import Whole

RATE = 1_000_000
VALUE = bytes(50_000)
COUNT = 400  # 20 MB


def broker_of(whole: Whole, number: int) -> Broker:
    broker = whole.nodes[number].broker
    assert broker is not None, f"broker {number} does not run"
    return broker


async def propose(whole: Whole, command: Command) -> None:
    quorum = broker_of(whole, 1).quorum
    leader_id = quorum.leadership.leader_id
    assert leader_id is not None
    found = await broker_of(whole, leader_id).quorum.propose(command)
    assert isinstance(found, Done), found


def state_of(whole: Whole) -> PartitionState:
    return broker_of(whole, 1).quorum.image.partitions[PartitionId(TOPIC, 0)]


async def test_a_partition_moves(autojump_clock: MockClock) -> None:
    """At the rate, and from where it was when its broker was killed and came back."""
    async with whole_brokers(reassignment_bytes_per_second=RATE) as whole:
        await propose(whole, CreateTopic(TOPIC, "orders", ((1, 2),), {}))
        await trio.sleep(1)
        leader = broker_of(whole, 1).replicas.get(TOPIC, 0)
        for _ in range(COUNT):
            leader.append(batch(VALUE), acks=1)
        with trio.fail_after(30):
            while leader.high_watermark < COUNT:  # noqa: ASYNC110  # a number sets no event
                await trio.sleep(0.1)
        began_at = trio.current_time()
        state = state_of(whole)
        await propose(whole, ReassignPartition(TOPIC, 0, state.partition_epoch, (1, 3)))
        await trio.sleep(5)
        half = broker_of(whole, 3).replicas.get(TOPIC, 0).log.log_end_offset
        assert 60 <= half <= 120
        whole.nodes[3].kill()
        await trio.sleep(2)
        whole.nodes[3].start()
        with trio.fail_after(60):
            while state_of(whole).replicas != (1, 3):  # noqa: ASYNC110  # an image of another task
                await trio.sleep(0.1)
        assert 17 < trio.current_time() - began_at < 40
        new = broker_of(whole, 3).replicas.get(TOPIC, 0)
        assert values_of(new.log) == values_of(leader.log)
        assert state_of(whole).isr == (1, 3)
