"""How a member stays: heartbeats, its session by its own clock, what it hears of the group."""

from __future__ import annotations

import pytest

from raftmq.client.group.effects import (
    AskCoordinator,
    Assign,
    Fail,
    ForgetCoordinator,
    LossCause,
    Lost,
    Revoke,
    State,
)
from raftmq.errors import (
    CoordinatorLoadInProgress,
    Disconnected,
    ErrorCode,
    FencedInstanceId,
    IllegalGeneration,
    NotCoordinator,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
)
from raftmq.wire.messages.groups import (
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinGroupReply,
    SyncGroup,
)
from tests.unit.client.group.alone import HEARTBEAT, REBALANCE, SESSION, Alone, keys

REBALANCING = HeartbeatReply(error=ErrorCode.REBALANCE_IN_PROGRESS)


def test_heartbeats_have_a_pace() -> None:
    """One each interval, counted from when the last one left."""
    me = Alone().read("a0")
    begin = me.now
    for count in range(1, 5):
        me.wait(me.membership.deadline() - me.now)
        assert me.now == begin + count * HEARTBEAT
        assert (me.request.generation, me.request.member_id) == (1, "me")
        me.now += 0.5
        assert me.answer(Heartbeat, HeartbeatReply()) == []


def test_what_it_commits_by_a_transaction_is_of_a_saved_generation() -> None:
    """Between JoinGroup and SyncGroup it still holds what it had. The number that it was told may
    never be saved, and be another generation's under the next coordinator (A11.3)."""
    me = Alone().read("a0", 3)
    me.beat(REBALANCING)
    me.join(4)
    assert me.membership.held == set(keys("a0"))
    owned = me.membership.owned_partitions
    assert (me.membership.identity.generation, owned.generation) == (4, 3)
    me.sync("a0")
    assert owned.generation == 4


def test_an_eager_member_gives_up_everything_first() -> None:
    """The group deals anew: it joins once its program has finished, and remembers what it had."""
    me = Alone(assignor="sticky").read("a0 a1", 3)
    settled_at = me.now
    me.beat(REBALANCING)
    assert me.effects == [Revoke(1, keys("a0 a1"), settled_at + REBALANCE)]
    assert me.membership.state is State.REVOKING
    assert me.membership.held == set(keys("a0 a1"))
    assert not me.membership.may_hand_out(("a", 0), now=me.now)
    me.do(me.membership.on_revoked, 1)
    assert isinstance(me.request, JoinGroup)
    assert me.membership.held == set()
    assert (me.claim.owned, me.claim.generation) == (set(keys("a0 a1")), 3)
    assert not me.claim.is_holding


def test_a_cooperative_member_goes_on_reading() -> None:
    """It joins at once and says what it holds."""
    me = Alone().read("a0 a1", 3)
    me.beat(REBALANCING)
    assert isinstance(me.request, JoinGroup)
    assert (me.claim.owned, me.claim.generation) == (set(keys("a0 a1")), 3)
    assert me.claim.is_holding
    assert me.membership.may_hand_out(("a", 0), now=me.now)


def test_a_cooperative_member_gives_up_what_moves_and_joins_once_more() -> None:
    """The new plan leaves it a part: the rest is finished, then handed over."""
    me = Alone().read("a0 a1", 3)
    me.beat(REBALANCING)
    me.join(4)
    me.sync("a0 a2")
    assert me.effects == [
        Assign(keys("a2"), 4),
        Revoke(1, keys("a1"), me.now + REBALANCE),
    ]
    assert me.membership.may_hand_out(("a", 2), now=me.now)
    assert not me.membership.may_hand_out(("a", 1), now=me.now)
    me.beat()
    me.do(me.membership.on_revoked, 1)
    assert (me.claim.owned, me.claim.generation) == (set(keys("a0 a2")), 4)
    me.join(5)
    me.sync("a0 a2")
    assert me.effects == [Assign((), 5)]
    assert me.membership.state is State.STABLE


def test_members_of_which_one_assignor_is_eager_are_eager() -> None:
    """Nobody knows which one the group will agree on."""
    me = Alone(assignor=["cooperative_sticky", "range"]).read("a0")
    me.beat(REBALANCING)
    assert me.of(Revoke)


def test_a_silent_coordinator_takes_everything() -> None:
    """The session counts from when the last good heartbeat left, and not from its answer."""
    me = Alone().read("a0 a1")
    me.wait(HEARTBEAT)
    sent_at = me.now
    me.now += 1.5
    me.answer(Heartbeat, HeartbeatReply())
    effects = me.wait(sent_at + SESSION - me.now)
    assert effects[-2] == Lost(keys("a0 a1"))
    assert me.now == sent_at + SESSION
    assert isinstance(effects[-1], AskCoordinator)
    assert me.joined.member_id == "me"
    assert me.claim.owned == set()


