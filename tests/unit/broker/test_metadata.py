"""What clients ask first: topics, leaders and addresses, as this broker's image has them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

import trio

from raftmq.broker.requests import metadata
from raftmq.broker.requests.metadata import MetadataRequests
from raftmq.errors import ErrorCode
from raftmq.metadata.commands import BeginControlledShutdown, DeleteTopic
from raftmq.model import Address
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.cluster import DescribeCluster, ListenerAddress, VoterAddress
from raftmq.wire.messages.metadata import BrokerRow, Metadata, MetadataReply, PartitionMetadata
from tests.bodies import encode_body
from tests.unit.broker.asking import CONTEXT, NODE, ORDERS, ask, cluster_of, fence, make, said

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock

    from tests.simulation.quorum_fake import FakeCluster


def answers(cluster: FakeCluster) -> MetadataRequests:
    return MetadataRequests(cluster.nodes[NODE], cluster_id="here")


def topic_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


async def test_a_topic_by_name(autojump_clock: MockClock) -> None:
    """Its partitions with their leaders, the brokers' addresses, and who is the controller."""
    cluster = await cluster_of("a", None)
    await make(cluster, (1, 2), (2, 1))
    reply: MetadataReply = await ask(answers(cluster).metadata, Metadata(("orders",)))
    assert reply.cluster_id == "here"
    assert reply.controller_id == 1
    assert reply.metadata_version == cluster.nodes[NODE].image.version
    assert reply.brokers == (BrokerRow(1, "host1", 9092, "a"), BrokerRow(2, "host2", 9092))
    (topic,) = reply.topics
    assert (topic.error, topic.name, topic.topic_id) == (ErrorCode.NONE, "orders", ORDERS)
    assert topic.partitions[1] == PartitionMetadata(
        ErrorCode.NONE, 1, leader=2, leader_epoch=0, replicas=(2, 1), isr=(2, 1)
    )
    assert reply.is_complete


async def test_how_many_have_to_be_in_sync(autojump_clock: MockClock) -> None:
    """As it was set, or the default."""
    cluster = await cluster_of(None)
    await make(cluster, (1,))
    await make(cluster, (1,), topic_id=topic_id(1), name="safe", **{"min.insync.replicas": "3"})
    reply: MetadataReply = await ask(answers(cluster).metadata, Metadata(None))
    assert [topic.min_insync_replicas for topic in reply.topics] == [2, 3]


async def test_which_topics_a_power_cut_may_cut(autojump_clock: MockClock) -> None:
    """As it was set; by default none."""
    cluster = await cluster_of(None)
    await make(cluster, (1,))
    await make(cluster, (1,), topic_id=topic_id(1), name="quick", durability="page_cache")
    await make(cluster, (1,), topic_id=topic_id(2), name="safe", durability="fsync")
    reply: MetadataReply = await ask(answers(cluster).metadata, Metadata(None))
    assert [topic.is_page_cached for topic in reply.topics] == [False, True, False]


