"""Topics are made, grown and deleted, and each of a request stands for itself."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.metadata_changes import CATCH_UP_SECONDS_MAX
from raftmq.broker.requests.topics import TopicRequests
from raftmq.errors import ErrorCode
from raftmq.metadata.commands import AddPartitions as GrowCommand
from raftmq.metadata.commands import (
    BeginControlledShutdown,
    BrokerRegistered,
    PartitionId,
    RegisterBroker,
    UnfenceBroker,
)
from raftmq.wire.messages.topics import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
    TopicCreated,
)
from tests.unit.broker.asking import (
    NODE,
    ORDERS,
    UNKNOWN,
    USERS,
    Link,
    ask,
    changes,
    cluster_of,
    codes,
    fence,
    make,
    said,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from trio.testing import MockClock

    from raftmq.metadata.image import MetadataImage
    from tests.simulation.quorum_fake import FakeCluster


def topics_of(
    cluster: FakeCluster, link: Link | None = None, voters: Collection[int] = ()
) -> TopicRequests:
    return TopicRequests(changes(cluster, link), Random(cluster.index), voters=voters)


async def create(
    cluster: FakeCluster, *topics: NewTopic, timeout_ms: int = 30_000, is_dry_run: bool = False
) -> list[TopicCreated]:
    reply = await ask(topics_of(cluster).create, CreateTopics(topics, timeout_ms, is_dry_run))
    return list(reply.topics)


def replicas_in(image: MetadataImage, topic_id: bytes) -> list[tuple[int, ...]]:
    numbers = range(image.topics[topic_id].partition_count)
    return [image.partitions[PartitionId(topic_id, number)].replicas for number in numbers]


async def test_a_topic_is_made_with_the_defaults(autojump_clock: MockClock) -> None:
    """One partition on three of four brokers; the answer says so and comes with the id."""
    cluster = await cluster_of(None, None, None, None)
    (created,) = await create(cluster, NewTopic("orders"))
    assert (created.error, created.partition_count, created.replication_factor) == (0, 1, 3)
    topic = cluster.nodes[NODE].image.topic_named("orders")
    assert topic is not None
    assert topic.topic_id == created.topic_id
    assert len(topic.topic_id) == 16


async def test_fewer_brokers_than_the_default_asks_for(autojump_clock: MockClock) -> None:
    """Two are active of three: who asks for 3 is refused, and so is who relies on the default, as
    the topic would have two for ever (A5.4); who asks for 2 gets 2."""
    cluster = await cluster_of(None, None, None)
    await fence(cluster, 3)
    by_default, asked, fewer = await create(
        cluster,
        NewTopic("orders"),
        NewTopic("users", replication_factor=3),
        NewTopic("clicks", replication_factor=2),
    )
    assert codes([by_default, asked]) == [ErrorCode.INVALID_REPLICATION_FACTOR] * 2
    assert "these are not active: 3; start them" in by_default.message
    assert "--replication-factor 2 (SDK: replication_factor=2)" in by_default.message
    assert "only 2 brokers are active (1, 2)" in asked.message
    assert (by_default.topic_id, asked.topic_id) == (None, None)
    assert (fewer.error, fewer.replication_factor) == (0, 2)


async def test_a_topic_that_is_there_needs_no_brokers(autojump_clock: MockClock) -> None:
    """Programs make their topics when they start, and are content if these are there: also while a
    broker is down, by default or with a number."""
    cluster = await cluster_of(None, None, None)
    await make(cluster, (1, 2, 3))
    await fence(cluster, 3)
    for wanted in (NewTopic("orders"), NewTopic("orders", replication_factor=3)):
        (created,) = await create(cluster, wanted)
        assert created.error == ErrorCode.TOPIC_ALREADY_EXISTS
        assert created.message == "topic orders exists already"


async def test_one_of_four_that_nobody_needs(autojump_clock: MockClock) -> None:
    """Three are left for three replicas."""
    cluster = await cluster_of(None, None, None, None)
    await fence(cluster, 4)
    (created,) = await create(cluster, NewTopic("orders"))
    assert (created.error, created.replication_factor) == (0, 3)


async def test_a_broker_that_stops_is_not_there(autojump_clock: MockClock) -> None:
    """It would be left out of the replicas."""
    cluster = await cluster_of(None, None, None)
    stopping = BeginControlledShutdown(3, cluster.leader.image.brokers[3].broker_epoch)
    await said(cluster, stopping)
    (created,) = await create(cluster, NewTopic("orders"))
    assert created.error == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize(
    ("racks", "voters", "factor"),
    [((None,), (1,), 1), ((None, None), (1,), 2), ((None, None), (), 2), ((None,) * 5, (1, 2), 3)],
)
async def test_a_small_cluster_is_whole(
    racks: tuple[None, ...], voters: tuple[int, ...], factor: int, autojump_clock: MockClock
) -> None:
    """It has no more nodes: one replica on each, as ever."""
    cluster = await cluster_of(*racks)
    topics = topics_of(cluster, voters=voters)
    reply = await ask(topics.create, CreateTopics((NewTopic("orders"),)))
    assert [(it.error, it.replication_factor) for it in reply.topics] == [(0, factor)]


async def test_a_cluster_that_is_just_starting(autojump_clock: MockClock) -> None:
    """One broker of three voters has registered: the first topic does not get one replica."""
    cluster = await cluster_of(None)
    topics = topics_of(cluster, voters=(1, 2, 3))
    reply = await ask(topics.create, CreateTopics((NewTopic("orders"),)))
    (created,) = reply.topics
    assert created.error == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "these are not active: 2, 3; start them" in created.message


@pytest.mark.parametrize(("count", "words"), [(1, "1 replica,"), (3, "3 replicas,")])
async def test_fewer_would_not_help(count: int, words: str, autojump_clock: MockClock) -> None:
    """Nobody is active, as when all have just started."""
    cluster = await cluster_of(*[None] * count)
    for broker_id in range(1, count + 1):
        await fence(cluster, broker_id)
    (created,) = await create(cluster, NewTopic("orders"))
    assert created.error == ErrorCode.INVALID_REPLICATION_FACTOR
    assert f"by default it has {words}" in created.message
    assert created.message.endswith("; start them")


async def test_a_topic_does_not_grow_thinner(autojump_clock: MockClock) -> None:
    """New partitions have as many replicas as the first one, or are refused."""
    cluster = await cluster_of(None, None, None)
    await make(cluster, (1, 2, 3))
    await fence(cluster, 3)
    reply = await ask(topics_of(cluster).grow, CreatePartitions((MorePartitions(ORDERS, 2),)))
    assert codes(reply.topics) == [ErrorCode.INVALID_REPLICATION_FACTOR]


async def test_a_broker_that_is_behind_refuses_nothing_for_that(
    autojump_clock: MockClock,
) -> None:
    """Two brokers came into service a moment ago, and the one that is asked has not heard of it."""
    cluster = await cluster_of(None, None, None)
    await fence(cluster, 2)
    await fence(cluster, 3)
    await _in_service(cluster, 2, 3, follow_seconds=0.5)
    by_default, asked = await create(
        cluster, NewTopic("orders"), NewTopic("users", replication_factor=3)
    )
    assert codes([by_default, asked]) == [0, 0]
    assert (by_default.replication_factor, asked.replication_factor) == (3, 3)


async def test_a_topic_grows_at_a_broker_that_is_behind(autojump_clock: MockClock) -> None:
    """As many replicas as its first partition has, on brokers that are new to who is asked."""
    cluster = await cluster_of(None, None, None)
    await make(cluster, (1, 2, 3))
    await fence(cluster, 3)
    await _in_service(cluster, 3, follow_seconds=0.5)
    reply = await ask(topics_of(cluster).grow, CreatePartitions((MorePartitions(ORDERS, 2),)))
    assert codes(reply.topics) == [0]
    assert len(replicas_in(cluster.leader.image, ORDERS)[1]) == 3


async def test_who_cannot_tell_whether_it_is_behind_does_not_refuse(
    autojump_clock: MockClock,
) -> None:
    """Nobody leads: what needs more brokers than are known here may be tried again, elsewhere."""
    cluster = await cluster_of(None, None, None)
    await fence(cluster, 3)
    cluster.depose()
    begin = trio.current_time()
    outcomes = await create(
        cluster,
        NewTopic("orders"),
        NewTopic("users", replication_factor=3),
        NewTopic("none", replication_factor=17),
    )
    assert codes(outcomes) == [
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.INVALID_REPLICATION_FACTOR,
    ]
    assert trio.current_time() - begin == pytest.approx(CATCH_UP_SECONDS_MAX)


async def test_a_broker_that_stays_behind_says_so(autojump_clock: MockClock) -> None:
    """The controller's node answers, and what it tells of does not come."""
    cluster = await cluster_of(None, None, None)
    await fence(cluster, 3)
    await _in_service(cluster, 3, follow_seconds=60.0)
    (asked,) = await create(cluster, NewTopic("users", replication_factor=3), timeout_ms=2000)
    assert asked.error == ErrorCode.NOT_CONTROLLER
    assert "this broker is behind" in asked.message


