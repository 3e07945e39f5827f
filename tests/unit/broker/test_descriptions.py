"""Topics in full, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.broker.requests import metadata
from raftmq.broker.requests.metadata import TopicDescriptions
from raftmq.errors import ErrorCode, InvalidRequest
from raftmq.metadata.commands import DeleteTopic, PartitionId, ReassignPartition
from raftmq.wire.messages.topics import Cursor, DescribeTopics
from tests.unit.broker.asking import NODE, ORDERS, USERS, ask, cluster_of, fence, make, said

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.simulation.quorum_fake import FakeCluster


def answers(cluster: FakeCluster) -> TopicDescriptions:
    return TopicDescriptions(cluster.nodes[NODE])


async def pages(cluster: FakeCluster, *names: str, partitions_max: int) -> list[list[str]]:
    """Of each page its partitions, `topic/number`, and the topics that are not there."""
    found, first = [], None
    while True:
        request = DescribeTopics(names, partitions_max, first)
        reply = await ask(answers(cluster).describe, request)
        page = []
        for topic in reply.topics:
            page += [f"{topic.name}/{one.partition}" for one in topic.partitions] or [topic.name]
        found.append(page)
        first = reply.next
        if first is None:
            return found


async def test_a_partition_in_full(autojump_clock: MockClock) -> None:
    """Who left and lacks nothing, who is being added: everything but the records."""
    cluster = await cluster_of(None, None, None)
    await make(cluster, (1, 2), min_insync_replicas="2", retention_ms="1")
    await fence(cluster, 2)
    await fence(cluster, 1)
    state = cluster.leader.image.partitions[PartitionId(ORDERS, 0)]
    await said(cluster, ReassignPartition(ORDERS, 0, state.partition_epoch, (1, 2, 3)))
    reply = await ask(answers(cluster).describe, DescribeTopics(("orders",)))
    (topic,) = reply.topics
    assert (topic.error, topic.topic_id, topic.partition_count) == (ErrorCode.NONE, ORDERS, 1)
    assert topic.configs == {"min.insync.replicas": "2", "retention.ms": "1"}
    (told,) = topic.partitions
    state = cluster.nodes[NODE].image.partitions[PartitionId(ORDERS, 0)]
    for field in ("leader", "leader_epoch", "partition_epoch", "replicas", "isr", "eligible",
                  "last_known_eligible", "adding", "removing"):  # fmt: skip
        assert getattr(told, field) == getattr(state, field), field
    assert told.adding == (3,)
    assert set(told.eligible) | set(told.isr) >= {1, 2}
    assert not told.is_recovering
    assert reply.next is None


async def test_partitions_come_in_pages(autojump_clock: MockClock) -> None:
    """Three and two partitions, two a page: pages begin within topics, and end with the last."""
    cluster = await cluster_of(None)
    await make(cluster, (1,), (1,), (1,))
    await make(cluster, (1,), (1,), topic_id=USERS, name="users")
    assert await pages(cluster, "users", "nobody", "orders", partitions_max=2) == [
        ["users/0", "users/1"],
        ["nobody", "orders/0", "orders/1"],
        ["orders/2"],
    ]
    assert await pages(cluster, "orders", "orders", partitions_max=3) == [
        ["orders/0", "orders/1", "orders/2"]
    ]


async def test_a_page_ends_before_it_is_too_large(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little fits, each page has one partition, and all of them come."""
    cluster = await cluster_of(None)
    await make(cluster, (1,), (1,), (1,))
    monkeypatch.setattr(metadata, "PAGE_BYTES", 1)
    assert await pages(cluster, "orders", partitions_max=100) == [
        ["orders/0"],
        ["orders/1"],
        ["orders/2"],
    ]


async def test_a_topic_that_is_gone_between_two_pages(autojump_clock: MockClock) -> None:
    """It is told as gone; a shorter one of the same name has nothing after the cursor."""
    cluster = await cluster_of(None)
    await make(cluster, (1,), (1,), (1,))
    request = DescribeTopics(("orders", "users"), first=Cursor("orders", 2))
    await said(cluster, DeleteTopic(ORDERS))
    reply = await ask(answers(cluster).describe, request)
    assert [topic.error for topic in reply.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    await make(cluster, (1,), topic_id=USERS)
    reply = await ask(answers(cluster).describe, request)
    assert (reply.topics[0].topic_id, reply.topics[0].partitions) == (USERS, ())
    assert reply.next is None


async def test_a_cursor_of_another_question(autojump_clock: MockClock) -> None:
    """It names a topic that is not asked for: the request makes no sense."""
    cluster = await cluster_of(None)
    with pytest.raises(InvalidRequest, match="'users', which is not asked for"):
        await ask(answers(cluster).describe, DescribeTopics(("orders",), first=Cursor("users", 0)))
