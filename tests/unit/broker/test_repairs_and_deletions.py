"""A topic goes while something is the matter with its log: nothing of it stays, whatever it was."""

from __future__ import annotations

import errno
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from raftmq.errors import StorageError
from raftmq.metadata.commands import DeleteTopic
from raftmq.partition.leader import Diverged
from raftmq.partition.replica_environment import FetchedFromLeader
from tests.simulation.disk import SimulatedFiles
from tests.simulation.quorum_fake import FakeCluster
from tests.unit.broker.hosting import TOPIC_ID, create_topic, opened, register, settle
from tests.unit.broker.mishaps import STEP_SECONDS, SlowDisk, order, stopped_with_a_record
from tests.unit.broker.test_repairs import FOLDER, KEY, LOG_FILES, break_down, log_durable
from tests.unit.storage.batches import append

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.partition.replica import Replica
    from tests.unit.broker.hosting import Node


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


def check_gone(files: SimulatedFiles, node: Node) -> None:
    assert node.replicas.find(KEY) is None
    assert KEY not in node.followed.replicas
    assert not node.repairs.is_watched(KEY)
    assert not node.directory.logs
    assert not files.exists(FOLDER)


async def cut_in_vain(replica: Replica) -> None:
    """Its leader has nothing but the first record."""
    fetch = replica.next_fetch()
    assert fetch is not None
    with pytest.raises(StorageError):
        await replica.on_fetched(fetch.token, FetchedFromLeader(diverged=Diverged(0, 1)))


async def keep_from_closing(replica: Replica) -> None:
    """Until some steps after what is under way."""
    async with replica._cutting:
        await trio.sleep(STEP_SECONDS * 1.5)


async def test_a_log_that_cannot_be_opened(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """For want of a right to read it: it can be removed."""
    cluster = FakeCluster(1)
    await stopped_with_a_record(files, cluster, 1)
    break_down(files, "open", LOG_FILES, error=errno.EACCES)
    async with opened(files, cluster) as node:
        await node.register()
        await trio.sleep(5)
        await order(cluster, DeleteTopic(TOPIC_ID))
        await settle()
        check_gone(files, node)


@pytest.mark.parametrize("steps", [0.5, 1.5])
async def test_a_log_that_is_just_being_opened_after_all(
    files: SimulatedFiles, autojump_clock: MockClock, steps: float
) -> None:
    """It is known to the directory by then, or will be in a moment, and is no replica's yet."""
    cluster, disk = FakeCluster(1), SlowDisk()
    await stopped_with_a_record(files, cluster, 1)
    break_down(files, "open", LOG_FILES, error=errno.ENOSPC)
    async with opened(files, cluster, run_sync=disk.run_sync) as node:
        await node.register()
        await trio.sleep(5)
        files._faults.clear()
        await disk.wait_begun()
        await trio.sleep(STEP_SECONDS * steps)
        await order(cluster, DeleteTopic(TOPIC_ID))
        await trio.sleep(5)
        check_gone(files, node)


@pytest.mark.parametrize("steps", [0.5, 1.5])
async def test_a_log_that_is_just_being_opened_anew(
    files: SimulatedFiles, autojump_clock: MockClock, steps: float
) -> None:
    """It was offline: the old object goes, or the new one."""
    cluster, disk = FakeCluster(1), SlowDisk()
    async with opened(files, cluster, run_sync=disk.run_sync) as node:
        await node.register()
        await create_topic(cluster, (1,))
        await trio.sleep(1)
        node.replicas.get(*KEY).log.go_offline(StorageError("disk"))
        await disk.wait_begun()
        await trio.sleep(STEP_SECONDS * steps)
        await order(cluster, DeleteTopic(TOPIC_ID))
        await trio.sleep(5)
        check_gone(files, node)
        assert not node.directory._changes


async def test_a_log_that_fails_in_a_cut(files: SimulatedFiles, autojump_clock: MockClock) -> None:
    """It is not closed before the cut ends, and calls for repairs then: nobody comes any more."""
    cluster, disk = FakeCluster(2), SlowDisk()
    async with opened(files, cluster, run_sync=disk.run_sync) as node:
        await node.register()
        await register(cluster, 2)
        await create_topic(cluster, (2, 1))
        await trio.sleep(1)
        replica = node.replicas.get(*KEY)
        append(replica.log, b"a")
        append(replica.log, b"b")
        await log_durable(replica)
        files.fail("truncate", LOG_FILES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut_in_vain, replica)
            await disk.wait_begun()
            nursery.start_soon(keep_from_closing, replica)
            await wait_all_tasks_blocked()
            await order(cluster, DeleteTopic(TOPIC_ID))
        await trio.sleep(5)
        check_gone(files, node)
        assert replica.follower is None
