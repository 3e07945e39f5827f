"""Replicas that are added copy in a lane of their own: at a rate, without a word, and then join.

Acknowledgements with acks=all are what must not notice. Decision 0044.

A10.2.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from raftmq.broker.replication.copy_budget import CopyBudget
from raftmq.broker.replication.fetchers import Fetchers
from raftmq.broker.replication.progress_reports import ProgressReports
from raftmq.errors import Disconnected, ErrorCode
from raftmq.model import Durability
from raftmq.topic_config import TopicConfig
from raftmq.wire.messages.fetch import PartitionFetched
from tests.unit.broker.copying import key_of, world
from tests.unit.broker.test_fetcher import acknowledged
from tests.unit.broker.test_leader_fetcher import ScriptedLeader, fetched, reply
from tests.unit.partition.replica_world import KEY, led_by, machine, settle
from tests.unit.storage.batches import batch, values_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from trio.testing import MockClock

    from raftmq.partition.replica import Replica
    from raftmq.wire.messages.replicate import ReplicaFetch
    from tests.unit.broker.copying import World
    from tests.unit.storage.directories import Disk

MB = 1_000_000
VALUE = bytes(50_000)
PAGE_CACHE = TopicConfig(durability=Durability.PAGE_CACHE)
ACK_SECONDS_MAX = 0.1  # of a record with replicas in sync, in these worlds


def filled(leader: Replica, count: int) -> None:
    for _ in range(count):
        leader.append(batch(VALUE), acks=1)


async def committed(leader: Replica) -> None:
    """Until the replicas in sync have everything."""
    while leader.high_watermark < leader.log.log_end_offset:  # noqa: ASYNC110  # a number sets no event
        await trio.sleep(0.1)


def copied(replica: Replica) -> int:
    """Bytes, as good as all of them in values."""
    return replica.log.log_end_offset * len(VALUE)


async def joined(found: World, added: int, *, seconds: float) -> None:
    """Until the leader proposes it, which is granted."""
    wishes = found.brokers[1].wishes
    with trio.fail_after(seconds):
        while not any(added in {one.broker_id for one in wish.isr} for _, wish in wishes):  # noqa: ASYNC110  # a list sets no event
            await trio.sleep(0.1)


async def slowest_acknowledgement(found: World, leader: Replica, *, added: int) -> float:
    """Of a producer that writes a fifth of the rate until the replica joins, and a while longer."""
    slowest = 0.0

    async def produce() -> None:
        nonlocal slowest
        while True:
            slowest = max(slowest, await acknowledged(leader, VALUE))
            await trio.sleep(0.25)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        await joined(found, added, seconds=200)
        await found.assign(led_by(1, change=1, replicas=(1, 2, 3)), config=PAGE_CACHE)
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    return slowest


async def test_a_copy_delays_no_acknowledgement(autojump_clock: MockClock) -> None:
    """100 MB at 1 MB/s, while others are appended: the high watermark rises with the replicas in
    sync all the time. The new one joins, and then it counts."""
    async with world(1, 2, 3, bytes_per_second=MB) as found:
        leader, _ = await found.assign(led_by(1, replicas=(1, 2)), config=PAGE_CACHE)
        filled(leader, 2000)
        await committed(leader)
        began_at = trio.current_time()
        copying = led_by(1, replicas=(1, 2, 3), isr=(1, 2))
        *_, new = await found.assign(copying, config=PAGE_CACHE, added=(3,))
        assert await slowest_acknowledgement(found, leader, added=3) < ACK_SECONDS_MAX
        assert 95 < trio.current_time() - began_at < 145
        assert new.log.log_end_offset >= leader.high_watermark > 2000
        assert leader.leading().maximal_isr == (1, 2, 3)


async def test_a_lane_that_says_what_it_holds_delays_them(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: the leader waits for a replica that is as slow as before."""
    usual = ProgressReports.__init__

    def talk(reports: ProgressReports, *arguments: object, is_silent: bool) -> None:
        usual(reports, *arguments, is_silent=False)  # type: ignore[arg-type]

    monkeypatch.setattr(ProgressReports, "__init__", talk)
    monkeypatch.setattr(Fetchers, "_on_over", lambda *_: None)  # and the rate stays limited
    async with world(1, 2, 3, bytes_per_second=MB) as found:
        leader, _ = await found.assign(led_by(1, replicas=(1, 2)), config=PAGE_CACHE)
        filled(leader, 400)
        await committed(leader)
        copying = led_by(1, replicas=(1, 2, 3), isr=(1, 2))
        await found.assign(copying, config=PAGE_CACHE, added=(3,))
        assert await slowest_acknowledgement(found, leader, added=3) > ACK_SECONDS_MAX


