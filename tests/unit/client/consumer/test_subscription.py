"""Which partitions are read, as the metadata tells of them."""

from __future__ import annotations

import pytest

from raftmq.client.consumer.partition_state import FROM_EARLIEST, FROM_LATEST
from raftmq.errors import (
    ErrorCode,
    InvalidConfig,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tests.unit.client.consumer.pure_world import PureWorld
from tests.unit.client.logs import Partition


def test_partitions_that_are_added() -> None:
    """The first ones begin where one wants, later ones at their beginning."""
    world = PureWorld(1, 2, start="latest")
    world.partitions.append(Partition(1))
    world.tell_metadata()
    starts = [state.start for state in world.subscription.states.values()]
    assert starts == [FROM_LATEST, FROM_LATEST, FROM_EARLIEST]
    assert world.subscription.is_told


def test_a_topic_that_is_unknown_for_too_long() -> None:
    """Five seconds, and once each five seconds; not while nobody says anything."""
    world = PureWorld(1)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    told = []
    for second in range(24):
        world.tell_metadata(unknown)
        if second == 15:
            world.subscription.on_unreachable()
        problem = world.subscription.take_problem()
        if problem is not None:
            assert isinstance(problem, UnknownTopicOrPartition)
            told.append(second)
        world.now += 1
    assert told == [5, 11, 21]


def test_a_problem_that_lasts_is_told_once_until_somebody_asks() -> None:
    """However often it is found."""
    world = PureWorld(1)
    for _ in range(3):
        world.tell_metadata(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert isinstance(world.subscription.take_problem(), TopicAuthorizationFailed)
    assert world.subscription.take_problem() is None


def test_a_topic_that_comes_back_in_time() -> None:
    """Nothing is told."""
    world = PureWorld(1)
    for error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE) * 3:
        world.tell_metadata(error)
        world.now += 4
    assert world.subscription.take_problem() is None


def test_another_topic_of_the_same_name() -> None:
    """Each partition that was read of the old one has an error, until one seeks."""
    world = PureWorld(1, 1)
    world.start()
    world.topic_id = b"n" * 16
    failed = world.tell_metadata()
    assert [type(state.error) for state in failed] == [UnknownTopicId] * 2
    assert world.tell_metadata() == []
    world.state(0).seek(FROM_EARLIEST)
    question = world.ask(1)
    assert question is not None
    assert [one.topic_id for one in question.body.partitions] == [b"n" * 16]


def test_a_partition_that_is_not_there() -> None:
    """Told after five seconds, with how many there are."""
    world = PureWorld(1, 1)
    del world.partitions[1]
    assert world.tell_metadata() == []
    world.now += 4.9
    assert world.tell_metadata() == []
    world.now += 0.2
    assert world.tell_metadata() == [world.state(1)]
    assert "t-1 does not exist: the topic has 1 partition" in str(world.state(1).error)


def test_what_is_not_read() -> None:
    """Its name, and some of those that are."""
    with pytest.raises(InvalidConfig, match=r"t-9 is not read.*t-0, t-1"):
        PureWorld(1, 1).subscription.find("t", 9)
