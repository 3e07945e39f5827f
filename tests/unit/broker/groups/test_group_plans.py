"""Plans: from the leader into the metadata, and only then to anybody."""

from __future__ import annotations

from raftmq.errors import ErrorCode, InvalidCommand, NotCoordinator
from raftmq.wire.messages.groups import LeavingMember
from tests.unit.broker.groups.stage import REBALANCE_SECONDS, SESSION_SECONDS, Stage


def test_nobody_hears_of_a_plan_before_it_is_saved() -> None:
    """Otherwise another coordinator might make another plan of the same generation (A8.3)."""
    stage = Stage()
    leader, follower = stage.gather(2)
    early = stage.sync(follower)
    own = stage.sync(leader, {leader: b"0", follower: b"1"})
    late = stage.sync(follower)
    assert stage.error(early) == ErrorCode.REBALANCE_IN_PROGRESS  # it has asked again
    assert stage.is_waiting(own)
    save = stage.save()
    assert [(member.member_id, member.assignment) for member in save.members] == [
        (leader, b"0"),
        (follower, b"1"),
    ]
    assert (stage.part(own), stage.part(late)) == (b"0", b"1")
    assert stage.part(stage.sync(follower)) == b"1"


def test_a_save_says_all_that_the_next_coordinator_needs() -> None:
    """Who they are, what they want of the chosen assignor, and how patient they are (A9.1)."""
    stage = Stage()
    member_id, _ = stage.enter({"range": b"wish", "other": b""}, session=7.0, rebalance=8.0)
    stage.wait(3.0)
    save = stage.settle(member_id)
    command = save.command(slot_epoch=4, changed_at_ms=5)
    assert (command.slot_epoch, command.group, command.changed_at_ms) == (4, "billing", 5)
    assert (command.generation, command.protocol, command.leader) == (1, "range", member_id)
    (member,) = command.members
    assert (member.client_id, member.host, member.subscription) == ("client", "host", b"wish")
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (7000, 8000)


def test_whom_the_plan_leaves_out_has_nothing() -> None:
    """There are more members than partitions."""
    stage = Stage()
    leader, follower = stage.gather(2)
    token = stage.sync(follower)
    stage.sync(leader, {leader: b"all"})
    stage.save()
    assert stage.part(token) == b""


def test_a_leader_that_asks_again_changes_nothing() -> None:
    """Its connection broke while its plan was being saved: the first plan holds."""
    stage = Stage()
    (leader,) = stage.gather(1)
    first = stage.sync(leader, {leader: b"first"})
    stage.forget(first)
    again = stage.sync(leader, {leader: b"second"})
    assert len(stage.saves) == 1
    stage.save()
    assert stage.part(again) == b"first"


def test_a_plan_of_a_follower_is_no_plan() -> None:
    """Only the leader was told who the members are."""
    stage = Stage()
    _, follower = stage.gather(2)
    stage.sync(follower, {follower: b"all"})
    assert not stage.saves


def test_a_part_for_a_stranger_is_nobodys() -> None:
    """What is saved is about members."""
    stage = Stage()
    (leader,) = stage.gather(1)
    token = stage.sync(leader, {leader: b"0", "stranger": b"1"})
    assert [member.assignment for member in stage.save().members] == [b"0"]
    assert stage.part(token) == b"0"


