"""What a client believes of several brokers that do not know the same."""

from __future__ import annotations

import pytest

from raftmq.client.routing.routes import LeaderPlace, Routes
from raftmq.errors import (
    ErrorCode,
    InconsistentClusterId,
    LeaderNotAvailable,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from raftmq.model import Address
from raftmq.wire.messages.metadata import (
    BrokerRow,
    MetadataReply,
    PartitionMetadata,
    TopicMetadata,
)

ID, OTHER_ID = b"\1" * 16, b"\2" * 16
BROKERS = (BrokerRow(1, "b1", 9000), BrokerRow(2, "b2", 9000))


def reply(
    version: int, *topics: TopicMetadata, brokers: tuple[BrokerRow, ...] = BROKERS
) -> MetadataReply:
    return MetadataReply(version, "cluster-a", brokers=brokers, topics=topics)


def led(leader: int, leader_epoch: int, *, topic_id: bytes = ID, name: str = "t") -> TopicMetadata:
    partition = PartitionMetadata(ErrorCode.NONE, 0, leader, leader_epoch)
    return TopicMetadata(ErrorCode.NONE, name, topic_id, (partition,))


def test_where_a_partition_is_led() -> None:
    """One answer says all that is needed to ask."""
    routes = Routes()
    assert routes.take_in(reply(5, led(2, 7)))
    assert routes.place("t", 0) == LeaderPlace(ID, 0, 2, 7)
    assert routes.addresses == {1: Address("b1", 9000), 2: Address("b2", 9000)}
    assert (routes.version, routes.cluster_id) == (5, "cluster-a")


def test_the_same_again_is_no_news() -> None:
    """A newer version in which nothing of ours has changed is nothing to act upon."""
    routes = Routes()
    routes.take_in(reply(5, led(2, 7)))
    assert not routes.take_in(reply(6, led(2, 7)))
    assert routes.version == 6
    assert routes.take_in(reply(7, led(1, 8)))


def test_an_older_reply_changes_nothing() -> None:
    """A broker that is behind answers last: neither leaders nor addresses go back."""
    routes = Routes()
    routes.take_in(reply(5, led(2, 7)))
    assert not routes.take_in(reply(4, led(1, 6), brokers=BROKERS[:1]))
    assert routes.place("t", 0).leader == 2
    assert 2 in routes.addresses


def test_an_older_reply_does_not_bring_back_a_deleted_topic() -> None:
    """That a topic is gone is known as of a version, too."""
    routes = Routes()
    routes.take_in(reply(5, led(2, 7)))
    routes.take_in(reply(6, TopicMetadata(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t")))
    routes.take_in(reply(5, led(2, 7)))
    with pytest.raises(UnknownTopicOrPartition):
        routes.place("t", 0)


def test_an_older_reply_about_another_topic_is_better_than_nothing() -> None:
    """Versions are kept for each topic: whoever has said nothing of one contradicts nobody."""
    routes = Routes()
    routes.take_in(reply(5, led(2, 7)))
    assert routes.take_in(reply(4, led(1, 0, topic_id=OTHER_ID, name="u")))
    assert routes.place("u", 0).leader == 1
    assert routes.version == 5


def test_an_error_that_tells_the_leader() -> None:
    """The higher epoch counts, whoever says so; a lower or equal one never."""
    routes = Routes()
    routes.take_in(reply(5, led(2, 7)))
    assert not routes.on_leader(ID, 0, leader=1, leader_epoch=7)
    assert not routes.on_leader(ID, 0, leader=-1, leader_epoch=8)
    assert not routes.on_leader(ID, 9, leader=1, leader_epoch=8)
    assert not routes.on_leader(OTHER_ID, 0, leader=1, leader_epoch=8)
    assert routes.on_leader(ID, 0, leader=1, leader_epoch=8)
    assert routes.place("t", 0) == LeaderPlace(ID, 0, 1, 8)


def test_a_newer_reply_does_not_lower_an_epoch() -> None:
    """Somebody told of epoch 9; a broker that has heard less of it does not take that back."""
    routes = Routes()
    routes.take_in(reply(5, led(2, 7)))
    routes.on_leader(ID, 0, leader=1, leader_epoch=9)
    routes.take_in(reply(6, led(2, 8)))
    assert routes.place("t", 0) == LeaderPlace(ID, 0, 1, 9)
    routes.take_in(reply(7, led(2, 10)))
    assert routes.place("t", 0) == LeaderPlace(ID, 0, 2, 10)


def test_a_topic_that_was_made_again() -> None:
    """Another id: epochs of the old one mean nothing, and hints for it neither."""
    routes = Routes()
    routes.take_in(reply(5, led(2, 7)))
    routes.take_in(reply(6, led(1, 0, topic_id=OTHER_ID)))
    assert routes.place("t", 0) == LeaderPlace(OTHER_ID, 0, 1, 0)
    assert not routes.on_leader(ID, 0, leader=2, leader_epoch=8)


def test_why_there_is_no_place() -> None:
    """What a broker said of the topic, or what follows from it."""
    routes = Routes()
    with pytest.raises(UnknownTopicOrPartition, match="'t'"):
        routes.place("t", 0)
    routes.take_in(
        reply(5, led(-1, 7), TopicMetadata(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "secret"))
    )
    with pytest.raises(LeaderNotAvailable, match="t-0"):
        routes.place("t", 0)
    with pytest.raises(UnknownTopicOrPartition, match="1 partition, there is no 3"):
        routes.place("t", 3)
    with pytest.raises(TopicAuthorizationFailed):
        routes.place("secret", 0)


def test_a_topic_is_led_once_all_of_it_is() -> None:
    """One partition without a leader is enough to wait for."""
    routes = Routes()
    partitions = (PartitionMetadata(0, 0, 1, 0), PartitionMetadata(0, 1, -1, 0))
    routes.take_in(reply(5, TopicMetadata(0, "t", ID, partitions)))
    found = routes.topic("t")
    assert found is not None
    assert not found.is_led
    routes.on_leader(ID, 1, leader=2, leader_epoch=1)
    found = routes.topic("t")
    assert found is not None
    assert found.is_led


def test_a_broker_of_another_cluster() -> None:
    """Addresses were given to somebody else: nothing of what it says is taken in."""
    routes = Routes()
    routes.take_in(reply(5, led(2, 7)))
    with pytest.raises(InconsistentClusterId, match="bootstrap"):
        routes.take_in(MetadataReply(9, "cluster-b", brokers=BROKERS, topics=(led(1, 9),)))
    assert routes.place("t", 0).leader == 2


def test_a_broker_without_metadata_tells_nothing() -> None:
    """It has just started: no brokers there is no reason to forget those that are known."""
    routes = Routes()
    routes.take_in(reply(5, led(2, 7)))
    assert not routes.take_in(reply(6, brokers=()))
    assert routes.addresses


def some_led(number: int) -> TopicMetadata:
    return led(1, 0, topic_id=number.to_bytes(16, "big"), name=f"t{number}")


def test_the_topic_that_was_used_longest_ago_is_forgotten() -> None:
    """Three may be known: the fourth takes the place of one that nobody has used since."""
    routes = Routes(topics_max=3)
    for number in range(3):
        routes.take_in(reply(5, some_led(number)))
    assert routes.use("t0")
    routes.take_in(reply(6, some_led(3)))
    assert [number for number in range(4) if routes.topic(f"t{number}")] == [0, 2, 3]
    assert not routes.use("t1")
    assert not routes.on_leader((1).to_bytes(16, "big"), 0, leader=2, leader_epoch=9)
    assert routes.on_leader((2).to_bytes(16, "big"), 0, leader=2, leader_epoch=9)


def test_a_topic_that_was_told_of_again_is_not_the_next_to_go() -> None:
    """Whoever asked is about to use it; what says nothing new counts as well."""
    routes = Routes(topics_max=2)
    routes.take_in(reply(5, some_led(0), some_led(1)))
    routes.take_in(reply(4, some_led(0)))
    routes.take_in(reply(5, some_led(2)))
    assert routes.topic("t0")
    assert routes.topic("t1") is None


def test_names_that_nobody_has_are_forgotten_too() -> None:
    """A program asks for a hundred names that are not there: ten are remembered."""
    routes = Routes(topics_max=10)
    for number in range(100):
        unknown = TopicMetadata(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"t{number}")
        routes.take_in(reply(5, unknown))
        routes.doubt(f"t{number}")
    assert sum(routes.topic(f"t{number}") is not None for number in range(100)) == 10


def test_what_is_doubted_is_asked_for_again() -> None:
    """Until somebody has told of that topic; what is not known cannot be doubted."""
    routes = Routes()
    assert not routes.use("t")
    routes.doubt("t")
    routes.take_in(reply(5, led(2, 7)))
    assert routes.use("t")
    routes.doubt("t")
    assert not routes.use("t")
    assert routes.place("t", 0).leader == 2
    routes.take_in(reply(6, some_led(1)))
    assert not routes.use("t")
    routes.take_in(reply(5, led(2, 7)))
    assert routes.use("t")


def test_doubts_go_with_the_topic() -> None:
    """It was forgotten and is told of again: nobody has doubted that."""
    routes = Routes(topics_max=1)
    routes.take_in(reply(5, led(2, 7)))
    routes.doubt("t")
    routes.take_in(reply(5, some_led(1)))
    assert routes.topic("t") is None
    routes.take_in(reply(5, led(2, 7)))
    assert routes.use("t")
