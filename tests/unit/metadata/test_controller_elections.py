"""The active controller: partitions without a leader, and whose review elects one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.metadata.commands import NO_BROKER, ReviewPartitions
from raftmq.metadata.controller.effects import RETRY_SECONDS
from raftmq.metadata.controller.elections import SLICE_PARTITIONS_MAX
from raftmq.metadata.image import PartitionState
from tests.unit.metadata.office import (
    REFUSED,
    Office,
    broker,
    commands_in,
    image_of,
    key,
    led_by,
    with_broker,
)

if TYPE_CHECKING:
    from raftmq.metadata.image import MetadataImage

LEADERLESS = PartitionState((1, 2), (3,), NO_BROKER, eligible=(1, 2))


def elections_in(found: list[object]) -> list[ReviewPartitions]:
    return [command for command in found if isinstance(command, ReviewPartitions)]


def office_of(image: MetadataImage) -> tuple[Office, list[ReviewPartitions]]:
    """With the elections that it asks for at once."""
    office = Office(image)
    probes = sum(not found.fenced for found in image.brokers.values())
    return office, elections_in(commands_in(office.first[probes:]))


def test_another_host_elects_where_the_first_one_has_gone() -> None:
    """Broker 1 had the elections, the first slice is under way, and broker 1 is fenced."""
    count = SLICE_PARTITIONS_MAX + 2
    office, [first] = office_of(image_of(broker(1), broker(2), partitions=[LEADERLESS] * count))
    assert (first.broker_id, len(first.partitions)) == (1, SLICE_PARTITIONS_MAX)
    office.image = with_broker(office.image, broker(1, fenced=True))
    [second] = elections_in(office.tick())
    [third] = elections_in(office.result(second))
    assert (second.broker_id, third.broker_id) == (2, 2)
    again = sorted([*second.partitions, *third.partitions])
    assert again == [key(n) for n in range(count)]


def test_another_host_elects_where_the_first_one_was_refused() -> None:
    """The quorum knows another epoch of broker 1; broker 2 can do the same at once."""
    office, [first] = office_of(image_of(broker(1), broker(2), partitions=[LEADERLESS]))
    assert first == ReviewPartitions(1, 10, (key(0),))
    assert office.result(first, REFUSED) == []
    assert office.tick() == [ReviewPartitions(2, 20, (key(0),))]


def test_where_there_is_no_other_host_it_is_tried_again() -> None:
    """Broker 1 alone could win: it is asked again after a rest."""
    office, [first] = office_of(
        image_of(broker(1), broker(2, fenced=True), partitions=[LEADERLESS])
    )
    assert office.result(first, REFUSED) == []
    assert office.tick(RETRY_SECONDS - 0.1) == []
    assert office.tick() == [first]


def test_what_has_a_leader_by_now_is_not_elected_again() -> None:
    """Broker 1 has gone, and its elections are done: nothing is left for broker 2."""
    office, [_first] = office_of(image_of(broker(1), broker(2), partitions=[LEADERLESS]))
    led = office.image.partitions.set(key(0), led_by(2, 1))
    office.image = with_broker(office.image, broker(1, fenced=True))._replace(partitions=led)
    assert elections_in(office.tick()) == []


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(PartitionState((1, 2), (1, 2), 1), id="in sync"),
        pytest.param(PartitionState((1, 2), (1,), 1, eligible=(2,)), id="eligible"),
    ],
)
def test_a_stopping_broker_hands_over_what_another_could_lead(state: PartitionState) -> None:
    """The other one came after the review: it is elected, and then the broker may stop."""
    stopping = broker(1, in_controlled_shutdown=True)
    behind = PartitionState((1, 2), (1,), 1)
    image = image_of(stopping, broker(2), partitions=[behind, led_by(1)])
    office, [first] = office_of(image)
    office.result(first)
    office.image = image._replace(version=101, partitions=image.partitions.set(key(0), state))
    office.heartbeat(2)
    assert office.heartbeat(1, wants_shutdown=True).may_stop is False
    assert office.tick() == [ReviewPartitions(2, 20, (key(0),))]
    moved = image.partitions.set(key(0), led_by(2))
    office.image = office.image._replace(version=102, partitions=moved)
    office.heartbeat(2)
    assert office.heartbeat(1, wants_shutdown=True).may_stop is True
