"""The active controller: reviews of partitions, coordinator slots, preferred leaders."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raftmq.metadata.commands import (
    NO_BROKER,
    AssignSlot,
    ElectionKind,
    ElectLeader,
    FinishReview,
    ReviewPartitions,
)
from raftmq.metadata.controller.controller import PAUSE_SECONDS
from raftmq.metadata.controller.effects import RETRY_SECONDS
from raftmq.metadata.controller.elections import (
    BALANCE_SECONDS,
    ELECTIONS_MAX,
    SLICE_PARTITIONS_MAX,
)
from raftmq.metadata.image import (
    SLOT_COUNT,
    PartitionState,
    SlotState,
)
from tests.unit.metadata.office import (
    FENCED,
    REFUSED,
    TOPIC,
    Office,
    broker,
    commands_in,
    image_of,
    key,
    led_by,
    with_broker,
)

# Reviews


def test_a_review_goes_slice_by_slice() -> None:
    """A fenced broker hosts more than two slices: one is under way at a time, then it is done."""
    count = 2 * SLICE_PARTITIONS_MAX + 1
    image = image_of(broker(1, **FENCED), partitions=[led_by(1)] * count)
    office = Office(image)
    [first] = commands_in(office.first)
    [second] = office.result(first)
    [third] = office.result(second)
    slices = [first, second, third]
    assert all(isinstance(command, ReviewPartitions) for command in slices)
    assert [len(command.partitions) for command in slices] == [500, 500, 1]  # type: ignore[attr-defined]
    reviewed = [name for command in slices for name in command.partitions]  # type: ignore[attr-defined]
    assert sorted(reviewed) == sorted(image.partitions)
    assert office.tick(1.0) == []
    assert office.result(third) == [FinishReview(1, 10, 90)]


def test_a_slice_that_may_be_lost_is_repeated() -> None:
    """The outcome of the first slice is unknown: it is not taken for done."""
    office = Office(image_of(broker(1, **FENCED), partitions=[led_by(1)]))
    [first] = commands_in(office.first)
    assert office.result(first, None) == []
    assert office.tick(RETRY_SECONDS) == [first]
    assert office.result(first) == [FinishReview(1, 10, 90)]


def test_a_review_that_grew_begins_again() -> None:
    """The broker registers in the middle of its review: all of it is to be seen anew."""
    office = Office(image_of(broker(1, **FENCED), partitions=[led_by(1)]))
    [first] = commands_in(office.first)
    again = broker(1, **FENCED | {"pending_since": 101, "broker_epoch": 101})
    office.image = with_broker(office.image, again)
    assert office.result(first, REFUSED) == []
    [anew] = office.tick(RETRY_SECONDS)
    assert anew == ReviewPartitions(1, 101, (key(0),))
    assert office.result(anew) == [FinishReview(1, 101, 101)]


def test_a_finish_that_was_overtaken_reviews_again() -> None:
    """Another controller's fence came between the last slice and its finish."""
    office = Office(image_of(broker(1, **FENCED), partitions=[led_by(1)]))
    [first] = commands_in(office.first)
    [finish] = office.result(first)
    office.image = with_broker(office.image, broker(1, **FENCED | {"pending_since": 101}))
    assert office.result(finish, REFUSED) == []
    assert office.tick(RETRY_SECONDS) == [ReviewPartitions(1, 10, (key(0),))]


def test_a_finish_that_is_refused_reviews_what_is_left() -> None:
    """The quorum knows of a partition that came to trust the broker after its slice was seen."""
    trusting = PartitionState((2, 1), (2, 1), 2)
    lost = replace(trusting, isr=(2,))
    image = image_of(broker(1, **FENCED), broker(2), partitions=[trusting, lost])
    office = Office(image)
    [first] = commands_in(office.first[1:])
    assert first == ReviewPartitions(1, 10, (key(0),))
    [finish] = office.result(first)
    partitions = image.partitions.set(key(0), lost).set(key(1), trusting)
    office.image = image._replace(version=101, partitions=partitions)
    assert office.result(finish, REFUSED) == []
    assert office.tick(RETRY_SECONDS) == [ReviewPartitions(1, 10, (key(1),))]


def test_only_what_trusts_the_broker_is_reviewed() -> None:
    """Of what it hosts, the broker is in sync, eligible, or the last leader of some."""
    replicas = (2, 1)
    partitions = [
        PartitionState(replicas, (2,), 2),
        PartitionState(replicas, (2, 1), 2),
        PartitionState(replicas, (2,), 2, eligible=(1,)),
        PartitionState(replicas, (), NO_BROKER, last_known_eligible=(1,)),
        PartitionState((2,), (2,), 2),
    ]
    office = Office(image_of(broker(1, **FENCED), broker(2), partitions=partitions))
    [first, _elections] = commands_in(office.first[1:])
    assert first == ReviewPartitions(1, 10, (key(1), key(2), key(3)))


def test_a_broker_that_hosts_nothing_has_a_short_review() -> None:
    """It was pending although nothing trusts it."""
    office = Office(image_of(broker(1, **FENCED)))
    assert commands_in(office.first) == [FinishReview(1, 10, 90)]


# Slots


