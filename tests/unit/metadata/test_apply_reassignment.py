"""Moves of replicas: begun, turned, cancelled, completed, and what they never lose."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import (
    NO_BROKER,
    Done,
    ElectionKind,
    FenceBroker,
    PartitionAltered,
    ReassignPartition,
    RecoveryState,
    RegisterBroker,
)
from tests.metadata_invariants import check
from tests.unit.metadata.one_partition import (
    KEY,
    altered,
    cancel,
    elect,
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
    epoch_of,
    refusal,
)


def test_a_move_has_more_replicas_for_a_while() -> None:
    """From 0, 1, 2 to 3, 4, 1: target first, then what will be dropped; nothing else changes.

    A10.2.
    """
    image = move(hosting(), 3, 4, 1)
    state = of(image)
    assert state.replicas == (3, 4, 1, 0, 2)
    assert (state.adding, state.removing) == ((3, 4), (0, 2))
    assert (state.leader, set(state.isr)) == (0, {0, 1, 2})
    assert (state.leader_epoch, state.partition_epoch) == (0, 1)


def test_a_move_is_complete_when_all_of_the_target_are_in_sync() -> None:
    """One is missing: it goes on. All are there: the others are dropped in one change."""
    image = altered(move(hosting(), 3, 4, 1), 0, 1, 2, 3)
    assert of(image).adding == (3, 4)
    before = of(image)
    image, result = apply_next(image, proposal(image, 0, 1, 3, 4))
    state = of(image)
    assert (state.replicas, state.isr, state.adding, state.removing) == (
        (3, 4, 1), (3, 4, 1), (), (),
    )  # fmt: skip
    assert result == PartitionAltered(
        3, before.leader_epoch + 1, before.partition_epoch + 1, (3, 4, 1), RecoveryState.RECOVERED
    )
    check(image)


def test_a_drop_raises_the_leader_epoch_though_the_leader_stays() -> None:
    """From 0, 1 to 0, 2: the leader stays, broker 1 is a replica no more."""
    image = altered(move(hosting((0, 1)), 0, 2), 0, 1, 2)
    state = of(image)
    assert (state.replicas, state.leader, state.leader_epoch) == ((0, 2), 0, 1)


def test_replicas_that_are_only_dropped_go_at_once() -> None:
    """From 0, 1, 2 to 2, 1: those are in sync, and one of them leads from now on."""
    state = of(move(hosting(), 2, 1))
    assert (state.replicas, state.isr, state.leader, state.leader_epoch) == ((2, 1), (2, 1), 2, 1)


def test_another_order_is_no_drop() -> None:
    """The preferred leader changes; who leads does not, before it is asked for."""
    state = of(move(hosting(), 1, 0, 2))
    assert (state.replicas, state.isr, state.leader) == ((1, 0, 2), (1, 0, 2), 0)
    assert (state.leader_epoch, state.partition_epoch) == (0, 1)


def test_more_replicas_drop_nobody() -> None:
    """From 0 to 0, 1, 2: complete once all are in sync; the leadership is the same all along."""
    image = altered(move(hosting((0,)), 0, 1, 2), 0, 1, 2)
    assert (of(image).adding, of(image).leader_epoch) == ((), 0)


def test_a_move_does_not_end_on_brokers_that_went_away() -> None:
    """Broker 1 is in sync, but fenced since, its review to come: nothing is dropped for it."""
    image = move(after(hosting((0, 1)), FenceBroker(1, epoch_of(1))), 1)
    assert of(image).replicas == (1, 0)
    assert of(image).leader == 0
    assert of(gone(image, 1)).isr == (0,)


def test_a_move_can_be_cancelled() -> None:
    """What it was adding is dropped, in sync or not; what it was removing stays."""
    image = altered(move(hosting(), 3, 4, 1), 0, 1, 2, 3)
    image = after(image, cancel(image))
    state = of(image)
    assert (set(state.replicas), set(state.isr)) == ({0, 1, 2}, {0, 1, 2})
    assert (state.adding, state.removing, state.leader, state.leader_epoch) == ((), (), 0, 1)
    assert refusal(image, cancel(image)).code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    check(image)


def test_a_cancelled_move_may_take_the_lead() -> None:
    """The new replica leads already: one that stays takes over."""
    image = altered(move(hosting((0, 1)), 3, 4), 0, 1, 3)
    image = after(image, elect(ElectionKind.PREFERRED))
    assert of(image).leader == 3
    image = after(image, cancel(image))
    assert (of(image).leader, of(image).isr) == (0, (0, 1))


def test_a_move_is_not_cancelled_when_only_the_new_hold_everything() -> None:
    """All old replicas fell out of sync: dropping the new ones would lose records."""
    image = altered(move(hosting((0,)), 3, 4), 0, 3)
    image = gone(image, 0)
    assert of(image).isr == (3,)
    assert of(image).eligible == (0,)
    problem = refusal(image, cancel(image))
    assert problem.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "none of the replicas but [3, 4]" in problem.message
    image = gone(image, 3)
    assert (of(image).isr, of(image).eligible) == ((), (3, 0))
    assert of(after(image, cancel(image))).eligible == (0,)


def test_the_only_eligible_replica_is_not_dropped() -> None:
    """Broker 3 committed alone before it went away: cancelling its move would lose that."""
    image = altered(move(hosting((0,), min_insync_replicas="1"), 3, 4), 0, 3)
    image = gone(gone(image, 0), 3)
    assert (of(image).leader, of(image).eligible) == (NO_BROKER, (3,))
    assert refusal(image, cancel(image)).code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize("unclean", ["true", "false"])
def test_a_cancel_leaves_somebody_who_leads(unclean: str) -> None:
    """The old replica is in sync, but fenced since: the new one must not be dropped for it."""
    image = hosting((0,), unclean_leader_election_enable=unclean)
    image = after(altered(move(image, 3, 4), 0, 3), elect(ElectionKind.PREFERRED))
    image = after(image, FenceBroker(0, epoch_of(0)))
    problem = refusal(image, cancel(image))
    assert problem.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    image = after(image, FenceBroker(3, epoch_of(3)))  # now there is no leader to lose
    image = after(image, cancel(image))
    assert (of(image).leader, of(image).isr, of(image).last_known_eligible) == (NO_BROKER, (0,), ())


def test_a_cancel_waits_for_the_review_of_a_fenced_leader() -> None:
    """Leader and old replica are one and fenced just now; only the new one can take over."""
    image = altered(move(hosting((0,)), 4, 5), 0, 4)
    image = after(image, FenceBroker(0, epoch_of(0)))
    assert of(image).leader == 0
    assert refusal(image, cancel(image)).code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize("lost", ["disk", "damage", "page cache"])
@pytest.mark.parametrize("is_away", [False, True])
def test_a_replica_that_lost_its_records_does_not_count(lost: str, is_away: bool) -> None:
    """The old replica is back with nothing and not reviewed yet: the new ones hold all there is."""
    durability = "page_cache" if lost == "page cache" else "fsync"
    image = altered(move(hosting((0,), durability=durability), 4, 5), 0, 4)
    image = after(image, FenceBroker(0, epoch_of(0)))
    if is_away:  # then there is no leader to lose either
        image = after(image, FenceBroker(4, epoch_of(4)))
    fields = {"previous_broker_epoch": -1 if lost == "disk" else epoch_of(0)}
    fields |= {"damaged": (KEY,)} if lost == "damage" else {}
    image = after(image, RegisterBroker(0, b"new".ljust(16), bytes(16), **fields))
    assert 0 in of(image).isr
    assert refusal(image, cancel(image)).code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize("boot_id", ["", "another"])
@pytest.mark.parametrize("previous", [-1, epoch_of(4)])
def test_whoever_had_everything_is_not_dropped_before_its_review(
    boot_id: str, previous: int
) -> None:
    """The new replica alone was in sync and is back without its tail, or without its disk."""
    image = hosting((0,), durability="page_cache", min_insync_replicas="1")
    image = altered(altered(move(image, 4, 5), 0, 4), 0, 4)
    image = gone(image, 0)
    fields = {"boot_id": boot_id, "previous_broker_epoch": previous}
    back = RegisterBroker(4, b"new".ljust(16), (4).to_bytes(16, "big"), **fields)
    image = after(image, back)
    assert of(image).isr == (4,)
    assert refusal(image, cancel(image)).code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_move_can_be_turned() -> None:
    """From 0, 1 to 3, then to 4 instead: 3 is dropped now, and a cancel leads back to 0, 1."""
    image = altered(move(hosting((0, 1)), 3, 4), 0, 1, 3)
    image = move(image, 4, 5)
    state = of(image)
    assert state.replicas == (4, 5, 0, 1)
    assert (state.adding, state.removing, state.isr) == ((4, 5), (0, 1), (0, 1))
    image = after(image, cancel(image))
    assert of(image).replicas == (0, 1)
    check(image)


def test_back_to_where_it_was_is_a_cancel_with_an_order() -> None:
    """The merged order is lost on the way; naming the old replicas brings it back."""
    image = move(move(hosting(), 3, 2), 0, 1, 2)
    assert (of(image).replicas, of(image).adding, of(image).removing) == ((0, 1, 2), (), ())


def test_the_same_target_is_a_retry() -> None:
    """The answer was lost: asked again, under the epoch of before, it is as it should be."""
    image = hosting()
    command = ReassignPartition(ORDERS, 0, 0, (3, 4))
    image = after(image, command)
    changed, result = apply_next(image, command)
    assert (result, changed.changes) == (Done(), ())


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (ReassignPartition(ORDERS, 0, 7, (3,)), ErrorCode.INVALID_UPDATE_VERSION),
        (ReassignPartition(ORDERS, 0, 0, ()), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (ReassignPartition(ORDERS, 0, 0, (3, 3)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (ReassignPartition(ORDERS, 0, 0, (3, 9)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (ReassignPartition(ORDERS, 0, 0, tuple(range(17))), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (ReassignPartition(ORDERS, 1, 0, (3,)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ReassignPartition(b"deleted", 0, 0, (3,)), ErrorCode.UNKNOWN_TOPIC_ID),
        (ReassignPartition(ORDERS, 0, 0, None), ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
def test_moves_that_are_refused(command: ReassignPartition, code: ErrorCode) -> None:
    """The partition of before, a target that cannot be, or nothing to cancel."""
    assert refusal(hosting(), command).code == code


def test_a_cancel_is_of_the_move_that_was_seen() -> None:
    """The move was turned by somebody else meanwhile: look again first."""
    image = move(hosting(), 3)
    stale = replace(cancel(image), partition_epoch=0)
    assert refusal(image, stale).code == ErrorCode.INVALID_UPDATE_VERSION


def test_fewer_replicas_need_fewer_in_sync() -> None:
    """From 0, 1 to 0, with 1 eligible: broker 0 commits alone afterwards."""
    image = gone(hosting((0, 1)), 1)
    assert of(image).eligible == (1,)
    assert of(move(image, 0)).eligible == ()
