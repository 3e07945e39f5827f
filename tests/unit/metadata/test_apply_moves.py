"""Plans of moves: stored, replaced, carried out, taken back, and never lost in silence."""

from __future__ import annotations

import pytest
from immutables import Map
from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import (
    AlterTopicConfig,
    CancelMove,
    CreateTopic,
    DeleteTopic,
    Done,
    FeatureLevel,
    PartitionId,
    PlanMove,
    ReassignPartition,
    SetFeatureLevel,
    UnregisterBroker,
)
from raftmq.metadata.image import MetadataImage, PlannedMove
from tests.metadata_invariants import check, check_step
from tests.unit.metadata.one_partition import (
    KEY,
    altered,
    cancel,
    gone,
    hosting,
    move,
    of,
    proposal,
)
from tests.unit.metadata.states import (
    ORDERS,
    after,
    apply_next,
    cluster,
    create,
    epoch_of,
    refusal,
    seen,
    topic_id_of,
)

CANCEL = CancelMove(*KEY)


def here(replicas: tuple[int, ...] = (0, 1, 2), **configs: str) -> MetadataImage:
    """Six active brokers that know moves, and a partition."""
    return hosting(replicas, **configs)._replace(feature_level=FeatureLevel.MOVES)


def planned(image: MetadataImage, *replicas: int) -> MetadataImage:
    changed = after(image, PlanMove(*KEY, replicas))
    check(changed)
    check_step(image, changed)
    return changed


def start_of(image: MetadataImage) -> ReassignPartition:
    """As the controller proposes it."""
    plan = image.moves[KEY]
    return ReassignPartition(*KEY, of(image).partition_epoch, plan.replicas, plan.planned_at)


def started(image: MetadataImage) -> MetadataImage:
    changed = after(image, start_of(image))
    check(changed)
    check_step(image, changed)
    return changed


def test_a_plan_changes_nothing_of_its_partition() -> None:
    """It waits in the image, with its place in the line.

    A10.2.
    """
    image = here()
    after_it = planned(image, 3, 4, 1)
    assert dict(after_it.moves) == {KEY: PlannedMove((3, 4, 1), after_it.version)}
    assert after_it.partitions is image.partitions
    assert not after_it.moving


def test_the_start_takes_the_plan_away() -> None:
    """In the same command, so that no controller starts it twice; what it adds can be seen.

    A10.2.
    """
    image = started(planned(here(), 3, 4, 1))
    assert not image.moves
    assert dict(image.moving) == {KEY: (3, 4)}
    image = altered(image, 0, 1, 2, 3, 4)
    assert (of(image).replicas, dict(image.moving)) == ((3, 4, 1), {})


def test_what_copies_nothing_is_done_when_it_starts() -> None:
    """Fewer replicas, all of them in sync: the plan is gone, and nothing is under way."""
    image = started(planned(here(), 2, 1))
    assert (of(image).replicas, dict(image.moves), dict(image.moving)) == ((2, 1), {}, {})


def test_a_late_start_of_a_plan_that_was_taken_back_starts_nothing() -> None:
    """It was proposed before the cancel, and comes after it: the cancel was acknowledged.

    A10.2.
    """
    image = planned(here(), 3, 4, 1)
    late, image = start_of(image), after(image, CANCEL)
    assert refusal(image, late).code == ErrorCode.INVALID_UPDATE_VERSION


def test_a_late_start_of_a_plan_that_was_replaced_starts_nothing() -> None:
    """The later plan was acknowledged, and stays; so it does if the start comes twice.

    A10.2.
    """
    image = planned(here(), 3, 4, 1)
    late, image = start_of(image), planned(image, 5)
    assert refusal(image, late).code == ErrorCode.INVALID_UPDATE_VERSION
    start = start_of(image)
    image = planned(after(image, start), 4)
    twice, result = apply_next(image, start)
    assert (result, twice.moves) == (Done(), image.moves)


def test_a_plan_that_is_made_again_keeps_its_place() -> None:
    """A retry must not send it to the end of the line; another target does."""
    first = planned(here(), 3, 4, 1)
    again = planned(first, 3, 4, 1)
    assert (again.moves, again.changes) == (first.moves, ())
    assert planned(again, 4, 3, 1).moves[KEY].planned_at == again.version + 1


@pytest.mark.parametrize("is_moving", [False, True])
def test_a_plan_for_what_is_or_comes_in_any_case_is_none(is_moving: bool) -> None:
    """It has these replicas, or is becoming so: an earlier plan for others is forgotten.

    A10.2.
    """
    image = planned(here(), 5)
    target = (0, 1, 2)
    if is_moving:
        image = planned(started(planned(here(), 3, 4)), 5)
        target = (3, 4)
    assert image.moves
    image = planned(image, *target)
    assert not image.moves
    assert of(image).target == target


def test_a_reassignment_for_other_replicas_leaves_the_plan() -> None:
    """Of a broker that starts the partition empty, say: the plan is a wish of its own.

    A10.2.
    """
    image = move(planned(here(), 3, 4), 5, 1)
    assert image.moves[KEY].replicas == (3, 4)
    assert of(started(image)).target == (3, 4)


