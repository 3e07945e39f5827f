"""Who may commit offsets when, and what a group says of itself."""

from __future__ import annotations

from raftmq.errors import ErrorCode
from raftmq.wire.messages.groups import LeavingMember
from tests.unit.broker.groups.stage import SESSION_SECONDS, Stage


def test_commits_while_nobody_is_in_the_group() -> None:
    """A program that assigns its partitions by itself is nobody's member."""
    stage = Stage()
    assert stage.commit("", -1) == ErrorCode.NONE
    assert stage.commit("ghost", 3) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.commit("", -1, "i") == ErrorCode.UNKNOWN_MEMBER_ID
    stage.enter()
    assert stage.commit("", -1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_commits_of_members() -> None:
    """Of this generation, until the next one is told; while that is planned, of nobody."""
    stage = Stage()
    leader, follower = stage.gather(2)
    assert stage.commit(leader, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    stage.settle(leader, follower)
    assert stage.commit(leader, 1) == ErrorCode.NONE
    assert stage.commit(leader, 0) == ErrorCode.ILLEGAL_GENERATION
    assert stage.commit("ghost", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    stage.join(leader)
    assert stage.commit(follower, 1) == ErrorCode.NONE
    stage.join(follower)
    assert stage.commit(follower, 1) == ErrorCode.ILLEGAL_GENERATION
    assert stage.commit(follower, 2) == ErrorCode.REBALANCE_IN_PROGRESS


def test_commits_of_whoever_was_put_out() -> None:
    """Its partitions are somebody else's."""
    stage = Stage()
    leader, silent = stage.stable(2)
    stage.wait(SESSION_SECONDS, leader)
    assert stage.commit(silent, 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.commit(leader, 1) == ErrorCode.NONE


def test_a_group_describes_itself() -> None:
    """For whoever wants to know what is going on; parts are shown once they are given."""
    stage = Stage()
    leader, follower = stage.gather(2)
    told = stage.group.describe()
    assert (told.state, told.generation, told.leader) == ("CompletingRebalance", 1, leader)
    assert [member.assignment for member in told.members] == [b"", b""]
    stage.settle(leader, follower)
    told = stage.group.describe()
    assert (told.state, told.protocol, told.protocol_type) == ("Stable", "range", "consumer")
    assert [member.assignment for member in told.members] == [leader.encode(), follower.encode()]
    listed = stage.group.listed()
    assert (listed.group, listed.state, listed.member_count) == ("billing", "Stable", 2)
    stage.leave(LeavingMember(leader), LeavingMember(follower))
    assert stage.group.listed().state == "Empty"
