"""When a rebalance begins, whom it waits for, and who is left out."""

from __future__ import annotations

from raftmq.broker.groups.phases import GroupSettings
from raftmq.errors import ErrorCode
from raftmq.wire.messages.groups import LeavingMember
from tests.unit.broker.groups.stage import DELAY_SECONDS, REBALANCE_SECONDS, Stage


def test_the_first_members_are_gathered() -> None:
    """Programs start within seconds of each other: one rebalance for all of them."""
    stage = Stage()
    _, first = stage.enter()
    stage.wait(DELAY_SECONDS - 0.1)
    _, second = stage.enter()
    stage.wait(DELAY_SECONDS - 0.1)
    assert stage.is_waiting(first)
    stage.wait(DELAY_SECONDS)
    assert stage.joined(first).generation == stage.joined(second).generation == 1


def test_gathering_ends_even_if_members_keep_coming() -> None:
    """At the latest after the rebalance timeout of the first one."""
    stage = Stage()
    _, first = stage.enter(rebalance=8.0)
    for _ in range(7):
        assert stage.is_waiting(first)
        stage.enter()
        stage.wait(1.2)
    assert stage.joined(first).generation == 1


def test_nobody_is_waited_for_without_a_delay() -> None:
    """Tests and demonstrations start at once."""
    stage = Stage(GroupSettings(initial_rebalance_delay_ms=0))
    _, token = stage.enter()
    assert stage.joined(token).generation == 1


def test_a_newcomer_makes_everybody_join() -> None:
    """The others hear it with their heartbeats; commits of what they have go on until then.

    A8.2.
    """
    stage = Stage()
    leader, follower = stage.stable(2)
    new, token = stage.enter()
    assert stage.group.state == "PreparingRebalance"
    assert stage.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.commit(follower, 1) == ErrorCode.NONE
    assert stage.commit(new, 1) == ErrorCode.ILLEGAL_GENERATION
    stage.join(leader)
    stage.join(follower)
    assert stage.joined(token).generation == 2
    stage.settle(leader, follower, new)


def test_whoever_does_not_join_in_time_is_left_out() -> None:
    """It is alive, and busy for longer than it said it would be."""
    stage = Stage()
    leader, busy = stage.stable(2)
    token = stage.join(leader)
    stage.wait(REBALANCE_SECONDS - 1, busy)
    assert stage.is_waiting(token)
    stage.wait(1.0, busy)
    assert stage.joined(token).generation == 2
    assert stage.heartbeat(busy) == ErrorCode.UNKNOWN_MEMBER_ID
    stage.settle(leader)


def test_the_most_patient_member_says_how_long() -> None:
    """The rebalance timeout of a group is the longest of its members'."""
    stage = Stage()
    patient, _ = stage.enter(rebalance=200.0)
    leader, _ = stage.enter()
    stage.wait(2 * DELAY_SECONDS)
    stage.settle(patient, leader)
    token = stage.join(leader, {"range": b"change"})
    stage.wait(199.0, patient)
    assert stage.is_waiting(token)
    stage.wait(1.0, patient)
    assert not stage.is_waiting(token)


def test_another_member_leads_if_the_leader_does_not_come() -> None:
    """The first of those who have joined."""
    stage = Stage()
    leader, follower, other = stage.stable(3)
    tokens = [stage.join(follower, {"range": b"change"}), stage.join(other)]
    stage.wait(REBALANCE_SECONDS, leader)
    assert [stage.joined(token).leader for token in tokens] == [follower, follower]
    assert len(stage.joined(tokens[0]).members) == 2
    stage.settle(follower, other)


def test_the_leader_stays_leader() -> None:
    """As long as it joins: it knows what was planned before."""
    stage = Stage()
    leader, follower = stage.stable(2)
    stage.join(follower, {"range": b"change"})
    assert stage.joined(stage.join(leader)).leader == leader


def test_a_member_that_leaves_is_not_waited_for() -> None:
    """Its join, if it waits, ends; the others go on without it."""
    stage = Stage()
    leader, follower = stage.stable(2)
    token = stage.join(leader)
    assert stage.leave(LeavingMember(follower)) == [ErrorCode.NONE]
    assert stage.joined(token).generation == 2
    other = stage.join(leader, {"range": b"change"})
    assert stage.joined(other).generation == 3
    new, waiting = stage.enter()
    assert stage.leave(LeavingMember(new)) == [ErrorCode.NONE]
    assert stage.error(waiting) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_a_stable_group_begins_a_rebalance() -> None:
    """Somebody has to take over what it had."""
    stage = Stage()
    leader, follower = stage.stable(2)
    stage.leave(LeavingMember(follower))
    assert stage.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.joined(stage.join(leader)).generation == 2
    assert stage.leave(LeavingMember(follower)) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_whoever_was_on_the_way_may_leave() -> None:
    """It closed before it came back with its id: nobody waits for it any more."""
    stage = Stage()
    (leader,) = stage.stable(1)
    coming = stage.joined(stage.join()).member_id
    token = stage.join(leader)
    assert stage.leave(LeavingMember(coming)) == [ErrorCode.NONE]
    assert stage.joined(token).generation == 2


def test_the_last_member_leaves_an_empty_group() -> None:
    """That is saved, under a generation of its own, and is the end of waiting."""
    stage = Stage()
    (only,) = stage.stable(1)
    stage.leave(LeavingMember(only))
    assert (stage.group.state, stage.group.is_idle) == ("Empty", False)
    save = stage.save()
    assert (save.generation, save.members, save.protocol, save.leader) == (2, (), "", "")
    assert stage.group.is_idle
    assert stage.group.describe().generation == 2


def test_a_group_that_was_empty_goes_on_counting() -> None:
    """No generation comes twice; whoever comes first is gathered again."""
    stage = Stage()
    (only,) = stage.stable(1)
    stage.leave(LeavingMember(only))
    members = stage.gather(2)
    assert stage.group.generation == 3
    stage.save()
    stage.settle(*members)


def test_all_leave_while_they_are_gathered() -> None:
    """Nobody is left to wait for."""
    stage = Stage()
    (first, _), (second, _) = stage.enter(), stage.enter()
    stage.leave(LeavingMember(first), LeavingMember(second))
    assert stage.save().members == ()
    assert stage.group.is_idle


def test_several_rebalances_in_a_row() -> None:
    """Each change sends everybody back; each generation that is told is another one."""
    stage = Stage()
    leader, follower = stage.stable(2)
    for generation in range(2, 6):
        tokens = [stage.join(leader), stage.join(follower, {"range": b"%d" % generation})]
        assert [stage.joined(token).generation for token in tokens] == [generation] * 2
        sync = stage.sync(leader, {leader: b"all"})
        _, newcomer = stage.enter()
        assert stage.error(sync) == ErrorCode.REBALANCE_IN_PROGRESS
        stage.forget(newcomer)
        member = stage.group.describe().members[-1].member_id
        stage.leave(LeavingMember(member))
    while stage.saves:
        stage.save()
    assert stage.group.state == "PreparingRebalance"
    stage.join(leader)
    stage.join(follower)
    stage.settle(leader, follower)
