"""A leader's rules: the high watermark, the ISR that it asks for, and whom it believes."""

from __future__ import annotations

import pytest

from raftmq.partition.epochs import EpochStart, LeaderEpochs
from raftmq.partition.leader import (
    NO_EPOCH,
    Assignment,
    Diverged,
    HighWatermarkRose,
    IsrMember,
    Leader,
    LeaderEffect,
    ProposeIsr,
)

EPOCHS = {1: 101, 2: 102, 3: 103}
LAG_SECONDS_MAX = 10.0


def an_assignment(*isr: int, partition_epoch: int = 1, min_isr: int = 1) -> Assignment:
    return Assignment(1, 5, partition_epoch, (1, 2, 3), isr or (1, 2, 3), min_isr)


def a_leader(
    assignment: Assignment | None = None,
    *,
    end: int = 0,
    high_watermark: int = 0,
    epochs: dict[int, int] = EPOCHS,
) -> Leader:
    return Leader(
        1,
        assignment or an_assignment(),
        log_end_offset=end,
        held_end_offset=end,
        high_watermark=high_watermark,
        lag_seconds_max=LAG_SECONDS_MAX,
        epoch_of=epochs.get,
        now=0.0,
    )


def write(leader: Leader, end: int) -> list[LeaderEffect]:
    leader.on_append(end)
    return leader.on_held(end)


def follow(leader: Leader, follower: int, offset: int, *, now: float = 0.0) -> list[LeaderEffect]:
    """It asks for `offset`, and holds everything before."""
    epoch = EPOCHS[follower]
    return [
        *leader.on_fetch(follower, epoch, offset, now=now),
        *leader.on_progress(follower, epoch, offset, now=now),
    ]


def proposed(effects: list[LeaderEffect]) -> ProposeIsr:
    (proposal,) = (effect for effect in effects if isinstance(effect, ProposeIsr))
    return proposal


# The high watermark


def test_it_rises_with_the_slowest_member() -> None:
    """Three in sync: what all of them hold is committed."""
    leader = a_leader()
    write(leader, 10)
    assert follow(leader, 2, 10) == []
    assert follow(leader, 3, 7) == [HighWatermarkRose(7)]
    assert follow(leader, 3, 10) == [HighWatermarkRose(10)]


def test_the_own_disk_counts() -> None:
    """Followers hold what the leader has written and not synced."""
    leader = a_leader()
    leader.on_append(5)
    follow(leader, 2, 5)
    assert follow(leader, 3, 5) == []
    assert leader.on_held(5) == [HighWatermarkRose(5)]


def test_progress_counts_only_after_a_fetch() -> None:
    """L5: whose records these are is not known yet."""
    leader = a_leader(an_assignment(1, 2))
    write(leader, 5)
    assert leader.on_progress(2, 102, 5, now=0.0) == []
    assert leader.progress_of(2).held_offset == 0  # type: ignore[union-attr]


def test_nothing_is_committed_below_min_isr() -> None:
    """L4: two are needed, and the leader is alone (A5.3)."""
    leader = a_leader(an_assignment(1, min_isr=2))
    assert write(leader, 5) == []
    assert not leader.has_min_isr


def test_an_answer_that_may_end_a_move_lets_no_fewer_commit() -> None:
    """All are in sync by it: as long as the metadata does not tell min ISR, one that leaves again
    may be eligible, so nothing is committed without it.

    A10.2.
    """
    leader = a_leader(an_assignment(1, min_isr=1))
    alone = leader.assignment
    answered = alone.altered(2, (1, 2, 3), is_recovering=False)
    assert (answered.partition_epoch, answered.isr, answered.min_isr) == (2, (1, 2, 3), 3)
    leader.on_assignment(answered, now=0.0)
    assert leader.has_min_isr
    leader.on_assignment(answered.altered(3, (1,), is_recovering=False), now=0.0)
    assert write(leader, 5) == []
    told = an_assignment(1, partition_epoch=2, min_isr=2)
    assert told.altered(2, (1, 2, 3), is_recovering=False) is told
    assert told.altered(3, (1, 2), is_recovering=False).min_isr == 2


