"""A replica that leads lets its log begin where the quorum says, before anybody sees it (A3.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.errors import NotLeaderOrFollower, StorageError
from raftmq.partition.leader import StartOver, Trim, before_leading
from tests.unit.partition.replica_world import led_by, machine, settle
from tests.unit.storage.batches import append, batch, values_of

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.partition.replica import Replica
    from tests.unit.partition.replica_world import Machine


@pytest.mark.parametrize(
    ("start", "expected"),
    [(0, None), (10, None), (11, Trim(11)), (20, Trim(20)), (21, StartOver(21))],
)
def test_what_becomes_of_a_log_before_it_leads(
    start: int, expected: Trim | StartOver | None
) -> None:
    """A log of 10 to 20."""
    assert before_leading(start, log_start_offset=10, log_end_offset=20) == expected


async def follower_of_three(home: Machine) -> Replica:
    """It has what its leader of epoch 0 wrote, and does not know yet that it is committed."""
    replica = await home.replica()
    await replica.take_up(led_by(2))
    for value in (b"a", b"b", b"c"):
        append(replica.log, value)
    await settle()
    assert (replica.log.log_start_offset, replica.high_watermark) == (0, 0)
    return replica


async def test_a_follower_that_is_elected_begins_at_the_start(autojump_clock: MockClock) -> None:
    """The leader deleted two records, was answered and died: its successor shows the third one."""
    async with machine(1) as home:
        replica = await follower_of_three(home)
        home.disk.seconds = 1.0
        await replica.take_up(led_by(1, 1, start=2))
        assert replica.leading(1).leader_epoch == 1
        assert (replica.log.log_start_offset, replica.high_watermark) == (2, 2)
        assert values_of(replica.log) == [b"c"]


async def test_a_log_that_ends_before_the_start_begins_anew(autojump_clock: MockClock) -> None:
    """It was elected uncleanly: no offset below the start is handed out again."""
    async with machine(1) as home:
        replica = await follower_of_three(home)
        await replica.take_up(led_by(1, 1, isr=(1,), start=900))
        assert (replica.log.log_start_offset, replica.log.log_end_offset) == (900, 900)
        assert replica.leading(1).is_established
        assert replica.append(batch(b"d"), acks=1).base_offset == 900


async def test_a_disk_that_refuses_the_start_does_not_lead(autojump_clock: MockClock) -> None:
    """It would show what was deleted: the log goes offline, and leads once it is repaired."""
    async with machine(1) as home:
        replica = await follower_of_three(home)
        home.files.fail("sync", "*log-start-offset*")
        with pytest.raises(StorageError):
            await replica.take_up(led_by(1, 1, start=2))
        with pytest.raises(NotLeaderOrFollower):
            replica.leading(1)
        assert replica.log.offline_reason
        await replica.replace_log(await home.directory.reopen(replica.log))
        assert replica.leading(1).leader_epoch == 1
        assert values_of(replica.log) == [b"c"]


async def test_a_start_that_rises_while_it_leads(autojump_clock: MockClock) -> None:
    """Whoever asked does the deleting; where he gave up, it is done all the same."""
    async with machine(1) as home:
        replica = await follower_of_three(home)
        await replica.take_up(led_by(1, 1, isr=(1,)))
        await settle()
        assert replica.high_watermark == 3
        await replica.take_up(led_by(1, 1, change=2, isr=(1,), start=2))
        assert replica.log.log_start_offset == 0
        await replica.keep_start()
        assert replica.log.log_start_offset == 2
        await replica.take_up(led_by(2, 2, change=3, start=3))
        await replica.keep_start()
        assert replica.log.log_start_offset == 2  # a follower follows its leader's log
