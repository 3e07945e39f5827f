"""A change is followed until it shows here, and its fate is told as far as it is known."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.requests.topics import TopicRequests
from raftmq.errors import ErrorCode
from raftmq.wire.messages.topics import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
)
from tests.unit.broker.asking import (
    NODE,
    ORDERS,
    Link,
    ask,
    changes,
    cluster_of,
    codes,
    make,
)
from tests.unit.broker.test_topics import create, topics_of

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.simulation.quorum_fake import FakeCluster


async def test_the_answer_waits_for_the_own_image(autojump_clock: MockClock) -> None:
    """This node applies half a second late: who asks it next sees the topic, and its end."""
    cluster = await cluster_of(None)
    cluster.follow_seconds = 0.5
    started = trio.current_time()
    (created,) = await create(cluster, NewTopic("orders"))
    assert trio.current_time() - started == pytest.approx(0.5)
    assert created.topic_id in cluster.nodes[NODE].image.topics
    reply = await ask(topics_of(cluster).delete, DeleteTopics((created.topic_id or b"",)))
    assert codes(reply.topics) == [0]
    assert not cluster.nodes[NODE].image.topics


async def test_the_wait_for_the_own_image_has_an_end(autojump_clock: MockClock) -> None:
    """This node hears nothing any more: the topic was made all the same, and that is said."""
    cluster = await cluster_of(None)
    cluster.follow_seconds = 60.0
    started = trio.current_time()
    (created,) = await create(cluster, NewTopic("orders"), timeout_ms=2_000)
    assert trio.current_time() - started == pytest.approx(2.0)
    assert (created.error, created.topic_id is None) == (ErrorCode.NONE, False)
    assert not cluster.nodes[NODE].image.topics


async def test_a_lost_answer_is_settled_by_the_image(autojump_clock: MockClock) -> None:
    """Nobody but this command can have made that id: it was made, although no answer came."""
    cluster = await cluster_of(None)
    cluster.lose_answers(1)
    (created,) = await create(cluster, NewTopic("orders"))
    assert created.error == ErrorCode.NONE
    assert created.topic_id in cluster.leader.image.topics


async def test_a_lost_command_stays_uncertain(autojump_clock: MockClock) -> None:
    """It never shows: the answer says that nobody knows, with the id to look for."""
    cluster = await cluster_of(None)
    cluster.lose_answers(1, applied=False)
    link = Link(cluster)
    reply = await ask(topics_of(cluster, link).create, CreateTopics((NewTopic("orders"),)))
    (created,) = reply.topics
    assert created.error == ErrorCode.REQUEST_TIMED_OUT
    assert created.topic_id is not None
    assert len(link.sent) == 1  # again, it might be applied twice


async def test_nobody_leads_the_quorum(autojump_clock: MockClock) -> None:
    """The error of the proposal is the topic's, not the request's; no id, as nothing was made."""
    cluster = await cluster_of(None)
    leader = cluster.leader
    cluster.depose()
    topics = TopicRequests(changes(cluster, FixedLink(cluster, leader.node_id)), Random(1))
    reply = await ask(topics.create, CreateTopics((NewTopic("orders"),)))
    assert codes(reply.topics) == [ErrorCode.NOT_CONTROLLER]
    assert reply.topics[0].topic_id is None


class FixedLink(Link):
    """Asks one node, whoever leads."""

    def __init__(self, cluster: FakeCluster, node_id: int) -> None:
        super().__init__(cluster)
        self._node_id = node_id

    async def propose(self, command: object, *, timeout: float) -> object:  # type: ignore[override]  # noqa: ASYNC109  # as in the protocol
        node = self._cluster.nodes[self._node_id]
        return await node.propose(command, timeout=timeout)  # type: ignore[arg-type]


async def test_no_time_at_all(autojump_clock: MockClock) -> None:
    """With a limit of 0 ms nothing is begun."""
    cluster = await cluster_of(None)
    link = Link(cluster)
    request = CreateTopics((NewTopic("orders", replication_factor=1),), timeout_ms=0)
    reply = await ask(topics_of(cluster, link).create, request)
    assert codes(reply.topics) == [ErrorCode.REQUEST_TIMED_OUT]
    assert reply.topics[0].topic_id is None
    assert link.sent == []


@pytest.mark.parametrize(
    ("is_known", "code"), [(True, ErrorCode.NONE), (False, ErrorCode.REQUEST_TIMED_OUT)]
)
async def test_a_deletion_without_an_answer(
    is_known: bool, code: ErrorCode, autojump_clock: MockClock
) -> None:
    """What this node saw and sees no more is gone; what it never saw may be new to it."""
    cluster = await cluster_of(None)
    cluster.follow_seconds = 0.0 if is_known else 1.0
    await make(cluster, (1,))
    assert (ORDERS in cluster.nodes[NODE].image.topics) == is_known
    cluster.lose_answers(1)
    reply = await ask(topics_of(cluster).delete, DeleteTopics((ORDERS,)))
    assert codes(reply.topics) == [code]


async def test_growth_whose_answer_was_lost(autojump_clock: MockClock) -> None:
    """Partitions with exactly these replicas are there: it was done."""
    cluster = await cluster_of(None, None)
    await make(cluster, (1,))
    cluster.lose_answers(1)
    request = CreatePartitions((MorePartitions(ORDERS, 3),))
    assert codes((await ask(topics_of(cluster).grow, request)).topics) == [0]
    assert len(cluster.leader.image.partitions) == 3


async def test_many_changes_are_under_way_at_once(autojump_clock: MockClock) -> None:
    """A hundred topics with 10 ms for each proposal take a few rounds, and not a second."""
    cluster = await cluster_of(None)
    cluster.delay_seconds = 0.01
    started = trio.current_time()
    outcomes = await create(cluster, *(NewTopic(f"t{n}") for n in range(100)))
    assert codes(outcomes) == [0] * 100
    assert trio.current_time() - started < 0.1
    assert [outcome.name for outcome in outcomes] == [f"t{n}" for n in range(100)]
