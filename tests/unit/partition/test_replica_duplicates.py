"""What an acknowledgement of a duplicate means: the same as that of the first copy would."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import OutOfOrderSequence, UnknownProducerId
from raftmq.partition.storage.log import Appended
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


def numbered(first: int, count: int = 2, *, producer_id: int = 5) -> bytes:
    data = encode_batch(
        values=[b"x"] * count,
        timestamp=NOW_MS,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=first,
    )
    return bytes(data)


async def acknowledged(replica: Replica, end_offset: int) -> None:
    epoch, deadline = replica.leading().leader_epoch, trio.current_time() + 5
    await wait_acks(replica, end_offset, acks=ALL, leader_epoch=epoch, deadline=deadline)


async def copy(leader: Replica, follower: Replica) -> None:
    """All that there is, and word that it is held."""
    await exchange(leader, follower)
    await exchange(leader, follower)
    await settle()
    held, epoch = follower.log.held_end_offset, leader.leading().leader_epoch
    leader.on_replica_progress(
        2, broker_epoch(2), held, leader_epoch=epoch, now=trio.current_time()
    )


async def test_a_duplicate_is_committed_when_it_is_acknowledged(autojump_clock: MockClock) -> None:
    """Sent again before the follower has it: both requests wait for the same."""
    async with machine(1) as home, machine(2) as away:
        leader, follower = await home.replica(), await away.replica()
        await leader.take_up(led_by(1))
        await follower.take_up(led_by(1))
        first = leader.append(numbered(0), acks=ALL)
        again = leader.append(numbered(0), acks=ALL)
        assert (first, again) == (Appended(0, 2), Appended(0, 2, (0,)))
        await settle()
        assert leader.has_acks(again.end_offset, acks=1, leader_epoch=0)
        assert not leader.has_acks(again.end_offset, acks=ALL, leader_epoch=0)
        await copy(leader, follower)
        await acknowledged(leader, again.end_offset)
        assert leader.high_watermark == 2


async def test_it_waits_for_no_more_than_its_own(autojump_clock: MockClock) -> None:
    """Others have appended since, and that is not committed yet."""
    async with machine(1) as home, machine(2) as away:
        leader, follower = await home.replica(), await away.replica()
        await leader.take_up(led_by(1))
        await follower.take_up(led_by(1))
        leader.append(numbered(0), acks=ALL)
        await copy(leader, follower)
        leader.append(batch(b"later"), acks=ALL)
        again = leader.append(numbered(0), acks=ALL)
        assert again.end_offset == 2
        assert leader.has_acks(again.end_offset, acks=ALL, leader_epoch=0)


async def test_a_new_leader_knows_what_it_has_copied(autojump_clock: MockClock) -> None:
    """The answer was lost with the leader; the producer asks the next one."""
    async with machine(1) as home, machine(2) as away:
        leader, follower = await home.replica(), await away.replica()
        await leader.take_up(led_by(1))
        await follower.take_up(led_by(1))
        leader.append(numbered(0) + numbered(2), acks=ALL)
        await copy(leader, follower)
        await follower.take_up(led_by(2, 1))
        again = follower.append(numbered(2) + numbered(4), acks=1)
        assert again == Appended(2, 6, (2, 4))
        assert follower.log.log_end_offset == 6


async def test_what_was_cut_is_fresh_again(autojump_clock: MockClock) -> None:
    """A leader that appended what nobody copied comes back as a follower, and leads once more."""
    async with machine(1) as home, machine(2) as away:
        other, replica = await home.replica(), await away.replica()
        await other.take_up(led_by(1))
        await replica.take_up(led_by(1))
        other.append(numbered(0), acks=1)
        await copy(other, replica)
        await replica.take_up(led_by(2, 1))
        assert replica.append(numbered(2), acks=1) == Appended(2, 4)
        await other.take_up(led_by(1, 2))
        assert other.append(batch(b"else"), acks=1) == Appended(2, 3)
        await replica.take_up(led_by(1, 2))
        await exchange(other, replica)  # learns where they part
        await exchange(other, replica)
        assert replica.log.log_end_offset == 3
        await replica.take_up(led_by(2, 3))
        again = replica.append(numbered(0) + numbered(2), acks=1)
        assert again == Appended(0, 5, (0, 3))


async def test_nobody_is_told_of_what_was_refused(autojump_clock: MockClock) -> None:
    """A gap, an unknown producer: nothing is appended, no fetch wakes up."""
    async with machine(1) as home:
        replica, news = await home.replica(), News()
        await replica.take_up(led_by(1, replicas=(1,)))
        replica.append(numbered(0), acks=1)
        replica.watchers[news] = None
        with pytest.raises(OutOfOrderSequence):
            replica.append(numbered(5), acks=1)
        with pytest.raises(UnknownProducerId):
            replica.append(numbered(2, producer_id=6), acks=1)
        assert not news.keys
        assert replica.log.log_end_offset == 2
