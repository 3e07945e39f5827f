"""Static members: known by their instance id, whichever process they are."""

from __future__ import annotations

from raftmq.client.group.planning import encode_subscription
from raftmq.errors import ErrorCode, InvalidCommand
from raftmq.wire.messages.groups import LeavingMember
from tests.unit.broker.groups.stage import (
    DELAY_SECONDS,
    RANGE,
    REBALANCE_SECONDS,
    SESSION_SECONDS,
    Stage,
)


def stable(stage: Stage) -> tuple[str, str]:
    """A dynamic leader and a static member, instance `i`."""
    leader, token = stage.enter()
    static = stage.come("i")
    stage.wait(2 * DELAY_SECONDS)
    assert stage.joined(token).leader == leader
    member_id = stage.joined(static).member_id
    stage.settle(leader, member_id)
    return leader, member_id


def test_a_static_member_joins_in_two_steps() -> None:
    """Whose answer was lost takes the first one again; of what was given out the last is used."""
    stage = Stage()
    first = stage.given("i")
    token = stage.come("i")
    stage.wait(DELAY_SECONDS)
    reply = stage.joined(token)
    assert [member.instance_id for member in reply.members] == ["i"]
    assert stage.error(stage.join(first, instance="i")) == ErrorCode.FENCED_INSTANCE_ID


def test_a_first_step_that_comes_late_is_no_second_process() -> None:
    """Nobody uses the id: the only process stays a member, and what waits for it ends by itself."""
    stage = Stage()
    leader, static = stable(stage)
    stage.given("i")
    assert stage.heartbeat(static, instance="i") == ErrorCode.NONE
    assert stage.commit(static, 1, "i") == ErrorCode.NONE
    stage.join(leader)
    assert stage.joined(stage.join(static, instance="i")).generation == 2, "nobody is waited for"
    stage.settle(leader)
    stage.wait(SESSION_SECONDS + 1, leader)
    assert stage.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS, "it was silent, and is gone"


