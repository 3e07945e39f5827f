"""Tallies: in how many partitions each broker has which part."""

from __future__ import annotations

import pytest
from immutables import Map

from raftmq.metadata.commands import NO_BROKER, DeleteTopic, FenceBroker
from raftmq.metadata.image import NO_TALLY, PartitionState, Tally, Tallying
from tests.unit.metadata.brokers_back import hosting, reviewed
from tests.unit.metadata.states import ORDERS, after, epoch_of

FALLEN = PartitionState(
    (1, 2, 3), (1,), leader=NO_BROKER, eligible=(2, 3), last_known_eligible=(1,)
)


def test_each_part_counts_for_itself() -> None:
    """Broker 1 led last and is in sync, 2 and 3 are eligible, nobody leads."""
    tallying = Tallying()
    tallying.add(FALLEN, trusts_page_cache=False)
    tallying.add(FALLEN, trusts_page_cache=True)
    assert tallying.added_to(Map()) == Map({
        1: Tally(in_sync=2, last_led=2),
        2: Tally(eligible=2, unsynced=1),
        3: Tally(eligible=2, unsynced=1),
    })  # fmt: skip


def test_what_was_added_is_taken_away() -> None:
    """Of a broker without any part nothing is left: equal images have equal tallies."""
    tallying, back = Tallying(), Tallying()
    tallying.add(FALLEN, trusts_page_cache=True)
    back.add(FALLEN, trusts_page_cache=True, times=-1)
    assert back.added_to(tallying.added_to(Map())) == Map()
    with pytest.raises(AssertionError, match="less than nothing"):
        back.added_to(Map())


def test_an_image_knows_how_many_partitions_a_broker_leads() -> None:
    """Three topics' worth of partitions; one broker goes, then all of them."""
    image = hosting((0, 1, 2), (0, 2), (1, 2))
    assert [image.led_count(broker_id) for broker_id in range(4)] == [2, 1, 0, 0]
    image = reviewed(after(image, FenceBroker(0, epoch_of(0))))
    assert [image.led_count(broker_id) for broker_id in range(4)] == [0, 2, 1, 0]
    assert image.tally_of(0) == Tally(eligible=1)
    image = after(image, DeleteTopic(ORDERS))
    assert image.tally_of(2) == NO_TALLY
    assert image.tallies == Map()