async def test_a_lane_keeps_to_its_rate(autojump_clock: MockClock) -> None:
    """In every second, and in all of them together."""
    async with world(1, 2, bytes_per_second=MB) as found:
        [leader] = await found.assign(led_by(1, replicas=(1,)), config=PAGE_CACHE)
        filled(leader, 400)
        copying = led_by(1, replicas=(1, 2), isr=(1,))
        _, new = await found.assign(copying, config=PAGE_CACHE, added=(2,))
        seen = [copied(new)]
        for _ in range(18):
            await trio.sleep(1)
            seen.append(copied(new))
        assert seen[-1] == pytest.approx(18 * MB, rel=0.05)
        for before, after in pairwise(seen):
            assert 0.8 * MB <= after - before <= 1.3 * MB


async def test_it_says_nothing_until_it_is_level(autojump_clock: MockClock) -> None:
    """One request at a time, in a session of its own, beside that of the others."""
    async with world(1, 2, bytes_per_second=MB) as found:
        broker = found.brokers[1]
        [leader] = await found.assign(led_by(1, replicas=(1,)), config=PAGE_CACHE)
        filled(leader, 60)
        await found.assign(led_by(1), 1, PAGE_CACHE)
        await settle()
        usual = {one.session_id for one in broker.fetches} - {0}
        broker.fetches.clear()
        copying = led_by(1, replicas=(1, 2), isr=(1,))
        await found.assign(copying, config=PAGE_CACHE, added=(2,))
        await trio.sleep(2)
        fetches = naming(broker.fetches, 0)
        assert len(fetches) > 5
        assert not usual & {one.session_id for one in fetches}
        assert all(one.held == () and one.bytes_max == MB // 10 for one in fetches)
        assert not any(said.partition == 0 for one in broker.progresses for said in one.partitions)
        await joined(found, 2, seconds=5)
        last = naming(broker.fetches, 0)[-1]
        assert last.session_id in usual
        assert [said.partition for said in last.held] == [0]


def naming(fetches: list[ReplicaFetch], partition: int) -> list[ReplicaFetch]:
    return [one for one in fetches if partition in {it.partition for it in one.partitions}]


async def test_copies_share_the_rate(autojump_clock: MockClock) -> None:
    """Two partitions of one leader, in one lane, and one of another leader."""
    async with world(1, 2, 3, bytes_per_second=MB) as found:
        leaders = {0: 1, 1: 1, 2: 3}
        for number, leader_id in leaders.items():
            [leader] = await found.assign(
                led_by(leader_id, replicas=(leader_id,)), number, PAGE_CACHE
            )
            filled(leader, 400)
        for number, leader_id in leaders.items():
            copying = led_by(leader_id, replicas=(leader_id, 2), isr=(leader_id,))
            await found.assign(copying, number, PAGE_CACHE, added=(2,))
        await trio.sleep(20)
        shares = [copied(found.brokers[2].hosted.replicas[key_of(one)]) for one in leaders]
        assert sum(shares) == pytest.approx(20 * MB, rel=0.05)
        # Lanes have the same share, and so have the partitions of a lane.
        assert shares == pytest.approx([5 * MB, 5 * MB, 10 * MB], rel=0.1)


async def test_what_is_empty_or_small_joins_at_once(autojump_clock: MockClock) -> None:
    """There is nothing to copy, or no more than one answer."""
    for count in (0, 1):
        async with world(1, 2, bytes_per_second=1) as found:
            [leader] = await found.assign(led_by(1, replicas=(1,)), config=PAGE_CACHE)
            filled(leader, count)
            copying = led_by(1, replicas=(1, 2), isr=(1,))
            _, new = await found.assign(copying, config=PAGE_CACHE, added=(2,))
            await joined(found, 2, seconds=1)
            assert await acknowledged(leader, b"a") < ACK_SECONDS_MAX
            assert values_of(new.log) == values_of(leader.log)


async def test_without_a_limit_it_is_as_fast_as_it_can(autojump_clock: MockClock) -> None:
    """20 MB, in the time that the network takes."""
    async with world(1, 2) as found:
        [leader] = await found.assign(led_by(1, replicas=(1,)), config=PAGE_CACHE)
        filled(leader, 400)
        copying = led_by(1, replicas=(1, 2), isr=(1,))
        await found.assign(copying, config=PAGE_CACHE, added=(2,))
        await joined(found, 2, seconds=2)


async def test_who_is_not_added_any_more_is_not_slowed_down(autojump_clock: MockClock) -> None:
    """At a rate at which it would take a day."""
    async with world(1, 2, bytes_per_second=100) as found:
        [leader] = await found.assign(led_by(1, replicas=(1,)), config=PAGE_CACHE)
        filled(leader, 200)
        copying = led_by(1, replicas=(1, 2), isr=(1,))
        _, new = await found.assign(copying, config=PAGE_CACHE, added=(2,))
        await trio.sleep(10)
        assert new.log.log_end_offset <= 3
        await found.assign(copying._replace(partition_epoch=1), config=PAGE_CACHE)
        await joined(found, 2, seconds=2)


# -- lanes by hand -------------------------------------------------------------------------


class Lanes:
    """A replica of broker 2 that is added, whose leader a test plays.

    Attributes:
        usual, copying: what the leader is asked in each lane.
    """

    def __init__(self, replica: Replica, budget: CopyBudget, disk: Disk) -> None:
        self.replica, self.disk = replica, disk
        self.usual, self.copying = ScriptedLeader(), ScriptedLeader()
        self.fetchers = Fetchers(
            2,
            self.usual,
            broker_epoch=lambda: 102,
            random=Random(0),
            copy_peers=self.copying,
            copy_budget=budget,
        )

    async def follow(self, *, is_added: bool) -> None:
        self.fetchers.follow(KEY, self.replica, is_added=is_added)
        await wait_all_tasks_blocked()

    async def lead(self, epoch: int, *, is_added: bool) -> None:
        await self.replica.take_up(led_by(1, epoch))
        await self.follow(is_added=is_added)

    @property
    def asked(self) -> tuple[int, int]:
        """How often the partition was named, in the usual lane and in the copy lane."""
        usual, copying = (
            sum(map(len, (one.partitions for one in lane.requests)))
            for lane in (self.usual, self.copying)
        )
        return usual, copying

    async def answer_copy(self, high_watermark: int, value: bytes = b"a") -> None:
        """To the last request: one record."""
        number = len(self.copying.requests) - 1
        data = bytearray(batch(value))
        data[:8] = self.replica.log.log_end_offset.to_bytes(8, "big")
        data[12:16] = bytes(4)  # as the leader of epoch 0 writes it
        told = fetched(len(data), high_watermark)
        await self.copying.answer(number, reply(told, data=bytes(data)))


@asynccontextmanager
async def lanes(bytes_per_second: int = 0) -> AsyncIterator[Lanes]:
    async with machine(2) as home, trio.open_nursery() as nursery:
        replica = await home.replica()
        await replica.take_up(led_by(1))
        found = Lanes(replica, CopyBudget(bytes_per_second), home.disk)
        await nursery.start(found.fetchers.run)
        await found.follow(is_added=True)
        yield found
        nursery.cancel_scope.cancel()


async def test_it_goes_over_with_the_answer_that_makes_it_level(autojump_clock: MockClock) -> None:
    """And is forgotten in the session of the copy lane."""
    async with lanes() as found:
        assert found.asked == (0, 1)
        await found.answer_copy(3)
        await found.answer_copy(3)
        assert found.asked == (0, 3)
        await found.answer_copy(3)
        assert found.asked == (1, 3)
        assert found.usual.requests[0].partitions[0].fetch_offset == 3
        assert [one.partition for one in found.copying.requests[-1].forgotten] == [0]


async def test_a_request_in_flight_is_waited_for(autojump_clock: MockClock) -> None:
    """It is not added any more: a late request would make the leader believe that it was cut."""
    async with lanes() as found:
        await found.follow(is_added=False)
        assert found.asked == (0, 1)
        await found.answer_copy(100)
        assert found.asked == (1, 1)


async def test_a_request_that_fails_is_waited_for(autojump_clock: MockClock) -> None:
    """It will not come any more."""
    async with lanes() as found:
        await found.follow(is_added=False)
        await found.copying.answer(0, Disconnected("cut"))
        await trio.sleep(1)
        assert found.asked == (1, 1)


async def test_a_turn_is_not_waited_for(autojump_clock: MockClock) -> None:
    """Nothing is in flight: it goes over at once, and its turn is another's."""
    async with lanes(bytes_per_second=1000) as found:
        await found.answer_copy(100, bytes(200_000))
        assert found.asked == (0, 1)
        await found.follow(is_added=False)
        assert found.asked == (1, 1)


async def test_who_was_counted_stays(autojump_clock: MockClock) -> None:
    """In this leader epoch, whatever becomes of it; not in the next one."""
    async with lanes() as found:
        await found.answer_copy(1)
        assert found.asked == (1, 1)
        await found.follow(is_added=True)
        assert found.asked == (1, 1)
        found.fetchers.unfollow(KEY)
        await found.follow(is_added=True)
        assert found.asked[1] == 1
        await found.copying.answer(1, reply())  # it has forgotten the partition
        await found.lead(1, is_added=True)
        assert found.asked[1] == 2


async def test_who_leaves_this_broker_is_forgotten(autojump_clock: MockClock) -> None:
    """It comes back in a later epoch, and copies."""
    async with lanes() as found:
        await found.answer_copy(1)
        found.fetchers.unfollow(KEY, is_let_go=True)
        assert found.fetchers._usual_in == {}
        await found.copying.answer(1, reply())
        await found.lead(1, is_added=True)
        assert found.asked == (1, 2)


async def test_another_epoch_begins_in_the_same_lane(autojump_clock: MockClock) -> None:
    """The answer to the request of the epoch before is dropped."""
    async with lanes() as found:
        await found.lead(1, is_added=True)
        await found.answer_copy(1)
        assert found.replica.log.log_end_offset == 0
        assert found.asked == (0, 2)
        assert found.copying.requests[-1].partitions[0].leader_epoch == 1


async def test_the_disk_is_waited_for(autojump_clock: MockClock) -> None:
    """It goes over while its log begins anew: only then it is asked for, from where that ends."""
    async with lanes() as found:
        found.disk.seconds = 1.0
        gone = PartitionFetched(*KEY, error=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=5)
        await found.copying.answer(0, reply(gone))
        await found.follow(is_added=False)
        await trio.sleep(0.5)
        assert found.asked == (0, 1)
        await trio.sleep(10)
        assert found.asked == (1, 1)
        assert found.usual.requests[0].partitions[0].fetch_offset == 5