def test_a_second_step_that_comes_late_is_void() -> None:
    """Of a process that has ended: another one has joined since, and stays. Once that one is gone
    as well, the id is nobody's."""
    stage = Stage()
    leader, _ = stable(stage)
    ended = stage.given("i")
    token = stage.come("i")
    stage.save()
    runs = stage.joined(token).member_id
    assert stage.error(stage.join(ended, instance="i")) == ErrorCode.FENCED_INSTANCE_ID
    assert stage.heartbeat(runs, instance="i") == ErrorCode.NONE
    assert stage.leave(LeavingMember("", "i")) == [ErrorCode.NONE]
    assert stage.error(stage.join(ended, instance="i")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS


def test_ids_that_were_given_out_end_with_the_tenure() -> None:
    """The next coordinator knows none of them: its process asks for another one."""
    stage = Stage()
    _, old = stable(stage)
    given = stage.given("i")
    stage.move(stage.first_save())
    assert stage.error(stage.join(given, instance="i")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.heartbeat(old, instance="i") == ErrorCode.NONE


def test_an_id_belongs_to_the_instance_that_asked_for_it() -> None:
    """Nobody else joins with it, nor does somebody who is dynamic."""
    stage = Stage()
    given = stage.given("i")
    assert stage.error(stage.join(given, instance="j")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.error(stage.join(given)) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_is_back_keeps_its_part() -> None:
    """Nobody else hears of it; it is told once its new id stands in the metadata."""
    stage = Stage()
    leader, old = stable(stage)
    token = stage.come("i")
    assert stage.is_waiting(token)
    save = stage.save()
    reply = stage.joined(token)
    assert (reply.must_sync_anew, reply.generation, reply.members) == (False, 1, ())
    assert [member.member_id for member in save.members] == [leader, reply.member_id]
    assert stage.part(stage.sync(reply.member_id, instance="i")) == old.encode()
    assert stage.heartbeat(leader) == ErrorCode.NONE
    assert stage.heartbeat(reply.member_id, instance="i") == ErrorCode.NONE


def test_what_it_claimed_before_is_no_reason_to_deal_anew() -> None:
    """Its subscription named what it had; it wants the same topics, and nobody is disturbed."""
    stage = Stage()
    before = encode_subscription(["orders"], [("orders", 0)], generation=1, is_holding=True)
    leader, token = stage.enter()
    static = stage.come("i", {"range": before})
    stage.wait(2 * DELAY_SECONDS)
    assert stage.joined(token).leader == leader
    stage.settle(leader, stage.joined(static).member_id)
    back = stage.come("i", {"range": encode_subscription(["orders"])})
    kept = {member.subscription for member in stage.save().members if member.instance_id}
    assert kept == {before}, "beside the plan that was made with it, or the quorum refuses"
    assert not stage.joined(back).must_sync_anew
    other = stage.come("i", {"range": encode_subscription(["returns"])})
    assert stage.is_waiting(other)
    assert stage.group.state == "PreparingRebalance"


def test_the_process_before_is_fenced() -> None:
    """Of two processes with one instance id the later one runs."""
    stage = Stage()
    _, old = stable(stage)
    token = stage.come("i")
    assert stage.heartbeat(old, instance="i") == ErrorCode.FENCED_INSTANCE_ID
    assert stage.error(stage.sync(old, instance="i")) == ErrorCode.FENCED_INSTANCE_ID
    assert stage.error(stage.join(old, instance="i")) == ErrorCode.FENCED_INSTANCE_ID
    assert stage.commit(old, 1, "i") == ErrorCode.FENCED_INSTANCE_ID
    assert stage.leave(LeavingMember(old, "i")) == [ErrorCode.FENCED_INSTANCE_ID]
    assert stage.heartbeat(old) == ErrorCode.UNKNOWN_MEMBER_ID
    stage.save()
    assert stage.commit(stage.joined(token).member_id, 1, "i") == ErrorCode.NONE


def test_the_next_coordinator_knows_who_is_back() -> None:
    """What was saved is the new process."""
    stage = Stage()
    leader, old = stable(stage)
    token = stage.come("i")
    stage.move(stage.save())
    new = stage.joined(token).member_id
    assert stage.heartbeat(new, instance="i") == ErrorCode.NONE
    assert stage.heartbeat(old, instance="i") == ErrorCode.FENCED_INSTANCE_ID
    assert stage.heartbeat(leader) == ErrorCode.NONE


def test_a_static_leader_that_is_back_leads_on() -> None:
    """It is told who the members are, so that it can watch their topics."""
    stage = Stage()
    token = stage.come("i")
    stage.wait(DELAY_SECONDS)
    stage.settle(stage.joined(token).member_id)
    token = stage.come("i")
    stage.save()
    reply = stage.joined(token)
    assert (reply.leader, len(reply.members)) == (reply.member_id, 1)
    assert not reply.must_sync_anew


def test_a_static_member_that_is_back_with_other_wishes_makes_all_join() -> None:
    """The plan was made for what it wanted before."""
    stage = Stage()
    leader, _ = stable(stage)
    token = stage.come("i", {"range": b"other topics"})
    assert not stage.saves
    assert stage.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    stage.join(leader)
    assert stage.joined(token).generation == 2


def test_a_static_member_that_changes_the_vote_makes_all_join() -> None:
    """It now likes another assignor better, which all others know as well."""
    stage = Stage()
    both = {"range": b"", "sticky": b""}
    token = stage.come("i", both)
    stage.wait(DELAY_SECONDS)
    stage.settle(stage.joined(token).member_id)
    token = stage.come("i", {"sticky": b"", "range": b""})
    assert stage.joined(token).protocol == "sticky"


def test_a_static_member_is_back_while_the_others_join() -> None:
    """It has joined, too."""
    stage = Stage()
    leader, old = stable(stage)
    stage.join(leader)
    token = stage.come("i")
    assert stage.joined(token).generation == 2
    stage.settle(leader, stage.joined(token).member_id)
    assert stage.heartbeat(old, instance="i") == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_is_back_while_the_leader_plans() -> None:
    """The leader knows it by an id that is gone: plan again."""
    stage = Stage()
    leader, old = stable(stage)
    stage.join(leader)
    stage.join(old, instance="i")
    syncs = [stage.sync(leader, {old: b""}), stage.sync(old, instance="i")]
    token = stage.come("i")
    assert stage.error(syncs[0]) == ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.error(syncs[1]) == ErrorCode.FENCED_INSTANCE_ID
    stage.join(leader)
    assert stage.joined(token).generation == 3


def test_a_rebalance_begins_before_the_return_is_saved() -> None:
    """Its join is a join like the others'."""
    stage = Stage()
    leader, _ = stable(stage)
    token = stage.come("i")
    stage.join(leader)
    reply = stage.joined(token)
    assert (reply.generation, reply.must_sync_anew) == (2, True)
    stage.save()
    stage.settle(leader, reply.member_id)


def test_a_static_member_is_back_twice_at_once() -> None:
    """It crashed again before its return was saved: only the last one is told."""
    stage = Stage()
    _, old = stable(stage)
    first, second = stage.come("i"), stage.come("i")
    assert stage.error(first) == ErrorCode.FENCED_INSTANCE_ID
    stage.save()
    assert stage.is_waiting(second)
    stage.save()
    member_id = stage.joined(second).member_id
    assert stage.part(stage.sync(member_id, instance="i")) == old.encode()


def test_a_return_is_told_once_it_is_saved_however_often_it_asks() -> None:
    """Until then the quorum accepts a transaction with offsets of the process before: whoever has
    its part already would read from before them (A11.3)."""
    stage = Stage()
    _, old = stable(stage)
    given = stage.given("i")
    stage.forget(stage.join(given, instance="i"))  # its connection ends
    again = stage.join(given, instance="i")
    assert stage.is_waiting(again)
    stage.save()
    assert stage.joined(again).generation == 1
    assert stage.part(stage.sync(given, instance="i")) == old.encode()


def test_a_return_that_cannot_be_saved_makes_all_join() -> None:
    """Nobody may go on under an id that no other coordinator would know."""
    stage = Stage()
    leader, _ = stable(stage)
    token = stage.come("i")
    stage.fail(InvalidCommand("refused"))
    assert stage.error(token) == ErrorCode.INVALID_REQUEST
    assert stage.heartbeat(leader) == ErrorCode.REBALANCE_IN_PROGRESS
    again = stage.come("i")
    stage.join(leader)
    stage.settle(leader, stage.joined(again).member_id)


def test_a_static_member_stays_until_its_session_ends() -> None:
    """It may be away for a moment: it keeps its place in a rebalance that it misses."""
    stage = Stage()
    leader, _ = stage.enter(rebalance=5.0)
    static = stage.come("i", rebalance=5.0)
    stage.wait(2 * DELAY_SECONDS)
    away = stage.joined(static).member_id
    stage.settle(leader, away)
    stage.wait(2.0, leader, away)
    token = stage.join(leader, rebalance=5.0)
    stage.wait(5.0)
    reply = stage.joined(token)
    assert [member.member_id for member in reply.members] == [leader, away]
    stage.settle(leader)
    assert stage.heartbeat(away, generation=1, instance="i") == ErrorCode.ILLEGAL_GENERATION
    assert stage.joined(stage.join(away, instance="i")).generation == 2
    stage.sync(away, instance="i")
    stage.wait(SESSION_SECONDS, leader)
    assert stage.heartbeat(away) == ErrorCode.UNKNOWN_MEMBER_ID


def test_only_static_members_are_left_and_none_of_them_is_here() -> None:
    """The rebalance waits for one to come back, or for their sessions to end."""
    stage = Stage()
    leader, away = stable(stage)
    stage.leave(LeavingMember(leader))
    stage.wait(REBALANCE_SECONDS + 1, away)
    assert stage.group.state == "PreparingRebalance"
    stage.wait(SESSION_SECONDS)
    assert stage.group.state == "Empty"


def test_a_static_member_is_removed_by_its_instance_id() -> None:
    """An operator takes it out: its member id is not known to anybody."""
    stage = Stage()
    leader, _ = stable(stage)
    assert stage.leave(LeavingMember("", "j")) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert stage.leave(LeavingMember("", "i")) == [ErrorCode.NONE]
    assert stage.joined(stage.join(leader)).generation == 2


def test_an_instance_that_nobody_knows_is_no_member() -> None:
    """Not even with the id of somebody else."""
    stage = Stage()
    leader, _ = stable(stage)
    assert stage.heartbeat(leader, instance="j") == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.error(stage.join(leader, RANGE, instance="j")) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_number_alone_is_no_generation() -> None:
    """A coordinator tells a static member of generation 2, and is lost before that is saved. The
    next one makes a generation 2 without it: whatever it says, it is in another one.
    """
    stage = Stage()
    leader, away = stable(stage)
    stage.join(away, {"range": b"other"}, instance="i")
    stage.join(leader)
    assert stage.group.generation == 2
    stage.move(stage.first_save())
    token = stage.join(leader)
    stage.wait(REBALANCE_SECONDS, away)
    assert stage.joined(token).generation == 2
    stage.settle(leader)
    assert stage.heartbeat(away, generation=2, instance="i") == ErrorCode.ILLEGAL_GENERATION
    assert stage.commit(away, 2, "i") == ErrorCode.ILLEGAL_GENERATION
    assert stage.error(stage.sync(away, generation=2, instance="i")) == ErrorCode.ILLEGAL_GENERATION


def test_a_process_that_came_later_is_not_fenced() -> None:
    """Its coordinator was lost before its id was saved: it only has to join anew, and then fences
    the process before it.
    """
    stage = Stage()
    leader, old = stable(stage)
    lost = stage.come("i", {"range": b"other"})
    stage.join(leader)
    new = stage.joined(lost).member_id
    stage.move(stage.first_save())
    assert stage.error(stage.sync(new, instance="i")) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.heartbeat(old, instance="i") == ErrorCode.NONE
    stage.come("i")
    assert stage.heartbeat(old, instance="i") == ErrorCode.FENCED_INSTANCE_ID
