"""How a member goes: for good, for a while, for other topics; and static members, who do not."""

from __future__ import annotations

import math

import pytest

from raftmq.client.group.effects import (
    AskCoordinator,
    Assign,
    ForgetCoordinator,
    Left,
    LossCause,
    Lost,
    Revoke,
    State,
)
from raftmq.client.group.member_options import MemberOptions
from raftmq.errors import Disconnected, ErrorCode, InvalidConfig
from raftmq.wire.messages.groups import (
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeaveGroupReply,
)
from tests.unit.client.group.alone import HEARTBEAT, POLL, SESSION, Alone, keys

REBALANCING = HeartbeatReply(error=ErrorCode.REBALANCE_IN_PROGRESS)


def test_it_finishes_and_leaves() -> None:
    """The program finishes what it has; then the coordinator is told, and that is all."""
    me = Alone().read("a0 a1")
    me.do(me.membership.leave)
    (revoke,) = me.effects
    assert isinstance(revoke, Revoke)
    assert revoke.partitions == keys("a0 a1")
    me.beat()
    me.do(me.membership.on_revoked, revoke.token)
    assert isinstance(me.request, LeaveGroup)
    assert me.request.members[0].member_id == "me"
    assert me.answer(LeaveGroup, LeaveGroupReply()) == [Left()]
    assert me.membership.state is State.OUTSIDE
    assert me.membership.deadline() == math.inf


def test_who_holds_nothing_leaves_at_once() -> None:
    """Also while it joins; the join is not waited for."""
    me = Alone()
    me.start()
    me.answer(JoinGroup, JoinGroupReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="me"))
    waiting = me.asked[JoinGroup].token
    me.do(me.membership.leave)
    assert isinstance(me.request, LeaveGroup)
    assert not me.membership.expects(waiting)


def test_who_was_never_in_has_left() -> None:
    """It has no id, so nobody knows it."""
    me = Alone()
    assert me.do(me.membership.leave) == [Left()]


def test_leaving_before_it_knows_its_id() -> None:
    """The group waits for an id that was given out: the answer that names it is awaited, and left
    by it. Where there is none, there is nothing to leave."""
    me = Alone()
    me.start()
    assert me.do(me.membership.leave) == []
    me.answer(JoinGroup, JoinGroupReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="me"))
    assert isinstance(me.request, LeaveGroup)
    assert me.request.members[0].member_id == "me"
    assert me.answer(LeaveGroup, LeaveGroupReply()) == [Left()]
    for answer in (Disconnected("gone"), JoinGroupReply(error=ErrorCode.NOT_COORDINATOR)):
        me = Alone()
        me.start()
        me.do(me.membership.leave)
        assert me.answer(JoinGroup, answer) == [Left()]
    me = Alone()
    me.start()
    me.do(me.membership.leave)
    assert me.wait(5.0) == [Left()]
    me = Alone(group_instance_id="i")
    me.start()
    assert me.do(me.membership.leave) == [Left()]


def test_static_members_say_nothing() -> None:
    """They may be back within their session, and have what they had."""
    me = Alone(group_instance_id="i").read("a0")
    me.do(me.membership.leave)
    assert me.do(me.membership.on_revoked, 1) == [Left()]


def test_leaving_while_it_gives_up() -> None:
    """What it gives up anyway is part of what it gives up now."""
    me = Alone().read("a0 a1")
    me.beat(REBALANCING)
    me.join(2)
    me.sync("a0")
    me.do(me.membership.leave)
    assert [(one.token, one.partitions) for one in me.of(Revoke)] == [(2, keys("a0 a1"))]
    assert me.do(me.membership.on_revoked, 1) == []
    me.do(me.membership.on_revoked, 2)
    assert isinstance(me.request, LeaveGroup)


def test_leaving_twice() -> None:
    """It is on its way: nothing new."""
    me = Alone().read("a0")
    me.do(me.membership.leave)
    assert me.do(me.membership.leave) == []
    me.do(me.membership.on_revoked, 1)
    assert me.do(me.membership.leave) == []


def test_leaving_where_nobody_answers() -> None:
    """It tries for a while; the coordinator will notice by itself."""
    me = Alone().read("")
    me.do(me.membership.leave)
    error = Disconnected("gone")
    assert me.answer(LeaveGroup, error) == [ForgetCoordinator(error)]
    me.wait(0.1)
    assert isinstance(me.request, LeaveGroup)
    assert me.wait(4.9)[-1] == Left()


