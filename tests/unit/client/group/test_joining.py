"""How a member joins: ids, repetition, what is answered to each step, the end."""

from __future__ import annotations

import pytest

from raftmq.client.group.assignors.assignor import Subscribed
from raftmq.client.group.effects import (
    AskCoordinator,
    Assign,
    Fail,
    ForgetCoordinator,
    State,
    WatchTopics,
)
from raftmq.errors import (
    CoordinatorLoadInProgress,
    Disconnected,
    ErrorCode,
    InvalidRequest,
    RemoteProtocolError,
    Unreachable,
    UnsupportedVersion,
    error_for,
)
from raftmq.tag_filter import parse
from raftmq.wire.messages.groups import (
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    SyncGroup,
    SyncGroupReply,
)
from raftmq.wire.tag_clauses import TagClause
from tests.unit.client.group.alone import Alone, keys

FATAL = (
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    ErrorCode.INCONSISTENT_GROUP_FILTER,
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.INVALID_SESSION_TIMEOUT,
    ErrorCode.INVALID_GROUP_ID,
)


def test_what_a_member_says_when_it_joins() -> None:
    """Topics, timeouts, and the assignors that it knows, the one it likes best first."""
    me = Alone("ba", assignor=["sticky", "range"], group_instance_id="i1", rack="r")
    me.start()
    assert [one.name for one in me.joined.protocols] == ["sticky", "range"]
    assert (me.joined.session_timeout_ms, me.joined.rebalance_timeout_ms) == (10_000, 30_000)
    assert (me.joined.member_id, me.joined.instance_id) == ("", "i1")
    assert me.claim == Subscribed("me", frozenset("ab"), rack="r")
    assert me.of(WatchTopics) == [WatchTopics(("a", "b"))]


def test_a_member_says_its_filter_each_time() -> None:
    """With both steps, and when it joins again. A12.1."""
    me = Alone(tag_filter=parse("paid & (eu | us)"))
    told = (TagClause(("eu", "paid")), TagClause(("paid", "us")))
    me.start()
    assert me.joined.tags == told
    me.answer(JoinGroup, JoinGroupReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="me"))
    assert me.joined.tags == told
    me.join()
    me.sync("a0")
    me.do(me.membership.subscribe, "ab")
    assert (me.request.tags, me.request.member_id) == (told, "me")


def test_a_coordinator_that_knows_no_filters() -> None:
    """Of a version before: it has not compared the filter, so others may commit over what this
    member wants. Without a filter nothing is asked of it. A12.1."""
    me = Alone(tag_filter=parse("paid"))
    me.start()
    me.answer(JoinGroup, JoinGroupReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="me"))
    effects = me.join(keeps_filter=False)
    [failed] = [one for one in effects if isinstance(one, Fail)]
    assert isinstance(failed.error, UnsupportedVersion)
    assert "upgrade all brokers" in str(failed.error)
    other = Alone()
    other.start()
    other.answer(JoinGroup, JoinGroupReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="me"))
    other.join(keeps_filter=False)
    assert other.membership.state is State.SYNCING


def test_it_joins_in_two_steps() -> None:
    """It gets an id, and joins with that at once."""
    me = Alone()
    me.start()
    reply = JoinGroupReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="me")
    me.answer(JoinGroup, reply)
    assert me.request.member_id == me.membership.member_id == "me"
    assert me.membership.state is State.JOINING


def test_joins_have_numbers() -> None:
    """Each one a higher one than the one before, also one that is asked again as nobody answered:
    which of them comes last, the coordinator need not believe."""
    me = Alone()
    me.start()
    numbers = [me.joined.number]
    me.answer(JoinGroup, JoinGroupReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="me"))
    numbers.append(me.joined.number)
    me.answer(JoinGroup, Disconnected("broke"))
    me.wait(1.0)
    numbers.append(me.joined.number)
    assert 0 < numbers[0] < numbers[1] < numbers[2]


def test_a_follower_gets_its_part() -> None:
    """Somebody else leads: it asks for its part and reads."""
    me = Alone()
    me.start()
    me.join(4, leader="other")
    assert isinstance(me.request, SyncGroup)
    assert (me.request.generation, me.request.assignments) == (4, ())
    me.sync("a0 a2")
    assert me.effects == [Assign(keys("a0 a2"), 4)]
    assert (me.membership.state, me.membership.generation) == (State.STABLE, 4)
    assert me.membership.protocol == "cooperative_sticky"
    assert me.membership.may_hand_out(("a", 2), now=me.now)
    assert not me.membership.may_hand_out(("a", 1), now=me.now)


def test_whoever_cannot_be_reached_is_asked_again() -> None:
    """After a pause, and perhaps elsewhere; pauses grow."""
    me = Alone()
    me.start()
    pauses = []
    for _ in range(8):
        error = Unreachable("nobody listens")
        me.answer(JoinGroup, error)
        assert me.effects == [ForgetCoordinator(error)]
        pauses.append(me.membership.deadline() - me.now)
        me.wait(pauses[-1])
        assert isinstance(me.request, JoinGroup)
    assert pauses[0] < 0.1
    assert 0.8 <= pauses[-1] <= 1.2


def test_a_coordinator_that_is_loading_is_the_right_one() -> None:
    """It is asked again, and nobody else."""
    me = Alone()
    me.start()
    me.answer(JoinGroup, CoordinatorLoadInProgress("reading"))
    assert me.effects == []
    assert isinstance(me.wait(0.1)[0], AskCoordinator)


