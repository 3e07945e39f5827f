"""What a leader does for its group: planning, waiting for counts, noticing that they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from raftmq.client.group.effects import (
    AskCoordinator,
    Assign,
    Fail,
    Lost,
    Revoke,
    State,
    WatchTopics,
)
from raftmq.client.group.planning import decode_assignment, encode_assignment
from raftmq.errors import ErrorCode, InconsistentGroupProtocol, InvalidConfig
from raftmq.wire.messages.groups import (
    HeartbeatReply,
    JoinedMember,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
    SyncGroupReply,
)
from tests.unit.client.group.alone import Alone, keys

if TYPE_CHECKING:
    from raftmq.client.group.assignors.assignor import Key


def plan_of(me: Alone) -> dict[str, set[Key]]:
    request = me.asked[SyncGroup].request
    assert isinstance(request, SyncGroup)
    return {
        one.member_id: set(decode_assignment(one.assignment).partitions)
        for one in request.assignments
    }


def a_leader(**options: object) -> Alone:
    """Stable, with three partitions of its own."""
    me = Alone("a", **options)
    me.do(me.membership.on_metadata, {"a": 3})
    me.start()
    me.lead()
    me.sync("a0 a1 a2", {"a": 3})
    return me


def test_the_leader_plans_for_all() -> None:
    """Also of topics to which only others subscribe."""
    me = Alone("a")
    me.start()
    me.do(me.membership.on_metadata, {"a": 2, "b": 2})
    me.lead(1, you="ab")
    assert me.of(WatchTopics) == [WatchTopics(("a", "b"))]
    assert plan_of(me) == {"me": set(keys("a0 a1")), "you": set(keys("b0 b1"))}
    assert me.membership.is_leader


def test_it_tells_whoever_has_to_give_something_up() -> None:
    """A cooperative member holds what is meant for another one, which is nobody's for now."""
    me = a_leader()
    me.beat(HeartbeatReply(error=ErrorCode.REBALANCE_IN_PROGRESS))
    me.lead(2, you="a")
    request = me.asked[SyncGroup].request
    assert isinstance(request, SyncGroup)
    mine, yours = [decode_assignment(one.assignment) for one in request.assignments]
    assert (len(mine.partitions), mine.is_awaited) == (2, True)
    assert (len(yours.partitions), yours.is_awaited) == (0, False)


def test_what_the_process_before_had_is_handed_over() -> None:
    """A static member is back before it has given up what the plan takes from it: it joins again,
    though it holds no more than its part.
    """
    me = Alone("a", group_instance_id="i")
    me.start()
    me.join(7, must_sync_anew=False)
    me.answer(SyncGroup, SyncGroupReply(assignment=encode_assignment(keys("a0"), is_awaited=True)))
    assert [type(one) for one in me.effects] == [Assign, AskCoordinator]
    assert (me.claim.owned, me.claim.generation) == (set(keys("a0")), 7)


def test_it_waits_for_counts_that_it_does_not_know() -> None:
    """Somebody subscribes to a topic of which it has not heard: it asks, and plans then."""
    me = Alone("a")
    me.do(me.membership.on_metadata, {"a": 1})
    me.start()
    me.lead(1, you="b")
    assert me.effects == [WatchTopics(("a", "b"))]
    me.do(me.membership.on_metadata, {"b": 1})
    assert plan_of(me) == {"me": set(keys("a0")), "you": set(keys("b0"))}


def test_it_does_not_wait_for_ever() -> None:
    """Nobody tells: it plans with what it knows; once it is told, the group deals anew."""
    me = Alone("a")
    me.do(me.membership.on_metadata, {"a": 1})
    me.start()
    me.lead(1, you="b")
    me.wait(5.0)
    assert plan_of(me) == {"me": set(keys("a0")), "you": set()}
    me.sync("a0", {"a": 1})
    assert me.membership.state is State.STABLE
    assert me.do(me.membership.on_metadata, {"b": 0}) == []
    me.do(me.membership.on_metadata, {"b": 2})
    assert isinstance(me.request, JoinGroup)


def test_a_topic_grows() -> None:
    """The leader joins again, so that the group deals anew."""
    me = a_leader()
    assert me.do(me.membership.on_metadata, {"a": 3, "z": 9}) == []
    me.do(me.membership.on_metadata, {"a": 4})
    assert isinstance(me.request, JoinGroup)


def test_an_eager_leader_gives_up_first() -> None:
    """As with any other reason to deal anew."""
    me = a_leader(assignor="range")
    me.do(me.membership.on_metadata, {"a": 4})
    assert me.of(Revoke)


def test_a_topic_grows_while_the_plan_is_on_its_way() -> None:
    """It is noticed once the plan is in force."""
    me = Alone("a")
    me.do(me.membership.on_metadata, {"a": 1})
    me.start()
    me.lead()
    assert me.do(me.membership.on_metadata, {"a": 2}) == []
    me.sync("a0", {"a": 1})
    assert [type(one) for one in me.effects] == [Assign, AskCoordinator]


def test_followers_leave_that_to_the_leader() -> None:
    """A topic grows: they go on."""
    me = Alone("a").read("a0")
    assert me.do(me.membership.on_metadata, {"a": 7}) == []
    assert not me.membership.is_leader


def test_a_static_leader_is_back() -> None:
    """The plan stands, so it makes none; it leads all the same, and knows what was planned with."""
    me = Alone("a", group_instance_id="i")
    me.do(me.membership.on_metadata, {"a": 3})
    me.start()
    subscription = me.joined.protocols[0].subscription
    members = (JoinedMember("me", "i", subscription),)
    me.join(7, leader="me", members=members, must_sync_anew=False)
    assert plan_of(me) == {}
    me.sync("a0 a1", {"a": 2})
    assert [type(one) for one in me.effects] == [Assign, AskCoordinator]
    assert isinstance(me.asked[JoinGroup].request, JoinGroup)


def test_a_member_of_another_version_is_the_end() -> None:
    """The leader cannot read what it says, and says who it is."""
    me = Alone("a")
    me.start()
    other = JoinedMember("newer", None, msgspec.msgpack.encode([2, "?"]))
    me.join(1, leader="me", members=(other,))
    (fail,) = me.of(Fail)
    assert isinstance(fail.error, InconsistentGroupProtocol)
    assert "'newer'" in str(fail.error)
    assert isinstance(me.request, LeaveGroup)


def test_a_function_of_the_program_fails() -> None:
    """Its program is told; what it held is lost, and the others need not wait for it."""

    def forgetful(_partitions: object, _members: object) -> dict[str, list[Key]]:
        return {}

    me = Alone("a", assignor=forgetful)
    me.do(me.membership.on_metadata, {"a": 1})
    me.start()
    me.lead()
    (fail,) = me.of(Fail)
    assert isinstance(fail.error, InvalidConfig)
    assert "a-0 is given to no member" in str(fail.error)
    assert isinstance(me.request, LeaveGroup)
    assert me.membership.state is State.FENCED


def test_a_cooperative_leader_loses_what_it_held_when_it_fails() -> None:
    """It cannot commit that any more: the generation is over."""
    me = a_leader()
    me.do(me.membership.on_metadata, {"a": 4})
    other = JoinedMember("newer", None, b"")
    me.join(2, leader="me", members=(other,))
    assert me.of(Lost) == [Lost(keys("a0 a1 a2"))]
    assert me.of(Fail)