async def _in_service(cluster: FakeCluster, *broker_ids: int, follow_seconds: float) -> None:
    """From now on, as all nodes but the leader hear after so long."""
    cluster.settle()
    cluster.follow_seconds = follow_seconds
    for broker_id in broker_ids:
        epoch = cluster.leader.image.brokers[broker_id].broker_epoch
        await said(cluster, UnfenceBroker(broker_id, epoch))


async def test_nobody_is_active(autojump_clock: MockClock) -> None:
    """The default cannot be had, either."""
    cluster = await cluster_of(None)
    await fence(cluster, 1)
    assert codes(await create(cluster, NewTopic("orders"))) == [
        ErrorCode.INVALID_REPLICATION_FACTOR
    ]


async def test_replicas_are_spread_over_racks_and_brokers(autojump_clock: MockClock) -> None:
    """Six topics of one request: each has both racks, and no broker has more than another."""
    cluster = await cluster_of("a", "a", "b", "b")
    wanted = [NewTopic(f"t{n}", partition_count=2, replication_factor=2) for n in range(6)]
    await create(cluster, *wanted)
    image = cluster.leader.image
    assert {len(image.hosted_by(broker_id)) for broker_id in (1, 2, 3, 4)} == {6}
    assert {image.led_count(broker_id) for broker_id in (1, 2, 3, 4)} == {3}
    for state in image.partitions.values():
        assert {image.brokers[broker_id].rack for broker_id in state.replicas} == {"a", "b"}