def test_nobody_answers() -> None:
    """The rebalance may take its time; beyond that the question is lost, and asked again."""
    me = Alone()
    me.start()
    first = me.asked[JoinGroup]
    assert first.deadline == me.now + 35.0
    assert me.wait(34.9) == []
    assert [type(one) for one in me.wait(0.3)] == [ForgetCoordinator, AskCoordinator]
    assert not me.membership.expects(first.token)
    assert me.do(me.membership.on_answer, first.token, JoinGroupReply()) == []


def test_an_id_that_nobody_knows_is_dropped() -> None:
    """The coordinator has forgotten it: it joins as a new one, after a pause."""
    me = Alone()
    me.start()
    me.answer(JoinGroup, JoinGroupReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id="old"))
    me.answer(JoinGroup, JoinGroupReply(error=ErrorCode.UNKNOWN_MEMBER_ID))
    assert me.effects == []
    me.wait(0.1)
    assert me.request.member_id == ""


@pytest.mark.parametrize(
    ("code", "member_id"),
    [(ErrorCode.UNKNOWN_MEMBER_ID, ""), (ErrorCode.ILLEGAL_GENERATION, "me")],
)
def test_a_sync_that_comes_too_late(code: ErrorCode, member_id: str) -> None:
    """The generation is over: it joins anew, with its id if that is known still."""
    me = Alone()
    me.start()
    me.join()
    me.answer(SyncGroup, SyncGroupReply(error=code))
    me.wait(0.1)
    assert isinstance(me.request, JoinGroup)
    assert me.request.member_id == member_id
    assert me.membership.generation == -1


def test_the_group_deals_anew_before_the_plan_is_there() -> None:
    """It joins again at once."""
    me = Alone()
    me.start()
    me.join()
    me.answer(SyncGroup, SyncGroupReply(error=ErrorCode.REBALANCE_IN_PROGRESS))
    assert isinstance(me.request, JoinGroup)


@pytest.mark.parametrize("fields", [{"protocol": "unheard"}, {"generation": -1}])
def test_an_answer_that_makes_no_sense(fields: dict[str, str | int]) -> None:
    """It is taken for none."""
    me = Alone()
    me.start()
    good = {"generation": 1, "protocol": "cooperative_sticky", "member_id": "me", "leader": "x"}
    me.answer(JoinGroup, JoinGroupReply(**(good | fields)))  # type: ignore[arg-type]
    (effect,) = me.of(ForgetCoordinator)
    assert isinstance(effect.error, RemoteProtocolError)
    assert me.membership.state is State.JOINING


def test_a_part_that_nobody_can_read_is_the_end() -> None:
    """A leader of another version: it says so, and does not keep the others waiting."""
    me = Alone()
    me.start()
    me.join()
    me.answer(SyncGroup, SyncGroupReply(assignment=b"\x91\x02"))
    leave, fail = me.effects
    assert isinstance(leave, AskCoordinator)
    assert isinstance(leave.request, LeaveGroup)
    assert isinstance(fail, Fail)
    assert "format 2" in str(fail.error)


@pytest.mark.parametrize("code", FATAL)
def test_what_no_repetition_mends(code: ErrorCode) -> None:
    """It is told, and nothing follows, whatever else happens."""
    me = Alone(group_instance_id="i")
    me.start()
    me.answer(JoinGroup, JoinGroupReply(error=code, message="no"))
    (effect,) = me.effects
    assert isinstance(effect, Fail)
    assert type(effect.error) is type(error_for(code, "no"))
    assert me.membership.state is State.FENCED
    assert me.wait(1000.0) == []
    assert me.do(me.membership.subscribe, "xyz") == []
    assert me.do(me.membership.on_metadata, {"a": 3}) == []


def test_a_request_that_nobody_takes_is_the_end() -> None:
    """Its subscription is too long, say: that is told before it leaves."""
    me = Alone()
    me.start()
    me.answer(JoinGroup, InvalidRequest("JoinGroup: too long"))
    assert [type(one) for one in me.effects] == [Fail]


def test_other_topics_while_it_joins() -> None:
    """It joins again with those, and waits for no answer to the first request."""
    me = Alone("a")
    me.start()
    first = me.asked[JoinGroup].token
    me.do(me.membership.subscribe, "ab")
    assert me.claim.topics == {"a", "b"}
    assert not me.membership.expects(first)
    assert me.do(me.membership.subscribe, "ba") == []


def test_other_topics_while_it_waits_for_its_part() -> None:
    """What it gets is of its old subscription: it takes that, and joins again."""
    me = Alone("a")
    me.start()
    me.join()
    assert me.do(me.membership.subscribe, "ab") == [WatchTopics(("a", "b"))]
    me.sync("a0")
    assert [type(one) for one in me.effects] == [Assign, AskCoordinator]
    assert me.claim.topics == {"a", "b"}


def test_a_connection_breaks_while_it_waits_for_its_part() -> None:
    """It asks for that again, in the same generation."""
    me = Alone()
    me.start()
    me.join(3)
    me.answer(SyncGroup, Disconnected("gone"))
    me.wait(0.1)
    assert isinstance(me.request, SyncGroup)
    assert me.request.generation == 3
