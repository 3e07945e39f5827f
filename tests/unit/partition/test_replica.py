"""A replica between its log and the rules: parts, acknowledgements, followers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from raftmq.errors import (
    FencedLeaderEpoch,
    InvalidRequiredAcks,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RequestTimedOut,
    StorageError,
    UnknownLeaderEpoch,
)
from raftmq.model import Durability
from raftmq.partition.leader import FetchFromLeader
from raftmq.topic_config import TopicConfig
from tests.unit.partition.replica_world import (
    KEY,
    News,
    broker_epoch,
    exchange,
    led_by,
    machine,
    settle,
    wait_acks,
)
from tests.unit.storage.batches import batch

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.partition.replica import Replica

ALL = -1


async def acknowledged(
    replica: Replica, end_offset: int, acks: int = ALL, seconds: float = 5
) -> None:
    epoch = replica.leading().leader_epoch
    deadline = trio.current_time() + seconds
    await wait_acks(replica, end_offset, acks=acks, leader_epoch=epoch, deadline=deadline)


# -- parts ---------------------------------------------------------------------------------


async def test_a_part_is_taken_up_as_the_metadata_says(autojump_clock: MockClock) -> None:
    """Leading, following, waiting for somebody to lead; an older assignment changes nothing."""
    async with machine(1) as home:
        replica = await home.replica()
        await replica.take_up(led_by(1, 3))
        assert replica.leading().leader_epoch == 3
        await replica.take_up(led_by(2, 4))
        assert replica.leader is None
        assert replica.follower is not None
        await replica.take_up(led_by(1, 3))
        assert replica.leader is None
        await replica.take_up(led_by(-1, 5))
        assert replica.leader is replica.follower is None


async def test_assignments_in_a_wrong_order_end_with_the_newest(autojump_clock: MockClock) -> None:
    """Two wait for a cut to end; the older one comes last, and was newer when it came."""
    async with machine(1) as home:
        replica = await home.replica()
        async with trio.open_nursery() as nursery:
            await replica._cutting.acquire()
            nursery.start_soon(replica.take_up, led_by(1, 7))
            await wait_all_tasks_blocked()
            nursery.start_soon(replica.take_up, led_by(2, 6))
            await wait_all_tasks_blocked()
            replica._cutting.release()
        assert replica.leading(7).leader_epoch == 7


async def test_epochs_are_compared_before_anything_else(autojump_clock: MockClock) -> None:
    """Whoever is behind is fenced; whoever is ahead has to wait for us."""
    async with machine(1) as home:
        replica = await home.replica()
        with pytest.raises(NotLeaderOrFollower):
            replica.leading()
        await replica.take_up(led_by(1, 3))
        with pytest.raises(FencedLeaderEpoch):
            replica.leading(2)
        with pytest.raises(UnknownLeaderEpoch):
            replica.leading(4)
        await replica.take_up(led_by(2, 4))
        with pytest.raises(NotLeaderOrFollower):
            replica.leading(4)


async def test_watchers_learn_of_a_change_of_parts(autojump_clock: MockClock) -> None:
    """Also of the end."""
    async with machine(1) as home:
        replica, news = await home.replica(), News()
        replica.watchers[news] = None
        await replica.take_up(led_by(1, 1))
        assert news.keys
        news.keys.clear()
        await replica.close()
        assert news.keys == [KEY]


async def test_a_leader_whose_log_fails_leads_nothing_and_says_so(
    autojump_clock: MockClock,
) -> None:
    """Nothing can be appended; whoever waits for news is told that there is no leader."""
    async with machine(1) as home:
        replica, news = await home.replica(), News()
        replica.watchers[news] = None
        replica.log.close()
        await replica.take_up(led_by(1, 1))
        assert replica.leader is None
        assert news.keys == [KEY]


# -- acknowledgements ----------------------------------------------------------------------


async def test_acks_one_waits_for_the_own_disk(autojump_clock: MockClock) -> None:
    """And not for the follower."""
    async with machine(1) as home:
        replica = await home.replica()
        await replica.take_up(led_by(1))
        home.disk.seconds = 1.0
        end = replica.append(batch(b"a"), acks=1).end_offset
        assert not replica.has_acks(end, acks=1, leader_epoch=0)
        began_at = trio.current_time()
        await acknowledged(replica, end, acks=1)
        assert trio.current_time() - began_at == pytest.approx(1.0)
        assert replica.high_watermark == 0


async def test_acks_all_waits_for_the_follower_to_hold_it(autojump_clock: MockClock) -> None:
    """A fetch of what comes after is not enough; the word that it is held is."""
    async with machine(1) as home, machine(2) as away:
        leader, follower = await home.replica(), await away.replica()
        await leader.take_up(led_by(1))
        await follower.take_up(led_by(1))
        end = leader.append(batch(b"a"), acks=ALL).end_offset
        await exchange(leader, follower)
        await exchange(leader, follower)
        await settle()
        assert not leader.has_acks(end, acks=ALL, leader_epoch=0)
        assert away.held[-1] == KEY
        held = follower.log.held_end_offset
        leader.on_replica_progress(
            2, broker_epoch(2), held, leader_epoch=0, now=trio.current_time()
        )
        await acknowledged(leader, end)
        assert leader.high_watermark == 1


async def test_acks_that_cannot_be_had_are_refused(autojump_clock: MockClock) -> None:
    """Before anything is appended."""
    async with machine(1) as home:
        replica = await home.replica()
        await replica.take_up(led_by(1, isr=(1,), min_isr=2))
        with pytest.raises(NotEnoughReplicas):
            replica.append(batch(), acks=ALL)
        with pytest.raises(NotEnoughReplicas):
            replica.append(batch(), acks=2)
        with pytest.raises(InvalidRequiredAcks, match='replicas is 2; take at most that, or "all"'):
            replica.append(batch(), acks=3)
        assert replica.log.log_end_offset == 0


async def test_a_wait_ends_with_the_part_the_log_or_the_time(autojump_clock: MockClock) -> None:
    """Nobody waits for what cannot come; all three leave open what becomes of the record."""
    async with machine(1) as home:
        replica = await home.replica()
        await replica.take_up(led_by(1))
        end = replica.append(batch(), acks=ALL).end_offset
        async with trio.open_nursery() as nursery:

            async def fails(error: type[Exception], seconds: float) -> None:
                with pytest.raises(error):
                    await acknowledged(replica, end, seconds=seconds)

            nursery.start_soon(fails, RequestTimedOut, 1.0)
            nursery.start_soon(fails, NotLeaderOrFollower, 9.0)
            await settle(2)
            replica.tick(trio.current_time())
            await replica.take_up(led_by(2, 1))
        await replica.take_up(led_by(1, 2))
        home.files.fail("write", "*.log")
        with pytest.raises(StorageError):
            replica.append(batch(), acks=ALL)


async def test_a_flush_that_fails_is_told_to_producers(autojump_clock: MockClock) -> None:
    """The log is offline: nothing in it is acknowledged any more."""
    async with machine(1) as home:
        replica = await home.replica()
        await replica.take_up(led_by(1, replicas=(1,)))
        await settle()
        home.files.fail("sync", "*.log")
        end = replica.append(batch(), acks=ALL).end_offset
        with pytest.raises(StorageError, match="offline"):
            await acknowledged(replica, end)


async def test_page_cache_is_held_at_once(autojump_clock: MockClock) -> None:
    """A single replica whose topic does not ask for the disk."""
    async with machine(1) as home:
        replica = await home.replica(config=TopicConfig(durability=Durability.PAGE_CACHE))
        await replica.take_up(led_by(1, replicas=(1,)))
        end = replica.append(batch(), acks=ALL).end_offset
        assert replica.has_acks(end, acks=ALL, leader_epoch=0)


async def test_whoever_stops_waiting_is_not_answered(autojump_clock: MockClock) -> None:
    """A producer hangs up; then the time, the disk and the part go on without it."""
    async with machine(1) as home:
        replica = await home.replica()
        await replica.take_up(led_by(1))
        end = replica.append(batch(), acks=ALL).end_offset
        with trio.move_on_after(1) as scope:
            await acknowledged(replica, end)
        assert scope.cancelled_caught
        await acknowledged(replica, end, acks=1)
        replica.tick(trio.current_time() + 10)
        await replica.take_up(led_by(2, 1))


# -- the leader and its followers ----------------------------------------------------------


async def test_a_follower_that_says_nothing_while_nothing_happens_does_not_lag(
    autojump_clock: MockClock,
) -> None:
    """Level for an hour; then a record comes, and it has its time for that."""
    async with machine(1) as home, machine(2) as away:
        leader, follower = await home.replica(), await away.replica()
        await leader.take_up(led_by(1))
        await follower.take_up(led_by(1))
        await exchange(leader, follower)
        for _ in range(60):
            await trio.sleep(60)
            leader.tick(trio.current_time())
        leader.append(batch(), acks=1)
        leader.tick(trio.current_time())
        assert home.wishes == []
        await trio.sleep(11)
        leader.tick(trio.current_time())
        [wish] = home.wishes
        assert [member.broker_id for member in wish.isr] == [1]


async def test_strangers_and_liars_get_errors(autojump_clock: MockClock) -> None:
    """No replica here; a log that was written by a leader that does not exist; a deleted offset."""
    async with machine(1) as home:
        leader = await home.replica()
        await leader.take_up(led_by(1, 3))
        with pytest.raises(NotLeaderOrFollower, match="broker 9"):
            leader.on_replica_fetch(
                9, 109, FetchFromLeader(1, 0, -1), leader_epoch=3, now=trio.current_time()
            )
        with pytest.raises(UnknownLeaderEpoch, match="epoch 8"):
            leader.on_replica_fetch(
                2, 102, FetchFromLeader(1, 0, 8), leader_epoch=3, now=trio.current_time()
            )
        end = leader.append(batch(b"a", b"b"), acks=1).end_offset
        await home.directory.delete_records(leader.log, end)
        with pytest.raises(OffsetOutOfRange, match="starts at 2"):
            leader.on_replica_fetch(
                2, 102, FetchFromLeader(1, 0, -1), leader_epoch=3, now=trio.current_time()
            )


async def test_a_leader_keeps_a_tail_for_its_followers(autojump_clock: MockClock) -> None:
    """As long as it has some and leads; another leadership begins another tail, since what was
    appended before may be cut."""
    async with machine() as home:
        replica = await home.replica()
        await replica.take_up(led_by(1, replicas=(1,)))
        assert replica.log.tail is None
        await replica.take_up(led_by(1, change=1))
        first = replica.log.tail
        assert first is not None
        replica.append(batch(), acks=1)
        await replica.take_up(led_by(1, change=2))
        assert replica.log.tail is first
        assert first.read(0, 1 << 20) is not None
        await replica.take_up(led_by(2, 1, change=3))
        assert replica.log.tail is None
        await replica.take_up(led_by(1, 2, change=4))
        assert replica.log.tail is not None
        assert replica.log.tail.read(0, 1 << 20) is None


async def test_a_closed_replica_takes_up_no_role(autojump_clock: MockClock) -> None:
    """The answer to a proposal may bring an assignment while the replica is let go."""
    async with machine() as home:
        replica = await home.replica()
        await replica.take_up(led_by(1))
        await replica.close()
        await replica.take_up(led_by(1, change=1))
        assert replica.leader is None
