"""Who may join a group, what a JoinGroup means in each phase, and which assignor is chosen."""

from __future__ import annotations

import pytest

from raftmq.broker.groups.phases import SUBSCRIPTION_BYTES_MAX, GroupSettings
from raftmq.errors import ErrorCode
from tests.unit.broker.groups.stage import DELAY_SECONDS, RANGE, SESSION_SECONDS, Stage

BOTH = {"range": b"r", "sticky": b"s"}


# Newcomers


def test_joining_takes_two_steps() -> None:
    """A retry of the first JoinGroup is given another id, and makes no second member."""
    stage = Stage()
    first, again = stage.joined(stage.join()), stage.joined(stage.join())
    assert first.error == again.error == ErrorCode.MEMBER_ID_REQUIRED
    assert first.member_id != again.member_id
    assert (stage.group.state, stage.group.describe().members) == ("Empty", ())
    stage.join(again.member_id)
    assert [member.member_id for member in stage.group.describe().members] == [again.member_id]


def test_an_id_that_nobody_gave_is_refused() -> None:
    """Whoever was put out, or comes from before the group was lost, begins anew."""
    stage = Stage()
    assert stage.error(stage.join("ghost")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.error(stage.join("ghost", instance="i")) == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_id_that_is_not_used_expires() -> None:
    """It holds up a rebalance no longer than a session lasts."""
    stage = Stage()
    member_id = stage.joined(stage.join()).member_id
    assert stage.group.deadline == SESSION_SECONDS
    stage.wait(SESSION_SECONDS)
    assert stage.group.is_idle
    assert stage.error(stage.join(member_id)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_waits_for_whoever_is_on_the_way() -> None:
    """An id that was given out is a member that comes; unless it never does."""
    stage = Stage()
    (first,) = stage.stable(1)
    coming = stage.joined(stage.join()).member_id
    token = stage.join(first)
    assert stage.is_waiting(token)
    other = stage.join(coming)
    assert stage.joined(token).generation == stage.joined(other).generation == 2
    stage.settle(first, coming)
    stage.join()
    token = stage.join(first)
    stage.join(coming)
    stage.wait(SESSION_SECONDS)
    assert stage.joined(token).generation == 3


@pytest.mark.parametrize("session", [5.9, 1800.1])
def test_sessions_have_bounds(session: float) -> None:
    """Too short ones expire by chance, too long ones keep partitions from everybody."""
    stage = Stage()
    assert stage.error(stage.join(session=session)) == ErrorCode.INVALID_SESSION_TIMEOUT
    assert stage.error(stage.join(session=6.0)) == ErrorCode.MEMBER_ID_REQUIRED


def test_a_group_has_a_size() -> None:
    """Members stay in; newcomers, and ids for them, are refused."""
    stage = Stage(GroupSettings(size_max=2))
    late = stage.joined(stage.join()).member_id
    first, second = stage.enter(), stage.enter()
    assert stage.error(stage.join(late)) == ErrorCode.GROUP_MAX_SIZE_REACHED
    stage.wait(2 * DELAY_SECONDS)
    stage.settle(first[0], second[0])
    assert stage.error(stage.join()) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert stage.error(stage.join(instance="i")) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert stage.is_waiting(stage.join(first[0]))


def test_whoever_is_turned_away_is_not_waited_for() -> None:
    """The id that it was given would hold up the others."""
    stage = Stage()
    (first,) = stage.stable(1)
    coming = stage.joined(stage.join()).member_id
    token = stage.join(first)
    assert stage.error(stage.join(coming, session=1.0)) == ErrorCode.INVALID_SESSION_TIMEOUT
    assert stage.joined(token).generation == 2


def test_ids_on_the_way_have_a_limit() -> None:
    """Nobody fills the memory by asking for ids."""
    stage = Stage(GroupSettings(size_max=2))
    errors = [stage.error(stage.join()) for _ in range(3)]
    assert errors[:2] == [ErrorCode.MEMBER_ID_REQUIRED] * 2
    assert errors[2] == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_subscriptions_have_a_limit() -> None:
    """Those of all members have to fit into one command with their plan."""
    stage = Stage()
    share = SUBSCRIPTION_BYTES_MAX // 10
    for _ in range(10):
        stage.enter({"range": b"x" * share})
    token = stage.join("", {"range": b"x" * share})
    assert stage.error(token) == ErrorCode.GROUP_MAX_SIZE_REACHED


# Protocols


def test_members_need_an_assignor_in_common() -> None:
    """Whoever knows none that all others know is refused, and so is another type of group."""
    stage = Stage()
    stage.enter(BOTH)
    stage.enter({"sticky": b""})
    assert stage.error(stage.join("", RANGE)) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    token = stage.join("", BOTH, protocol_type="connect")
    assert stage.error(token) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert stage.error(stage.join("", {"": b""})) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_members_of_a_lost_coordinator_are_asked_for_their_assignors() -> None:
    """The metadata name only the one that was in use: whoever knows another is not turned away."""
    stage = Stage()
    (first,) = stage.gather(1, BOTH)
    stage.move(stage.settle(first))
    assert stage.error(stage.join("", {"sticky": b""})) == ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.heartbeat(first) == ErrorCode.REBALANCE_IN_PROGRESS
    token = stage.join(first, BOTH)
    stage.settle(first)
    assert stage.joined(token).protocol == "range"
    coming, _ = stage.enter({"sticky": b""})
    assert stage.joined(stage.join(first, BOTH)).protocol == "sticky"
    stage.settle(first, coming)
    assert stage.error(stage.join("", RANGE)) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_only_member_may_change_its_assignor() -> None:
    """There is nobody else who would have to know it."""
    stage = Stage()
    (only,) = stage.stable(1)
    token = stage.join(only, {"sticky": b""})
    assert stage.joined(token).protocol == "sticky"


def test_members_vote_for_an_assignor() -> None:
    """Of those that all know, the one that most like best; here two of three."""
    stage = Stage()
    tokens = [
        stage.enter({"own": b"", "range": b"1", "sticky": b""})[1],
        stage.enter({"sticky": b"2", "range": b""})[1],
        stage.enter({"sticky": b"3", "range": b""})[1],
    ]
    stage.wait(2 * DELAY_SECONDS)
    assert {stage.joined(token).protocol for token in tokens} == {"sticky"}
    leaders = [stage.joined(token).members for token in tokens if stage.joined(token).members]
    assert [[member.subscription for member in told] for told in leaders] == [[b"", b"2", b"3"]]


# Members who come again


def test_a_join_that_waits_already_is_replaced() -> None:
    """The connection broke: only the newest request hears of the generation."""
    stage = Stage()
    member_id, old = stage.enter()
    new = stage.join(member_id)
    assert stage.error(old) == ErrorCode.REBALANCE_IN_PROGRESS
    stage.wait(DELAY_SECONDS)
    assert stage.joined(new).generation == 1


def test_a_member_that_missed_the_generation_hears_it_again() -> None:
    """Completing, nothing changed: the same answer, to the leader with all members."""
    stage = Stage()
    leader, follower = stage.gather(2)
    again = stage.joined(stage.join(leader))
    assert (again.generation, again.leader, len(again.members)) == (1, leader, 2)
    assert stage.joined(stage.join(follower)).members == ()
    stage.settle(leader, follower)


def test_joining_anew_gives_up_a_sync() -> None:
    """It cannot wait for its part and for a generation at once."""
    stage = Stage()
    _, follower = stage.gather(2)
    sync = stage.sync(follower)
    stage.join(follower)
    assert stage.error(sync) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_change_while_the_leader_plans_begins_another_rebalance() -> None:
    """Whoever waits for the plan is sent back."""
    stage = Stage()
    leader, follower = stage.gather(2)
    sync = stage.sync(leader, {leader: b""})
    token = stage.join(follower, {"range": b"other topics"})
    assert stage.error(sync) == ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.is_waiting(token)
    assert stage.joined(stage.join(leader)).generation == stage.joined(token).generation == 2


def test_a_follower_that_lost_the_first_answer_disturbs_nobody() -> None:
    """Stable, nothing changed, and it has not asked for its assignment."""
    stage = Stage()
    leader, follower = stage.gather(2)
    stage.sync(leader, {member: member.encode() for member in (leader, follower)})
    stage.save()
    assert stage.joined(stage.join(follower)).generation == 1
    assert stage.part(stage.sync(follower)) == follower.encode()
    assert stage.heartbeat(leader) == ErrorCode.NONE


@pytest.mark.parametrize("is_new_coordinator", [False, True])
def test_no_partition_is_owned_twice_in_a_generation(is_new_coordinator: bool) -> None:
    """A member that had its assignment, and joins again, has lost it by its own clock. Its
    transaction may be on its way with offsets of that generation, and the partition is read again
    from those before: they must be refused (A11.3).
    """
    stage = Stage()
    leader, follower = stage.stable(2)
    if is_new_coordinator:
        stage.move(stage.first_save())
    token = stage.join(follower)
    assert stage.is_waiting(token)
    assert stage.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    stage.join(leader)
    assert stage.joined(token).generation == 2


def test_the_leader_asks_for_a_rebalance_by_joining() -> None:
    """It has seen that partitions were added."""
    stage = Stage()
    leader, follower = stage.stable(2)
    token = stage.join(leader)
    assert stage.heartbeat(follower) == ErrorCode.REBALANCE_IN_PROGRESS
    other = stage.join(follower)
    assert stage.joined(token).generation == stage.joined(other).generation == 2
    assert len(stage.joined(token).members) == 2


def test_a_follower_that_wants_something_else_begins_a_rebalance() -> None:
    """It subscribed to other topics, or has given partitions up for others to take."""
    stage = Stage()
    leader, follower = stage.stable(2)
    token = stage.join(follower, {"range": b"other topics"})
    assert stage.is_waiting(token)
    assert stage.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_join_that_comes_late_counts_for_nothing() -> None:
    """Its sender has joined again since, with what it has now: nobody rebalances, no claim is
    believed, nobody who waits is answered in its place. A number is nothing to another member."""
    stage = Stage()
    first = stage.joined(stage.join(number=1)).member_id
    token = stage.join(first, number=4)
    stage.wait(2 * DELAY_SECONDS)
    assert stage.joined(token).generation == 1
    stage.settle(first)
    late = stage.join(first, {"range": b"claims"}, number=3)
    assert stage.error(late) == ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.group.state == "Stable"
    second = stage.joined(stage.join(number=1)).member_id
    waiting = stage.join(second, number=2)
    assert stage.is_waiting(waiting)
    assert stage.error(stage.join(second, number=1)) == ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.is_waiting(waiting)
    stage.join(first, {"range": b"claims"}, number=5)
    assert stage.joined(waiting).generation == 2


def test_joins_without_numbers_count() -> None:
    """Of older clients, in the order in which they come."""
    stage = Stage()
    (member,) = stage.stable(1)
    assert stage.joined(stage.join(member, {"range": b"one"}, number=7)).generation == 2
    stage.settle(member)
    assert stage.joined(stage.join(member, {"range": b"other"})).generation == 3
