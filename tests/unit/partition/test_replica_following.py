"""A replica that follows: it asks, appends, cuts; an answer that comes too late does no harm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from raftmq.errors import (
    CorruptRecord,
    OffsetOutOfRange,
)
from raftmq.partition.leader import Diverged
from raftmq.partition.replica_environment import FetchedFromLeader
from tests.unit.partition.replica_world import (
    broker_epoch,
    exchange,
    led_by,
    machine,
    settle,
)
from tests.unit.storage.batches import batch, values_of

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_a_follower_copies_its_leader(autojump_clock: MockClock) -> None:
    """Bytes, epochs and, one fetch later, the high watermark."""
    async with machine(1) as home, machine(2) as away:
        leader, follower = await home.replica(), await away.replica()
        await leader.take_up(led_by(1, isr=(1,)))
        await follower.take_up(led_by(1, isr=(1,)))
        leader.append(batch(b"a", b"b"), acks=1)
        await settle()
        await exchange(leader, follower)
        assert values_of(follower.log) == [b"a", b"b"]
        assert follower.high_watermark == leader.high_watermark == 2


async def test_an_answer_from_an_earlier_epoch_is_dropped(autojump_clock: MockClock) -> None:
    """Asked in epoch 0, asked again in epoch 1: each part counts from one, the answers do not mix.

    The old leader would have it cut what the new one has counted.
    """
    async with machine(2) as away:
        follower = await away.replica()
        await follower.take_up(led_by(1, 0))
        old = follower.next_fetch()
        assert old is not None
        await follower.take_up(led_by(3, 1, replicas=(1, 2, 3)))
        new = follower.next_fetch()
        assert new is not None
        await follower.on_fetched(old.token, FetchedFromLeader(batch(b"old")))
        assert follower.log.log_end_offset == 0
        assert follower.next_fetch() is None  # the answer to the new one is still to come
        follower.on_no_answer(new.token)
        assert follower.next_fetch() is not None


async def test_one_fetch_is_outstanding(autojump_clock: MockClock) -> None:
    """Until it is answered, or will not be."""
    async with machine(2) as away:
        follower = await away.replica()
        assert follower.next_fetch() is None
        await follower.take_up(led_by(1))
        fetch = follower.next_fetch()
        assert fetch is not None
        assert follower.next_fetch() is None
        follower.on_no_answer(fetch.token + 1)
        assert follower.next_fetch() is None
        follower.on_no_answer(fetch.token)
        assert follower.next_fetch() is not None


async def test_a_log_that_parted_is_cut_and_follows(autojump_clock: MockClock) -> None:
    """Two leaders have written at offset 1; the later one wins."""
    async with machine(1) as home, machine(2) as away:
        leader, follower = await home.replica(), await away.replica()
        await leader.take_up(led_by(1))
        await follower.take_up(led_by(1))
        leader.append(batch(b"a"), acks=1)
        await exchange(leader, follower)
        await follower.take_up(led_by(2, 1))  # and the old leader does not know
        follower.append(batch(b"lost"), acks=1)
        await leader.take_up(led_by(1, 2))
        leader.append(batch(b"b"), acks=1)
        await follower.take_up(led_by(1, 2))
        while values_of(follower.log) != [b"a", b"b"]:
            await exchange(leader, follower)
        assert follower.log.epochs.entries == leader.log.epochs.entries


async def test_nothing_is_asked_while_the_log_is_cut(autojump_clock: MockClock) -> None:
    """And a new part waits for the end of the cut."""
    async with machine(2) as away:
        follower = await away.replica()
        await follower.take_up(led_by(2, 0))
        follower.append(batch(b"a"), acks=1)
        await settle()
        await follower.take_up(led_by(1, 1))
        fetch = follower.next_fetch()
        assert fetch is not None
        away.disk.seconds = 1.0
        async with trio.open_nursery() as nursery:
            diverged = FetchedFromLeader(diverged=Diverged(-1, 0))
            nursery.start_soon(follower.on_fetched, fetch.token, diverged)
            await settle(0.1)
            assert follower.next_fetch() is None
            nursery.start_soon(follower.take_up, led_by(2, 2))
            await settle(0.1)
            assert follower.leader is None
        assert follower.leading(2).log_end_offset == 0


async def test_a_late_word_of_deleted_offsets_does_not_empty_a_leaders_log(
    autojump_clock: MockClock,
) -> None:
    """It becomes the leader while it waits for its turn to start over."""
    async with machine(1) as home:
        replica = await home.replica()
        await replica.take_up(led_by(2, 0))
        fetch = replica.next_fetch()
        assert fetch is not None
        async with trio.open_nursery() as nursery:
            await replica._cutting.acquire()
            nursery.start_soon(replica.take_up, led_by(1, 1))
            await wait_all_tasks_blocked()
            nursery.start_soon(replica.on_out_of_range, fetch.token, 50)
            await wait_all_tasks_blocked()
            replica._cutting.release()
        assert replica.leading(1)
        assert replica.log.log_start_offset == 0


async def test_starting_over_inside_of_a_batch(autojump_clock: MockClock) -> None:
    """Records were deleted up to the middle of a batch; it comes whole, the log begins there."""
    async with machine(1) as home, machine(2) as away:
        leader, follower = await home.replica(), await away.replica()
        await leader.take_up(led_by(1, isr=(1,)))
        leader.append(batch(b"a"), acks=1)
        leader.append(batch(b"b", b"c", b"d"), acks=1)
        await settle()
        await home.directory.delete_records(leader.log, 2)
        await follower.take_up(led_by(1, isr=(1,)))
        fetch = follower.next_fetch()
        assert fetch is not None
        with pytest.raises(OffsetOutOfRange):
            leader.on_replica_fetch(
                2, broker_epoch(2), fetch, leader_epoch=0, now=trio.current_time()
            )
        await follower.on_out_of_range(fetch.token, 2)
        assert follower.log.log_end_offset == 2
        await exchange(leader, follower)
        assert (follower.log.log_start_offset, follower.log.log_end_offset) == (1, 4)
        assert follower.high_watermark == 4
        assert values_of(follower.log) == [b"b", b"c", b"d"]


async def test_bytes_that_do_not_continue_the_log_are_refused(autojump_clock: MockClock) -> None:
    """Nothing is appended, and it may ask again."""
    async with machine(2) as away:
        follower = await away.replica()
        await follower.take_up(led_by(1))
        fetch = follower.next_fetch()
        assert fetch is not None
        damaged = bytearray(batch(b"a"))
        damaged[-1] ^= 1
        with pytest.raises(CorruptRecord):
            await follower.on_fetched(fetch.token, FetchedFromLeader(bytes(damaged)))
        assert follower.log.log_end_offset == 0
        assert follower.next_fetch() is not None


async def test_what_ends_where_the_leader_begins_may_be_of_another_log(
    autojump_clock: MockClock,
) -> None:
    """The leader has deleted what came before, and with it the epochs by which the logs could be
    compared: what this one has there may be a deposed leader's, and what it scheduled must not be
    delivered here one day. What is known to be committed stays. (A12.3)"""
    for high_watermark in (0, 1):
        async with machine(2) as away:
            follower = await away.replica()
            await follower.take_up(led_by(1, 0))
            asked = follower.next_fetch()
            assert asked is not None
            await follower.on_fetched(
                asked.token, FetchedFromLeader(batch(b"old"), high_watermark, 0)
            )
            await settle()
            await follower.take_up(led_by(3, 1, replicas=(1, 2, 3)))
            again = follower.next_fetch()
            assert again is not None
            await follower.on_fetched(again.token, FetchedFromLeader(b"", 1, 1))
            is_kept = high_watermark > 0
            assert follower.log.log_start_offset == (0 if is_kept else 1)
            assert follower.log.log_end_offset == 1
