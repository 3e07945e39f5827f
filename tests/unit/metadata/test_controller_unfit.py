"""The active controller: brokers that live and must not rule, and how many of them at a time."""

from __future__ import annotations

from immutables import Map

from raftmq.metadata.commands import FenceBroker, PartitionId, UnfenceBroker
from raftmq.metadata.controller.controller import TICK_SECONDS
from raftmq.metadata.controller.effects import ScanBudget
from raftmq.metadata.controller.probes import BEHIND_SECONDS, _walk_of
from raftmq.metadata.image import MetadataImage, PartitionState
from tests.unit.metadata.office import Office, broker, image_of, led_by, with_broker

SLOW = 2.1  # age of a flush, in seconds


def live(office: Office, seconds: float, **behind: int) -> list[object]:
    """Everybody heartbeats each half second; `b1=99`: broker 1 knows version 99. What is asked."""
    end = office.now + seconds
    while office.now < end - TICK_SECONDS / 2:
        for broker_id in office.image.brokers:
            known = behind.get(f"b{broker_id}", office.image.version)
            office.heartbeat(broker_id, metadata_version=known)
        found = office.tick(0.5)
        if found:
            return found
    return []


# Metadata that stands still


def test_a_broker_whose_metadata_stands_still_is_fenced() -> None:
    """It heartbeats, and for ten seconds has not learned what the others know; then it does."""
    office = Office(image_of(broker(1), broker(2)))
    assert live(office, BEHIND_SECONDS - 0.5, b1=99) == []
    fence = FenceBroker(1, 10)
    assert live(office, 1.0, b1=99) == [fence]
    office.image = with_broker(office.image, broker(1, fenced=True, pending_since=101))
    office.result(fence)
    assert live(office, 1.0, b1=100) == []
    assert live(office, 1.0) == [UnfenceBroker(1, 10)]


def test_a_little_late_is_not_behind() -> None:
    """New versions come all the time, and broker 1 knows each of them five seconds later."""
    office = Office(image_of(broker(1), broker(2)))
    for _ in range(25):
        office.image = office.image._replace(version=office.image.version + 1)
        assert live(office, 1.0, b1=office.image.version - 5) == []


def test_where_everybody_is_behind_nobody_is_fenced() -> None:
    """What is committed reaches no broker at all: to fence them helps nobody."""
    office = Office(image_of(broker(1), broker(2)))
    assert live(office, 2 * BEHIND_SECONDS, b1=99, b2=99) == []


def test_a_pause_of_the_controller_leaves_nobody_behind() -> None:
    """It stood still just after a new version: nobody could tell that he knows it."""
    office = Office(image_of(broker(1), broker(2)))
    live(office, 2.0)
    office.image = office.image._replace(version=101)
    assert live(office, 0.5, b1=100) == []
    office.now += 60.0
    assert office.tick(0.2) == []
    assert live(office, 1.0, b1=100) == []
    assert live(office, BEHIND_SECONDS, b1=100) == [FenceBroker(1, 10)]


def test_a_broker_must_know_that_it_was_told_to_give_up() -> None:
    """It was fenced at 95, and its view of itself is older: it would go on as the leader it was."""
    office = Office(image_of(broker(1, fenced=True, pending_since=95)))
    office.heartbeat(1, metadata_version=94)
    assert office.tick() == []
    office.heartbeat(1, metadata_version=95)
    assert office.tick() == [UnfenceBroker(1, 10)]


def test_a_broker_that_is_behind_holds_up_no_shutdown() -> None:
    """Broker 2 is the only active one, and has learned nothing for a long time."""
    office = Office(image_of(broker(1, in_controlled_shutdown=True), broker(2)))
    office.heartbeat(2, metadata_version=99)
    assert office.heartbeat(1, wants_shutdown=True).may_stop is False
    for _ in range(12):
        office.tick(1.0)
        office.heartbeat(2, metadata_version=99)
        may_stop = office.heartbeat(1, wants_shutdown=True).may_stop
    assert may_stop is True


# Frozen disks


def freeze(office: Office, *frozen: int) -> list[object]:
    """One second in which these brokers have flushes that hang."""
    for broker_id in office.image.brokers:
        office.heartbeat(broker_id, pending_flush_seconds=SLOW if broker_id in frozen else 0.0)
    return office.tick(1.0)


