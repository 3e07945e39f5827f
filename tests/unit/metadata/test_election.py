"""Who leads, who is in sync and who is eligible, for one partition: the ladder, rung by rung."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from raftmq.metadata.commands import NO_BROKER, FeatureLevel, Loss, RecoveryState
from raftmq.metadata.election import (
    NOBODY,
    Elected,
    Rules,
    concluded,
    elect,
    led,
    min_isr_of,
    review,
    with_isr,
    with_min_isr,
)
from raftmq.metadata.image import PartitionState

A, B, C, D = 1, 2, 3, 4


def partition(isr: tuple[int, ...] = (A, B, C), leader: int = A, **more: Any) -> PartitionState:
    fields = {"replicas": (A, B, C), "leader_epoch": 5, "partition_epoch": 9} | more
    return PartitionState(isr=isr, leader=leader, **fields)


def rules(
    *, fenced: tuple[int, ...] = (), stopping: tuple[int, ...] = (), min_isr: int = 2,
    unclean: bool = False, level: int = FeatureLevel.MOVES,
) -> Rules:  # fmt: skip
    return Rules(
        is_active=lambda b: b not in (*fenced, *stopping, NO_BROKER),
        is_unfenced=lambda b: b not in (*fenced, NO_BROKER),
        min_isr=min_isr,
        level=level,
        is_unclean_allowed=unclean,
    )


def epochs(state: PartitionState) -> tuple[int, int]:
    return state.leader_epoch, state.partition_epoch


# elect


def test_a_valid_leader_stays() -> None:
    """The leader is in sync and active: a replica before it in the list changes nothing."""
    assert elect(partition(leader=B), rules()) == Elected(B, is_clean=True)


def test_the_first_replica_in_sync_and_active_is_next() -> None:
    """The leader is gone: the order of replicas decides, not that of the ISR."""
    state = partition(isr=(C, B, A), leader=A)
    assert elect(state, rules(fenced=(A,))) == Elected(B, is_clean=True)


def test_a_replica_out_of_sync_is_no_candidate() -> None:
    """B left the ISR at min ISR: C comes next, though B stands first in the list."""
    assert elect(partition(isr=(A, C)), rules(fenced=(A,))) == Elected(C, is_clean=True)


def test_an_eligible_replica_leads_where_the_isr_is_empty() -> None:
    """Everybody left the ISR; an unfenced eligible replica holds all that was committed."""
    state = partition(isr=(), leader=NO_BROKER, eligible=(A, C))
    assert elect(state, rules(fenced=(A,))) == Elected(C, is_clean=True)


def test_an_eligible_replica_waits_for_nobody_in_sync() -> None:
    """The ISR is there and unfenced: no eligible replica is asked."""
    state = partition(isr=(C,), leader=NO_BROKER, eligible=(A, B))
    assert elect(state, rules()) == Elected(C, is_clean=True)


def test_a_fenced_isr_does_not_hold_up_an_eligible_replica() -> None:
    """C is in the ISR, fenced and not yet reviewed; with unclean elections on, B loses nothing."""
    state = partition(isr=(C,), leader=C, eligible=(B,))
    assert elect(state, rules(fenced=(C,), unclean=True)) == Elected(B, is_clean=True)


@pytest.mark.parametrize(
    ("last_known", "fenced", "expected"),
    [
        ((B,), (A, C), Elected(B, is_clean=False)),
        ((B,), (A, B, C), NOBODY),
        ((B,), (B,), NOBODY),  # the test that was once the wrong way round elsewhere
        ((A, B), (), NOBODY),
        ((), (), NOBODY),
    ],
)
def test_the_last_known_leader(
    last_known: tuple[int, ...], fenced: tuple[int, ...], expected: Elected
) -> None:
    """Nobody is in sync or eligible: the last leader, if it is exactly one and unfenced."""
    state = partition(isr=(), leader=NO_BROKER, last_known_eligible=last_known)
    assert elect(state, rules(fenced=fenced)) == expected


def test_the_last_known_leader_gives_way_to_whoever_is_eligible() -> None:
    """B is eligible but away: its return is waited for, as A may lack what B holds."""
    state = partition(isr=(), leader=NO_BROKER, eligible=(B,), last_known_eligible=(A,))
    assert elect(state, rules(fenced=(B,))) == NOBODY


def test_unclean_only_if_it_is_allowed() -> None:
    """Whoever is eligible is away: another replica leads only where the operator said so.

    A5.10.
    """
    state = partition(isr=(), leader=NO_BROKER, eligible=(A,))
    assert elect(state, rules(fenced=(A,))) == NOBODY
    assert elect(state, rules(fenced=(A,), unclean=True)) == Elected(B, is_clean=False)
    assert elect(state, rules(fenced=(A, B, C), unclean=True)) == NOBODY


def test_a_broker_that_stops_leads_only_at_need() -> None:
    """B is shutting down: C is preferred, B is better than nobody."""
    state = partition(isr=(A, B, C), leader=A)
    assert elect(state, rules(fenced=(A,), stopping=(B,))).broker_id == C
    assert elect(state, rules(fenced=(A, C), stopping=(B,))).broker_id == B


def test_an_active_eligible_replica_comes_before_a_stopping_one_in_sync() -> None:
    """A stops and is alone in sync; B left below min ISR, lacks nothing, and is here to stay."""
    state = partition(isr=(A,), leader=A, eligible=(B, C))
    assert elect(state, rules(stopping=(A,))) == Elected(B, is_clean=True)
    assert elect(state, rules(stopping=(A, B, C))) == Elected(A, is_clean=True)
    assert elect(state, rules(fenced=(A,), stopping=(B, C))) == Elected(B, is_clean=True)
    after = review(state, A, rules(stopping=(A,)))
    assert (after.leader, after.isr, after.eligible) == (B, (B,), (A, C))


def test_nobody_who_may_not_lead_is_ever_elected() -> None:
    """Every small state: no fenced broker leads, and a clean leader was in sync or eligible."""
    subsets = [s for n in range(4) for s in itertools.combinations((A, B, C), n)]
    for isr, eligible, last_known, fenced in itertools.product(subsets, repeat=4):
        if set(isr) & set(eligible):
            continue
        state = partition(isr, NO_BROKER, eligible=eligible, last_known_eligible=last_known)
        elected = elect(state, rules(fenced=fenced))
        assert elected.broker_id not in fenced
        if elected != NOBODY:
            assert elected.is_clean == (elected.broker_id in (*isr, *eligible))


# led


def test_a_clean_election_within_the_isr_keeps_it() -> None:
    """B takes over from A: only the leader changes; A's leaving is for A's review."""
    after = led(partition(), rules(fenced=(A,)))
    assert (after.leader, after.isr, after.eligible) == (B, (A, B, C), ())


def test_an_eligible_leader_becomes_the_isr() -> None:
    """B was eligible: alone in sync now, the others stay eligible, and nothing needs recovery."""
    after = led(partition((), NO_BROKER, eligible=(A, B), last_known_eligible=(A,)),
                rules(fenced=(A,)))  # fmt: skip
    assert (after.leader, after.isr, after.eligible) == (B, (B,), (A,))
    assert after.recovery_state == RecoveryState.RECOVERED
    assert after.last_known_eligible == ()


def test_an_eligible_leader_that_commits_alone_is_alone() -> None:
    """Min ISR is 1: from now on B commits without A, which therefore is not eligible."""
    state = partition((), NO_BROKER, eligible=(A, B))
    assert led(state, rules(fenced=(A,), min_isr=1)).eligible == ()


def test_an_unclean_leader_is_all_there_is() -> None:
    """ISR is the new leader, RECOVERING; nobody stays eligible, as its log is the truth now."""
    state = partition((), NO_BROKER, eligible=(A,), last_known_eligible=(A,))
    after = led(state, rules(fenced=(A,), unclean=True))
    assert (after.leader, after.isr, after.eligible) == (B, (B,), ())
    assert after.recovery_state == RecoveryState.RECOVERING
    assert after.last_known_eligible == ()


def test_the_last_known_leader_recovers() -> None:
    """It may lack a tail: an unclean election, whatever the operator allowed."""
    after = led(partition((), NO_BROKER, last_known_eligible=(B,)), rules())
    assert (after.leader, after.isr) == (B, (B,))
    assert after.recovery_state == RecoveryState.RECOVERING


def test_a_recovering_leader_that_comes_back_still_recovers() -> None:
    """It was elected uncleanly, died before it reported RECOVERED, and is elected again."""
    state = partition((), NO_BROKER, eligible=(B,), recovery_state=RecoveryState.RECOVERING)
    after = led(state, rules())
    assert (after.leader, after.recovery_state) == (B, RecoveryState.RECOVERING)


# with_isr and min ISR


@pytest.mark.parametrize(("configured", "effective"), [(0, 1), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_effective_min_isr(configured: int, effective: int) -> None:
    """No more than there are replicas, and at least one."""
    assert min_isr_of(partition(), configured, FeatureLevel.MOVES) == effective


@pytest.mark.parametrize(
    ("replicas", "adding", "removing", "effective", "before"),
    [
        ((A, B, C), (B, C), (), 1, 2),  # from one to three
        ((B, A), (B,), (A,), 1, 2),  # from one to another one
        ((D, A, B, C), (D,), (A, B, C), 2, 2),  # from three to another one: it may be taken back
        ((C, D, A, B), (C, D), (A, B), 2, 2),  # from two to two others
        ((A, B, C), (C,), (), 2, 2),  # from two to three
    ],
)
def test_min_isr_of_a_partition_that_moves(
    replicas: tuple[int, ...],
    adding: tuple[int, ...],
    removing: tuple[int, ...],
    effective: int,
    before: int,
) -> None:
    """Of two that are configured, as many as there were before; fewer than it has meanwhile.
    Below the level all nodes go on as they did.

    A10.2.
    """
    moving = partition((A,), replicas=replicas, adding=adding, removing=removing)
    assert min_isr_of(moving, 2, FeatureLevel.MOVES) == effective
    assert min_isr_of(moving, 2, FeatureLevel.SCHEDULED) == before


@pytest.mark.parametrize("stopping", [(), (B,)])
@pytest.mark.parametrize("level", [FeatureLevel.SCHEDULED, FeatureLevel.MOVES])
def test_a_replica_that_is_being_added_is_the_last_choice(
    level: FeatureLevel, stopping: tuple[int, ...]
) -> None:
    """B lags a little, C and D may be empty: it leads even if it is about to stop.

    A10.2.
    """
    moving = partition(
        (), NO_BROKER, replicas=(C, D, A, B), adding=(C, D), removing=(A, B), eligible=(A,)
    )
    allowed = rules(fenced=(A,), stopping=stopping, unclean=True, level=level)
    assert elect(moving, allowed) == Elected(
        B if level == FeatureLevel.MOVES else C, is_clean=False
    )
    gone = rules(fenced=(A, B), unclean=True, level=level)
    assert elect(moving, gone) == Elected(C, is_clean=False)


def test_at_min_isr_nobody_is_eligible() -> None:
    """Two of three are in sync and commit without the third."""
    assert with_isr(partition(), (A, B), rules()).eligible == ()
    assert with_isr(partition((A,), eligible=(B, C)), (A, C), rules()).eligible == ()


def test_below_min_isr_whoever_left_is_eligible() -> None:
    """Eligible: who was in sync or eligible, and is not in sync now."""
    below = with_isr(partition((A, B)), (A,), rules())
    assert (below.isr, below.eligible) == ((A,), (B,))
    empty = with_isr(below, (), rules())
    assert (empty.isr, empty.eligible) == ((), (A, B))


def test_the_isr_has_the_order_of_replicas() -> None:
    """Whatever order a leader proposes: equal sets are equal states."""
    assert with_isr(partition(), {C, A}, rules()).isr == (A, C)


def test_a_lower_min_isr_leaves_the_eligible_behind() -> None:
    """A commits alone from now on; B, away, will lack that. A higher one leaves it eligible."""
    state = partition((A,), eligible=(B,))
    after = with_min_isr(state, rules(min_isr=1))
    assert after.eligible == ()
    assert epochs(after) == (5, 10)
    higher = with_min_isr(state, rules(min_isr=3))
    assert (higher.eligible, epochs(higher)) == ((B,), (5, 10))


# review


def test_a_fenced_follower_leaves_the_isr() -> None:
    """The leader stays: only the partition epoch grows."""
    after = review(partition(), C, rules(fenced=(C,)))
    assert (after.leader, after.isr, after.eligible) == (A, (A, B), ())
    assert epochs(after) == (5, 10)


def test_a_fenced_leader_is_replaced() -> None:
    """One change: it leaves the ISR, another leads, both epochs grow by one."""
    after = review(partition(), A, rules(fenced=(A,)))
    assert (after.leader, after.isr) == (B, (B, C))
    assert epochs(after) == (6, 10)


def test_the_isr_may_become_empty() -> None:
    """The last one in sync leaves: it is eligible, is remembered as leader, and nobody leads."""
    after = review(partition((A,), eligible=(B,)), A, rules(fenced=(A, B)))
    assert (after.leader, after.isr, after.eligible) == (NO_BROKER, (), (A, B))
    assert after.last_known_eligible == (A,)
    assert epochs(after) == (6, 10)


def test_a_leader_that_comes_back_gets_another_epoch() -> None:
    """It restarts as the only candidate: leads nothing while fenced, then again, an epoch later."""
    gone = review(partition((A,), replicas=(A,)), A, rules(fenced=(A,)))
    back = review(gone, A, rules())
    assert (gone.leader, back.leader, back.isr) == (NO_BROKER, A, (A,))
    assert (gone.leader_epoch, back.leader_epoch) == (6, 7)
    assert back.recovery_state == RecoveryState.RECOVERED


@pytest.mark.parametrize("stopping", [(), (A,), (B,), (A, B)])
@pytest.mark.parametrize("fenced", [(), (A,), (B, C), (A, B, C)])
def test_a_review_is_idempotent(stopping: tuple[int, ...], fenced: tuple[int, ...]) -> None:
    """A slice is sent again by the next controller: nothing changes, no epoch moves."""
    for isr, loss in itertools.product(((A, B, C), (A, B), (A,)), Loss):
        # A broker whose disk lost something is fenced until its review is over.
        away = fenced if loss == Loss.NOTHING else (*fenced, A)
        known = rules(fenced=away, stopping=stopping)
        once = review(partition(isr), A, known, loss=loss)
        assert review(once, A, known, loss=loss) is once


def test_nothing_follows_from_an_unfenced_follower() -> None:
    """A broker came back, others lead: the very same state."""
    state = partition((A, B))
    assert review(state, C, rules()) is state


def test_a_leaderless_partition_is_led_when_somebody_returns() -> None:
    """B was eligible and is unfenced: it leads, cleanly."""
    state = partition((), NO_BROKER, eligible=(A, B), last_known_eligible=(A,))
    after = review(state, B, rules(fenced=(A,)))
    assert (after.leader, after.isr, after.eligible) == (B, (B,), (A,))
    assert epochs(after) == (6, 10)


def test_slices_of_two_brokers_in_either_order() -> None:
    """A and B die together: whichever is reviewed first, both end eligible and nobody leads."""
    both = rules(fenced=(A, B))
    start = partition((A, B), replicas=(A, B))
    for first, second in ((A, B), (B, A)):
        after = review(review(start, first, both), second, both)
        assert (after.leader, after.isr, after.eligible) == (NO_BROKER, (), (A, B))
        assert after.last_known_eligible == (A,)


@pytest.mark.parametrize("loss", [Loss.UNSYNCED, Loss.RECORDS])
def test_a_revoked_replica_is_not_trusted(loss: Loss) -> None:
    """It lost something: out of the ISR and not eligible, below min ISR and above."""
    after = review(partition((A, B)), A, rules(fenced=(A,)), loss=loss)
    assert (after.leader, after.isr, after.eligible) == (B, (B,), ())
    after = review(partition((B,), B, eligible=(A, C)), A, rules(fenced=(A,)), loss=loss)
    assert (after.isr, after.eligible) == ((B,), (C,))


def test_a_lost_tail_may_be_led_by_whoever_led_last() -> None:
    """Power fails everywhere on a topic that trusts page caches: the last leader leads on."""
    away = rules(fenced=(A,))
    gone = review(partition((A,), replicas=(A,)), A, away, loss=Loss.UNSYNCED)
    assert (gone.isr, gone.eligible, gone.last_known_eligible) == ((), (), (A,))
    back = review(gone, A, rules())
    assert (back.leader, back.recovery_state) == (A, RecoveryState.RECOVERING)


def test_an_emptied_disk_leads_nothing() -> None:
    """The only replica comes back with another directory: the operator has to decide."""
    gone = review(partition((A,), replicas=(A,)), A, rules(fenced=(A,)), loss=Loss.RECORDS)
    assert (gone.isr, gone.eligible, gone.last_known_eligible) == ((), (), ())
    assert review(gone, A, rules()) is gone
    assert review(gone, A, rules(unclean=True)).leader == A


def test_a_lost_follower_does_not_become_the_last_leader() -> None:
    """C's disk is lost while A leads: nothing is remembered about who led last."""
    after = review(partition(), C, rules(fenced=(C,)), loss=Loss.UNSYNCED)
    assert (after.leader, after.last_known_eligible) == (A, ())


