"""The active controller: starts planned moves in their order, within limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import (
    AlterPartition,
    CancelMove,
    FeatureLevel,
    FenceBroker,
    FinishReview,
    PartitionId,
    PlanMove,
    ProposedIsrMember,
    ReassignPartition,
    Refused,
    ReviewPartitions,
    UnfenceBroker,
)
from raftmq.metadata.controller.effects import FORBIDDEN_SECONDS, RETRY_SECONDS
from raftmq.metadata.controller.moves import (
    CLUSTER_MAX,
    FRONT,
    INTO_BROKER_MAX,
    LONG_LINE_SECONDS,
    OUT_OF_LEADER_MAX,
    PLANS_AT_ONCE,
    STARTS_MAX,
    CopiesUnderWay,
    in_line,
    why_planned_waits,
    why_under_way_waits,
)
from raftmq.metadata.image import SLOT_COUNT, MetadataImage, SlotState
from tests.metadata_invariants import check
from tests.unit.metadata.office import REFUSED, Office
from tests.unit.metadata.states import ORDERS, after, cluster, create, epoch_of, refusal

if TYPE_CHECKING:
    from raftmq.metadata.commands import AnyCommand

FEW = 10  # looks at a partition that moves, or begins to


def key(number: int) -> PartitionId:
    return PartitionId(ORDERS, number)


def hosting(*replicas: tuple[int, ...], brokers: int = 6) -> MetadataImage:
    """Partitions with these replicas, and nothing to be done but moves."""
    image = cluster(brokers)._replace(feature_level=FeatureLevel.MOVES)
    slots = tuple(SlotState(number % brokers) for number in range(SLOT_COUNT))
    return after(image._replace(slots=slots), create(*replicas))


def planned(image: MetadataImage, plans: dict[int, tuple[int, ...]]) -> MetadataImage:
    return after(image, *(PlanMove(*key(number), replicas) for number, replicas in plans.items()))


def in_sync(image: MetadataImage, number: int, *isr: int) -> MetadataImage:
    """These replicas of the partition have everything; all of them, so that its move is done."""
    state = image.partitions[key(number)]
    epochs = state.leader_epoch, state.partition_epoch
    members = tuple(ProposedIsrMember(b, epoch_of(b)) for b in isr or state.replicas)
    who = state.leader, epoch_of(state.leader)
    return after(image, AlterPartition(*who, *key(number), *epochs, members))


def gone(image: MetadataImage, broker_id: int) -> MetadataImage:
    """Fenced and reviewed."""
    who = broker_id, epoch_of(broker_id)
    image = after(image, FenceBroker(*who), ReviewPartitions(*who, (*image.hosted_by(broker_id),)))
    pending_since = image.brokers[broker_id].pending_since
    slots = tuple(SlotState(0) for _ in image.slots)  # of no interest here
    return after(image, FinishReview(*who, pending_since))._replace(slots=slots)


@dataclass
class Cluster:
    """A controller whose starts are committed one by one."""

    image: MetadataImage
    begun: list[int] = field(default_factory=list)  # partitions, in order

    def __post_init__(self) -> None:
        self.office = Office(self.image)
        self.commit(self.office.tick())

    def change(self, image: MetadataImage) -> list[int]:
        """Which moves have begun since the image became this one."""
        self.begun = []
        self.image = self.office.image = image
        self.heartbeats()
        self.commit(self.office.tick())
        return self.begun

    def heartbeats(self) -> None:
        for broker_id in self.image.brokers:
            self.office.heartbeat(broker_id)

    def commit(self, commands: list[object]) -> None:
        ahead = list(commands)
        while ahead:
            command = ahead.pop(0)
            if not isinstance(command, ReassignPartition):
                continue  # of a broker that came back
            self.begun.append(command.partition)
            self.image = self.office.image = after(self.image, command)
            check(self.image)
            ahead += self.office.result(command)

    def say(self, *commands: AnyCommand) -> list[int]:
        return self.change(after(self.image, *commands))


# Limits


def test_moves_begin_in_the_order_of_their_plans() -> None:
    """Not in that of partitions.

    A10.2.
    """
    image = planned(hosting((0,), (1,), (2,)), {2: (3,), 0: (4,), 1: (5,)})
    assert Cluster(image).begun == [2, 0, 1]


def test_a_broker_gets_few_at_once() -> None:
    """The third begins when one of the others is done.

    A10.2.
    """
    here = Cluster(planned(hosting((0,), (1,), (2,)), dict.fromkeys(range(3), (5,))))
    assert here.begun == [0, 1]
    assert len(here.begun) == INTO_BROKER_MAX
    assert here.change(in_sync(here.image, 1)) == [2]


def test_a_leader_gives_few_at_once() -> None:
    """Partitions 0 to 2 of broker 0, to three brokers.

    A10.2.
    """
    here = Cluster(planned(hosting((0,), (0,), (0,), (1,)), {0: (3,), 1: (4,), 2: (5,), 3: (5,)}))
    assert here.begun == [0, 1, 3]
    assert OUT_OF_LEADER_MAX == 2
    assert here.change(in_sync(here.image, 0)) == [2]


def test_a_cluster_has_few_at_once() -> None:
    """Twelve leaders could give two each, and twelve other brokers get two each.

    A10.2.
    """
    image = hosting(*((n % 12,) for n in range(24)), brokers=24)
    here = Cluster(planned(image, {n: (12 + n % 12,) for n in range(24)}))
    assert here.begun == [*range(CLUSTER_MAX)]
    assert here.change(in_sync(here.image, 7)) == [20]


def test_what_copies_nothing_begins_at_once() -> None:
    """Fewer replicas, or another order, behind moves that have to wait.

    A10.2.
    """
    image = hosting((0,), (0,), (0,), (0, 1), (1, 0))
    here = Cluster(planned(image, {0: (3,), 1: (4,), 2: (5,), 3: (0,), 4: (0, 1)}))
    assert here.begun == [0, 1, 3, 4]
    assert set(here.image.moves) == {key(2)}


def test_one_that_cannot_begin_holds_up_no_other() -> None:
    """Of two that stand before it the new broker is down, and nobody leads; they begin later.

    A10.2.
    """
    image = gone(gone(hosting((0,), (1,), (2,)), 5), 1)
    here = Cluster(planned(image, {0: (5,), 1: (3,), 2: (4,)}))
    assert here.begun == [2]
    assert here.say(UnfenceBroker(5, epoch_of(5))) == [0]
    assert here.say(UnfenceBroker(1, epoch_of(1)), ReviewPartitions(1, epoch_of(1), (key(1),))) == [
        1
    ]


def test_one_that_stands_still_takes_no_place() -> None:
    """Two moves of leader 0 into broker 5, which goes down: the others of leader 0 begin.

    A10.2.
    """
    image = planned(hosting((0,), (0,), (0,), (0,), (0,)), {n: (5 - n // 2,) for n in range(5)})
    here = Cluster(image)
    assert here.begun == [0, 1]
    assert here.change(gone(here.image, 5)) == [2, 3]
    assert here.say(UnfenceBroker(5, epoch_of(5))) == []


def test_what_is_in_sync_copies_no_more() -> None:
    """Two moves of leader 0 have copied, and cannot end: broker 1, which stays, is down, or another
    new one is. The others of leader 0, and into the new brokers, begin.

    A10.2.
    """
    image = planned(hosting(*[(0, 1, 2)] * 4), {0: (0, 1, 3), 1: (0, 1, 4), 2: (0, 3), 3: (4, 0)})
    here = Cluster(image)
    assert here.begun == [0, 1]
    image = gone(here.image, 1)
    assert here.change(in_sync(in_sync(image, 0, 0, 2, 3), 1, 0, 2, 4)) == [2, 3]
    assert waits(here.image, 0) == "broker 1 is down: start it"
    here = Cluster(planned(hosting((0,), (0,), (0,)), {0: (3, 4), 1: (3, 5), 2: (3,)}))
    assert here.begun == [0, 1]
    image = gone(gone(here.image, 4), 5)
    assert here.change(in_sync(in_sync(image, 0, 0, 3), 1, 0, 3)) == [2]


def test_starts_in_flight_are_few() -> None:
    """Of moves that copy nothing, as many again when there is a result; one that is refused makes
    room for others as well.

    A10.2.
    """
    count = 3 * STARTS_MAX
    office = Office(hosting(*[(0, 1)] * count))
    office.image = planned(office.image, dict.fromkeys(range(count), (1, 0)))
    starts = office.tick()
    assert len(starts) == STARTS_MAX
    assert office.tick() == []
    assert isinstance(starts[0], ReassignPartition)
    office.image = after(office.image, starts[0])
    assert office.result(starts[0]) == []
    assert office.result(starts[1], REFUSED) == []
    assert [one.partition for one in office.tick()] == [STARTS_MAX, STARTS_MAX + 1]  # type: ignore[attr-defined]


# Replaced and cancelled


def test_a_later_plan_takes_the_place_of_the_one_under_way() -> None:
    """Leader 0 gives two already; partition 0 goes to another broker instead.

    A10.2.
    """
    here = Cluster(planned(hosting((0,), (0,), (0,)), {0: (3,), 1: (4,), 2: (4,)}))
    assert here.begun == [0, 1]
    assert here.say(PlanMove(*key(0), (5,))) == [0]
    assert here.image.partitions[key(0)].adding == (5,)
    assert not here.say(PlanMove(*key(0), (4, 5)))[1:], "partition 2 still waits"


def test_a_later_plan_keeps_the_limit_of_its_new_broker() -> None:
    """Broker 5 gets two already, so partition 0 goes on as before until one of them is done."""
    here = Cluster(planned(hosting((0,), (1,), (2,)), {0: (3,), 1: (5,), 2: (5,)}))
    assert here.begun == [0, 1, 2]
    assert here.say(PlanMove(*key(0), (5,))) == []
    assert here.image.partitions[key(0)].adding == (3,)
    assert here.change(in_sync(here.image, 2)) == [0]


def test_back_to_where_it_was_needs_no_place() -> None:
    """It drops what it was adding; the next in the line begins."""
    here = Cluster(planned(hosting((0,), (0,), (0,)), {0: (3,), 1: (4,), 2: (4,)}))
    assert here.say(PlanMove(*key(0), (0,))) == [0]
    assert here.change(here.image) == [2]


def test_a_cancel_under_way_makes_room() -> None:
    """A10.2."""
    here = Cluster(planned(hosting((0,), (0,), (0,)), {0: (3,), 1: (4,), 2: (5,)}))
    assert here.say(CancelMove(*key(1))) == [2]


def test_a_cancel_overtakes_a_start() -> None:
    """The start is proposed, and refused after the cancel; nothing is proposed again.

    A10.2.
    """
    office = Office(hosting((0,)))
    office.image = planned(office.image, {0: (3,)})
    [start] = office.tick()
    assert isinstance(start, ReassignPartition)
    office.image = after(office.image, CancelMove(*key(0)))
    assert refusal(office.image, start)
    assert office.result(start, REFUSED) == []
    assert office.tick(2 * RETRY_SECONDS) == []


@pytest.mark.parametrize("is_applied", [False, True])
def test_a_start_of_unknown_outcome(is_applied: bool) -> None:
    """While it is in flight its place is taken; then the image says whether to try again.

    A10.2.
    """
    office = Office(hosting((0,), (0,), (0,)))
    office.image = planned(office.image, {0: (3,), 1: (4,), 2: (5,)})
    starts = office.tick()
    assert len(starts) == OUT_OF_LEADER_MAX
    assert office.tick() == []
    if is_applied:
        office.image = after(office.image, starts[0])  # type: ignore[arg-type]
    assert office.result(starts[0], None) == []
    found = office.tick()
    assert [command.partition for command in found] == ([] if is_applied else [2])  # type: ignore[attr-defined]


def test_a_new_controller_goes_on() -> None:
    """What is under way counts; what waits begins when there is room.

    A10.2.
    """
    old = Cluster(planned(hosting((0,), (0,), (0,), (0,)), {n: (n + 2,) for n in range(4)}))
    new = Cluster(old.image)
    assert new.begun == []
    assert new.change(in_sync(in_sync(new.image, 0), 1)) == [2, 3]
    assert not new.image.moves


# Why a move waits


def waits(image: MetadataImage, number: int) -> str:
    if key(number) in image.moves:
        return why_planned_waits(image, key(number), CopiesUnderWay(image))
    return why_under_way_waits(image, key(number))


def test_why_a_move_waits_is_told() -> None:
    """Limits, brokers that are away, nobody who leads; of those under way, too.

    A10.2.
    """
    plans = {0: (3,), 1: (3,), 2: (3,), 3: (4,), 4: (3, 5), 5: (0,)}
    here = Cluster(planned(hosting((0,), (0,), (1,), (0,), (2,), (0, 1)), plans))
    image = here.image
    assert [waits(image, number) for number in (0, 2, 3)] == [
        "",
        "2 moves into broker 3 are under way",
        "2 moves out of broker 0 are under way",
    ]
    assert [number for _, number in in_line(image)] == [2, 3, 4]
    image = gone(image, 3)
    assert [waits(image, number) for number in (0, 2, 3)] == [
        "broker 3 is down: start it",
        "broker 3 is down: start it",
        "",
    ]
    image = gone(image, 2)
    assert waits(image, 4) == "no leader"


def test_a_start_that_would_be_refused_is_not_proposed() -> None:
    """All old replicas are down, and the one that is in sync is to be dropped: it is told. It
    begins as soon as another one is in sync.

    A10.2.
    """
    here = Cluster(planned(hosting((1, 2)), {0: (3, 4)}))
    image = gone(gone(in_sync(here.image, 0, 1, 2, 3), 2), 1)
    assert here.change(after(image, PlanMove(*key(0), (1, 2)))) == []
    for _ in range(20):
        assert here.change(here.image) == []
    problem = "none of the replicas but [3, 4] is in sync and unfenced: wait for others"
    assert waits(here.image, 0) == problem
    unfenced = [UnfenceBroker(1, epoch_of(1)), ReviewPartitions(1, epoch_of(1), (key(0),))]
    image = in_sync(after(here.image, *unfenced), 0, 3, 1)
    assert here.change(image) == [0]


def test_a_start_that_was_refused_is_tried_again_much_later() -> None:
    """Something forbids it that nobody has foreseen; others are not held up."""
    office = Office(hosting((0,)))
    office.image = planned(office.image, {0: (3,)})
    [start] = office.tick()
    forbidden = Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "unforeseen")
    assert office.result(start, forbidden) == []
    began_at, found = office.now, []
    while not found:
        for broker_id in office.image.brokers:
            office.heartbeat(broker_id)
        found = office.tick()
    assert found == [start]
    assert office.now - began_at == pytest.approx(FORBIDDEN_SECONDS, abs=0.2)


def test_a_full_cluster_is_told() -> None:
    """A10.2."""
    image = hosting(*((n % 12,) for n in range(24)), brokers=24)
    here = Cluster(planned(image, {n: (12 + n % 12,) for n in range(24)}))
    assert waits(here.image, 23) == "20 moves are under way"


# Cost


class Counted:
    """Counts how often a partition of the image was looked at."""

    def __init__(self, image: MetadataImage) -> None:
        self._partitions, self.looks = image.partitions, 0

    def __getitem__(self, key: PartitionId) -> object:
        self.looks += 1
        return self._partitions[key]

    def __len__(self) -> int:
        return len(self._partitions)

    def seen(self) -> int:
        looks, self.looks = self.looks, 0
        return looks


def test_a_long_line_is_gone_through_bit_by_bit() -> None:
    """All wait for a broker that is down, but the last one: it begins after some ticks, and then
    nothing is looked at before something changes. Some of the front are looked at in each.

    A10.2.
    """
    count = 2 * PLANS_AT_ONCE
    image = gone(hosting(*[(0,)] * count), 5)
    image = planned(image, {n: (4 if n == count - 1 else 5,) for n in range(count)})
    office, counted = Office(hosting(*[(0,)] * count)), Counted(image)
    office.image = image._replace(partitions=counted)  # type: ignore[arg-type]
    for _ in range(2):
        starts = office.tick()
        assert counted.seen() <= PLANS_AT_ONCE + FRONT + FEW
    [start] = starts
    assert isinstance(start, ReassignPartition)
    assert start.partition == count - 1
    image = after(image, start)
    counted = Counted(image)
    office.image = image._replace(partitions=counted)  # type: ignore[arg-type]
    assert office.result(start) == []
    counted.seen()
    for _ in range(2):
        assert office.tick() == []
        assert counted.seen() <= PLANS_AT_ONCE + FRONT + FEW
    assert office.tick() == []
    assert counted.seen() == 0


def test_a_long_line_is_made_anew_once_a_second() -> None:
    """Plans come one after the other, and each is seen soon enough.

    A10.2.
    """
    count = PLANS_AT_ONCE + 2
    image = gone(hosting(*[(0,)] * count), 5)
    image = planned(image, dict.fromkeys(range(count - 1), (5,)))
    office = Office(image)
    assert office.tick() == []
    image = planned(image, {count - 1: (4,)})
    office.image = image
    assert office.tick() == []
    office.now += LONG_LINE_SECONDS
    assert office.tick(0.3) == [ReassignPartition(*key(count - 1), 0, (4,), image.version)]


def test_the_walk_goes_on_while_the_front_changes() -> None:
    """Moves into broker 4 begin and end all the while; that into broker 5, far behind, begins soon
    all the same, and what is gone from the line uses up no look.

    A10.2.
    """
    count = 900
    image = hosting(*[(0,)] * count, (1,))
    plans = dict.fromkeys(range(count), (4,)) | {count: (5,)}
    here = Cluster(planned(image, plans))
    ticks = 1
    while count not in here.begun:
        assert ticks < 4, "it waits for those in front"
        for moving in sorted(here.image.moving):
            here.image = in_sync(here.image, moving.partition)
        assert here.change(here.image)
        ticks += 1


def test_the_front_comes_first() -> None:
    """The walk is in the middle of the line when a place becomes free: the front gets it.

    A10.2.
    """
    count = 2 * PLANS_AT_ONCE
    here = Cluster(planned(hosting(*[(0,)] * count), dict.fromkeys(range(count), (4,))))
    for number in range(10):
        assert here.begun == ([number + 1] if number else [0, 1])
        here.change(in_sync(here.image, number))