def test_a_reassignment_that_does_what_is_planned_leaves_nothing_to_do() -> None:
    """Whoever has asked for it, and also by way of a cancel that leads back there."""
    assert not move(planned(here(), 3, 4), 3, 4).moves
    image = planned(move(here(), 3, 4), 0, 1, 2)
    assert image.moves
    assert not after(image, cancel(image)).moves


def test_a_refused_start_leaves_the_plan() -> None:
    """All old replicas fell out of sync: what is under way must not be replaced now."""
    image = started(planned(here((0,)), 3, 4))
    image = planned(gone(altered(image, 0, 3), 0), 5)
    assert refusal(image, start_of(image)).code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    stale = ReassignPartition(*KEY, 0, (5,), image.moves[KEY].planned_at)
    assert refusal(image, stale).code == ErrorCode.INVALID_UPDATE_VERSION


# Cancelling


def test_a_cancel_before_the_start() -> None:
    """The plan is gone, and that was all there was of it.

    A10.2.
    """
    image = after(planned(here(), 3, 4), CANCEL)
    assert (dict(image.moves), of(image)) == ({}, replace(of(here()), partition_epoch=1))
    assert refusal(image, CANCEL).code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_cancel_under_way_and_with_a_later_plan() -> None:
    """Back to the replicas of before, and nothing starts afterwards; no epoch is asked for.

    A10.2.
    """
    image = altered(started(planned(here(), 3, 4)), 0, 1, 2, 3)
    image = after(planned(image, 5), CANCEL)
    assert (set(of(image).replicas), of(image).is_moving) == ({0, 1, 2}, False)
    assert (dict(image.moves), dict(image.moving)) == ({}, {})
    check(image)


def test_a_cancel_after_the_end_has_nothing_to_end() -> None:
    """All new replicas are in sync: the partition has moved."""
    image = altered(started(planned(here((0,)), 3)), 0, 3)
    assert of(image).replicas == (3,)
    assert refusal(image, CANCEL).code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_cancel_that_would_lose_records_is_refused_whole() -> None:
    """Only the new replica holds everything: the later plan stays, too.

    A10.2.
    """
    image = altered(started(planned(here((0,)), 3, 4)), 0, 3)
    image = planned(gone(image, 0), 5)
    assert refusal(image, CANCEL).code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


# Late copies


def as_seen(image: MetadataImage, *replicas: int) -> PlanMove:
    return PlanMove(*KEY, replicas, *seen(image, KEY))


def test_a_late_copy_of_a_plan_does_not_undo_a_cancel() -> None:
    """It was made, and taken back before it began; or it had begun.

    A10.2.
    """
    image = here()
    plan = as_seen(image, 3, 4)
    image = after(image, plan)
    before_it_began = after(image, CancelMove(*KEY, *seen(image, KEY)))
    image = started(image)
    under_way = after(image, CancelMove(*KEY, *seen(image, KEY)))
    for cancelled in (before_it_began, under_way):
        assert of(cancelled).partition_epoch > plan.epoch_seen
        assert refusal(cancelled, plan).code == ErrorCode.INVALID_UPDATE_VERSION
        assert after(cancelled, as_seen(cancelled, 3, 4)).moves[KEY].replicas == (3, 4)


def test_a_late_copy_of_a_cancel_does_not_undo_a_plan() -> None:
    """A10.2."""
    image = planned(here(), 3, 4)
    cancel_it = CancelMove(*KEY, *seen(image, KEY))
    image = planned(after(image, cancel_it), 3, 4)
    assert refusal(image, cancel_it).code == ErrorCode.INVALID_UPDATE_VERSION
    assert refusal(started(image), cancel_it).code == ErrorCode.INVALID_UPDATE_VERSION


def test_a_late_copy_of_a_plan_does_not_replace_a_later_one() -> None:
    """Nor what it was replaced by, the replicas that are there; a copy at once changes nothing.

    A10.2.
    """
    image = here()
    plan = as_seen(image, 3, 4)
    image = after(image, plan)
    same, result = apply_next(image, plan)
    assert (result, same.moves) == (Done(), image.moves)
    assert refusal(planned(image, 5), plan).code == ErrorCode.INVALID_UPDATE_VERSION
    back = planned(image, 0, 1, 2)
    assert refusal(back, plan).code == ErrorCode.INVALID_UPDATE_VERSION
    assert apply_next(back, as_seen(image, 0, 1, 2))[1] == Done()


# Min ISR meanwhile


def test_more_replicas_commit_as_before_until_they_are_there() -> None:
    """From one to three, of which two have to be in sync: one is enough while the others copy, and
    who leaves after that is eligible.

    A10.2.
    """
    image = started(planned(here((0,), **{"min.insync.replicas": "2"}), 0, 1, 2))
    image = altered(altered(image, 0, 1), 0)
    assert (of(image).isr, of(image).eligible) == ((0,), ())
    image = altered(image, 0, 1, 2)
    assert (of(image).is_moving, of(image).eligible) == (False, ())
    image = altered(image, 0)
    assert (of(image).isr, of(image).eligible) == ((0,), (1, 2))


