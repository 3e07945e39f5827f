"""`Admin`: topics and their configuration, with two brokers on a simulated network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio
from msgspec.structs import replace

from raftmq.client.administration.results import ConfigValue
from raftmq.errors import (
    ErrorCode,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidTopic,
    OutcomeUnknown,
    ServerError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
    Unreachable,
)
from raftmq.wire.messages.configs import AlterConfigs
from raftmq.wire.messages.metadata import Metadata
from raftmq.wire.messages.topics import (
    CreatePartitions,
    CreateTopics,
    DeleteRecords,
    DeleteTopics,
    DescribeTopics,
    DescribeTopicsReply,
    ElectLeaders,
    TopicDescription,
)
from tests.producing import produce
from tests.unit.client.administration.bureau import LOST, open_bureau
from tests.unit.client.world import batch

if TYPE_CHECKING:
    from trio.testing import MockClock


# -- topics ------------------------------------------------------------------------------------


async def test_a_topic_that_can_be_used_at_once(autojump_clock: MockClock) -> None:
    """Settings travel as texts, what was made is told, and somebody leads."""
    async with open_bureau() as (bureau, admin):
        made = await admin.create_topic(
            "u", partitions=3, replication_factor=1, config={"retention.ms": 5, "segment.ms": "7"}
        )
        assert (made.name, made.partition_count, made.replication_factor) == ("u", 3, 1)
        assert made.topic_id == bureau.world.topics["u"].topic_id
        assert await produce(admin._cluster, "u", 2, batch("a")) == 0
        (body,) = bureau.asked(CreateTopics)
        (wanted,) = body.topics
        assert wanted.configs == {"retention.ms": "5", "segment.ms": "7"}


async def test_the_clusters_own_choice(autojump_clock: MockClock) -> None:
    """Nothing is said about numbers; the result has them."""
    async with open_bureau() as (bureau, admin):
        made = await admin.create_topic("u")
        assert (made.partition_count, made.replication_factor) == (1, 1)
        assert made.warning == (await admin.describe_topic("u")).warning
        assert made.warning.startswith("one replica: ")
        (wanted,) = bureau.asked(CreateTopics)[0].topics
        assert (wanted.partition_count, wanted.replication_factor) == (-1, -1)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": "a/b"}, InvalidTopic),
        ({"name": 5}, TypeError),
        ({"name": "u", "partitions": 0}, InvalidPartitions),
        ({"name": "u", "partitions": "3"}, TypeError),
        ({"name": "u", "replication_factor": 17}, InvalidReplicationFactor),
        ({"name": "u", "config": {"retention.mss": 1}}, InvalidConfig),
        ({"name": "u", "config": "retention.ms=1"}, TypeError),
    ],
)
async def test_what_is_refused_here(
    arguments: dict[str, Any], error: type[Exception], autojump_clock: MockClock
) -> None:
    """Nothing is sent."""
    async with open_bureau() as (bureau, admin):
        with pytest.raises(error):
            await admin.create_topic(**arguments)
        assert bureau.count(CreateTopics) == 0


async def test_a_topic_that_exists(autojump_clock: MockClock) -> None:
    """Said at once, and definite."""
    async with open_bureau() as (_, admin):
        with pytest.raises(TopicAlreadyExists) as caught:
            await admin.create_topic("t")
        assert caught.value.definite


async def test_how_it_is_printed(autojump_clock: MockClock) -> None:
    """With the addresses of the program and the time limit."""
    async with open_bureau() as (_, admin):
        assert repr(admin.with_timeout(5)).endswith(":9000, timeout 5 s>")
        assert repr(admin).startswith("<Admin of b1:9000")


async def test_a_topic_that_may_exist(autojump_clock: MockClock) -> None:
    """A program that makes its topic at each start finds it the second time, as it was (A1.4)."""
    async with open_bureau() as (_, admin):
        made = await admin.create_topic("u", partitions=3, if_not_exists=True)
        again = await admin.create_topic("u", partitions=3, if_not_exists=True)
        assert (made.is_new, again.is_new) == (True, False)
        assert again.topic_id == made.topic_id
        assert (again.partition_count, again.replication_factor) == (3, 1)
        assert again.warning == made.warning


async def test_a_topic_that_exists_and_is_not_known_everywhere(autojump_clock: MockClock) -> None:
    """The controller has refused to make it anew; brokers hear of it a moment later, if it was not
    deleted meanwhile (A1.4)."""
    async with open_bureau() as (bureau, admin):
        made = await admin.create_topic("u", partitions=3)
        unknown = DescribeTopicsReply(
            (TopicDescription("u", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic"),)
        )
        for broker in (1, 2):
            bureau.instead[broker, DescribeTopics] = unknown

        async def hear() -> None:
            await trio.sleep(1.0)
            bureau.instead.clear()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear)
            found = await admin.create_topic("u", partitions=3, if_not_exists=True)
        assert (found.topic_id, found.is_new) == (made.topic_id, False)
        for broker in (1, 2):
            bureau.instead[broker, DescribeTopics] = unknown
        began_at = trio.current_time()
        with pytest.raises(UnknownTopicOrPartition):
            await admin.create_topic("u", partitions=3, if_not_exists=True)
        assert trio.current_time() - began_at < 6.0


async def test_a_topic_that_exists_and_is_another(autojump_clock: MockClock) -> None:
    """It stays as it is, and the result says what differs."""
    async with open_bureau() as (bureau, admin):
        await admin.create_topic("u", partitions=3, config={"retention.ms": 5, "segment.ms": 9})
        found = await admin.create_topic(
            "u",
            partitions=6,
            replication_factor=2,
            config={"retention.ms": 7, "segment.ms": 9},
            if_not_exists=True,
        )
        assert (found.partition_count, found.replication_factor) == (3, 1)
        assert found.warning.startswith(
            "it was there already, with retention.ms = 5, not 7, partitions = 3, not 6, "
            "replication_factor = 1, not 2; one replica: "
        )
        assert len(bureau.world.topics["u"].partitions) == 3
        assert bureau.configs["u"] == {"retention.ms": "5", "segment.ms": "9"}


async def test_an_answer_is_lost_and_the_topic_may_exist(autojump_clock: MockClock) -> None:
    """With `if_not_exists` the next attempt finds what the first one has made."""
    async with open_bureau() as (bureau, admin):
        bureau.errors = [LOST]
        found = await admin.create_topic("u", partitions=2, if_not_exists=True)
        assert (found.partition_count, found.is_new) == (2, False)
        assert bureau.count(CreateTopics) == 2


async def test_a_topic_that_may_be_missing(autojump_clock: MockClock) -> None:
    """A program that cleans up deletes what may be gone already."""
    async with open_bureau() as (bureau, admin):
        await admin.delete_topic("t", missing_ok=True)
        await admin.delete_topic("t", missing_ok=True)
        assert "t" not in bureau.world.topics
        with pytest.raises(UnknownTopicOrPartition):
            await admin.delete_topic("t")


async def test_more_replicas_than_brokers(autojump_clock: MockClock) -> None:
    """The controller knows how many there are."""
    async with open_bureau() as (bureau, admin):
        bureau.errors = [ErrorCode.INVALID_REPLICATION_FACTOR]
        with pytest.raises(InvalidReplicationFactor):
            await admin.create_topic("u", replication_factor=3)


async def test_a_topic_that_gets_no_leader(autojump_clock: MockClock) -> None:
    """It was made: whoever reads "definite" would believe that it was not."""
    async with open_bureau() as (bureau, admin):
        bureau.leader = -1
        with pytest.raises(OutcomeUnknown, match="topic u was made, and cannot be used yet"):
            await admin.create_topic("u")
        assert "u" in bureau.world.topics


async def test_an_answer_that_is_lost(autojump_clock: MockClock) -> None:
    """Making, growing and deleting are asked for once, and their outcome is unknown."""
    async with open_bureau() as (bureau, admin):
        bureau.errors = [LOST, LOST, LOST]
        with pytest.raises(OutcomeUnknown):
            await admin.create_topic("u")
        with pytest.raises(OutcomeUnknown):
            await admin.create_partitions("u", 4)
        with pytest.raises(OutcomeUnknown):
            await admin.delete_topic("u")
        assert [bureau.count(it) for it in (CreateTopics, CreatePartitions, DeleteTopics)] == [
            1,
            1,
            1,
        ]


async def test_a_topic_grows(autojump_clock: MockClock) -> None:
    """The new partitions have leaders; it never shrinks."""
    async with open_bureau() as (bureau, admin):
        await admin.create_partitions("t", 3)
        assert len(bureau.world.topics["t"].partitions) == 3
        assert await produce(admin._cluster, "t", 2, batch("a")) == 0
        with pytest.raises(InvalidPartitions):
            await admin.create_partitions("t", 2)


async def test_a_list_in_pages(autojump_clock: MockClock) -> None:
    """Five topics, two to a page; with what is wrong in each."""
    async with open_bureau() as (bureau, admin):
        for name in ("e", "a", "c", "b"):
            bureau.world.add_topic(name, 1, 2)
        bureau.replicas["c", 0] = ((1, 2), (1,))
        bureau.world.lead("e", 1, -1)
        found = await admin.list_topics()
        assert [topic.name for topic in found] == ["a", "b", "c", "e", "t"]
        assert [topic.under_replicated for topic in found] == [0, 0, 1, 0, 0]
        assert [topic.leaderless for topic in found] == [0, 0, 0, 1, 0]
        assert [topic.replication_factor for topic in found] == [1, 1, 2, 1, 1]
        assert found[0].partition_count == 2


async def test_a_list_of_some_topics(autojump_clock: MockClock) -> None:
    """Also of more than fit into one answer. Those that are not there are left out."""
    async with open_bureau() as (bureau, admin):
        for name in ("e", "a", "c", "b"):
            bureau.world.add_topic(name, 1, 2)
        found = await admin.list_topics(["e", "x", "a", "t", "e", "b"])
        assert [topic.name for topic in found] == ["a", "b", "e", "t"]
        with pytest.raises(TypeError, match="expected a list of names"):
            await admin.list_topics("e")


async def test_a_list_of_a_broker_that_is_behind(autojump_clock: MockClock) -> None:
    """It does not know of a topic that was just made; another one does."""
    async with open_bureau() as (bureau, admin):
        behind = bureau.world.metadata(["t"])
        await admin.create_topic("u")
        bureau.world.brokers[2].behind = behind
        bureau.lie(Metadata, behind, 2)
        for _ in range(5):
            assert [topic.name for topic in await admin.list_topics()] == ["t", "u"]


async def test_pages_of_topics_that_lead_nowhere(autojump_clock: MockClock) -> None:
    """A broker that says the same for ever does not hold the client for ever."""
    async with open_bureau() as (bureau, admin):
        await admin.describe_cluster()
        page = replace(bureau.world.metadata(["t"]), is_complete=False)
        bureau.lie(Metadata, page)
        with pytest.raises(ServerError, match="lead nowhere"):
            await admin.list_topics()


async def test_a_description(autojump_clock: MockClock) -> None:
    """Partitions with offsets, and every key; nobody waits for a partition without a leader."""
    async with open_bureau() as (bureau, admin):
        await admin.create_topic("u", partitions=2, config={"retention.ms": 5})
        for value in ("a", "b"):
            await produce(admin._cluster, "u", 0, batch(value))
        bureau.world.lead("u", 1, -1)
        bureau.world.topics["u"].partitions[0].log_start_offset = 1
        bureau.replicas["u", 0] = ((1, 2), (1,))
        begin = anyio.current_time()
        found = await admin.describe_topic("u")
        assert anyio.current_time() - begin < 1
        first, second = found.partitions
        assert (first.leader, first.replicas, first.isr) == (1, (1, 2), (1,))
        assert (first.start_offset, first.end_offset) == (1, 2)
        assert (second.leader, second.leader_epoch) == (None, 1)
        assert (second.start_offset, second.end_offset) == (None, None)
        assert found.replication_factor == 2
        assert found.config["retention.ms"] == ConfigValue("5", is_default=False)
        assert found.config["segment.ms"].is_default


async def test_a_topic_that_is_not_there(autojump_clock: MockClock) -> None:
    """Every call names it, at once, and nothing is changed."""
    async with open_bureau() as (bureau, admin):
        calls: list[Any] = [
            admin.describe_topic("no"),
            admin.delete_topic("no"),
            admin.create_partitions("no", 3),
            admin.alter_config("no", {"retention.ms": 1}),
            admin.describe_config("no"),
            admin.offsets("no", "latest"),
            admin.delete_records("no", {0: 1}),
            admin.elect_leaders("no"),
        ]
        begin = anyio.current_time()
        for call in calls:
            with pytest.raises(UnknownTopicOrPartition, match="'no'"):
                await call
        assert anyio.current_time() - begin < 1
        for kind in (DeleteTopics, CreatePartitions, AlterConfigs, DeleteRecords, ElectLeaders):
            assert bureau.count(kind) == 0


# -- configuration -----------------------------------------------------------------------------


async def test_settings_are_changed_and_reset(autojump_clock: MockClock) -> None:
    """An answer that is lost is asked for again: the same is set."""
    async with open_bureau() as (bureau, admin):
        bureau.configs["t"] = {"segment.ms": "9"}
        bureau.errors = [LOST]
        await admin.alter_config("t", {"retention.ms": 7, "segment.ms": None})
        assert bureau.configs["t"] == {"retention.ms": "7"}
        assert bureau.count(AlterConfigs) == 2
        found = await admin.describe_config("t")
        assert found["retention.ms"] == ConfigValue("7", is_default=False)


async def test_settings_that_may_have_been_changed(autojump_clock: MockClock) -> None:
    """Once lost, then nobody is in office until the time is over."""
    async with open_bureau() as (bureau, admin):
        bureau.errors = [LOST, *[ErrorCode.NOT_CONTROLLER] * 1000]
        with pytest.raises(OutcomeUnknown):
            await admin.with_timeout(2).alter_config("t", {"retention.ms": 7})


async def test_settings_that_nobody_knows(autojump_clock: MockClock) -> None:
    """Nothing is sent, whether set or reset."""
    async with open_bureau() as (bureau, admin):
        for value in (1, None):
            with pytest.raises(InvalidConfig, match="did you mean"):
                await admin.alter_config("t", {"retention.mss": value})
        assert bureau.count(AlterConfigs) == 0


async def test_nobody_is_there(autojump_clock: MockClock) -> None:
    """Whatever is asked, the reason is told, within the time that was given."""
    async with open_bureau() as (bureau, admin):
        for broker in bureau.world.brokers.values():
            broker.stop()
        begin = anyio.current_time()
        with pytest.raises(Unreachable, match="refused"):
            await admin.with_timeout(3).list_topics()
        assert anyio.current_time() - begin <= 3.5