async def test_replicas_can_be_given(autojump_clock: MockClock) -> None:
    """The assignments are taken as they are; with numbers beside them they are refused."""
    cluster = await cluster_of(None, None, None)
    given, both, nowhere = await create(
        cluster,
        NewTopic("given", assignments=((3, 1), (2,))),
        NewTopic("both", partition_count=1, assignments=((1,),)),
        NewTopic("nowhere", assignments=((9,),)),
    )
    assert (given.partition_count, given.replication_factor) == (2, -1)
    assert replicas_in(cluster.leader.image, given.topic_id or b"") == [(3, 1), (2,)]
    assert both.error == ErrorCode.INVALID_REQUEST
    assert nowhere.error == ErrorCode.INVALID_REPLICA_ASSIGNMENT


async def test_each_topic_of_a_request_stands_for_itself(autojump_clock: MockClock) -> None:
    """Bad names, numbers and keys, in the order of the request; the good one is made."""
    cluster = await cluster_of(None)
    link = Link(cluster)
    wanted = (
        NewTopic("bad name"),
        NewTopic("none", partition_count=0),
        NewTopic("config", configs={"retention.mss": "1", "durability": "never"}),
        NewTopic("good"),
    )
    reply = await ask(topics_of(cluster, link).create, CreateTopics(wanted))
    assert codes(reply.topics) == [
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.NONE,
    ]
    assert "retention.ms'" in reply.topics[2].message
    assert "durability" in reply.topics[2].message
    assert len(link.sent) == 2  # what is bad for certain does not go into the log
    assert list(cluster.leader.image.topic_ids) == ["good"]


async def test_who_asks_again_learns_that_it_exists(autojump_clock: MockClock) -> None:
    """The same request twice: the second makes no second topic and touches nothing (A1.4)."""
    cluster = await cluster_of(None)
    (first,) = await create(cluster, NewTopic("orders"))
    (again,) = await create(cluster, NewTopic("orders"))
    assert (again.error, again.topic_id) == (ErrorCode.TOPIC_ALREADY_EXISTS, None)
    assert cluster.leader.image.topic_ids["orders"] == first.topic_id


async def test_a_name_twice_in_a_request_is_refused(autojump_clock: MockClock) -> None:
    """Nobody could say which of the two was meant: neither is made."""
    cluster = await cluster_of(None)
    outcomes = await create(cluster, NewTopic("a"), NewTopic("b"), NewTopic("a"))
    assert codes(outcomes) == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]
    assert list(cluster.leader.image.topic_ids) == ["b"]