def test_of_two_frozen_disks_one_is_fenced() -> None:
    """Two of three disks stall: fencing both would leave all partitions to one replica."""
    states = [led_by(1, 2, 3), led_by(2, 3, 1)]
    office = Office(image_of(broker(1), broker(2), broker(3), partitions=states))
    fence = FenceBroker(1, 10)
    assert freeze(office, 1, 2) == [fence]
    assert freeze(office, 1, 2) == []
    rest = [PartitionState((1, 2, 3), (2, 3), 2)] * 2
    fenced = broker(1, fenced=True)
    slots = image_of(broker(2), broker(3)).slots
    office.image = image_of(fenced, broker(2), broker(3), partitions=rest, version=101, slots=slots)
    office.result(fence)
    for _ in range(10):
        assert freeze(office, 1, 2) == []


def test_another_one_waits_even_if_it_hosts_nothing() -> None:
    """Broker 1 is fenced for its disk, and still hangs; its turn ends when its disk is trusted."""
    office = Office(image_of(broker(1, fenced=True), broker(2), broker(3)))
    for _ in range(10):
        assert freeze(office, 1, 2) == []
    while (found := freeze(office, 2)) == []:
        pass
    assert found == [UnfenceBroker(1, 10), FenceBroker(2, 20)]


def test_nobody_is_fenced_whom_min_isr_needs() -> None:
    """Broker 1 is one of two in sync; broker 2 is one of three: it is the one to go."""
    states = [PartitionState((1, 3, 4), (1, 3), 1), led_by(2, 3, 4)]
    brokers = [broker(n) for n in (1, 2, 3, 4)]
    office = Office(image_of(*brokers, partitions=states))
    assert freeze(office, 1) == []
    assert freeze(office, 1, 2) == [FenceBroker(2, 20)]


def test_whoever_leaves_the_isr_soon_does_not_count() -> None:
    """Three are in sync, but one of them is fenced and its review is not through."""
    states = [led_by(1, 2, 3)]
    away = broker(3, in_controlled_shutdown=True)
    office = Office(image_of(broker(1), broker(2), away, partitions=states))
    assert FenceBroker(1, 10) not in freeze(office, 1)


def test_what_a_broker_holds_alone_does_not_save_it() -> None:
    """A partition with one replica is stuck with its disk, fenced or not; others are not."""
    office = Office(image_of(broker(1), broker(2), partitions=[led_by(1)]))
    assert freeze(office, 1) == [FenceBroker(1, 10)]


def test_somebody_who_is_needed_no_more_is_fenced_then() -> None:
    """The third replica comes back into the ISR while the disk hangs."""
    brokers = [broker(n) for n in (1, 2, 3)]
    office = Office(image_of(*brokers, partitions=[PartitionState((1, 2, 3), (1, 2), 1)]))
    assert freeze(office, 1) == []
    office.image = image_of(*brokers, partitions=[led_by(1, 2, 3)], version=101)
    assert freeze(office, 1) == [FenceBroker(1, 10)]


def test_partitions_that_were_passed_are_looked_at_again() -> None:
    """The check stops at partition 1, which needs broker 1; when that one needs it no more, it is
    partition 0 that does, which the check had passed."""
    brokers = [broker(n) for n in (1, 2, 3)]
    two, three = PartitionState((1, 2, 3), (1, 2), 1), led_by(1, 2, 3)
    office = Office(image_of(*brokers, partitions=[three, two]))
    assert freeze(office, 1) == []
    office.image = image_of(*brokers, partitions=[two, three], version=101)
    assert freeze(office, 1) == []
    office.image = image_of(*brokers, partitions=[three, three], version=102)
    assert freeze(office, 1) == [FenceBroker(1, 10)]


def test_a_new_partition_is_looked_at() -> None:
    """It was made while the check stood still at another one."""
    brokers = [broker(n) for n in (1, 2, 3)]
    two, three = PartitionState((1, 2, 3), (1, 2), 1), led_by(1, 2, 3)
    office = Office(image_of(*brokers, partitions=[two]))
    assert freeze(office, 1) == []
    office.image = image_of(*brokers, partitions=[three, two], version=101)
    assert freeze(office, 1) == []


def test_partitions_are_checked_in_the_order_of_their_ids() -> None:
    """In one process as in another one, a few at a time: none is left out."""
    ids = [PartitionId(bytes([7 * n % 20]) * 16, n) for n in range(20)]
    states = dict.fromkeys(ids, led_by(1, 2, 3))
    image = MetadataImage(hosted=Map({1: Map(dict.fromkeys(ids))}), partitions=Map(states))
    walk = _walk_of(image, 1)
    found = [key for _ in range(6) for key in walk.go(ScanBudget(4))]
    assert found == sorted(ids)
    assert walk.is_over
