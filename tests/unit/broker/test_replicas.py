"""Replicas follow the metadata: opened, led, configured, deleted; and found again at a start."""

from __future__ import annotations

import logging
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import NotLeaderOrFollower, UnknownTopicId, UnknownTopicOrPartition
from raftmq.metadata.commands import (
    AlterPartition,
    AlterTopicConfig,
    DeleteTopic,
    Done,
    ProposedIsrMember,
    ReassignPartition,
    Refused,
)
from raftmq.partition.leader import ProposeIsr
from raftmq.partition.replica_environment import PartitionKey
from tests.simulation.disk import SimulatedFiles
from tests.simulation.quorum_fake import FakeCluster
from tests.unit.broker.hosting import (
    TOPIC_ID,
    begin,
    create_topic,
    opened,
    register,
    settle,
    state_of,
)
from tests.unit.partition.replica_world import wait_acks
from tests.unit.storage.batches import batch

if TYPE_CHECKING:
    from trio.testing import MockClock


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


async def test_a_new_topic_is_led_and_takes_records(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """A single replica commits what its own disk holds."""
    cluster = FakeCluster(1)
    async with opened(files, cluster) as node:
        await node.register()
        await create_topic(cluster, (1,), (1,))
        await settle()
        replica = node.replicas.get(TOPIC_ID, 1)
        epoch = replica.leading().leader_epoch
        appended = replica.append(batch(b"a", b"b"), acks=-1)
        await wait_acks(
            replica,
            appended.end_offset,
            acks=-1,
            leader_epoch=epoch,
            deadline=trio.current_time() + 5,
        )
        assert replica.high_watermark == 2
        assert replica.log.durable_end_offset == 2


async def test_a_thousand_leaderships_make_a_line(
    files: SimulatedFiles, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each change of the metadata has one: a topic of many partitions, then the epoch of another;
    a change of something else has none."""
    caplog.set_level(logging.INFO)
    cluster = FakeCluster(1)
    async with opened(files, cluster) as node:
        await node.register()
        await create_topic(cluster, *[(1,)] * 100)
        await settle()
        await create_topic(cluster, (1,), topic_id=b"1" * 16)
        await settle()
        await cluster.leader.propose(AlterTopicConfig(TOPIC_ID, {"retention.ms": "1"}))
        await settle()
    first, second = (one.message for one in caplog.records if "leads: " in one.message)
    name = f"t0-{TOPIC_ID.hex()}/Partition"
    assert first == f"leads: count=100 logs={name}-0,{name}-1,{name}-10,+97"
    assert second == f"leads: count=1 logs=t49-{b'1'.hex() * 16}/Partition-0"


async def test_nothing_happens_before_the_own_registration(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The metadata knows an earlier process of this broker: what it led is not ours."""
    cluster = FakeCluster(1)
    await register(cluster, 1)
    await create_topic(cluster, (1,))
    async with opened(files, cluster) as node:
        await settle()
        with pytest.raises(NotLeaderOrFollower, match=r"broker 1 has not opened .*-0 yet"):
            node.replicas.get(TOPIC_ID, 0)
        await node.register()
        await settle()
        assert node.replicas.get(TOPIC_ID, 0).assignment is not None


async def test_what_is_not_there_is_named(files: SimulatedFiles, autojump_clock: MockClock) -> None:
    """No such topic, no such partition, not on this broker."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        await node.register()
        await register(cluster, 2)
        await create_topic(cluster, (2,))
        await settle()
        with pytest.raises(UnknownTopicId):
            node.replicas.get(bytes(16), 0)
        with pytest.raises(UnknownTopicOrPartition):
            node.replicas.get(TOPIC_ID, 1)
        with pytest.raises(NotLeaderOrFollower, match="not on broker 1"):
            node.replicas.get(TOPIC_ID, 0)


async def test_a_deleted_topic_goes_from_the_disk(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Whoever waits for an acknowledgement is told; a new topic of that name begins empty."""
    cluster = FakeCluster(1)
    async with opened(files, cluster) as node:
        await begin(node, 1)
        assert isinstance(await cluster.leader.propose(DeleteTopic(TOPIC_ID)), Done)
        await settle()
        with pytest.raises(UnknownTopicId):
            node.replicas.get(TOPIC_ID, 0)
        assert node.directory.found() == []


async def test_followers_are_handed_over(files: SimulatedFiles, autojump_clock: MockClock) -> None:
    """A replica that another broker leads is given to whoever fetches."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        await begin(node, 2, 1)
        [(key, replica)] = node.followed.replicas.items()
        assert key == (TOPIC_ID, 0)
        assert replica.follower is not None
        assert replica.follower.leader == 2


async def test_who_is_added_is_handed_over_as_such(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Until it is in sync, even if others are still added; then it is taken back, and let go.

    A10.2.
    """
    cluster = FakeCluster(3)
    async with opened(files, cluster) as node:
        await node.register()
        for broker_id in (2, 3):
            await register(cluster, broker_id)
        await create_topic(cluster, (2,))
        key = PartitionKey(TOPIC_ID, 0)
        move = ReassignPartition(*key, 0, (1, 3, 2))
        assert isinstance(await cluster.leader.propose(move), Done)
        await settle()
        assert node.followed.added == {key}
        epochs = {one.broker_id: one.broker_epoch for one in cluster.leader.image.brokers.values()}
        members = tuple(ProposedIsrMember(broker_id, epochs[broker_id]) for broker_id in (2, 1))
        state = state_of(node)
        joining = AlterPartition(
            2, epochs[2], *key, state.leader_epoch, state.partition_epoch, members
        )
        found = await cluster.leader.propose(joining)
        assert not isinstance(found, Refused), found
        await settle()
        assert state_of(node).adding == (1, 3)
        assert node.followed.added == set()
        assert key in node.followed.replicas
        assert node.followed.let_go == []
        back = ReassignPartition(*key, state_of(node).partition_epoch, None)
        assert isinstance(await cluster.leader.propose(back), Done)
        await settle()
        assert node.followed.let_go == [key]


async def test_min_isr_changes_with_its_config(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """A change of the config is no change of the partition, and holds all the same."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        await begin(node, 1, 2, min_insync_replicas="1")
        leader = node.replicas.get(TOPIC_ID, 0).leading()
        assert leader.assignment.min_isr == 1
        change = AlterTopicConfig(TOPIC_ID, {"min.insync.replicas": "3"})
        assert isinstance(await cluster.leader.propose(change), Done)
        await settle()
        assert leader.assignment.min_isr == 2  # no more than there are


async def test_a_restart_finds_records_and_high_watermark(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The log is opened before the broker registers, and led again afterwards."""
    cluster = FakeCluster(1)
    async with opened(files, cluster) as node:
        await begin(node, 1)
        node.replicas.get(TOPIC_ID, 0).append(batch(b"a", b"b"), acks=1)
        await settle()
    async with opened(files, cluster) as node:
        assert node.replicas.damaged() == []
        await node.register()
        await settle()
        replica = node.replicas.get(TOPIC_ID, 0)
        assert (replica.log.log_end_offset, replica.high_watermark) == (2, 2)


async def test_a_silent_follower_leaves_the_in_sync_set(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The leader asks for a smaller set, and goes on without the silent one (A5.6)."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        replica = await begin(node, 1, 2, min_insync_replicas="1")
        appended = replica.append(batch(b"a"), acks=-1)
        epoch = replica.leading().leader_epoch
        deadline = trio.current_time() + 60
        began = trio.current_time()
        await wait_acks(
            replica, appended.end_offset, acks=-1, leader_epoch=epoch, deadline=deadline
        )
        assert 10 <= trio.current_time() - began <= 12
        assert replica.leading().assignment.isr == (1,)
        assert len(node.wishes) == 1


async def test_a_proposal_that_nobody_wants_any_more_is_forgotten(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """It was not answered, and meanwhile the leader has gone: nothing of it is kept."""
    cluster = FakeCluster(1)
    async with opened(files, cluster) as node:
        replica = await begin(node, 1)
        cluster.depose()
        stale = ProposeIsr((), leader_epoch=0, partition_epoch=0)
        node.proposals.propose(replica, stale)
        await trio.sleep(2)
        assert not node.proposals._unsettled
