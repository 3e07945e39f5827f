"""Sessions: who is given up for silence, and when silence does not count."""

from __future__ import annotations

from raftmq.errors import ErrorCode
from tests.unit.broker.groups.stage import (
    DELAY_SECONDS,
    REBALANCE_SECONDS,
    SESSION_SECONDS,
    Stage,
)


def test_a_silent_member_is_put_out() -> None:
    """Heartbeats keep the other one, who is sent to join again (A8.2)."""
    stage = Stage()
    leader, silent = stage.stable(2)
    stage.wait(SESSION_SECONDS - 0.1, leader)
    assert stage.group.state == "Stable"
    stage.wait(0.1, leader)
    assert stage.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.heartbeat(silent) == ErrorCode.UNKNOWN_MEMBER_ID


def test_all_fall_silent() -> None:
    """The group is empty, and says so to the metadata."""
    stage = Stage()
    stage.stable(3)
    stage.wait(SESSION_SECONDS)
    assert stage.group.state == "Empty"
    assert stage.save().members == ()


def test_whoever_waits_for_others_is_not_silent() -> None:
    """Its join may take as long as the rebalance, its sync as long as the save."""
    stage = Stage()
    leader, follower = stage.stable(2)
    joining = stage.join(leader)
    stage.wait(2 * SESSION_SECONDS, follower)
    assert stage.is_waiting(joining)
    stage.join(follower)
    syncs = [stage.sync(leader, {leader: b""}), stage.sync(follower)]
    stage.wait(2 * SESSION_SECONDS)
    assert all(map(stage.is_waiting, syncs))
    stage.save()
    stage.wait(SESSION_SECONDS - 0.1)
    assert stage.group.state == "Stable"


def test_whose_connection_ended_has_not_joined() -> None:
    """It is waited for once more, as long as its session lasts."""
    stage = Stage()
    leader, follower = stage.stable(2)
    token = stage.join(leader)
    lost = stage.join(follower, {"range": b"change"})
    assert stage.joined(lost).generation == 2
    lost = stage.join(follower, {"range": b"again"})
    stage.forget(lost)
    token = stage.join(leader)
    assert stage.is_waiting(token)
    stage.wait(SESSION_SECONDS)
    assert stage.joined(token).generation == 3
    assert [member.member_id for member in stage.joined(token).members] == [leader]


def test_who_is_cut_off_as_the_time_to_join_ends_keeps_what_it_claims() -> None:
    """Its heartbeat has just told it that all is well: it is in the plan until its session ends."""
    stage = Stage()
    leader, follower, hung = stage.stable(3)
    token, lost = stage.join(leader), stage.join(follower)
    stage.wait(REBALANCE_SECONDS - 0.5, follower, hung)
    stage.forget(lost)
    stage.wait(0.5)
    assert [member.member_id for member in stage.joined(token).members] == [leader, follower]
    stage.sync(leader, {leader: b"one", follower: b"two"})
    stage.save()
    assert stage.joined(stage.join(follower)).generation == stage.group.generation == 2
    assert stage.part(stage.sync(follower)) == b"two"


def test_a_newcomer_that_is_cut_off_as_the_time_to_join_ends_is_left_out() -> None:
    """It has nothing yet that somebody else might be given."""
    stage = Stage()
    _, lost = stage.enter()
    _, token = stage.enter()
    stage.forget(lost)
    stage.wait(2 * DELAY_SECONDS)
    assert len(stage.joined(token).members) == 1


def test_whose_connection_ended_may_ask_again() -> None:
    """Word of the old connection may even come after the new request."""
    stage = Stage()
    member_id, first = stage.enter()
    stage.forget(first)
    second = stage.join(member_id)
    stage.forget(first)
    stage.wait(DELAY_SECONDS)
    assert stage.joined(second).generation == 1
    lost = stage.sync(member_id, {member_id: b"all"})
    stage.forget(lost)
    stage.save()
    assert stage.part(stage.sync(member_id)) == b"all"


def test_a_member_that_syncs_and_falls_silent() -> None:
    """It was given its part, and then nothing was heard of it."""
    stage = Stage()
    leader, _ = stage.stable(2)
    stage.wait(SESSION_SECONDS, leader)
    assert stage.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_new_coordinator_gives_everybody_a_session() -> None:
    """No rebalance: whoever is alive goes on as if nothing had happened."""
    stage = Stage()
    leader, follower = stage.gather(2)
    save = stage.settle(leader, follower)
    stage.wait(SESSION_SECONDS - 1)
    stage.move(save)
    assert (stage.group.state, stage.group.generation) == ("Stable", 1)
    stage.wait(SESSION_SECONDS - 0.1)
    assert stage.heartbeat(follower) == ErrorCode.NONE
    assert stage.part(stage.sync(follower)) == follower.encode()
    assert stage.commit(follower, 1) == ErrorCode.NONE
    stage.wait(0.1, follower)
    assert stage.heartbeat(leader) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.joined(stage.join(follower)).generation == 2


def test_a_new_coordinator_knows_nothing_of_what_was_not_saved() -> None:
    """Who joined a generation that was not saved joins again."""
    stage = Stage()
    leader, follower = stage.gather(2)
    save = stage.settle(leader, follower)
    new, token = stage.enter()
    stage.join(leader)
    stage.join(follower)
    assert stage.joined(token).generation == 2
    stage.move(save)
    assert stage.error(stage.sync(leader, generation=2)) == ErrorCode.ILLEGAL_GENERATION
    assert stage.error(stage.sync(new, generation=2)) == ErrorCode.UNKNOWN_MEMBER_ID
    token = stage.join(follower)
    assert stage.is_waiting(token)
    stage.join(leader)
    assert stage.joined(token).generation == 2


def test_a_new_coordinator_of_an_empty_group() -> None:
    """It goes on counting where the old one stopped."""
    stage = Stage()
    stage.stable(1)
    stage.wait(SESSION_SECONDS)
    stage.move(stage.save())
    assert (stage.group.state, stage.group.is_idle) == ("Empty", True)
    stage.gather(1)
    assert stage.group.generation == 3
