"""What a node tells of changes: a line for each kind, however many partitions it concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.metadata.cluster_events import ClusterEvent, broker_and_topic_events, partition_events
from raftmq.metadata.commands import (
    AddPartitions,
    AlterTopicConfig,
    DeleteTopic,
    FenceBroker,
    ReviewPartitions,
    UnregisterBroker,
)
from raftmq.metadata.delta import ChangeLog
from tests.unit.metadata.brokers_back import epoch_in, hosting, register
from tests.unit.metadata.states import ORDERS, after, apply_next, cluster, create, topic_id_of

if TYPE_CHECKING:
    from raftmq.metadata.commands import AnyCommand
    from raftmq.metadata.image import MetadataImage


def told(before: MetadataImage, *commands: AnyCommand) -> list[str]:
    """By a node that applies them one after the other, and looks up when all are done."""
    log, image = ChangeLog(), before
    log.reset(before)
    for command in commands:
        image, _ = apply_next(image, command)
        log.add(image)
    delta = log.since(before.version, image)
    return [
        line.text
        for line in (*broker_and_topic_events(delta, before), *partition_events(delta, before))
    ]


def death(image: MetadataImage, broker_id: int) -> list[AnyCommand]:
    """As the controller carries it out: fenced, then all of its partitions are reviewed."""
    epoch = epoch_in(image, broker_id)
    partitions = tuple(sorted(image.hosted_by(broker_id)))
    return [FenceBroker(broker_id, epoch), ReviewPartitions(broker_id, epoch, partitions)]


def test_a_topic_comes_and_goes() -> None:
    """Made, altered, grown, deleted: each is one line with what an operator asks first."""
    made = create((0, 1), (1, 2), retention_ms="1000")
    assert told(cluster(), made) == [
        "topic created: topic=orders partitions=2 replicas=2 retention.ms=1000"
    ]
    image = after(cluster(), made)
    change = AlterTopicConfig(ORDERS, {"retention.ms": None, "min.insync.replicas": "2"})
    assert told(image, change, AddPartitions(ORDERS, 2, ((0, 1),))) == [
        "topic altered: topic=orders min.insync.replicas=default->2 partitions=2->3"
        " retention.ms=1000->default"
    ]
    assert told(image, DeleteTopic(ORDERS)) == ["topic deleted: topic=orders partitions=2"]
    assert told(cluster(), made, DeleteTopic(ORDERS)) == [], "nobody has seen it"


def test_many_topics_at_once() -> None:
    """A restore makes a thousand: they are counted."""
    made = [create(topic_id=topic_id_of(at), name=f"t{at:02}") for at in range(12)]
    assert told(cluster(), *made) == ["topics created: count=12 topics=t00,t01,t02,+9"]


def test_a_broker_dies() -> None:
    """Five partitions led by one of three brokers: where their leaders went, in one line for each
    way, and that it left the in-sync sets (A10.1)."""
    image = hosting((0, 1, 2), (0, 1, 2), (0, 1, 2), (0, 1, 2), (0, 2, 1))
    assert told(image, *death(image, 0)) == [
        "leader elected: from=0 to=1 count=4 partitions=orders-0,orders-1,orders-2,+1",
        "leader elected: from=0 to=2 count=1 partitions=orders-4",
        "in-sync replicas changed: left=0 joined=- count=5"
        " partitions=orders-0,orders-1,orders-2,+2",
    ]


def test_a_partition_without_a_leader() -> None:
    """Nobody is left to lead it: a warning."""
    image = hosting((0,))
    log, now = ChangeLog(), image
    log.reset(image)
    for command in death(image, 0):
        now, _ = apply_next(now, command)
        log.add(now)
    first, second = partition_events(log.since(image.version, now), image)
    assert first == ClusterEvent("no leader: from=0 count=1 partitions=orders-0", is_warning=True)
    assert second.text.startswith("in-sync replicas changed: left=0 joined=- count=1")


def test_brokers_register() -> None:
    """With the version that they run; a broker that is forgotten is told, too."""
    command = register(software_version="0.1.0", rack="a", incarnation=b"j" * 16)
    assert told(cluster(), command) == [
        "broker registered: broker=0 epoch=101 version=0.1.0 rack=a"
    ]
    epoch = cluster().brokers[2].broker_epoch
    assert told(cluster(), UnregisterBroker(2, epoch)) == ["broker forgotten: broker=2"]


def test_a_delta_that_is_not_complete() -> None:
    """A snapshot was installed: what changed is not known, and nothing is made up."""
    log, image = ChangeLog(), after(cluster(), create())
    log.reset(image)
    delta = log.since(cluster().version, image)
    assert broker_and_topic_events(delta, cluster()) == partition_events(delta, cluster()) == []


@pytest.mark.parametrize("count", [1, 200])
def test_changes_of_nothing_are_no_news(count: int) -> None:
    """The same configs again."""
    image = after(cluster(), create(retention_ms="5"))
    same = [AlterTopicConfig(ORDERS, {"retention.ms": "5"})] * count
    assert told(image, *same) == []