def test_a_late_answer_still_counts() -> None:
    """The process stood still; what comes first then is the answer to an old heartbeat."""
    me = Alone().read("a0")
    began = me.now
    me.wait(HEARTBEAT)
    me.now = began + SESSION + 1.0
    assert me.membership.held_until == began + SESSION
    assert not me.membership.may_hand_out(("a", 0), now=me.now)
    assert me.answer(Heartbeat, HeartbeatReply()) == []
    assert me.membership.held_until == began + HEARTBEAT + SESSION
    assert me.membership.may_hand_out(("a", 0), now=me.now)


def test_whatever_comes_late_finds_nothing_held() -> None:
    """The process stood still for longer: what it had is lost before anything else is done."""
    me = Alone().read("a0")
    me.now += SESSION + 1.0
    assert [type(one) for one in me.do(me.membership.on_metadata, {"a": 1})] == [
        Lost,
        AskCoordinator,
    ]


def test_a_part_that_comes_late_is_not_taken() -> None:
    """The session may be over by then: it joins anew."""
    me = Alone()
    me.start()
    me.join()
    me.now += SESSION
    me.sync("a0")
    assert not me.of(Assign)
    assert isinstance(me.request, JoinGroup)


def test_heartbeats_go_on_while_joins_wait() -> None:
    """So what a cooperative member holds stays its own, however long the others take."""
    me = Alone().read("a0")
    me.beat(REBALANCING)
    for _ in range(16):
        me.beat(REBALANCING)
    assert me.now > 100.0 + REBALANCE > 100.0 + SESSION
    me.join(2)
    me.sync("a0")
    assert me.effects == [Assign((), 2)]


def test_a_group_that_waits_for_us_waits_only_so_long() -> None:
    """The program does not finish; the others may have got it all, though heartbeats are fine."""
    me = Alone(assignor="range").read("a0 a1")
    me.beat()
    settled_at = me.now
    me.beat(REBALANCING)
    while me.now < settled_at + REBALANCE - HEARTBEAT:
        me.beat(REBALANCING)
    effects = me.wait(settled_at + REBALANCE - me.now)
    assert Lost(keys("a0 a1")) in effects
    assert me.membership.state is State.JOINING
    assert me.do(me.membership.on_revoked, 1) == []


def test_a_cooperative_member_finishes_late() -> None:
    """What it should have given up is lost; the rest it keeps."""
    me = Alone().read("a0 a1")
    me.beat(REBALANCING)
    me.join(2)
    me.sync("a0")
    settled_at = me.now
    while me.now < settled_at + REBALANCE - HEARTBEAT:
        me.beat()
    effects = me.wait(settled_at + REBALANCE - me.now)
    assert Lost(keys("a1")) in effects
    assert [one.cause for one in effects if isinstance(one, Lost)] == [LossCause.NOT_FINISHED]
    assert me.membership.held == set(keys("a0"))
    assert me.claim.owned == set(keys("a0"))


@pytest.mark.parametrize(
    ("code", "member_id"),
    [(ErrorCode.UNKNOWN_MEMBER_ID, ""), (ErrorCode.ILLEGAL_GENERATION, "me")],
)
def test_who_was_put_out_has_lost_everything(code: ErrorCode, member_id: str) -> None:
    """It joins anew at once, with its id if that is known still."""
    me = Alone().read("a0")
    me.beat(HeartbeatReply(error=code))
    assert me.effects[0] == Lost(keys("a0"))
    assert me.request.member_id == member_id
    assert me.claim.owned == set()


@pytest.mark.parametrize(
    ("code", "ends"), [(ErrorCode.FENCED_INSTANCE_ID, True), (ErrorCode.UNKNOWN_MEMBER_ID, False)]
)
def test_a_static_member_that_nobody_knows_asks_who_has_its_place(
    code: ErrorCode, ends: bool
) -> None:
    """It joins with the id that it had: so it ends if another process is that member now, and joins
    anew only if none is."""
    me = Alone(group_instance_id="i").read("a0")
    me.beat(HeartbeatReply(error=ErrorCode.UNKNOWN_MEMBER_ID))
    assert me.effects[0] == Lost(keys("a0"))
    assert (me.request.member_id, me.request.instance_id) == ("me", "i")
    me.answer(JoinGroup, JoinGroupReply(error=code))
    assert bool(me.of(Fail)) == ends
    me.wait(1.0)
    assert [one.request.member_id for one in me.of(AskCoordinator)] == ([] if ends else [""])


def test_an_old_generation_while_it_joins() -> None:
    """The answer to its join is on its way: that tells the new one."""
    me = Alone().read("a0")
    me.beat(REBALANCING)
    me.beat(HeartbeatReply(error=ErrorCode.ILLEGAL_GENERATION))
    assert me.effects == []
    assert me.membership.held == set(keys("a0"))


