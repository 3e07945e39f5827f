"""Fences of producer names on a leader and its followers: committed, copied, lost with a leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import (
    FencedLeaderEpoch,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    ProducerFenced,
)
from raftmq.partition.sequences import ProducerState
from raftmq.partition.storage.log import Fenced
from raftmq.wire.batch.header import Account, named_producer_id
from raftmq.wire.batch.records import encode_batch
from tests.unit.partition.replica_world import (
    News,
    broker_epoch,
    exchange,
    led_by,
    machine,
    settle,
    wait_acks,
)
from tests.unit.storage.batches import NOW_MS, batch

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.partition.replica import Replica

ALL = -1
NAMED = named_producer_id("etl/3")


def named(first: int, count: int = 2, *, epoch: int = 0, generation: int = 1) -> bytes:
    data = encode_batch(
        values=[b"x"] * count,
        timestamp=NOW_MS,
        producer_id=NAMED,
        producer_epoch=epoch,
        base_sequence=first,
        account=Account(generation, first + count),
    )
    return bytes(data)


async def copy(leader: Replica, follower: Replica) -> None:
    """All that there is, and word that it is held."""
    await exchange(leader, follower)
    await exchange(leader, follower)
    await settle()
    held, epoch = follower.log.held_end_offset, leader.leading().leader_epoch
    leader.on_replica_progress(
        2, broker_epoch(2), held, leader_epoch=epoch, now=trio.current_time()
    )


async def test_a_fence_is_committed_like_a_batch(autojump_clock: MockClock) -> None:
    """What was appended before it is committed with it: what it says is then true for good."""
    async with machine(1) as home, machine(2) as away:
        leader, follower, news = await home.replica(), await away.replica(), News()
        await leader.take_up(led_by(1))
        await follower.take_up(led_by(1))
        leader.watchers[news] = None
        leader.fence(NAMED, 1)
        leader.append(named(0), acks=1)
        fenced = leader.fence(NAMED, 1)
        assert fenced == Fenced(ProducerState(1, 2, (), 1, 2), 4)
        assert news.keys
        await settle()
        assert not leader.has_acks(fenced.end_offset, acks=ALL, leader_epoch=0)
        await copy(leader, follower)
        deadline = trio.current_time() + 5
        await wait_acks(leader, fenced.end_offset, acks=ALL, leader_epoch=0, deadline=deadline)
        assert leader.high_watermark == follower.log.log_end_offset == 4


async def test_a_new_leader_fences_as_the_old_one(autojump_clock: MockClock) -> None:
    """It has copied the fence: whoever was fenced finds no other door, the other goes on."""
    async with machine(1) as home, machine(2) as away:
        leader, follower = await home.replica(), await away.replica()
        await leader.take_up(led_by(1))
        await follower.take_up(led_by(1))
        leader.fence(NAMED, 1)
        leader.append(named(0), acks=ALL)
        leader.fence(NAMED, 1)
        await copy(leader, follower)
        await follower.take_up(led_by(2, 1))
        with pytest.raises(ProducerFenced):
            follower.append(named(2), acks=1)
        assert follower.append(named(2, epoch=1), acks=1).base_offset == 4
        assert follower.fence(NAMED, 1).producer == ProducerState(2, 4, (), 1, 4)
        with pytest.raises(ProducerFenced):
            follower.fence(NAMED, 0)


async def test_a_fence_that_nobody_copied_is_gone(autojump_clock: MockClock) -> None:
    """Its leader comes back as a follower, and forgets it with the bytes."""
    async with machine(1) as home, machine(2) as away:
        other, replica = await home.replica(), await away.replica()
        await other.take_up(led_by(1))
        await replica.take_up(led_by(1))
        other.fence(NAMED, 1)
        other.append(named(0), acks=1)
        await copy(other, replica)
        await replica.take_up(led_by(2, 1))
        replica.fence(NAMED, 9)
        await other.take_up(led_by(1, 2))
        other.append(batch(b"else"), acks=1)
        await replica.take_up(led_by(1, 2))
        await exchange(other, replica)  # learns where they part
        await exchange(other, replica)
        assert replica.log.log_end_offset == 4
        await replica.take_up(led_by(2, 3))
        assert replica.append(named(2), acks=1).base_offset == 4


async def test_who_cannot_lead_cannot_fence(autojump_clock: MockClock) -> None:
    """Not the leader, not in that epoch, not enough in sync: nothing is appended."""
    async with machine(1) as home:
        replica = await home.replica()
        await replica.take_up(led_by(2, 3))
        with pytest.raises(NotLeaderOrFollower):
            replica.fence(NAMED, 1)
        await replica.take_up(led_by(1, 4, min_isr=3))
        with pytest.raises(FencedLeaderEpoch):
            replica.fence(NAMED, 1, leader_epoch=3)
        with pytest.raises(NotEnoughReplicas):
            replica.fence(NAMED, 1, leader_epoch=4)
        assert replica.log.log_end_offset == 0
