"""Who retires what: brokers that lead, follow, or have nobody to answer for a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.partition.leader import NO_LEADER
from raftmq.topic_config import TopicConfig
from tests.unit.broker.copying import key_of, world
from tests.unit.broker.test_fetcher import LONG_WAIT, acknowledged, wait_equal
from tests.unit.partition.replica_world import led_by, settle
from tests.unit.storage.batches import NOW_MS, append

if TYPE_CHECKING:
    from trio.testing import MockClock

SMALL = TopicConfig(segment_bytes=1024)
LATER_MS = NOW_MS + 15 * 86_400_000


async def test_only_the_leader_retires(autojump_clock: MockClock) -> None:
    """A follower's clock is two weeks ahead: it keeps its records, and takes what the leader says
    at once, although nobody writes.
    """
    async with world(1, 2, settings=LONG_WAIT) as found:
        leader, follower = await found.assign(led_by(1, min_isr=2), config=SMALL)
        for _ in range(20):
            await acknowledged(leader, b"v" * 200)
        await settle(1)
        await found.brokers[2].directory.enforce_retention(LATER_MS)
        assert follower.log.log_start_offset == 0
        began_at = trio.current_time()
        await found.brokers[1].directory.enforce_retention(LATER_MS)
        assert leader.log.log_start_offset == 20
        with trio.fail_after(1):
            while follower.log.log_start_offset < 20:
                await settle()
        assert trio.current_time() - began_at < 1
        assert await acknowledged(leader, b"b") < 0.2
        await wait_equal(leader, follower)


async def test_who_was_away_while_the_leader_retired_all_it_had(autojump_clock: MockClock) -> None:
    """The whole log of the follower lies before the leader's start; nobody writes any more."""
    async with world(1, 2, settings=LONG_WAIT) as found:
        leader, follower = await found.assign(led_by(1), config=SMALL)
        await acknowledged(leader, b"v" * 200)
        await settle(1)
        found.brokers[2].fetchers.unfollow(key_of(0))
        await found.brokers[1].take_up(led_by(1, isr=(1,), change=1))
        for _ in range(20):
            await acknowledged(leader, b"v" * 200)
        await found.brokers[1].directory.enforce_retention(LATER_MS)
        assert (leader.log.log_start_offset, follower.log.log_end_offset) == (21, 1)
        await found.assign(led_by(1, 2, isr=(1,)), config=SMALL)
        await settle(5)
        assert (follower.log.log_start_offset, follower.log.log_end_offset) == (21, 21)
        assert not follower.lags_log_start


async def test_a_partition_without_a_leader_retires_nothing(autojump_clock: MockClock) -> None:
    """Neither does one of which this broker knows nothing yet."""
    async with world(1) as found:
        directory = found.brokers[1].directory
        [replica] = await found.assign(led_by(1, isr=(1,)), config=SMALL)
        stray = await directory.open_log("stray", 0, SMALL)
        for _ in range(20):
            await acknowledged(replica, b"v" * 200)
            append(stray, b"v" * 200)
        await settle(1)
        await found.brokers[1].take_up(led_by(NO_LEADER, 1, isr=(1,)))
        await directory.enforce_retention(LATER_MS)
        assert (replica.log.log_start_offset, stray.log_start_offset) == (0, 0)