async def test_a_dry_run_makes_nothing(autojump_clock: MockClock) -> None:
    """It finds what the controller would refuse, and proposes nothing at all."""
    cluster = await cluster_of(None)
    await make(cluster, (1,))
    link = Link(cluster)
    wanted = (NewTopic("users", partition_count=1500), NewTopic("orders"), NewTopic(".."))
    reply = await ask(topics_of(cluster, link).create, CreateTopics(wanted, is_dry_run=True))
    assert codes(reply.topics) == [
        ErrorCode.NONE,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert (reply.topics[0].partition_count, reply.topics[0].topic_id) == (1500, None)
    assert link.sent == []
    assert list(cluster.leader.image.topic_ids) == ["orders"]


async def test_large_topics_take_several_commands(autojump_clock: MockClock) -> None:
    """Of 2,500 partitions one command makes 1,000 at most; all of them are there."""
    cluster = await cluster_of(None)
    link = Link(cluster)
    wanted = (NewTopic("orders", partition_count=2500),)
    reply = await ask(topics_of(cluster, link).create, CreateTopics(wanted))
    assert reply.topics[0].partition_count == 2500
    assert len(link.sent) == 3
    assert len(cluster.nodes[NODE].image.partitions) == 2500


async def test_a_request_makes_so_many_partitions_and_no_more(autojump_clock: MockClock) -> None:
    """The topic with which it would be too much is refused, a smaller one after it is not."""
    cluster = await cluster_of(None)
    outcomes = await create(
        cluster,
        NewTopic("a", partition_count=6_000),
        NewTopic("b", partition_count=6_000),
        NewTopic("c", partition_count=10),
        is_dry_run=True,
    )
    assert codes(outcomes) == [0, ErrorCode.INVALID_PARTITIONS, 0]
    assert "4000 of them are left" in outcomes[1].message


class FailingLink(Link):
    """Refuses growth: somebody deletes the topic between the commands."""

    async def propose(self, command: object, *, timeout: float) -> object:  # type: ignore[override]  # noqa: ASYNC109  # as in the protocol
        if isinstance(command, GrowCommand):
            reply = await ask(topics_of(self._cluster).delete, DeleteTopics((command.topic_id,)))
            assert codes(reply.topics) == [0]
        return await super().propose(command, timeout=timeout)  # type: ignore[arg-type]


async def test_a_large_topic_that_is_made_in_part(autojump_clock: MockClock) -> None:
    """The first 1,000 partitions are made, the others not: the answer says both."""
    cluster = await cluster_of(None)
    wanted = (NewTopic("orders", partition_count=1001),)
    reply = await ask(topics_of(cluster, FailingLink(cluster)).create, CreateTopics(wanted))
    (outcome,) = reply.topics
    assert (outcome.error, outcome.partition_count) == (ErrorCode.UNKNOWN_TOPIC_ID, 1000)
    assert outcome.message.startswith("1000 of 1001 partitions were made; then: ")
    assert outcome.topic_id is not None


async def test_a_topic_that_a_broker_has_no_descriptors_for(autojump_clock: MockClock) -> None:
    """Two brokers, of which one may open 10 logs: what does not fit is refused before anything is
    made, with the limit and the way out; what fits is made."""
    cluster = await cluster_of(None, None)
    again = RegisterBroker(2, b"j" * 16, bytes([2]) * 16, logs_max=10)
    result = await cluster.leader.propose(again)
    assert isinstance(result, BrokerRegistered)
    await said(cluster, UnfenceBroker(2, result.broker_epoch))
    cluster.settle()
    fits, many = (NewTopic("a", 6, 2), NewTopic("b", 5, 2))
    (small, refused) = await create(cluster, fits, many)
    assert small.error == ErrorCode.NONE
    assert refused.error == ErrorCode.INVALID_PARTITIONS
    for part in ("do not fit on broker 2", "descriptors for 10", "LimitNOFILE, ulimit -n"):
        assert part in refused.message
    assert [topic.name for topic in cluster.nodes[NODE].image.topics.values()] == ["a"]
    (late,) = await create(cluster, NewTopic("b", 5, 2))
    assert "and hosts 6" in late.message
    (there,) = await create(cluster, fits)  # a program that makes sure of it as it starts
    assert there.error == ErrorCode.TOPIC_ALREADY_EXISTS
    (elsewhere,) = await create(cluster, NewTopic("c", assignments=((1,),) * 50))
    assert elsewhere.error == ErrorCode.NONE


async def test_topics_are_deleted_by_id(autojump_clock: MockClock) -> None:
    """An id that is gone answers UNKNOWN_TOPIC_ID, also when the name exists again (A1.4)."""
    cluster = await cluster_of(None)
    await make(cluster, (1,))
    delete = topics_of(cluster).delete
    assert codes((await ask(delete, DeleteTopics((ORDERS, UNKNOWN)))).topics) == [
        0,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]
    await make(cluster, (1,), topic_id=USERS)
    assert codes((await ask(delete, DeleteTopics((ORDERS,)))).topics) == [
        ErrorCode.UNKNOWN_TOPIC_ID
    ]
    assert list(cluster.leader.image.topics) == [USERS]
