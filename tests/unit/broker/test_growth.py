"""Topics grow: by so many partitions, or onto given brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import PartitionId
from raftmq.wire.messages.topics import (
    CreatePartitions,
    MorePartitions,
)
from tests.unit.broker.asking import (
    NODE,
    ORDERS,
    UNKNOWN,
    Link,
    ask,
    cluster_of,
    codes,
    make,
)
from tests.unit.broker.test_topics import replicas_in, topics_of

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_a_topic_grows(autojump_clock: MockClock) -> None:
    """To five partitions, replicated like the first, and the leaders spread (A10.4)."""
    cluster = await cluster_of(None, None, None)
    await make(cluster, (1, 2))
    request = CreatePartitions((MorePartitions(ORDERS, 5),))
    assert codes((await ask(topics_of(cluster).grow, request)).topics) == [0]
    image = cluster.nodes[NODE].image
    assert [len(replicas) for replicas in replicas_in(image, ORDERS)] == [2] * 5
    assert {image.led_count(broker_id) for broker_id in (1, 2, 3)} == {1, 2}


async def test_a_topic_grows_onto_given_brokers(autojump_clock: MockClock) -> None:
    """The new partition is where it was wished; too few or too many wishes are refused."""
    cluster = await cluster_of(None, None)
    await make(cluster, (1,))
    grow = topics_of(cluster).grow
    wrong = CreatePartitions((MorePartitions(ORDERS, 2, ((2,), (1,))),))
    assert codes((await ask(grow, wrong)).topics) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    right = CreatePartitions((MorePartitions(ORDERS, 2, ((2, 1),)),))
    assert codes((await ask(grow, right)).topics) == [0]
    assert cluster.leader.image.partitions[PartitionId(ORDERS, 1)].replicas == (2, 1)


async def test_growth_that_is_refused(autojump_clock: MockClock) -> None:
    """Fewer partitions, as many, too many, of no topic: nothing is proposed."""
    cluster = await cluster_of(None)
    await make(cluster, (1,), (1,))
    link = Link(cluster)
    grow = topics_of(cluster, link).grow
    for topic_id, count, code in [
        (ORDERS, 1, ErrorCode.INVALID_PARTITIONS),
        (ORDERS, 2, ErrorCode.INVALID_PARTITIONS),
        (ORDERS, 10_001, ErrorCode.INVALID_PARTITIONS),
        (UNKNOWN, 3, ErrorCode.UNKNOWN_TOPIC_ID),
    ]:
        request = CreatePartitions((MorePartitions(topic_id, count),))
        assert codes((await ask(grow, request)).topics) == [code]
    assert link.sent == []


async def test_growth_in_a_dry_run_and_from_an_old_count(autojump_clock: MockClock) -> None:
    """Tried, nothing grows; from a count that has changed since, nothing grows either."""
    cluster = await cluster_of(None)
    await make(cluster, (1,))
    dry = CreatePartitions((MorePartitions(ORDERS, 3),), is_dry_run=True)
    assert codes((await ask(topics_of(cluster).grow, dry)).topics) == [0]
    assert len(cluster.leader.image.partitions) == 1
    cluster.follow_seconds = 1.0  # what is asked here does not know of the growth that comes now
    request = CreatePartitions((MorePartitions(ORDERS, 3),), timeout_ms=100)
    await ask(topics_of(cluster).grow, request)
    other = CreatePartitions((MorePartitions(ORDERS, 2),))
    assert codes((await ask(topics_of(cluster).grow, other)).topics) == [
        ErrorCode.INVALID_UPDATE_VERSION
    ]
