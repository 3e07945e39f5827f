"""Repairs while something else happens: another failure, an election, metadata that is late."""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import StorageError
from raftmq.metadata.commands import (
    AlterTopicConfig,
    FenceBroker,
    Loss,
    ReportDamage,
    ReviewPartitions,
)
from raftmq.model import Durability
from tests.simulation.disk import SimulatedFiles
from tests.simulation.quorum_fake import FakeCluster
from tests.unit.broker.hosting import TOPIC_ID, begin, create_topic, opened, register, settle
from tests.unit.broker.mishaps import (
    STEP_SECONDS,
    SlowDisk,
    epoch_of,
    order,
    stopped_with_a_record,
)
from tests.unit.broker.test_repairs import (
    KEY,
    LOG_FILES,
    break_down,
    fail,
    log_durable,
    shorten,
    until_sound,
)
from tests.unit.storage.batches import append, values_of

if TYPE_CHECKING:
    from trio.testing import MockClock


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


# -- a disk that has its moods -----------------------------------------------------------------


async def test_a_hiccup_does_not_end_a_partition(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """The only replica cannot be read for half a minute, and is whole after that: it leads."""
    cluster = FakeCluster(1)
    await stopped_with_a_record(files, cluster, 1)
    break_down(files, "open", LOG_FILES, error=errno.EIO)
    async with opened(files, cluster) as node:
        await node.register()
        await trio.sleep(30)
        files._faults.clear()
        replica = await until_sound(node)
        await settle()
        assert values_of(replica.log) == [b"a"]
        assert replica.leader is not None


async def test_one_failure_to_read_is_not_five(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """After a disk that was full for a minute: nothing is given up."""
    cluster = FakeCluster(2)
    await stopped_with_a_record(files, cluster, 2, 1)
    break_down(files, "open", LOG_FILES, error=errno.ENOSPC)
    async with opened(files, cluster) as node:
        await node.register()
        await trio.sleep(60)
        files._faults.clear()
        files.fail("open", LOG_FILES, error=errno.EIO)
        replica = await until_sound(node)
        assert values_of(replica.log) == [b"a"]
        assert (KEY, Loss.RECORDS) not in node.reports.told


async def test_a_new_leader_does_not_wait_for_a_disk_that_is_busy_with_other_logs(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """A flush takes 20 seconds; a replica whose log is open is elected meanwhile."""
    cluster = FakeCluster(2)
    async with opened(files, cluster) as node:
        await begin(node, 2, 1)
        began_at = trio.current_time()
        async with node.directory._upkeep:
            await order(cluster, FenceBroker(2, epoch_of(cluster, 2)))
            await order(cluster, ReviewPartitions(2, epoch_of(cluster, 2), (tuple(KEY),)))
            with trio.move_on_after(20):
                while node.replicas.get(*KEY).leader is None:  # noqa: ASYNC110
                    await trio.sleep(0.05)
        assert trio.current_time() - began_at < 1


# -- metadata that changes meanwhile -----------------------------------------------------------


async def test_an_image_from_before_the_report_is_no_answer_to_it(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Unseen here as yet, 2 hands over to 3, and 3 dies: this replica is the last one in sync."""
    cluster = FakeCluster(3)
    async with opened(files, cluster) as node:
        await node.register()
        for broker_id in (2, 3):
            await register(cluster, broker_id)
        await create_topic(cluster, (2, 3, 1), min_insync_replicas="1")
        await settle()
        replica = node.replicas.get(*KEY)
        append(replica.log, b"a")
        await log_durable(replica)
        shorten(files)
        cluster.elect(2)
        await settle()
        cluster.follow_seconds = 2.0
        await order(cluster, ReportDamage(2, epoch_of(cluster, 2), (tuple(KEY),), Loss.NOTHING))
        await settle()
        await order(cluster, FenceBroker(3, epoch_of(cluster, 3)))
        await order(cluster, ReviewPartitions(3, epoch_of(cluster, 3), (tuple(KEY),)))
        assert cluster.leader.image.partitions[KEY].leader == 1
        await fail(files, replica)
        await trio.sleep(30)
        assert node.reports.told[-1] == (KEY, Loss.RECORDS)
        assert replica.log.damage


async def test_a_config_that_changes_while_the_log_is_opened_anew(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """It holds for the log that comes back."""
    cluster, disk = FakeCluster(2), SlowDisk()
    async with opened(files, cluster, run_sync=disk.run_sync) as node:
        await node.register()
        await register(cluster, 2)
        await create_topic(cluster, (2, 1), durability="page_cache")
        await trio.sleep(1)
        replica = node.replicas.get(*KEY)
        before = replica.log
        before.go_offline(StorageError("disk"))
        await disk.wait_begun()
        await trio.sleep(STEP_SECONDS * 1.5)  # it is open, with the config of then
        await order(cluster, AlterTopicConfig(TOPIC_ID, {"durability": "fsync"}))
        assert replica.log is before
        await until_sound(node)
        await settle()
        assert replica.log is not before
        assert replica.log.config.durability is Durability.FSYNC