def test_leaving_unnoticed() -> None:
    """The coordinator has put it out already, which is as good."""
    me = Alone().read("")
    me.do(me.membership.leave)
    reply = LeaveGroupReply(error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert me.answer(LeaveGroup, reply) == [Left()]


def test_losing_everything_on_the_way_out() -> None:
    """The session ends while the program finishes: it does not join again."""
    me = Alone().read("a0")
    me.do(me.membership.leave)
    effects = me.wait(SESSION)
    assert Lost(keys("a0")) in effects
    assert isinstance(me.asked[LeaveGroup].request, LeaveGroup)
    assert me.membership.state is State.LEAVING


# -- programs that do not ask ----------------------------------------------------------------


def beat_until(me: Alone, end: float) -> list[object]:
    effects: list[object] = []
    while me.membership.deadline() <= end:
        effects += me.wait(me.membership.deadline() - me.now)
        if isinstance(me.request, Heartbeat):
            me.answer(Heartbeat, HeartbeatReply())
    return effects


def test_a_program_that_does_not_ask_leaves() -> None:
    """It may be stuck: others get what it had; once it asks again, it joins."""
    me = Alone().read("a0")
    me.do(me.membership.on_handed_out)
    effects = beat_until(me, me.now + POLL)
    assert effects[-2] == Lost(keys("a0"))
    assert [one.cause for one in effects if isinstance(one, Lost)] == [LossCause.NOT_ASKED]
    assert isinstance(me.request, LeaveGroup)
    assert me.answer(LeaveGroup, LeaveGroupReply()) == []
    assert me.membership.state is State.OUTSIDE
    assert me.wait(1000.0) == []
    me.do(me.membership.on_asked)
    assert isinstance(me.request, JoinGroup)
    assert me.request.member_id == ""


def test_it_asks_again_while_it_leaves() -> None:
    """It joins as soon as it has left."""
    me = Alone().read("a0")
    me.do(me.membership.on_handed_out)
    beat_until(me, me.now + POLL)
    assert me.do(me.membership.on_asked) == []
    me.answer(LeaveGroup, LeaveGroupReply())
    assert isinstance(me.request, JoinGroup)


def test_a_static_member_that_does_not_ask_falls_silent() -> None:
    """Its session has to end; when it asks again it is the member that it was."""
    me = Alone(group_instance_id="i").read("a0")
    me.do(me.membership.on_handed_out)
    assert beat_until(me, me.now + POLL)[-1] == Lost(keys("a0"))
    assert me.membership.state is State.OUTSIDE
    me.do(me.membership.on_asked)
    assert me.request.member_id == "me"


def test_a_program_that_waits_or_works_openly_takes_its_time() -> None:
    """It asks for records, or is inside a `processing` block."""
    me = Alone().read("a0")
    me.do(me.membership.on_handed_out)
    beat_until(me, me.now + POLL - HEARTBEAT)
    me.do(me.membership.on_asked)
    assert beat_until(me, me.now + 10 * POLL)[-1] != Lost(keys("a0"))
    assert me.membership.held == set(keys("a0"))


# -- other topics ------------------------------------------------------------------------------


def test_a_cooperative_member_gives_up_what_it_does_not_want_any_more() -> None:
    """Before it joins with its new subscription; the rest it goes on reading."""
    me = Alone("ab").read("a0 b0")
    me.do(me.membership.subscribe, "ac")
    assert [one.partitions for one in me.of(Revoke)] == [keys("b0")]
    me.do(me.membership.on_revoked, 1)
    assert me.claim.topics == {"a", "c"}
    assert me.claim.owned == set(keys("a0"))


def test_the_same_topics_are_nothing_new() -> None:
    """In another order, or named twice."""
    me = Alone("ab").read("a0 b0")
    assert me.do(me.membership.subscribe, "bab") == []


def test_an_eager_member_gives_up_all_for_other_topics() -> None:
    """As always."""
    me = Alone("ab", assignor="round_robin").read("a0 b0")
    me.do(me.membership.subscribe, "a")
    assert [one.partitions for one in me.of(Revoke)] == [keys("a0 b0")]
    me.do(me.membership.on_revoked, 1)
    me.join(2)
    me.sync("a0")
    assert me.effects == [Assign(keys("a0"), 2)]


# -- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"group": ""}, "group = '': expected a text of 1 to 200 characters"),
        ({"group_instance_id": ""}, "group_instance_id = ''"),
        ({"session_timeout_ms": 0}, "session_timeout_ms = 0: expected a whole number"),
        ({"rebalance_timeout_ms": True}, "rebalance_timeout_ms = True"),
        ({"heartbeat_interval_ms": 8_000}, "expected at most half of session_timeout_ms = 15000"),
        (
            {"rebalance_timeout_ms": 5_999},
            "rebalance_timeout_ms = 5999: expected at least 6000, twice heartbeat_interval_ms = "
            "3000, with which a member hears that the group waits for it",
        ),
        (
            {"max_poll_interval_ms": 2_000},
            "max_poll_interval_ms = 2000: expected at least 6000, twice heartbeat_interval_ms = "
            "3000, with which a member hears that the group waits for it; take a longer one, a "
            "shorter heartbeat_interval_ms, or rebalance_timeout_ms = 6000 beside it",
        ),
        ({"assignor": "rang"}, "did you mean 'range'?"),
        ({"user_data": "text"}, 'user_data: expected bytes, such as b"rack 1", got str'),
        ({"user_data": b"x" * 16_385}, "user_data of 16385 bytes: expected at most 16384"),
        ({"rack": 7}, "rack = 7"),
    ],
)
def test_bad_options(options: dict[str, object], problem: str) -> None:
    """Told before anything is asked."""
    with pytest.raises(InvalidConfig) as caught:
        MemberOptions(**({"group": "g"} | options))  # type: ignore[arg-type]
    assert problem in str(caught.value)


def test_all_bad_options_at_once() -> None:
    """And a group waits for a program as long as that may take, if nothing else is said."""
    with pytest.raises(InvalidConfig) as caught:
        MemberOptions(group="", assignor="x", rack="r" * 300)
    assert len(caught.value.problems) == 3
    assert MemberOptions(group="g").rebalance_seconds == 300.0


def test_two_heartbeats_fit_in_where_a_group_waits() -> None:
    """No more is asked for; how long a program may work has nothing to do with it."""
    options = MemberOptions(group="g", rebalance_timeout_ms=6_000, max_poll_interval_ms=1)
    assert options.rebalance_seconds == 6.0


def test_asking_is_in_one_place_at_a_time() -> None:
    """However it got there: one step, one heartbeat."""
    me = Alone().read("a0")
    me.wait(HEARTBEAT)
    me.do(me.membership.subscribe, "ab")
    assert [isinstance(one, AskCoordinator) for one in me.effects[:1]] == [True]
    assert me.membership.expects(me.asked[JoinGroup].token)
    assert me.membership.expects(me.asked[Heartbeat].token)