def test_a_new_leader_is_established_when_its_epoch_is_reached() -> None:
    """It knows of 3 that they are committed; its log has 8 of its predecessors."""
    leader = a_leader(end=8, high_watermark=3)
    assert not leader.is_established
    follow(leader, 2, 8)
    follow(leader, 3, 8)
    assert leader.is_established


def test_acks_by_number() -> None:
    """acks=2: the leader and the fastest of the others in sync (A5.2)."""
    leader = a_leader()
    write(leader, 9)
    follow(leader, 2, 6)
    assert [leader.held_by(count) for count in (1, 2, 3, 4)] == [9, 6, 0, 0]


# Shrinking


def test_who_lags_is_proposed_to_leave_and_counts_until_then() -> None:
    """L3: the controller may refuse, so the high watermark waits for the answer (A5.6)."""
    leader = a_leader()
    write(leader, 4)
    follow(leader, 2, 4, now=9.0)
    proposal = proposed(leader.on_tick(11.0))
    assert proposal == ProposeIsr((IsrMember(1, 101), IsrMember(2, 102)), 5, 1)
    assert leader.maximal_isr == (1, 2, 3)
    assert leader.on_tick(12.0) == []
    effects = leader.on_assignment(an_assignment(1, 2, partition_epoch=2), now=12.0)
    assert effects == [HighWatermarkRose(4)]


def test_a_silent_follower_of_a_quiet_partition_stays() -> None:
    """It holds all there is."""
    leader = a_leader()
    follow(leader, 2, 0)
    follow(leader, 3, 0)
    assert leader.on_tick(1000.0) == []


def test_a_member_that_is_fenced_has_no_epoch() -> None:
    """The leader keeps it in its proposal, which the controller will refuse."""
    leader = a_leader(an_assignment(1, 2, 3), epochs={1: 101, 2: 102})
    write(leader, 1)
    leader.on_fetch(3, 103, 1, now=10.0)
    leader.on_progress(3, 103, 1, now=10.0)
    assert IsrMember(3, NO_EPOCH) in proposed(leader.on_tick(11.0)).isr


# Expanding


def test_who_holds_everything_is_proposed_and_counts_at_once() -> None:
    """L3: it may be in the ISR before the leader knows."""
    leader = a_leader(an_assignment(1, 2))
    write(leader, 4)
    follow(leader, 2, 4)
    proposal = proposed(follow(leader, 3, 4))
    assert proposal.isr == (IsrMember(1, 101), IsrMember(2, 102), IsrMember(3, 103))
    write(leader, 6)
    follow(leader, 2, 6)
    assert leader.high_watermark == 4
    assert leader.maximal_isr == (1, 2, 3)


def test_who_was_fenced_when_it_spoke_joins_later() -> None:
    """The partition is quiet: nothing makes the follower say it again."""
    epochs = {1: 101, 2: 102}
    leader = a_leader(an_assignment(1, 2), epochs=epochs)
    follow(leader, 2, 0)
    assert follow(leader, 3, 0) == []
    assert leader.on_tick(1.0) == []
    epochs[3] = 103
    assert IsrMember(3, 103) in proposed(leader.on_tick(100.0)).isr


def test_who_lags_does_not_join() -> None:
    """It holds what is committed, as nothing is; and it has been silent."""
    leader = a_leader(an_assignment(1, min_isr=2))
    leader.on_proposal_refused(proposed(follow(leader, 3, 0)))
    write(leader, 4)
    assert leader.on_tick(LAG_SECONDS_MAX + 1) == []


def test_to_join_it_must_hold_what_is_older_than_the_epoch() -> None:
    """The leader knows of 2 that they are committed, its predecessor may have known of 8."""
    leader = a_leader(an_assignment(1, 2), end=8, high_watermark=2)
    assert follow(leader, 3, 7) == []
    assert isinstance(follow(leader, 3, 8)[0], ProposeIsr)


def test_only_the_registered_incarnation_joins() -> None:
    """The metadata tells of another process than the one that caught up."""
    leader = a_leader(an_assignment(1), epochs={1: 101, 3: 999})
    assert follow(leader, 3, 0) == []
    assert leader.maximal_isr == (1,)


