"""Brokers that copy from each other, over connections that can break: until all hold the same."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from raftmq.broker.replication.fetch_exchange import FetchSettings
from raftmq.errors import StorageError, UnknownTopicId
from raftmq.model import Durability
from raftmq.topic_config import TopicConfig
from tests.unit.broker.copying import key_of, world
from tests.unit.partition.replica_world import led_by, settle, wait_acks
from tests.unit.storage.batches import batch, values_of

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock

    from raftmq.partition.replica import Replica
    from tests.unit.broker.copying import Copier, World

ALL = -1
LONG_WAIT = FetchSettings(max_wait_ms=30_000)
PAGE_CACHE = TopicConfig(durability=Durability.PAGE_CACHE)


async def acknowledged(replica: Replica, *values: bytes) -> float:
    """Append one batch and wait for all; how long that took."""
    began_at = trio.current_time()
    epoch = replica.leading().leader_epoch
    end = replica.append(batch(*values), acks=ALL).end_offset
    await wait_acks(replica, end, acks=ALL, leader_epoch=epoch, deadline=began_at + 10)
    return trio.current_time() - began_at


async def wait_equal(*replicas: Replica, seconds: float = 20) -> None:
    """Until all logs are the same."""
    with trio.fail_after(seconds):
        while len({tuple(values_of(replica.log)) for replica in replicas}) > 1:
            await settle()
    entries = [replica.log.epochs.entries for replica in replicas]
    assert all(found == entries[0] for found in entries)


async def wait_caught_up(world: World, partitions: int = 1) -> None:
    """Until the first conversations are over and requests wait for news."""
    with trio.fail_after(10):
        while any(
            not broker.hosted.replicas[key_of(number)].follower.agrees  # type: ignore[union-attr]
            for broker in world.brokers.values()
            for number in range(partitions)
            if broker.hosted.replicas[key_of(number)].follower
        ):
            await settle()


def asked(broker: Copier) -> int:
    """Fetches that came since the last time."""
    count = len(broker.fetches)
    broker.fetches.clear()
    return count


# -- the way of a record -------------------------------------------------------------------


async def test_acks_all_end_to_end(autojump_clock: MockClock) -> None:
    """Appended, fetched, flushed, told: an acknowledgement waits for disks, not for timers.

    A5.5.
    """
    async with world(1, 2, 3, settings=LONG_WAIT) as found:
        leader, *followers = await found.assign(led_by(1, replicas=(1, 2, 3), min_isr=3))
        for broker in found.brokers.values():
            broker.disk.seconds = 0.01
        await acknowledged(leader, b"first")
        for number in range(5):
            assert await acknowledged(leader, b"%d" % number) < 0.1
        for follower in followers:
            assert values_of(follower.log) == values_of(leader.log)
            assert follower.log.durable_end_offset == 6
        await settle()
        assert {follower.high_watermark for follower in followers} == {6}


async def test_acks_all_with_the_page_cache(autojump_clock: MockClock) -> None:
    """Held before the next fetch has left: the word of it goes behind that fetch."""
    async with world(1, 2, settings=LONG_WAIT) as found:
        leader, _ = await found.assign(led_by(1, min_isr=2), config=PAGE_CACHE)
        await acknowledged(leader, b"first")
        for number in range(20):
            assert await acknowledged(leader, b"%d" % number) < 0.1


async def test_one_message_tells_of_many_partitions(autojump_clock: MockClock) -> None:
    """A flush round makes all of them held at once."""
    async with world(1, 2, settings=LONG_WAIT) as found:
        leaders = [(await found.assign(led_by(1, min_isr=2), number))[0] for number in range(20)]
        await wait_caught_up(found, 20)
        found.brokers[1].progresses.clear()
        found.brokers[2].disk.seconds = 0.01
        async with trio.open_nursery() as nursery:
            for leader in leaders:
                nursery.start_soon(acknowledged, leader, b"a")
        assert len(found.brokers[1].progresses) <= 3
        told = [len(message.partitions) for message in found.brokers[1].progresses]
        assert sum(told) == 20


async def test_nothing_is_said_twice(autojump_clock: MockClock) -> None:
    """Once everybody is level there is one fetch for each wait, which names nothing."""
    async with world(1, 2, settings=FetchSettings(max_wait_ms=500)) as found:
        leader, _ = await found.assign(led_by(1, min_isr=2))
        await acknowledged(leader, b"a")
        await trio.sleep(2)
        broker = found.brokers[1]
        asked(broker)
        broker.progresses.clear()
        await trio.sleep(10)
        assert 18 <= len(broker.fetches) <= 20
        assert all(request.partitions == () for request in broker.fetches)
        assert broker.progresses == []
        assert broker.wishes == []


async def test_only_partitions_that_moved_on_are_named(autojump_clock: MockClock) -> None:
    """A hundred are followed, one gets records."""
    async with world(1, 2, settings=LONG_WAIT) as found:
        leaders = [(await found.assign(led_by(1), number))[0] for number in range(100)]
        await wait_caught_up(found, 100)
        await trio.sleep(31)
        asked(found.brokers[1])
        await acknowledged(leaders[42], b"a")
        await settle()
        named = [
            [wanted.partition for wanted in one.partitions] for one in found.brokers[1].fetches
        ]
        assert set(map(tuple, named)) <= {(), (42,)}
        assert (42,) in set(map(tuple, named))


async def test_large_logs_come_in_several_answers(autojump_clock: MockClock) -> None:
    """Each within its limits."""
    settings = FetchSettings(bytes_max=1000, partition_bytes_max=400)
    async with world(1, 2, settings=settings) as found:
        replicas = [await found.assign(led_by(1), number) for number in range(4)]
        for leader, _ in replicas:
            for number in range(30):
                leader.append(batch(b"%d" % number * 60), acks=1)
        for leader, follower in replicas:
            await wait_equal(leader, follower)


# -- changes of parts ----------------------------------------------------------------------


async def test_a_new_leader_commits_what_its_follower_holds_already(
    autojump_clock: MockClock,
) -> None:
    """Nothing to fetch, nothing to flush: it has to be said all the same."""
    async with world(1, 2, settings=LONG_WAIT) as found:
        leader, follower = await found.assign(led_by(1, 0, min_isr=2))
        await acknowledged(leader, b"a", b"b")
        await found.assign(led_by(2, 1, min_isr=2))
        await settle(1)
        assert follower.leading().is_established
        assert follower.high_watermark == 2
        assert await acknowledged(follower, b"c") < 0.1
        await wait_equal(leader, follower)


async def test_a_newcomer_does_not_wait_for_the_request_under_way(
    autojump_clock: MockClock,
) -> None:
    """A second request ends the wait of the first."""
    async with world(1, 2, settings=LONG_WAIT) as found:
        await found.assign(led_by(1, min_isr=2), 0)
        await settle(1)
        leader, _ = await found.assign(led_by(1, min_isr=2), 1)
        assert await acknowledged(leader, b"a") < 0.2


async def test_a_log_that_parted_is_cut(autojump_clock: MockClock) -> None:
    """The old leader wrote what nobody has; the new one wrote something else there."""
    async with world(1, 2) as found:
        old, new = await found.assign(led_by(1, 0))
        await acknowledged(old, b"a")
        await found.brokers[2].take_up(led_by(2, 1, isr=(2,)))
        old.append(batch(b"lost"), acks=1)
        new.append(batch(b"b", b"c"), acks=1)
        await settle()
        await found.brokers[1].take_up(led_by(2, 1, isr=(2,)))
        await wait_equal(old, new)
        assert values_of(old.log) == [b"a", b"b", b"c"]


async def test_who_is_too_far_behind_starts_over(autojump_clock: MockClock) -> None:
    """The leader has deleted what it would need, up to the middle of a batch."""
    async with world(1, 2) as found:
        leader = await found.brokers[1].take_up(led_by(1, isr=(1,)))
        for values in ([b"a"], [b"b", b"c", b"d"], [b"e"]):
            leader.append(batch(*values), acks=1)
        await settle()
        await found.brokers[1].directory.delete_records(leader.log, 2)
        follower = await found.brokers[2].take_up(led_by(1, isr=(1,)))
        with trio.fail_after(10):
            while follower.high_watermark < 5:
                await settle()
        await settle()
        assert follower.log.log_start_offset == 2
        assert values_of(follower.log) == [b"c", b"d", b"e"]


async def test_what_the_leader_has_deleted_is_deleted_before_anything_is_told(
    autojump_clock: MockClock,
) -> None:
    """Nobody can compare it any more; so as long as it is here, this replica holds nothing."""
    async with world(1, 2) as found:
        leader, follower = await found.assign(led_by(1, min_isr=2))
        for value in (b"a", b"b", b"c"):
            await acknowledged(leader, value)
        slow = found.brokers[2].disk
        await found.brokers[1].directory.delete_records(leader.log, 2)
        slow.seconds = 3.0
        took = await acknowledged(leader, b"d")
        assert follower.log.log_start_offset == 2
        assert took >= 3.0
        slow.seconds = 0.0
        await settle()
        assert not follower.lags_log_start
        assert await acknowledged(leader, b"e") < 1.0


async def test_a_cut_that_takes_long_holds_up_nobody(autojump_clock: MockClock) -> None:
    """One log is cut for a minute; records of the other come and are acknowledged."""
    async with world(1, 2, settings=LONG_WAIT) as found:
        first, follower = await found.assign(led_by(1, 1, min_isr=1), 0)
        other, _ = await found.assign(led_by(1, 1, min_isr=1), 1, PAGE_CACHE)
        await acknowledged(other, b"a")
        slow = found.brokers[2]
        await slow.take_up(led_by(2, 2), 0)
        follower.append(batch(b"lost"), acks=1)
        await settle()
        slow.disk.seconds = 60.0
        await found.assign(led_by(1, 3), 0)
        await settle(1)
        assert await acknowledged(other, b"b") < 0.2
        assert values_of(first.log) == []
        first.append(batch(b"c"), acks=1)
        await wait_equal(first, follower, seconds=500)


async def test_a_follower_that_is_let_go_is_forgotten(autojump_clock: MockClock) -> None:
    """The leader stops watching for it, and the task ends with the last one."""
    async with world(1, 2) as found:
        leaders = [(await found.assign(led_by(1), number))[0] for number in range(2)]
        await wait_caught_up(found, 2)
        fetchers = found.brokers[2].fetchers
        for number, leader in enumerate(leaders):
            assert len(leader.watchers) == 1
            fetchers.unfollow(key_of(number))
            await trio.sleep(2)
            assert not leader.watchers
        assert not fetchers._by_leader
        asked(found.brokers[1])
        await trio.sleep(10)
        assert asked(found.brokers[1]) == 0


# -- when something goes wrong -------------------------------------------------------------


async def test_a_connection_that_breaks_is_made_again(autojump_clock: MockClock) -> None:
    """In the middle of traffic, again and again; nothing is lost, nothing comes twice."""
    async with world(1, 2) as found:
        leader, follower = await found.assign(led_by(1, min_isr=2))
        values = [b"%d" % number for number in range(12)]
        for value in values:
            if int(value) % 3 == 0:
                found.network.reset("b1", "b2")
            await acknowledged(leader, value)
        await wait_equal(leader, follower)
        assert values_of(follower.log) == values
        assert len(leader.watchers) == 1  # the sessions that were left are over


async def test_a_leader_that_cannot_be_reached_is_tried_at_a_pace(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """For a minute; one line says so. Then all goes on."""
    async with world(1, 2) as found:
        leader, _ = await found.assign(led_by(1, min_isr=1))
        await acknowledged(leader, b"a")
        caplog.clear()
        found.network.cut_both("b1", "b2", refuses=True)
        found.network.reset("b1", "b2")
        await trio.sleep(60)
        lines = [one for one in caplog.messages if one.startswith("fetching is interrupted")]
        assert 1 <= len(lines) <= 2
        found.network.heal()
        assert await acknowledged(leader, b"b") < 5


async def test_a_session_that_the_leader_has_lost_begins_anew(autojump_clock: MockClock) -> None:
    """Evicted, as if this broker had been asleep."""
    async with world(1, 2) as found:
        leader, follower = await found.assign(led_by(1, min_isr=2))
        await acknowledged(leader, b"a")
        for session in list(found.brokers[1].replicating.sessions._sessions.values()):
            session.close()
        found.brokers[1].replicating.sessions._sessions.clear()
        await acknowledged(leader, b"b")
        await wait_equal(leader, follower)


async def test_a_broker_that_registers_anew_says_everything_again(
    autojump_clock: MockClock,
) -> None:
    """What it said in its earlier life counts for nothing; the in-sync set names the new one."""
    async with world(1, 2, settings=FetchSettings(max_wait_ms=200)) as found:
        leader, _ = await found.assign(led_by(1, min_isr=2))
        await acknowledged(leader, b"a")
        found.brokers[2].epoch = 222
        await trio.sleep(1)
        for broker in found.brokers.values():
            broker.epochs[2] = 222
        await trio.sleep(2)
        progress = leader.leading().progress_of(2)
        assert progress is not None
        assert (progress.broker_epoch, progress.held_offset) == (222, 1)
        await acknowledged(leader, b"b")


async def test_a_leader_that_has_not_heard_of_its_election_is_asked_again(
    autojump_clock: MockClock,
) -> None:
    """A follower is ahead in the metadata: it waits a little, others are not held up."""
    async with world(1, 2, settings=LONG_WAIT) as found:
        other, _ = await found.assign(led_by(1, min_isr=2), 1)
        await found.brokers[2].take_up(led_by(1, 5, min_isr=2), 0)
        await settle(1)
        assert await acknowledged(other, b"a") < 0.2
        leader = await found.brokers[1].take_up(led_by(1, 5, min_isr=2), 0)
        assert await acknowledged(leader, b"b") < 6


async def test_a_leader_that_has_let_go_of_a_deleted_topic_first(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A follower asks once more before it has heard of the deletion: no warning for each
    partition of each topic that is deleted. Whatever else it is told is one.
    """
    async with world(1, 2) as found:
        await found.assign(led_by(1))
        (fetcher,) = found.brokers[2].fetchers._by_leader.values()
        followed = fetcher._followed[key_of(0)]
        with caplog.at_level(logging.WARNING, "raftmq.broker"):
            followed.pause_after(UnknownTopicId("topic t is not known to broker 1"))
            assert not caplog.messages
            followed.pause_after(StorageError("its disk has failed"))
        assert len(caplog.messages) == 1