def test_a_broker_that_stops_hands_over() -> None:
    """Shutting down: it leads nothing and is in no ISR, where another in sync is active."""
    after = review(partition(), A, rules(stopping=(A,)))
    assert (after.leader, after.isr) == (B, (B, C))
    assert epochs(after) == (6, 10)


def test_a_broker_that_stops_serves_on_where_it_is_alone() -> None:
    """Nobody else is in sync and active: it leads until it is fenced; then it is eligible."""
    state = partition((A,), replicas=(A, B))
    assert review(state, A, rules(stopping=(A,))) is state
    after = review(state, A, rules(stopping=(A,), fenced=(A,)))
    assert (after.leader, after.eligible) == (NO_BROKER, (A,))


# concluded


def test_equal_states_keep_their_epochs() -> None:
    """Nothing changed: the same object."""
    state = partition()
    assert concluded(state, partition()) is state


def test_a_dropped_replica_raises_the_leader_epoch() -> None:
    """The leader stays, C is no replica any more: it must not go on fetching as one."""
    after = concluded(partition(), partition((A, B), replicas=(A, B)))
    assert epochs(after) == (6, 10)


def test_an_added_replica_does_not() -> None:
    """D is new: the same leadership."""
    assert epochs(concluded(partition(), partition(replicas=(A, B, C, D)))) == (5, 10)


def test_epochs_are_moved_in_one_place() -> None:
    """A state that was concluded already is not concluded twice."""
    with pytest.raises(AssertionError, match="moved once"):
        concluded(partition(), partition(leader_epoch=6))