def test_who_keeps_up_holds_the_high_watermark_back() -> None:
    """Otherwise a busy leader would always be ahead of who wants to join."""
    leader = a_leader(an_assignment(1))
    refused = proposed(follow(leader, 3, 0))
    leader.on_proposal_refused(refused)
    assert write(leader, 4) == []
    assert leader.high_watermark == 0


def test_who_says_nothing_is_not_waited_for() -> None:
    """The process before it was level a moment ago; this one copies (decision 0044).

    A10.2.
    """
    epochs = dict(EPOCHS)
    leader = a_leader(an_assignment(1), end=2, high_watermark=2, epochs=epochs)
    leader.on_proposal_refused(proposed(follow(leader, 3, 2)))
    write(leader, 4)
    epochs[3] = 203
    assert leader.on_fetch(3, 203, 1, now=1.0) == [HighWatermarkRose(4)]


def test_silence_ends_the_wait_for_who_was_about_to_join() -> None:
    """It fell silent, and nothing else happens: the tick raises the high watermark."""
    leader = a_leader(an_assignment(1))
    leader.on_proposal_refused(proposed(follow(leader, 3, 0)))
    write(leader, 4)
    assert leader.on_tick(LAG_SECONDS_MAX + 1) == [HighWatermarkRose(4)]


# What becomes of a proposal


def test_a_refused_proposal_is_taken_back() -> None:
    """Who would have joined counts no more once it lags; nothing else is under way."""
    leader = a_leader(an_assignment(1, 2))
    proposal = proposed(follow(leader, 3, 0))
    leader.on_proposal_refused(proposal)
    assert leader.maximal_isr == (1, 2)
    assert proposed(follow(leader, 3, 0)) == proposal


def test_an_unknown_outcome_is_asked_for_again() -> None:
    """The same proposal, until an assignment settles it."""
    leader = a_leader(an_assignment(1, 2))
    proposal = proposed(follow(leader, 3, 0))
    assert leader.on_proposal_unknown(proposal) == [proposal]
    leader.on_assignment(an_assignment(1, 2, 3, partition_epoch=2), now=0.0)
    assert leader.on_proposal_unknown(proposal) == []


def test_older_assignments_are_ignored() -> None:
    """The answer to a proposal was faster than the metadata."""
    leader = a_leader(an_assignment(1, 2, partition_epoch=3))
    leader.on_assignment(an_assignment(1, 2, 3, partition_epoch=2), now=0.0)
    assert leader.assignment.isr == (1, 2)


def test_an_unclean_leader_says_that_it_is_whole() -> None:
    """Nobody joins before that."""
    assignment = an_assignment(1)._replace(is_recovering=True)
    leader = a_leader(assignment)
    assert follow(leader, 2, 0) == []
    assert proposed(leader.on_tick(1.0)).isr == (IsrMember(1, 101),)


# Divergence


@pytest.mark.parametrize(
    ("last_epoch", "offset", "expected"),
    [
        (3, 12, None),
        (3, 20, None),
        (3, 21, Diverged(3, 20)),
        (4, 12, Diverged(3, 20)),
        (2, 10, None),
        (2, 11, Diverged(2, 10)),
        (5, 30, None),
        (5, 31, Diverged(5, 30)),
        (-1, 30, None),
        (-1, 31, Diverged(5, 30)),
    ],
)
def test_where_logs_part(last_epoch: int, offset: int, expected: Diverged | None) -> None:
    """Ours is of epochs 2, 3 and 5, which begin at 0, 10 and 20 and end at 30."""
    epochs = LeaderEpochs.replay([EpochStart(2, 0), EpochStart(3, 10), EpochStart(5, 20)])
    assert a_leader(end=30).divergence(last_epoch, offset, epochs) == expected


def test_who_diverges_counts_no_more() -> None:
    """It held 5 records, and is about to cut its log."""
    leader = a_leader(an_assignment(1, 2))
    write(leader, 5)
    follow(leader, 2, 5)
    leader.on_diverging_fetch(2)
    assert leader.on_progress(2, 102, 5, now=0.0) == []
    assert leader.held_by(2) == 0
