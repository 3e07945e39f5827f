"""Topics that are deleted while a broker is down: their folders go, and nobody else's."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from raftmq.disk.checkpoint import read_checkpoint
from raftmq.errors import UnknownTopicId
from raftmq.metadata.commands import DeleteTopic, Done
from raftmq.partition.storage.inspect import TOPICS_FOLDER
from tests.simulation.disk import SimulatedFiles
from tests.simulation.quorum_fake import FakeCluster
from tests.unit.broker.hosting import TOPIC_ID, begin, create_topic, opened, register, settle
from tests.unit.storage.batches import batch
from tests.unit.storage.directories import ROOT

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.broker.hosting import Node

OTHER, THIRD = bytes(range(1, 17)), bytes(range(2, 18))
CHECKPOINTS = ("recovery-points", "boots", "high-watermarks")


@pytest.fixture
def files() -> SimulatedFiles:
    return SimulatedFiles(Random(0))


async def write(node: Node) -> None:
    """Durably, with a line in every checkpoint."""
    for replica in node.replicas.all():
        replica.append(batch(b"a"), acks=1)
        await node.directory.flusher.wait_durable(replica.log, 1)
    await node.directory.checkpoint()


async def host_two_topics(files: SimulatedFiles, cluster: FakeCluster) -> None:
    async with opened(files, cluster) as node:
        await begin(node, 1)
        await create_topic(cluster, (1,), topic_id=OTHER)
        await settle()
        await write(node)


async def delete(cluster: FakeCluster, topic_id: bytes = TOPIC_ID) -> None:
    assert isinstance(await cluster.leader.propose(DeleteTopic(topic_id)), Done)


def folders(files: SimulatedFiles) -> set[bytes]:
    names = files.names(ROOT / TOPICS_FOLDER)
    return {bytes.fromhex(name.rpartition("-")[2]) for name in names}


def remembered(files: SimulatedFiles) -> set[str]:
    found = [read_checkpoint(files, ROOT / "checkpoints" / name) or {} for name in CHECKPOINTS]
    return {name for one in found for name in one}


async def test_its_folders_go_once_the_broker_is_registered(
    files: SimulatedFiles, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Not before: until then the metadata may be any. The other topic stays, and the checkpoints
    name those that are there: one of the three was deleted.
    """
    cluster = FakeCluster(1)
    await host_two_topics(files, cluster)
    assert len(remembered(files)) == 2
    await delete(cluster)
    async with opened(files, cluster) as node:
        await settle()
        assert folders(files) == {TOPIC_ID, OTHER}
        await node.register()
        await settle()
        assert folders(files) == {OTHER}
        assert "its topic was deleted, and it goes" in caplog.text
        [replica] = node.replicas.all()
        assert replica.log.log_end_offset == 1
        await create_topic(cluster, (1,), topic_id=THIRD)
        await settle()
        await write(node)
    assert len(remembered(files)) == 2
    assert not files.removed_open()


async def test_the_metadata_is_behind_at_the_start(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """It has the topic still, whose log is opened; what comes next has not."""
    cluster = FakeCluster(2)
    async with opened(files, cluster, 2) as node:
        await begin(node, 2)
    cluster.follow_seconds = 1.0
    await delete(cluster)
    async with opened(files, cluster, 2) as node:
        assert len(node.directory.logs) == 1
        await register(cluster, 1)  # takes a while
        await node.register()
        await settle()
        assert folders(files) == set()
        assert not node.directory.logs


async def test_another_quorum_deletes_nothing(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """One that lost all its disks and began anew: it knows none of the topics, and deletes others.

    Not at the first start, not at the next one, when the directory is registered with it.
    """
    await host_two_topics(files, FakeCluster(1))
    cluster = FakeCluster(1)
    await register(cluster, 1)
    await create_topic(cluster, (1,), topic_id=THIRD)
    await delete(cluster, THIRD)
    for _ in range(2):
        async with opened(files, cluster) as node:
            await node.register()
            await settle()
            with pytest.raises(UnknownTopicId):
                node.replicas.get(TOPIC_ID, 0)
        assert folders(files) == {TOPIC_ID, OTHER}
    assert len(remembered(files)) == 2


async def test_a_late_command_makes_it_anew(
    files: SimulatedFiles, autojump_clock: MockClock
) -> None:
    """Under the same id: it is there, whatever was deleted before."""
    cluster = FakeCluster(1)
    await host_two_topics(files, cluster)
    await delete(cluster)
    await create_topic(cluster, (1,))
    async with opened(files, cluster) as node:
        await node.register()
        await settle()
        assert node.replicas.get(TOPIC_ID, 0).log.log_end_offset == 1
    assert folders(files) == {TOPIC_ID, OTHER}


async def test_a_disk_that_refuses(
    files: SimulatedFiles, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, the broker serves the rest, and the next start tries again."""
    cluster = FakeCluster(1)
    await host_two_topics(files, cluster)
    await delete(cluster)
    files.fail("rename", f"*-{TOPIC_ID.hex()}/*")
    for expected in ({TOPIC_ID, OTHER}, {OTHER}):
        async with opened(files, cluster) as node:
            await node.register()
            await settle()
            assert node.replicas.get(OTHER, 0).log.log_end_offset == 1
        assert folders(files) == expected
    assert "not removed: log=" in caplog.text
