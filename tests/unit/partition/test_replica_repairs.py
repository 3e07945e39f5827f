"""A replica goes on with a log that was opened anew, or cut where it is damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import NotLeaderOrFollower, StorageError
from raftmq.partition.replica_environment import FetchedFromLeader
from tests.unit.partition.replica_world import KEY, News, led_by, machine, settle
from tests.unit.storage.batches import append, batch, values_of

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.partition.replica import Replica
    from tests.unit.partition.replica_world import Machine


async def fail(home: Machine, replica: Replica) -> None:
    home.files.fail("sync", "Partition-0/*.log")
    if replica.leader is None:
        append(replica.log, b"lost")
    else:
        replica.append(batch(b"lost"), acks=1)
    await settle()
    assert replica.log.offline_reason


async def test_whoever_cares_for_logs_is_told_that_one_went_offline(
    autojump_clock: MockClock,
) -> None:
    """So that somebody opens it anew."""
    async with machine(1) as home:
        told: list[object] = []
        home.around = home.around._replace(on_offline=told.append)
        replica = await home.replica()
        await replica.take_up(led_by(2))
        await fail(home, replica)
        assert set(told) == {KEY}


async def test_a_leader_does_not_lead_on_in_the_same_epoch(autojump_clock: MockClock) -> None:
    """Followers may have what its log lacks now: another epoch has to begin."""
    async with machine(1) as home:
        replica = await home.replica()
        await replica.take_up(led_by(1, 3))
        await fail(home, replica)
        assert not replica.needs_epoch
        await replica.replace_log(await home.directory.reopen(replica.log))
        assert replica.needs_epoch
        with pytest.raises(NotLeaderOrFollower):
            replica.leading(3)
        await replica.take_up(led_by(1, 3, change=4))
        assert replica.leader is None
        await replica.take_up(led_by(1, 5))
        assert not replica.needs_epoch
        replica.append(batch(b"a"), acks=1)
        await settle()
        assert values_of(replica.log) == [b"a"]


async def test_a_follower_asks_for_what_comes_after_its_new_end(
    autojump_clock: MockClock,
) -> None:
    """An answer to what the old log had asked for is not taken."""
    async with machine(1) as home:
        replica, news = await home.replica(), News()
        await replica.take_up(led_by(2, 1))
        append(replica.log, b"a")
        await settle()
        old = replica.next_fetch()
        assert old is not None
        await fail(home, replica)
        assert replica.next_fetch() is None
        replica.watchers[news] = None
        await replica.replace_log(await home.directory.reopen(replica.log))
        assert news.keys == [KEY]
        fetch = replica.next_fetch()
        assert fetch is not None
        assert (fetch.fetch_offset, replica.log.log_end_offset) == (1, 1)
        assert fetch.token != old.token


async def test_nobody_leads_with_a_damaged_log_before_it_is_cut(
    autojump_clock: MockClock,
) -> None:
    """Then it takes up at once what it was assigned meanwhile; nothing above the end is committed
    there.
    """
    async with machine(1) as home:
        replica = await home.replica()
        append(replica.log, b"a", b"b")
        await settle()
        await fail(home, replica)
        home.files.open(replica.log.active.file.path).truncate(10)
        replica.high_watermark = 2
        await replica.replace_log(await home.directory.reopen(replica.log))
        assert (replica.log.is_sound, replica.high_watermark) == (False, 0)
        await replica.take_up(led_by(1, 1))
        assert replica.leader is None
        await replica.cut_damage()
        assert replica.leading(1).log_end_offset == 0


async def test_a_damaged_log_may_begin_anew(autojump_clock: MockClock) -> None:
    """Where not even the place of the damage can be found again."""
    async with machine(1) as home:
        replica = await home.replica()
        await replica.take_up(led_by(2, 1))
        append(replica.log, b"a", b"b")
        await settle()
        await fail(home, replica)
        home.files.open(replica.log.active.file.path).truncate(10)
        await replica.replace_log(await home.directory.reopen(replica.log))
        await replica.cut_damage(start_over=True)
        assert replica.log.is_sound
        fetch = replica.next_fetch()
        assert fetch is not None
        assert fetch.fetch_offset == 0


async def test_a_cut_that_fails_takes_the_log_offline(autojump_clock: MockClock) -> None:
    """And changes no part: it is opened anew, and still damaged."""
    async with machine(1) as home:
        replica = await home.replica()
        await replica.take_up(led_by(2, 1))
        append(replica.log, b"a", b"b")
        await settle()
        await fail(home, replica)
        home.files.open(replica.log.active.file.path).truncate(10)
        await replica.replace_log(await home.directory.reopen(replica.log))
        home.files.fail("truncate", "Partition-0/*.log")
        with pytest.raises(StorageError):
            await replica.cut_damage()
        assert replica.log.is_half_cut
        await replica.replace_log(await home.directory.reopen(replica.log))
        assert replica.log.damage
        await replica.cut_damage()
        assert replica.log.is_sound


async def test_an_answer_that_comes_while_producers_are_read_back(
    autojump_clock: MockClock,
) -> None:
    """Asked for before, as the log was whole: it is dropped, and asked for again (R7)."""
    async with machine(1) as home:
        replica = await home.replica()
        await replica.take_up(led_by(2, 1))
        append(replica.log, b"a")
        await settle()
        replica.log.schedule.on_unread(0, 1)
        assert replica.has_unread
        asked = replica.next_fetch()
        assert asked is not None
        home.disk.seconds = 1.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(replica.cut_damage)
            await trio.sleep(0.5)
            assert replica.log.is_being_cut
            replica.on_records(asked.token, FetchedFromLeader(bytes(batch(b"b")), 2, 0))
        assert values_of(replica.log) == [b"a"]
        assert not replica.has_unread
        again = replica.next_fetch()
        assert again is not None
        assert again.fetch_offset == 1