def test_another_process_has_its_name() -> None:
    """The instance id is used twice: this one ends, and does not take the other one with it."""
    me = Alone(group_instance_id="i").read("a0")
    me.beat(HeartbeatReply(error=ErrorCode.FENCED_INSTANCE_ID))
    lost, fail = me.effects
    assert lost == Lost(keys("a0"))
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, FencedInstanceId)
    assert me.wait(100.0) == []


def test_a_heartbeat_that_fails_doubts_the_coordinator() -> None:
    """The next one leaves soon, and finds another one."""
    me = Alone().read("a0")
    error = Disconnected("gone")
    me.beat(error)
    assert me.effects == [ForgetCoordinator(error)]
    me.wait(0.1)
    assert isinstance(me.request, Heartbeat)


def test_a_join_that_waits_where_nobody_answers_is_asked_again() -> None:
    """A heartbeat finds out that somebody else coordinates now."""
    me = Alone().read("a0")
    me.beat(REBALANCING)
    waiting = me.asked[JoinGroup].token
    me.beat(NotCoordinator("elsewhere"))
    assert not me.membership.expects(waiting)
    me.wait(0.1)
    assert me.asked[JoinGroup].token != waiting
    assert me.membership.expects(me.asked[JoinGroup].token)


def test_a_join_waits_while_its_coordinator_loads() -> None:
    """Only the heartbeat is sent again."""
    me = Alone().read("a0")
    me.beat(REBALANCING)
    waiting = me.asked[JoinGroup].token
    me.beat(CoordinatorLoadInProgress("reading"))
    assert me.effects == []
    assert me.membership.expects(waiting)


def test_heartbeats_before_a_join_is_repeated_prove_nothing() -> None:
    """The group deals anew and our join did not arrive: it does not wait for us for ever."""
    me = Alone().read("a0")
    settled_at = me.now
    me.beat(REBALANCING)
    me.answer(JoinGroup, Disconnected("gone"))
    while me.now < settled_at + REBALANCE - 2 * HEARTBEAT:
        me.wait(me.membership.deadline() - me.now)
        asked = me.asked.pop(JoinGroup, None)
        if asked is not None:
            me.do(me.membership.on_answer, asked.token, Disconnected("gone"))
        beat = me.asked.pop(Heartbeat, None)
        if beat is not None and asked is None:
            me.do(me.membership.on_answer, beat.token, REBALANCING)
    assert me.membership.held_until <= settled_at + REBALANCE


def test_a_heartbeat_that_nobody_answers() -> None:
    """A third of the session is long enough: then another one leaves."""
    me = Alone().read("a0")
    me.wait(HEARTBEAT)
    first = me.asked[Heartbeat]
    assert first.deadline == me.now + SESSION / 3
    forget, beat = me.wait(SESSION / 3 + 0.1)
    assert isinstance(forget, ForgetCoordinator)
    assert isinstance(forget.error, RequestTimedOut)
    assert isinstance(beat, AskCoordinator)
    assert me.do(me.membership.on_answer, first.token, REBALANCING) == []


def test_dealing_anew_is_heard_while_it_waits_for_its_part() -> None:
    """It joins again, and what the old plan would have given it does not matter."""
    me = Alone()
    me.start()
    me.join()
    waiting = me.asked[SyncGroup].token
    me.beat(REBALANCING)
    assert isinstance(me.request, JoinGroup)
    assert not me.membership.expects(waiting)


# -- what a commit is refused with -----------------------------------------------------------


def test_a_refused_commit_tells_what_a_heartbeat_would() -> None:
    """The group deals anew: no need to wait for the next heartbeat."""
    me = Alone().read("a0", 5)
    me.do(me.membership.on_refused, RebalanceInProgress("joins"), generation=5)
    assert isinstance(me.request, JoinGroup)
    assert me.do(me.membership.on_refused, RebalanceInProgress("joins"), generation=5) == []


def test_a_commit_of_somebody_who_was_put_out() -> None:
    """Everything is lost."""
    me = Alone().read("a0", 5)
    me.do(me.membership.on_refused, UnknownMemberId("who?"), generation=5)
    assert me.effects[0] == Lost(keys("a0"))


@pytest.mark.parametrize("generation", [-1, 4])
def test_what_is_said_of_another_generation_does_not_matter(generation: int) -> None:
    """It was asked before the last rebalance, or by nobody in particular."""
    me = Alone().read("a0", 5)
    assert me.do(me.membership.on_refused, IllegalGeneration("old"), generation=generation) == []


def test_errors_of_the_commit_itself_are_no_business_of_membership() -> None:
    """Those that say to try again are; any other is told to whoever commits."""
    me = Alone().read("a0", 5)
    assert me.do(me.membership.on_refused, NotCoordinator("elsewhere"), generation=5) == []
    assert me.do(me.membership.on_refused, OffsetMetadataTooLarge("long"), generation=5) == []
    assert me.membership.state is State.STABLE
