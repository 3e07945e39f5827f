"""A follower whose log has failed is waited for by nobody, until it has caught up again."""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import StorageError
from raftmq.metadata.commands import (
    AlterPartition,
    BeginControlledShutdown,
    FenceBroker,
    Loss,
    PartitionAltered,
)
from raftmq.metadata.commands import ProposedIsrMember as Member
from raftmq.partition.replica_environment import FetchedFromLeader
from tests.simulation.disk import SimulatedFiles
from tests.simulation.quorum_fake import FakeCluster
from tests.unit.broker.hosting import begin, create_topic, opened, register, settle, state_of
from tests.unit.broker.mishaps import epoch_of, order
from tests.unit.broker.test_repairs import KEY, LOG_FILES, break_down, fail, until_sound
from tests.unit.storage.batches import append

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.partition.replica import Replica
    from tests.unit.broker.hosting import Node

FULL_SECONDS = 60


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


async def take_in(node: Node) -> None:
    """Its leader, broker 2, has its follower put into the in-sync set."""
    cluster, state = node.cluster, state_of(node)
    members = tuple(Member(broker_id, epoch_of(cluster, broker_id)) for broker_id in (2, 1))
    epochs = (state.leader_epoch, state.partition_epoch)
    altered = await cluster.leader.propose(
        AlterPartition(2, epoch_of(cluster, 2), *KEY, *epochs, members)
    )
    assert isinstance(altered, PartitionAltered), f"{altered}"


def hear(replica: Replica) -> None:
    """The leader has nothing new: it is told what is held here."""
    fetch = replica.next_fetch()
    assert fetch is not None
    replica.on_records(fetch.token, FetchedFromLeader())


async def fill_up(node: Node, *, seconds: float, hears: bool) -> int:
    """Every append fails, as soon as there is one; how many did. `hears`: and yet it catches up
    with its leader each time before that, or a record found room.
    """
    failures, began_at = 0, trio.current_time()
    while trio.current_time() < began_at + seconds:
        replica = node.replicas.get(*KEY)
        if replica.log.is_sound:
            if hears:
                hear(replica)
            with pytest.raises(StorageError):
                append(replica.log, b"a")
            replica._on_held()
            failures += 1
        await trio.sleep(0.05)
    return failures


async def test_a_follower_leaves_the_isr_as_soon_as_its_log_fails(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Below min ISR it stays eligible: it has lost nothing. In service again, it is still out.

    A3.8.
    """
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        replica = await begin(node, 2, 1, min_insync_replicas="2")
        await fail(files, replica)
        await settle()
        await until_sound(node)
        state = state_of(node)
        assert (state.leader, state.leader_epoch) == (2, 1)
        assert (state.isr, state.eligible) == ((2,), (1,))
        assert node.reports.told == [(KEY, Loss.NOTHING)]


async def test_a_full_disk_costs_one_epoch_and_ever_fewer_attempts(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """It can be opened, and fails at the next append; no leader has counted on it since."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        await begin(node, 2, 1)
        break_down(files, "write", LOG_FILES, error=errno.ENOSPC)
        failures = await fill_up(node, seconds=FULL_SECONDS, hears=False)
        assert 4 <= failures <= 12
        assert state_of(node).isr == (2,)
        assert state_of(node).leader_epoch == 1


async def test_who_had_caught_up_says_so_each_time_at_the_pace_of_the_pauses(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Its leader may wait for it although it is not in sync yet: it is about to be."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        await begin(node, 2, 1)
        break_down(files, "write", LOG_FILES, error=errno.ENOSPC)
        failures = await fill_up(node, seconds=FULL_SECONDS, hears=True)
        assert 4 <= failures <= 12
        assert failures - 1 <= state_of(node).leader_epoch <= failures


async def test_who_is_taken_in_while_its_log_is_offline_leaves_at_once(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Its leader had asked for that before; the disk rests for many seconds."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        await begin(node, 2, 1)
        break_down(files, "write", LOG_FILES, error=errno.ENOSPC)
        await fill_up(node, seconds=15, hears=False)
        assert not node.replicas.get(*KEY).log.is_sound
        await take_in(node)
        assert state_of(node).isr == (2, 1)
        await settle()
        assert not node.replicas.get(*KEY).log.is_sound
        assert state_of(node).isr == (2,)


async def test_who_is_in_service_again_may_be_taken_in(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Its leader sees it level; nothing that was to be said before is said now."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        replica = await begin(node, 2, 1)
        await fail(files, replica)
        await until_sound(node)
        await settle()
        hear(replica)
        await take_in(node)
        await trio.sleep(60)
        assert state_of(node).isr == (2, 1)
        assert state_of(node).leader_epoch == 1


@pytest.mark.parametrize("command", [FenceBroker, BeginControlledShutdown])
async def test_who_may_have_to_lead_next_stays_in_the_isr(
    files: SimulatedFiles,
    autojump_clock: MockClock,
    command: type[FenceBroker | BeginControlledShutdown],
) -> None:
    """The leader is about to go; nobody else could lead, and to read a full disk is possible."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        replica = await begin(node, 2, 1, min_insync_replicas="1")
        await order(cluster, command(2, epoch_of(cluster, 2)))
        await fail(files, replica)
        await until_sound(node)
        await settle()
        assert node.reports.told == []
        assert 1 in state_of(node).isr


async def test_while_nobody_can_be_told_it_goes_on(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The quorum is away, so nobody can leave: it is back soon, and the report is not made late."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        replica = await begin(node, 2, 1)
        cluster.depose()
        await fail(files, replica)
        await until_sound(node, seconds=3)
        cluster.elect(1)
        await trio.sleep(10)
        assert state_of(node).isr == (2, 1)
        assert state_of(node).leader_epoch == 0


async def test_a_log_that_cannot_be_made_is_waited_for_by_nobody(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """All replicas of a new partition are in sync, and here there is no room for it."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        await node.register()
        await register(cluster, 2)
        break_down(files, "create", LOG_FILES, error=errno.ENOSPC)
        await create_topic(cluster, (2, 1))
        await settle()
        assert node.replicas.find(KEY) is None
        assert state_of(node).isr == (2,)
        files._faults.clear()
        await until_sound(node)