def test_the_level_changes_min_isr_of_what_moves() -> None:
    """Replica 1 left where two were needed; from now on replica 0 commits alone. The leader has to
    see that first, so the epoch rises; partitions that do not move stay as they are.

    A10.2.
    """
    image = hosting((0,), **{"min.insync.replicas": "2"})
    other = create((0,), (1,), name="other", topic_id=topic_id_of(2))
    able = {b: replace(one, feature_level_max=6) for b, one in image.brokers.items()}
    image = image._replace(feature_level=FeatureLevel.SCHEDULED, brokers=Map(able))
    image = after(image, other)
    image = altered(altered(move(image, 0, 1, 2), 0, 1), 0)
    assert of(image).eligible == (1,)
    raised = after(image, SetFeatureLevel(FeatureLevel.SCHEDULED, FeatureLevel.MOVES))
    check(raised)
    check_step(image, raised)
    assert of(raised).eligible == ()
    assert of(raised).partition_epoch == of(image).partition_epoch + 1
    assert refusal(raised, proposal(image, 0, 1)).code == ErrorCode.INVALID_UPDATE_VERSION
    same = [key for key in image.partitions if key != KEY]
    assert [raised.partitions[key] for key in same] == [image.partitions[key] for key in same]


# What else ends a plan, and what must not


def test_plans_go_with_their_topic() -> None:
    """Of all its partitions, and of no other topic."""
    other = topic_id_of(2)
    image = after(here(), create((0,), (1,), name="other", topic_id=other))
    image = after(image, PlanMove(other, 0, (3,)), PlanMove(other, 1, (3,)), PlanMove(*KEY, (4,)))
    image = after(image, DeleteTopic(other))
    assert set(image.moves) == {KEY}
    check(image)


def test_a_broker_that_is_to_have_replicas_stays_registered() -> None:
    """Its plan would never begin: whoever has made it takes it back first."""
    image = planned(here(), 3, 4)
    problem = refusal(image, UnregisterBroker(4, epoch_of(4)))
    assert problem.code == ErrorCode.INVALID_REQUEST
    assert "1 moves to broker 4 are planned" in problem.message
    image = after(image, UnregisterBroker(5, epoch_of(5)), CANCEL, UnregisterBroker(4, epoch_of(4)))
    assert set(image.brokers) == {0, 1, 2, 3}


def test_a_plan_may_name_brokers_that_are_away() -> None:
    """It waits for them."""
    assert planned(gone(here(), 3), 3).moves[KEY].replicas == (3,)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (PlanMove(ORDERS, 0, ()), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (PlanMove(ORDERS, 0, (3, 3)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (PlanMove(ORDERS, 0, (3, 9)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (PlanMove(ORDERS, 1, (3,)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (PlanMove(b"deleted", 0, (3,)), ErrorCode.UNKNOWN_TOPIC_ID),
        (CancelMove(ORDERS, 1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (CancelMove(ORDERS, 0), ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_what_is_refused(command: PlanMove | CancelMove, code: ErrorCode) -> None:
    """No such partition, a target that cannot be, nothing to cancel."""
    assert refusal(here(), command).code == code


@pytest.mark.parametrize("command", [PlanMove(*KEY, (3,)), CANCEL])
def test_below_its_level_there_are_no_moves(command: PlanMove | CancelMove) -> None:
    """Nodes of an earlier version would have none in their image."""
    problem = refusal(hosting()._replace(feature_level=FeatureLevel.SCHEDULED), command)
    assert problem.code == ErrorCode.UNSUPPORTED_VERSION
    assert problem.message == "feature level 5 knows no moves: upgrade all nodes"


def test_the_line_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is full: no more plans, yet others in the place of those that are there."""
    monkeypatch.setattr("raftmq.metadata.apply.moves.MOVES_MAX", 1)
    image = after(
        cluster(3)._replace(feature_level=FeatureLevel.MOVES),
        CreateTopic(ORDERS, "orders", ((0,), (0,))),
        PlanMove(*KEY, (1,)),
    )
    problem = refusal(image, PlanMove(ORDERS, 1, (1,)))
    assert problem.code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    image = after(image, PlanMove(*KEY, (2,)), CANCEL, PlanMove(ORDERS, 1, (1,)))
    assert set(image.moves) == {PartitionId(ORDERS, 1)}


def test_other_changes_of_the_partition_leave_its_plan() -> None:
    """Elections, in-sync sets, configuration."""
    image = gone(planned(here(), 3, 4), 0)
    image = after(image, AlterTopicConfig(ORDERS, {"min.insync.replicas": "2"}))
    assert image.moves[KEY].replicas == (3, 4)
    assert of(started(image)).adding == (3, 4)
