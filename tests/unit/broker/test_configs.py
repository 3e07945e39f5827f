"""Configurations are told with their defaults, and changed key by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.requests.topics import TopicConfigRequests
from raftmq.errors import ErrorCode
from raftmq.metadata.commands import SUPPORTED_LEVEL, DeleteTopic, FeatureLevel
from raftmq.topic_config import TOPIC_KEYS, TopicConfig, parse_topic_config
from raftmq.wire.messages.configs import AlterConfigs, ConfigChange, DescribeConfigs
from tests.unit.broker.asking import (
    NODE,
    ORDERS,
    UNKNOWN,
    Link,
    ask,
    changes,
    cluster_of,
    codes,
    make,
    said,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.simulation.quorum_fake import FakeCluster


def answers(cluster: FakeCluster, link: Link | None = None) -> TopicConfigRequests:
    return TopicConfigRequests(changes(cluster, link))


async def alter(cluster: FakeCluster, *wanted: ConfigChange, is_dry_run: bool = False) -> list[int]:
    reply = await ask(answers(cluster).alter, AlterConfigs(wanted, is_dry_run=is_dry_run))
    return codes(reply.topics)


def configs_of(cluster: FakeCluster) -> dict[str, str]:
    return cluster.nodes[NODE].image.topics[ORDERS].configs


async def test_what_was_set_and_what_is_the_default(autojump_clock: MockClock) -> None:
    """Every key, as people write it: the defaults can be read in again."""
    cluster = await cluster_of(None, level=SUPPORTED_LEVEL)
    await make(cluster, (1,), retention_ms="604800000", durability="fsync")
    reply = await ask(answers(cluster).describe, DescribeConfigs((ORDERS,)))
    (topic,) = reply.topics
    assert topic.config_epoch == cluster.leader.image.topics[ORDERS].config_epoch
    told = {entry.name: entry.value for entry in topic.entries}
    assert list(told) == [key.name for key in TOPIC_KEYS]
    assert parse_topic_config(told) == TopicConfig(retention_ms=604_800_000)
    assert {entry.name for entry in topic.entries if not entry.is_default} == {
        "retention.ms",
        "durability",
    }
    assert told["message.timestamp.type"] == "CreateTime"
    assert told["unclean.leader.election.enable"] == "false"


async def test_keys_of_a_later_level_are_not_shown(autojump_clock: MockClock) -> None:
    """They cannot be set yet: a node of the version before may not know them."""
    cluster = await cluster_of(None)
    await make(cluster, (1,))
    (topic,) = (await ask(answers(cluster).describe, DescribeConfigs((ORDERS,)))).topics
    assert [entry.name for entry in topic.entries] == [
        key.name for key in TOPIC_KEYS if key.since_level == FeatureLevel.FIRST
    ]


async def test_the_configuration_of_no_topic(autojump_clock: MockClock) -> None:
    """A stale id answers UNKNOWN_TOPIC_ID, whether it is told or changed."""
    cluster = await cluster_of(None)
    await make(cluster, (1,))
    await said(cluster, DeleteTopic(ORDERS))
    reply = await ask(answers(cluster).describe, DescribeConfigs((ORDERS,)))
    assert codes(reply.topics) == [ErrorCode.UNKNOWN_TOPIC_ID]
    assert await alter(cluster, ConfigChange(UNKNOWN, {"retention.ms": "1"})) == [
        ErrorCode.UNKNOWN_TOPIC_ID
    ]


async def test_keys_are_set_and_removed(autojump_clock: MockClock) -> None:
    """Those that are not named stay as they are."""
    cluster = await cluster_of(None)
    await make(cluster, (1,), retention_ms="1", segment_ms="2")
    change = ConfigChange(ORDERS, {"retention.ms": None, "retention.bytes": "3"})
    assert await alter(cluster, change) == [0]
    assert configs_of(cluster) == {"segment.ms": "2", "retention.bytes": "3"}


async def test_only_what_was_read_is_changed(autojump_clock: MockClock) -> None:
    """With the epoch that was read it works once; then somebody has changed it."""
    cluster = await cluster_of(None)
    await make(cluster, (1,))
    epoch = cluster.leader.image.topics[ORDERS].config_epoch
    assert await alter(cluster, ConfigChange(ORDERS, {"retention.ms": "1"}, epoch)) == [0]
    assert await alter(cluster, ConfigChange(ORDERS, {"retention.ms": "2"}, epoch)) == [
        ErrorCode.INVALID_UPDATE_VERSION
    ]
    assert configs_of(cluster) == {"retention.ms": "1"}


async def test_bad_values_do_not_go_into_the_log(autojump_clock: MockClock) -> None:
    """All problems are told together, and nothing is proposed; nor is it for a topic twice."""
    cluster = await cluster_of(None)
    await make(cluster, (1,))
    link = Link(cluster)
    bad = ConfigChange(ORDERS, {"retention.ms": "soon", "durability": "never"})
    reply = await ask(answers(cluster, link).alter, AlterConfigs((bad,)))
    assert codes(reply.topics) == [ErrorCode.INVALID_CONFIG]
    assert "retention.ms" in reply.topics[0].message
    assert "durability" in reply.topics[0].message
    good = ConfigChange(ORDERS, {"retention.ms": "1"})
    reply = await ask(answers(cluster, link).alter, AlterConfigs((good, good)))
    assert codes(reply.topics) == [ErrorCode.INVALID_REQUEST] * 2
    assert link.sent == []


async def test_a_dry_run_changes_nothing(autojump_clock: MockClock) -> None:
    """It finds keys to be removed that do not exist, too."""
    cluster = await cluster_of(None)
    await make(cluster, (1,))
    for change, code in [({"retention.ms": "1"}, 0), ({"nothing": None}, ErrorCode.INVALID_CONFIG)]:
        assert await alter(cluster, ConfigChange(ORDERS, change), is_dry_run=True) == [code]
    assert configs_of(cluster) == {}


async def test_the_answer_waits_for_the_own_image(autojump_clock: MockClock) -> None:
    """This node is half a second late; what changes nothing is answered at once."""
    cluster = await cluster_of(None)
    await make(cluster, (1,), retention_ms="1")
    cluster.follow_seconds = 0.5
    started = trio.current_time()
    assert await alter(cluster, ConfigChange(ORDERS, {"retention.ms": "1"})) == [0]
    assert trio.current_time() == pytest.approx(started)
    assert await alter(cluster, ConfigChange(ORDERS, {"retention.ms": "2"})) == [0]
    assert trio.current_time() - started == pytest.approx(0.5)
    assert configs_of(cluster) == {"retention.ms": "2"}


async def test_a_topic_that_goes_meanwhile(autojump_clock: MockClock) -> None:
    """It was changed, and deleted before it showed here: nothing is left to wait for."""
    cluster = await cluster_of(None)
    await make(cluster, (1,))
    cluster.follow_seconds = 0.5
    started = trio.current_time()

    class Deleting(Link):
        async def propose(self, command: object, *, timeout: float) -> object:  # type: ignore[override]  # noqa: ASYNC109  # as in the protocol
            result = await super().propose(command, timeout=timeout)  # type: ignore[arg-type]
            await said(self._cluster, DeleteTopic(ORDERS))
            return result

    request = AlterConfigs((ConfigChange(ORDERS, {"retention.ms": "2"}),))
    reply = await ask(answers(cluster, Deleting(cluster)).alter, request)
    assert codes(reply.topics) == [0]
    assert trio.current_time() - started == pytest.approx(0.5)


async def test_a_change_without_an_answer_stays_uncertain(autojump_clock: MockClock) -> None:
    """The image may show what another has set: that proves nothing."""
    cluster = await cluster_of(None)
    await make(cluster, (1,), retention_ms="1")
    cluster.lose_answers(1)
    assert await alter(cluster, ConfigChange(ORDERS, {"retention.ms": "1"})) == [
        ErrorCode.REQUEST_TIMED_OUT
    ]