async def test_a_disk_that_fails_stops_one_partition(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once; the others go on."""
    async with world(1, 2) as found:
        first, follower = await found.assign(led_by(1), 0)
        other, _ = await found.assign(led_by(1, min_isr=2), 1)
        await acknowledged(other, b"a")
        found.brokers[2].files.fail("write", "*Partition-0/*.log")
        caplog.clear()
        with caplog.at_level(logging.WARNING, "raftmq.broker"):
            first.append(batch(b"x"), acks=1)
            await trio.sleep(30)
        assert follower.log.offline_reason
        assert len([one for one in caplog.records if "cannot follow" in one.message]) == 1
        assert await acknowledged(other, b"b") < 0.2


async def test_stopping_in_the_middle_leaves_nothing(autojump_clock: MockClock) -> None:
    """Cancelled while requests wait, logs are cut and words are on their way."""
    for steps in range(1, 30, 4):
        async with world(1, 2) as found:
            leader, _ = await found.assign(led_by(1))
            leader.append(batch(b"a"), acks=1)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()


async def test_the_lag_of_an_idle_follower_is_none(autojump_clock: MockClock) -> None:
    """For minutes nothing is said of a partition; then a record comes, and nobody is put out."""
    async with world(1, 2) as found:
        leader, _ = await found.assign(led_by(1, min_isr=1))
        await acknowledged(leader, b"a")
        await trio.sleep(100)
        found.brokers[2].disk.seconds = 3.0
        await acknowledged(leader, b"b")
        assert found.brokers[1].wishes == []
