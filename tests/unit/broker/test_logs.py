"""DescribeLogs: bytes and offsets of the logs on a broker, in pages."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from raftmq.broker.requests.offsets import LogDescriptions
from raftmq.wire.messages.topics import DescribeLogs, LogCursor, LogRow
from tests.simulation.disk import SimulatedFiles
from tests.simulation.quorum_fake import FakeCluster
from tests.unit.broker.asking import UNKNOWN, ask
from tests.unit.broker.hosting import TOPIC_ID, create_topic, opened, settle
from tests.unit.broker.test_offsets import leading
from tests.unit.storage.batches import batch
from tests.unit.storage.directories import Disk

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.wire.messages.topics import DescribeLogsReply
    from tests.unit.broker.hosting import Node


async def described(node: Node, request: DescribeLogs) -> DescribeLogsReply:
    reply: DescribeLogsReply = await ask(LogDescriptions(node.replicas).describe, request)
    return reply


async def test_bytes_and_offsets_of_a_log(autojump_clock: MockClock) -> None:
    """A leader with three records, one of them deleted and one not committed (A3.4)."""
    async with leading(1, 2) as (node, replica):
        assert (await described(node, DescribeLogs())).logs == (LogRow(TOPIC_ID, 0, 0, 0, 0),)
        data = batch(b"a", b"b", b"c")
        replica.append(data, acks=1)
        await settle()
        assert replica.high_watermark == 0
        await node.directory.delete_records(replica.log, 1)
        [row] = (await described(node, DescribeLogs())).logs
        assert row == LogRow(TOPIC_ID, 0, len(data), 1, 3)


async def test_pages(autojump_clock: MockClock) -> None:
    """Three partitions of two topics, two in a page: in order, each once, and then the end."""
    cluster = FakeCluster()
    async with opened(SimulatedFiles(Random(0)), cluster, run_sync=Disk()) as node:
        await node.register()
        await create_topic(cluster, (1,), (1,))
        await create_topic(cluster, (1,), topic_id=b"z" * 16)
        await settle()
        page = await described(node, DescribeLogs(logs_max=2))
        assert [(row.topic_id, row.partition) for row in page.logs] == [
            (TOPIC_ID, 0),
            (TOPIC_ID, 1),
        ]
        assert page.next == LogCursor(b"z" * 16, 0)
        page = await described(node, DescribeLogs(logs_max=2, first=page.next))
        assert [(row.topic_id, row.partition) for row in page.logs] == [(b"z" * 16, 0)]
        assert page.next is None


async def test_only_the_topics_that_are_asked_for(autojump_clock: MockClock) -> None:
    """A topic that the broker does not have is no error: the answer leaves it out."""
    async with leading(1) as (node, _):
        assert (await described(node, DescribeLogs((UNKNOWN,)))).logs == ()
        [row] = (await described(node, DescribeLogs((UNKNOWN, TOPIC_ID)))).logs
        assert row.topic_id == TOPIC_ID
