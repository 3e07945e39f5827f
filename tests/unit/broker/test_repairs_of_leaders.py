"""A leader whose log has failed promises nothing, harms nobody, and is replaced."""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from raftmq.errors import StorageError
from raftmq.metadata.commands import AlterTopicConfig, ElectionKind, ElectLeader, Loss
from tests.simulation.disk import SimulatedFiles
from tests.simulation.quorum_fake import FakeCluster
from tests.unit.broker.hosting import begin, create_topic, opened, reign, settle, state_of
from tests.unit.broker.mishaps import (
    STEP_SECONDS,
    SlowDisk,
    fail_leading,
    hold,
    order,
    stopped_with_a_record,
)
from tests.unit.broker.test_repairs import (
    KEY,
    LOG_FILES,
    break_down,
    log_durable,
    shorten,
    until_sound,
)
from tests.unit.storage.batches import batch, values_of

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.errors import RaftmqError

OTHER_ID = bytes(reversed(range(16)))


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


@pytest.mark.parametrize("seconds_before", [0, 15])
async def test_a_failed_leader_drops_nobody_from_the_isr(
    files: SimulatedFiles, autojump_clock: MockClock, seconds_before: int
) -> None:
    """Nobody can be told of the failure for a while; the follower has all, and leads after that."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        replica = await begin(node, 1, 2, durability="page_cache", min_insync_replicas="1")
        replica.append(batch(b"committed"), acks=1)
        hold(cluster, replica, 1)
        replica.append(batch(b"on its way"), acks=1)
        cluster.depose()
        await trio.sleep(seconds_before)
        wishes = len(node.wishes)
        await fail_leading(files, replica)
        await trio.sleep(15)
        assert len(node.wishes) == wishes
        cluster.elect(1)
        await trio.sleep(5)
        await reign(cluster)
        assert state_of(node).leader == 2


@pytest.mark.parametrize("is_held_before", [False, True])
async def test_nothing_is_acknowledged_after_the_log_has_failed(
    files: SimulatedFiles, autojump_clock: MockClock, is_held_before: bool
) -> None:
    """A producer begins to wait after that; the follower has told that it has it, or tells then."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        replica = await begin(node, 1, 2, durability="page_cache", min_insync_replicas="2")
        end_offset = replica.append(batch(b"x"), acks=-1).end_offset
        if is_held_before:
            hold(cluster, replica, end_offset)
            assert replica.high_watermark == end_offset
        cluster.depose()
        await fail_leading(files, replica)
        told: list[RaftmqError | None] = []
        deadline = trio.current_time() + 60
        replica.on_acks(end_offset, told.append, acks=-1, leader_epoch=0, deadline=deadline)
        hold(cluster, replica, end_offset)
        assert [type(error) for error in told] == [StorageError]


async def test_a_leader_that_recovers_cuts_nothing_before_it_has_the_answer(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Elected uncleanly, it loses records again; the news of that wait for another replica."""
    cluster = FakeCluster(1)
    await stopped_with_a_record(files, cluster, 1)
    shorten(files)
    async with opened(files, cluster) as node:
        await node.register()
        await create_topic(cluster, (1,), topic_id=OTHER_ID)
        await settle()  # its next tick, which ends recovery, is some way off
        await order(cluster, ElectLeader(*KEY, ElectionKind.UNCLEAN))
        replica = await until_sound(node, seconds=1)
        replica.append(batch(b"b"), acks=1)
        await log_durable(replica)
        async with node.replicas.get(OTHER_ID, 0)._cutting:
            await order(cluster, AlterTopicConfig(OTHER_ID, {"retention.ms": "1"}))
            await wait_all_tasks_blocked()
            assert replica.leading().assignment.is_recovering
            shorten(files)
            await fail_leading(files, replica)
            await trio.sleep(30)
            assert node.reports.told[-1] == (KEY, Loss.RECORDS)
            assert replica.log.damage


async def test_a_report_whose_answer_is_lost_is_told_again(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """It was applied already: that costs one more epoch, and nothing else."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        replica = await begin(node, 1, 2, durability="page_cache", min_insync_replicas="1")
        cluster.lose_answers(1, applied=True)
        await fail_leading(files, replica)
        await trio.sleep(10)
        assert node.reports.told == [(KEY, Loss.UNSYNCED)]
        assert (state_of(node).leader, state_of(node).leader_epoch) == (2, 2)
        assert replica.log.is_sound


async def test_a_broker_that_stops_while_its_log_is_opened_anew(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Its next process goes on with all that was durable."""
    cluster, disk = FakeCluster(1), SlowDisk()
    async with opened(files, cluster, run_sync=disk.run_sync) as node:
        await node.register()
        await create_topic(cluster, (1,))
        await trio.sleep(1)
        replica = node.replicas.get(*KEY)
        replica.append(batch(b"a"), acks=1)
        await log_durable(replica)
        replica.log.go_offline(StorageError("disk"))
        await disk.wait_begun()
        await trio.sleep(STEP_SECONDS / 2)
    async with opened(files, cluster) as node:
        await node.register()
        replica = await until_sound(node)
        await settle()
        assert values_of(replica.log) == [b"a"]
        assert replica.leader is not None


async def test_two_brokers_with_full_disks_take_turns_at_the_pace_of_the_pauses(
    autojump_clock: MockClock,
) -> None:
    """Each leads until the first append, ever more rarely."""
    cluster = FakeCluster(2)
    disks = [SimulatedFiles(Random(seed)) for seed in (1, 2)]
    async with opened(disks[0], cluster, 1) as one, opened(disks[1], cluster, 2) as two:
        for node in (one, two):
            await node.register()
        await create_topic(cluster, (1, 2))
        await settle()
        for disk in disks:
            break_down(disk, "write", LOG_FILES, error=errno.ENOSPC)
        begin = trio.current_time()
        while trio.current_time() < begin + 30:
            for replica in (node.replicas.get(*KEY) for node in (one, two)):
                if replica.leader is not None and replica.log.is_sound:
                    with pytest.raises(StorageError):
                        replica.append(batch(b"a"), acks=1)
            await trio.sleep(0.2)
        assert 4 <= state_of(one).leader_epoch <= 16
