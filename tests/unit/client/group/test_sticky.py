"""Sticky: even, and everybody keeps what that allows; cooperative: nobody gets what is held."""

from __future__ import annotations

from time import process_time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.group.assignors.assignor import Subscribed, claims_of
from raftmq.client.group.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from tests.unit.client.group.groups import COUNTS, groups, keys_of, member, owning, texts

if TYPE_CHECKING:
    from raftmq.client.group.assignors.assignor import Key, Plan

STICKY, COOPERATIVE = StickyAssignor(), CooperativeStickyAssignor()


def loads(plan: Plan) -> list[int]:
    return sorted(map(len, plan.values()))


def standing_claims(members: list[Subscribed], member_id: str) -> set[Key]:
    claims = claims_of(members)
    return {key for key, own in claims.items() if [one.member_id for one in own] == [member_id]}


def can_be_evener(plan: Plan, members: list[Subscribed]) -> bool:
    """Whether somebody with two more could give to another, over others if need be."""
    topics = {one.member_id: one.topics for one in members}
    for poor in plan:
        reached, level = {poor}, [poor]
        while level:
            wanted = frozenset[str]().union(*[topics[one] for one in level])
            level = [
                one
                for one in plan
                if one not in reached and any(topic in wanted for topic, _ in plan[one])
            ]
            reached.update(level)
        if any(len(plan[one]) >= len(plan[poor]) + 2 for one in reached):
            return True
    return False


def test_whoever_comes_gets_its_share() -> None:
    """A third member joins two that have three each: two partitions move, to it."""
    members = [member("x", owned="a0 a2 a4"), member("y", owned="a1 a3 a5"), member("z")]
    assert texts(STICKY.assign({"a": 6}, members)) == {"x": "a0 a2", "y": "a1 a3", "z": "a4 a5"}


def test_what_is_left_is_dealt_out() -> None:
    """A member has gone: the others keep all of theirs."""
    members = [member("x", owned="a0 a2"), member("y", owned="a1 a3")]
    assert texts(STICKY.assign({"a": 6}, members)) == {"x": "a0 a2 a4", "y": "a1 a3 a5"}


def test_of_two_claims_the_newer_one_stands() -> None:
    """A member that missed a generation claims what went to another one meanwhile."""
    members = [member("x", owned="a0 a1", generation=4), member("y", owned="a0 a2", generation=5)]
    assert texts(STICKY.assign({"a": 4}, members)) == {"x": "a1 a3", "y": "a0 a2"}


def test_of_two_equal_claims_neither_stands() -> None:
    """One of them is wrong and nobody knows which: it is dealt out as if it were new."""
    members = [member("x", owned="a0 a1"), member("y", owned="a0")]
    assert texts(STICKY.assign({"a": 2}, members)) == {"x": "a1", "y": "a0"}
    assert texts(COOPERATIVE.assign({"a": 2}, members)) == {"x": "a1", "y": ""}


def test_subscriptions_that_differ_are_evened_over_others() -> None:
    """z can get nothing of x but what y hands on, as y subscribes to both topics."""
    members = [
        member("x", "a", owned="a0 a1 a2 a3"),
        member("y", "ab", owned="b0 b1"),
        member("z", "b"),
    ]
    plan = STICKY.assign({"a": 4, "b": 2}, members)
    assert loads(plan) == [2, 2, 2] or not can_be_evener(plan, members)
    assert len(plan["z"]) >= 1


@given(partitions=COUNTS, members=groups(is_uniform=True))
def test_where_subscriptions_are_equal(
    partitions: dict[str, int], members: list[Subscribed]
) -> None:
    """Nobody has two more than another, and as much stays as that allows at all."""
    plan = STICKY.assign(partitions, members)
    assert max(map(len, plan.values())) - min(map(len, plan.values())) <= 1
    there = keys_of(partitions, members)
    claimed = {one.member_id: standing_claims(members, one.member_id) & there for one in members}
    low, extra = divmod(len(there), len(members))
    above = sum(len(keys) > low for keys in claimed.values())
    most = sum(min(len(keys), low) for keys in claimed.values()) + min(extra, above)
    assert sum(len(claimed[name] & set(plan[name])) for name in plan) == most


@given(partitions=COUNTS, members=groups())
def test_as_even_as_subscriptions_allow(
    partitions: dict[str, int], members: list[Subscribed]
) -> None:
    """No chain of gifts would make it evener."""
    assert not can_be_evener(STICKY.assign(partitions, members), members)


@given(partitions=COUNTS, members=groups())
def test_what_is_even_stays(partitions: dict[str, int], members: list[Subscribed]) -> None:
    """The group deals anew, and nothing has changed: nothing moves."""
    plan = STICKY.assign(partitions, members)
    assert STICKY.assign(partitions, owning(members, plan, 9)) == plan


@given(partitions=COUNTS, members=groups(is_uniform=True))
def test_who_comes_takes_from_others_and_gives_nothing(
    partitions: dict[str, int], members: list[Subscribed]
) -> None:
    """A member joins: what moves, moves to it; it leaves again: nobody else loses anything."""
    before = STICKY.assign(partitions, members)
    newcomer = Subscribed("new", members[0].topics)
    joined = [*owning(members, before, 9), newcomer]
    after = STICKY.assign(partitions, joined)
    assert all(set(after[one.member_id]) <= set(before[one.member_id]) for one in members)
    again = STICKY.assign(partitions, owning(members, after, 10))
    assert all(set(again[one.member_id]) >= set(after[one.member_id]) for one in members)


@given(partitions=COUNTS, members=groups())
def test_cooperative_gives_nobody_what_another_one_holds(
    partitions: dict[str, int], members: list[Subscribed]
) -> None:
    """A claim that stands, of somebody who goes on reading."""
    plan = COOPERATIVE.assign(partitions, members)
    held = claims_of(one for one in members if one.is_holding)
    for name, keys in plan.items():
        for key in keys:
            assert {one.member_id for one in held.get(key, ())} <= {name}


@given(partitions=COUNTS, members=groups(), more=st.integers(0, 3))
def test_cooperative_comes_to_where_sticky_goes(
    partitions: dict[str, int], members: list[Subscribed], more: int
) -> None:
    """Members give up what they did not get and join again: soon it is whole and even."""
    newcomers = [Subscribed(f"new{each}", members[0].topics) for each in range(more)]
    members = [one._replace(is_holding=True) for one in [*members, *newcomers]]
    for generation in range(9, 14):
        plan = COOPERATIVE.assign(partitions, members)
        members = owning(members, plan, generation)
    assert {key for keys in plan.values() for key in keys} == keys_of(partitions, members)
    assert not can_be_evener(plan, members)


@pytest.mark.parametrize(("members", "topics", "seconds_max"), [(50, 1, 0.2), (1_000, 50, 2.0)])
def test_it_is_fast(members: int, topics: int, seconds_max: float) -> None:
    """200 partitions for 50, 10,000 for 1,000, and one more comes (CPU time of this process)."""
    names = frozenset(f"topic{each}" for each in range(topics))
    partitions = dict.fromkeys(names, 200)
    group = [Subscribed(f"m{each}", names) for each in range(members)]
    plan = STICKY.assign(partitions, group)
    begin = process_time()
    STICKY.assign(partitions, [*owning(group, plan, 1), Subscribed("new", names)])
    assert process_time() - begin < seconds_max