def owned(*counts: tuple[int, int]) -> tuple[SlotState, ...]:
    """`counts` holds (broker, how many slots it has)."""
    slots = tuple(SlotState(broker_id, 5) for broker_id, count in counts for _ in range(count))
    assert len(slots) == SLOT_COUNT
    return slots


def test_slots_of_a_new_cluster_are_spread_evenly() -> None:
    """No slot has an owner: each active broker gets its part, with the epoch that was seen."""
    image = image_of(broker(1), broker(2), broker(3, fenced=True), slots=owned((NO_BROKER, 64)))
    moves = commands_in(Office(image).first[2:])
    assert [(move.slot, move.expected_epoch) for move in moves] == [(n, 5) for n in range(64)]  # type: ignore[attr-defined]
    assert sorted(move.broker_id for move in moves) == [1] * 32 + [2] * 32  # type: ignore[attr-defined]


def test_slots_of_a_broker_that_is_not_active_move() -> None:
    """Broker 2 is stopping: its slots go to whoever has fewest, once."""
    stopping = broker(2, in_controlled_shutdown=True)
    slots = owned((1, 32), (2, 22), (3, 10))
    office = Office(image_of(broker(1), stopping, broker(3), slots=slots))
    moves = commands_in(office.first[3:])
    assert moves == [AssignSlot(n, 5, 3) for n in range(32, 54)]
    assert office.tick(1.0) == []


def test_a_new_broker_gets_slots_a_few_at_a_time() -> None:
    """Broker 1 has all slots, broker 2 comes: each result makes room for another move."""
    office = Office(image_of(broker(1), broker(2), slots=owned((1, 64))))
    moves = commands_in(office.first[2:])
    assert moves == [AssignSlot(n, 5, 2) for n in range(4)]
    slots = office.image.slots
    office.image = office.image._replace(version=101, slots=(SlotState(2, 6), *slots[1:]))
    assert office.result(moves[0]) == [AssignSlot(4, 5, 2)]


def test_slots_that_are_nearly_even_stay() -> None:
    """Three brokers cannot have the same number; nothing moves for that."""
    slots = owned((1, 22), (2, 21), (3, 21))
    office = Office(image_of(broker(1), broker(2), broker(3), slots=slots))
    assert office.tick(1.0) == []


def test_nobody_to_own_slots() -> None:
    """All brokers are fenced: slots wait."""
    office = Office(image_of(broker(1, fenced=True), slots=owned((1, 64))))
    assert office.first == []


# Preferred leaders


def balance(office: Office) -> list[object]:
    """Go to the next look at all partitions, in a cluster that lives."""
    until = office.now + BALANCE_SECONDS
    while office.now < until:
        office.now += PAUSE_SECONDS
        for broker_id in office.image.brokers:
            office.heartbeat(broker_id)
        found = commands_in(office.controller.on_tick(now=office.now, image=office.image))
        if found:
            return found
    return []


def election(partition: int) -> ElectLeader:
    """With the leader epoch that was seen: whoever else moved it meanwhile moved it for good."""
    return ElectLeader(TOPIC, partition, ElectionKind.PREFERRED, 7)


def test_leadership_comes_back_gently() -> None:
    """Broker 2 leads everything after a restart of broker 1: a few elections at a time."""
    away = PartitionState((1, 2), (1, 2), 2, 7)
    office = Office(image_of(broker(1), broker(2), partitions=[away] * 20))
    found = balance(office)
    assert found == [election(n) for n in range(ELECTIONS_MAX)]
    assert office.tick() == []
    assert office.result(found[0]) == [election(ELECTIONS_MAX)]


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(PartitionState((1, 2), (2,), 2), id="not in sync"),
        pytest.param(PartitionState((3, 2), (3, 2), 2), id="not active"),
    ],
)
def test_who_cannot_lead_is_not_elected(state: PartitionState) -> None:
    """The preferred leader is behind, or away."""
    image = image_of(broker(1), broker(2), broker(3, fenced=True), partitions=[state] * 5)
    office = Office(image)
    office.heartbeat(2)
    assert not any(isinstance(command, ElectLeader) for command in balance(office))


def test_a_small_imbalance_is_left_alone() -> None:
    """One in ten is led by another broker: not worth the moves."""
    states = [PartitionState((1, 2), (1, 2), 2), *[led_by(1, 2)] * 9]
    assert balance(Office(image_of(broker(1), broker(2), partitions=states))) == []
    states.pop()
    assert balance(Office(image_of(broker(1), broker(2), partitions=states))) != []


def test_a_move_that_makes_no_sense_any_more_is_dropped() -> None:
    """Topics are deleted, and leaders move, while elections wait for their turn."""
    away = PartitionState((1, 2), (1, 2), 2, 7)
    office = Office(image_of(broker(1), broker(2), partitions=[away] * (ELECTIONS_MAX + 3)))
    found = balance(office)
    rest = office.image.partitions.delete(key(ELECTIONS_MAX)).set(
        key(ELECTIONS_MAX + 1), led_by(1, 2)
    )
    office.image = office.image._replace(partitions=rest)
    assert office.result(found[0]) == [election(ELECTIONS_MAX + 2)]
    assert office.result(found[1]) == []