async def test_names_that_nobody_has(autojump_clock: MockClock) -> None:
    """They are answered where they were asked for, and once; a deleted topic is such a name."""
    cluster = await cluster_of(None)
    await make(cluster, (1,))
    asked = Metadata(("nobody", "orders", "nobody"))
    reply = await ask(answers(cluster).metadata, asked)
    assert [(topic.name, topic.error) for topic in reply.topics] == [
        ("nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("orders", ErrorCode.NONE),
    ]
    await said(cluster, DeleteTopic(ORDERS))
    reply = await ask(answers(cluster).metadata, Metadata(("orders",)))
    assert reply.topics[0].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert reply.topics[0].topic_id is None


async def test_brokers_that_are_not_there(autojump_clock: MockClock) -> None:
    """A fenced broker has no address and its replicas are offline; one that stops is there."""
    cluster = await cluster_of(None, None, None)
    await make(cluster, (3,), (2, 3))
    await fence(cluster, 3)
    stopping = BeginControlledShutdown(2, cluster.leader.image.brokers[2].broker_epoch)
    await said(cluster, stopping)
    reply = await ask(answers(cluster).metadata, Metadata())
    assert [broker.broker_id for broker in reply.brokers] == [1, 2]
    alone, shared = reply.topics[0].partitions
    assert (alone.error, alone.leader) == (ErrorCode.LEADER_NOT_AVAILABLE, ABSENT)
    assert alone.offline == (3,)
    assert (shared.error, shared.leader, shared.offline) == (ErrorCode.NONE, 2, (3,))


async def test_addresses_are_those_of_the_listener(autojump_clock: MockClock) -> None:
    """Who asks on the brokers' listener learns of that; on one that nobody has, of no leader."""
    cluster = await cluster_of(None)
    await make(cluster, (1,))
    for listener, hosts, code in [
        ("brokers", ["inner1"], ErrorCode.NONE),
        ("other", [], ErrorCode.LEADER_NOT_AVAILABLE),
    ]:
        context = CONTEXT._replace(listener=CONTEXT.listener._replace(name=listener))
        reply = answers(cluster).metadata(context, Metadata(), b"")
        assert isinstance(reply, Reply)
        body = reply.body
        assert isinstance(body, MetadataReply)
        assert [broker.host for broker in body.brokers] == hosts
        assert body.topics[0].partitions[0].error == code


async def test_all_topics_come_in_pages(autojump_clock: MockClock) -> None:
    """Five topics, two a page, in the order of names; a new one shows on the page it belongs to."""
    cluster = await cluster_of(None)
    for number, name in enumerate("dbeac"):
        await make(cluster, (1,), topic_id=topic_id(number), name=name)
    handler = answers(cluster).metadata
    pages, after = [], ""
    while True:
        reply = await ask(handler, Metadata(after=after, topics_max=2))
        pages.append([topic.name for topic in reply.topics])
        if reply.is_complete:
            break
        after = pages[-1][-1]
        if after == "b":
            await make(cluster, (1,), topic_id=topic_id(9), name="cc")
    assert pages == [["a", "b"], ["c", "cc"], ["d", "e"]]
    assert (await ask(handler, Metadata(after="zz"))).topics == ()


async def test_a_page_ends_before_it_is_too_large(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three topics that do not fit together come one by one, named or not."""
    cluster = await cluster_of(None)
    for number, name in enumerate("abc"):
        await make(cluster, *[(1,)] * 20, topic_id=topic_id(number), name=name)
    monkeypatch.setattr(metadata, "PAGE_BYTES", 500)
    for request in (Metadata(), Metadata(("a", "b", "c"))):
        reply = await ask(answers(cluster).metadata, request)
        assert [topic.name for topic in reply.topics] == ["a"]
        assert not reply.is_complete
    assert (await ask(answers(cluster).metadata, Metadata(("c",)))).is_complete


async def test_a_large_answer_is_made_in_slices(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have their turn after every five partitions; the answer is the same, to the byte."""
    cluster = await cluster_of("a", "b")
    for number, count in enumerate([3, 0, 12, 1, 5]):
        if count:
            await make(cluster, *[(1, 2)] * count, topic_id=topic_id(number), name=f"t{number}")
    question = Metadata(tuple(f"t{number}" for number in range(5)))
    whole = answers(cluster).metadata(CONTEXT, question, b"")
    assert isinstance(whole, Reply)
    monkeypatch.setattr(metadata, "SLICE_PARTITIONS", 5)
    sliced = answers(cluster).metadata(CONTEXT, question, b"")
    assert isinstance(sliced, Awaitable)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        while not turns:
            await trio.lowlevel.checkpoint()
        turns = 0
        found = await sliced
        nursery.cancel_scope.cancel()
    assert whole.body is not None
    assert found.body is not None
    assert encode_body(found.body) == encode_body(whole.body)
    assert turns >= 3  # 21 partitions, of which the first five were told at once


async def test_a_large_answer_is_of_one_image(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic goes and another one comes between two slices: the answer knows nothing of it."""
    cluster = await cluster_of(None)
    await make(cluster, *[(1,)] * 9)
    monkeypatch.setattr(metadata, "SLICE_PARTITIONS", 5)
    version = cluster.nodes[NODE].image.version
    sliced = answers(cluster).metadata(CONTEXT, Metadata(), b"")
    assert isinstance(sliced, Awaitable)
    await said(cluster, DeleteTopic(ORDERS))
    await make(cluster, (1,), topic_id=topic_id(7), name="users")
    body = (await sliced).body
    assert isinstance(body, MetadataReply)
    assert body.metadata_version == version
    assert [(topic.name, len(topic.partitions)) for topic in body.topics] == [("orders", 9)]


async def test_nobody_leads_the_quorum(autojump_clock: MockClock) -> None:
    """There is no controller to name; the rest is told as it was last known."""
    cluster = await cluster_of(None)
    await make(cluster, (1,))
    cluster.depose()
    reply = await ask(answers(cluster).metadata, Metadata())
    assert (reply.controller_id, len(reply.topics)) == (ABSENT, 1)


async def test_the_cluster_is_described(autojump_clock: MockClock) -> None:
    """All brokers with all their listeners, those that are fenced or stopping as well."""
    cluster = await cluster_of("a", None, None)
    await fence(cluster, 3)
    epoch = cluster.leader.image.brokers[2].broker_epoch
    await said(cluster, BeginControlledShutdown(2, epoch))
    reply = await ask(answers(cluster).describe_cluster, DescribeCluster())
    assert (reply.cluster_id, reply.controller_id, reply.feature_level) == ("here", 1, 1)
    assert [broker.broker_id for broker in reply.brokers] == [1, 2, 3]
    assert [broker.is_fenced for broker in reply.brokers] == [False, False, True]
    assert [broker.in_controlled_shutdown for broker in reply.brokers] == [False, True, False]
    assert reply.brokers[0].rack == "a"
    assert reply.brokers[1].broker_epoch == epoch
    assert ListenerAddress("brokers", "inner3", 9000) in reply.brokers[2].listeners
    assert (reply.voters, reply.own_epoch) == ((), ABSENT)


async def test_where_the_voters_meet(autojump_clock: MockClock) -> None:
    """As the settings have it, in the order of their ids."""
    cluster = await cluster_of(None)
    voters = {2: Address("b", 9002), 1: Address("a", 9001)}
    told = MetadataRequests(
        cluster.nodes[NODE], cluster_id="here", voters=voters, own_epoch=lambda: 7
    )
    reply = await ask(told.describe_cluster, DescribeCluster())
    assert reply.own_epoch == 7
    assert reply.voters == (VoterAddress(1, "a", 9001), VoterAddress(2, "b", 9002))
