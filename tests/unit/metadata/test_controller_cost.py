"""No call of the controller looks at all partitions, however many there are.

Counted in looks and not in seconds, so that a busy machine changes nothing.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from immutables import Map

from raftmq.metadata.commands import FenceBroker, FinishReview, PartitionId, ReviewPartitions
from raftmq.metadata.controller.controller import PAUSE_SECONDS
from raftmq.metadata.controller.effects import LOOKS_MAX, ResumableScan, ScanBudget
from raftmq.metadata.controller.elections import BALANCE_SECONDS, ELECTIONS_MAX
from raftmq.metadata.image import MetadataImage, PartitionState, SlotState, Tally
from tests.unit.metadata.office import FENCED, TOPIC, Office, broker, commands_in, with_broker

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT = 2 * LOOKS_MAX + 1  # of partitions, all on brokers 1, 2 and 3
LED_BY_1 = PartitionState((1, 2, 3), (1, 2, 3), 1)
LED_BY_2 = PartitionState((1, 2, 3), (1, 2, 3), 2)


class Counted:
    """All partitions are in the same state; `looks` counts how many of them were looked at."""

    def __init__(self, state: PartitionState) -> None:
        self.state, self.looks = state, 0

    def __len__(self) -> int:
        return COUNT

    def get(self, _key: PartitionId) -> PartitionState:
        self.looks += 1
        return self.state

    def items(self) -> Iterator[tuple[PartitionId, PartitionState]]:
        for key in keys():
            self.looks += 1
            yield key, self.state

    def seen(self) -> int:
        """Since this was asked last."""
        looks, self.looks = self.looks, 0
        return looks


@cache
def keys() -> Map[PartitionId, None]:
    return Map({PartitionId(TOPIC, number): None for number in range(COUNT)})


def vast(state: PartitionState, **first: Any) -> tuple[Office, Counted]:
    """An image with that many partitions; `first` changes broker 1."""
    found = Counted(state)
    image = MetadataImage(
        100,
        brokers=Map({1: broker(1, **first), 2: broker(2), 3: broker(3)}),
        hosted=Map(dict.fromkeys((1, 2, 3), keys())),
        partitions=found,  # type: ignore[arg-type]
        tallies=Map({state.leader: Tally(led=COUNT)}),
        slots=tuple(SlotState(2 + n % 2) for n in range(64)) if first else slots(),
    )
    return Office(image), found


def slots() -> tuple[SlotState, ...]:
    return tuple(SlotState(1 + n % 3) for n in range(64))


def live(office: Office, **first: Any) -> None:
    for broker_id in office.image.brokers:
        office.heartbeat(broker_id, **first if broker_id == 1 else {})


def test_a_walk_goes_on_where_it_stopped() -> None:
    """Ten keys, four looks a call, and a caller that has enough after two of them."""
    walk = ResumableScan(Map(dict.fromkeys(range(10))))
    found = list(walk.go(ScanBudget(4)))
    looks = ScanBudget(4)
    steps = walk.go(looks)
    found += [next(steps), next(steps)]
    assert looks.left == 2
    steps.close()
    assert not walk.is_over
    found += walk.go(ScanBudget(5))
    assert sorted(found) == list(range(10))
    assert walk.is_over
    assert list(walk.go(ScanBudget(0))) == []
    assert walk.is_over


def test_taking_office_looks_at_some_and_the_ticks_at_the_others() -> None:
    """Each partition is looked at once, for a leader that is missing."""
    office, found = vast(LED_BY_1)
    assert found.seen() == LOOKS_MAX
    assert office.tick() == []
    assert found.seen() == LOOKS_MAX
    office.tick()
    assert found.seen() == 1
    office.tick()
    assert found.seen() == 0


def test_the_look_for_balance_comes_in_slices() -> None:
    """Every leadership is misplaced: that is known when all were seen, and not before."""
    office, found = vast(LED_BY_2)

    def tick() -> list[object]:
        live(office)
        found.seen()
        office.now += PAUSE_SECONDS
        return commands_in(office.controller.on_tick(now=office.now, image=office.image))

    while office.now < 1000.0 + BALANCE_SECONDS - PAUSE_SECONDS:
        assert tick() == []
    assert found.seen() == 0
    assert tick() == []
    assert found.seen() == LOOKS_MAX
    assert tick() == []
    assert found.seen() == LOOKS_MAX
    assert len(tick()) == ELECTIONS_MAX
    assert found.seen() == 1 + ELECTIONS_MAX


def test_a_review_begins_with_what_the_broker_leads() -> None:
    """The first slice takes as many looks as it has partitions; so does the next."""
    office, found = vast(LED_BY_1)
    while office.tick() or found.seen():
        pass
    office.image = with_broker(office.image, broker(1, **FENCED))._replace(
        slots=tuple(SlotState(2 + n % 2) for n in range(64))
    )
    [first] = office.tick()
    assert isinstance(first, ReviewPartitions)
    assert found.seen() == len(first.partitions) == 500
    [second] = office.result(first)
    assert found.seen() == 500
    assert isinstance(second, ReviewPartitions)
    assert not set(first.partitions) & set(second.partitions)


def test_a_review_of_nothing_takes_several_calls() -> None:
    """The broker has no part in anything that it hosts; that is found bit by bit."""
    office, found = vast(PartitionState((1, 2, 3), (2, 3), 2), **FENCED)
    assert found.seen() == 2 * LOOKS_MAX
    assert office.tick() == []
    assert found.seen() == 2 * LOOKS_MAX
    assert office.tick() == [FinishReview(1, 10, 90)]
    assert found.seen() == 2


def test_a_stopping_broker_that_leads_nothing_costs_no_look() -> None:
    """It heartbeats each second, and hosts as much as ever."""
    office, found = vast(LED_BY_2, in_controlled_shutdown=True)
    for _ in range(3):
        office.tick()
    live(office)
    found.seen()
    assert office.heartbeat(1, wants_shutdown=True).may_stop is True
    assert found.seen() == 0


def test_what_a_stopping_broker_keeps_is_counted_in_slices() -> None:
    """It leads everything, and nobody else could: that is known after the third call."""
    alone = PartitionState((1, 2, 3), (1,), 1)
    office, found = vast(alone, in_controlled_shutdown=True)
    live(office)
    found.seen()
    assert office.heartbeat(1, wants_shutdown=True).may_stop is False
    assert found.seen() == LOOKS_MAX
    assert office.heartbeat(1, wants_shutdown=True).may_stop is False
    assert office.heartbeat(1, wants_shutdown=True).may_stop is True
    found.seen()
    assert office.heartbeat(1, wants_shutdown=True).may_stop is True
    assert found.seen() == 0


def test_whether_a_frozen_disk_is_needed_is_found_in_slices() -> None:
    """It could be fenced, and that takes three ticks to say."""
    office, found = vast(LED_BY_1)
    while office.tick() or found.seen():
        pass
    live(office, pending_flush_seconds=5.0)
    assert office.tick() == []
    assert found.seen() == LOOKS_MAX
    assert office.tick() == []
    assert office.tick() == [FenceBroker(1, 10)]