def test_syncs_that_do_not_belong_here() -> None:
    """Of nobody, of another generation, of another assignor, in the wrong phase."""
    stage = Stage()
    leader, follower = stage.gather(2)
    assert stage.error(stage.sync("ghost")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.error(stage.sync(leader, generation=0)) == ErrorCode.ILLEGAL_GENERATION
    token = stage.sync(leader, protocol="sticky")
    assert stage.error(token) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    stage.settle(leader, follower)
    stage.join(leader)
    assert stage.error(stage.sync(follower)) == ErrorCode.REBALANCE_IN_PROGRESS


# What comes between


def test_a_member_comes_while_the_plan_is_saved() -> None:
    """The plan is saved for nothing; nobody is told of it, then or later."""
    stage = Stage()
    (leader,) = stage.gather(1)
    token = stage.sync(leader, {leader: b"old"})
    new, joining = stage.enter()
    assert stage.error(token) == ErrorCode.REBALANCE_IN_PROGRESS
    stage.save()
    assert stage.group.state == "PreparingRebalance"
    stage.join(leader)
    assert stage.joined(joining).generation == 2
    stage.settle(leader, new)


def test_a_save_that_comes_late_is_not_taken_for_the_next_one() -> None:
    """Two plans are under way; only the second one is handed out."""
    stage = Stage()
    (leader,) = stage.gather(1)
    stage.sync(leader, {leader: b"old"})
    assert stage.joined(stage.join(leader, {"range": b"change"})).generation == 2
    token = stage.sync(leader, {leader: b"new"})
    stage.save()
    assert stage.is_waiting(token)
    stage.save()
    assert stage.part(token) == b"new"


def test_a_late_save_is_no_plan_of_a_generation_that_has_none() -> None:
    """The leader has joined the next generation and still plans."""
    stage = Stage()
    (leader,) = stage.gather(1)
    stage.sync(leader, {leader: b"old"})
    stage.join(leader, {"range": b"change"})
    stage.save()
    assert stage.group.state == "CompletingRebalance"
    stage.settle(leader)


def test_a_member_dies_while_its_generation_is_saved() -> None:
    """Its part would be nobody's: the others plan anew."""
    stage = Stage()
    leader, follower = stage.gather(2)
    token = stage.sync(leader, {leader: b"", follower: b""})
    stage.wait(SESSION_SECONDS)
    assert stage.error(token) == ErrorCode.REBALANCE_IN_PROGRESS
    stage.save()
    assert stage.joined(stage.join(leader)).generation == 2
    stage.settle(leader)


def test_the_leader_dies_before_it_has_a_plan() -> None:
    """A follower, who waits for the plan, is sent back and leads (A8.6)."""
    stage = Stage()
    leader, follower = stage.gather(2)
    token = stage.sync(follower)
    stage.wait(SESSION_SECONDS)
    assert stage.error(token) == ErrorCode.REBALANCE_IN_PROGRESS
    reply = stage.joined(stage.join(follower))
    assert (reply.generation, reply.leader) == (2, follower)
    assert stage.heartbeat(leader) == ErrorCode.UNKNOWN_MEMBER_ID
    stage.settle(follower)


def test_the_leader_lives_and_never_plans() -> None:
    """Heartbeats alone do not keep a member that never comes for its part."""
    stage = Stage()
    leader, follower = stage.gather(2)
    token = stage.sync(follower)
    stage.wait(REBALANCE_SECONDS, leader)
    assert stage.error(token) == ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.heartbeat(leader) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_follower_that_never_comes_for_its_part() -> None:
    """The group is stable without it, and yet its part is nobody's."""
    stage = Stage()
    leader, follower = stage.gather(2)
    stage.sync(leader, {leader: b"", follower: b"1"})
    stage.save()
    stage.wait(REBALANCE_SECONDS - 1, leader, follower)
    assert stage.group.state == "Stable"
    stage.wait(1.0, leader, follower)
    assert stage.heartbeat(follower) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS


def test_all_leave_while_their_plan_is_saved() -> None:
    """What is saved last is that nobody is there."""
    stage = Stage()
    (leader,) = stage.gather(1)
    token = stage.sync(leader, {leader: b""})
    stage.leave(LeavingMember(leader))
    assert stage.error(token) == ErrorCode.UNKNOWN_MEMBER_ID
    assert [len(stage.save().members) for _ in range(2)] == [1, 0]
    assert stage.group.is_idle


# Saves that fail


def test_a_plan_that_cannot_be_saved_is_nobodys() -> None:
    """Whoever waits is told why; everybody joins again, the number is not used again."""
    stage = Stage()
    leader, follower = stage.gather(2)
    tokens = [stage.sync(leader, {leader: b"0"}), stage.sync(follower)]
    stage.fail(InvalidCommand("SaveGroup takes too many bytes"))
    assert {stage.error(token) for token in tokens} == {ErrorCode.INVALID_REQUEST}
    assert stage.heartbeat(follower) == ErrorCode.REBALANCE_IN_PROGRESS
    tokens = [stage.join(leader), stage.join(follower)]
    assert {stage.joined(token).generation for token in tokens} == {2}
    stage.settle(leader, follower)


def test_what_becomes_of_an_old_save_does_not_matter() -> None:
    """It failed after the group had gone on."""
    stage = Stage()
    (leader,) = stage.gather(1)
    stage.sync(leader, {leader: b"old"})
    stage.join(leader, {"range": b"change"})
    token = stage.sync(leader, {leader: b"new"})
    stage.fail(InvalidCommand("too large"))
    assert stage.is_waiting(token)
    stage.save()
    assert stage.part(token) == b"new"


def test_that_a_group_is_empty_is_saved_until_it_is() -> None:
    """Nobody waits for it, and yet its offsets could not expire."""
    stage = Stage()
    (leader,) = stage.stable(1)
    stage.leave(LeavingMember(leader))
    stage.fail(InvalidCommand("refused"))
    assert not stage.group.is_idle
    stage.wait(60.0)
    assert stage.save().members == ()
    assert stage.group.is_idle


def test_a_lost_slot_is_told_to_whoever_waits() -> None:
    """They ask another coordinator; late words of saves and connections do nothing."""
    stage = Stage()
    leader, follower = stage.gather(2)
    tokens = [stage.sync(leader, {leader: b""}), stage.sync(follower)]
    error = NotCoordinator("slot 3 is somebody else's now")
    stage.perform(stage.group.abandon(error))
    assert {stage.error(token) for token in tokens} == {ErrorCode.NOT_COORDINATOR}
    stage.save()
    stage.forget(tokens[0])
    assert stage.group.deadline == float("inf")
