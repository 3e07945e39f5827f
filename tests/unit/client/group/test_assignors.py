"""What each assignor deals out, by example; and what all of them promise, by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.group.assignors.assignor import PROBLEMS_MAX, problems_of
from raftmq.client.group.assignors.range_and_round_robin import RangeAssignor, RoundRobinAssignor
from raftmq.client.group.assignors.registry import ASSIGNORS, assignors_of
from raftmq.errors import InvalidConfig
from tests.unit.client.group.groups import COUNTS, groups, keys_of, member, texts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

    from raftmq.client.group.assignors.assignor import Key, Subscribed

EVERY = pytest.mark.parametrize("name", list(ASSIGNORS))


def test_range_deals_each_topic_in_runs() -> None:
    """Two topics side by side: the first member has the first half of both."""
    plan = RangeAssignor().assign({"a": 3, "b": 3}, [member("y", "ab"), member("x", "ab")])
    assert texts(plan) == {"x": "a0 a1 b0 b1", "y": "a2 b2"}


def test_range_knows_who_subscribes() -> None:
    """A topic goes to its subscribers; one without any, to nobody."""
    plan = RangeAssignor().assign(
        {"a": 2, "b": 2, "c": 1}, [member("x", "a"), member("y", "ab"), member("z", "d")]
    )
    assert texts(plan) == {"x": "a0", "y": "a1 b0 b1", "z": ""}


def test_round_robin_deals_like_cards() -> None:
    """All topics in one row; the second one goes on where the first one stopped."""
    plan = RoundRobinAssignor().assign({"a": 3, "b": 3}, [member("x", "ab"), member("y", "ab")])
    assert texts(plan) == {"x": "a0 a2 b1", "y": "a1 b0 b2"}


def test_round_robin_passes_over_who_does_not_subscribe() -> None:
    """It is the next subscriber's turn."""
    plan = RoundRobinAssignor().assign({"a": 1, "b": 3}, [member("x", "a"), member("y", "ab")])
    assert texts(plan) == {"x": "a0", "y": "b0 b1 b2"}


@EVERY
def test_static_members_keep_their_place(name: str) -> None:
    """One restarts and gets another id: nothing changes for anybody."""
    before = [member("x", instance_id="one"), member("y", instance_id="two"), member("z")]
    after = [member("zz", instance_id="one"), member("y", instance_id="two"), member("z")]
    first, second = (texts(ASSIGNORS[name].assign({"a": 5}, each)) for each in (before, after))
    assert second["zz"] == first["x"]
    assert second["y"] == first["y"]


@EVERY
@given(partitions=COUNTS, members=groups())
def test_each_partition_to_one_subscriber(
    name: str, partitions: dict[str, int], members: list[Subscribed]
) -> None:
    """Whatever they claim: disjoint, only to subscribers, and complete but for what is held."""
    assignor = ASSIGNORS[name]
    plan = assignor.assign(partitions, members)
    assert not problems_of(plan, partitions, members, is_partial=assignor.is_cooperative)
    assert plan.keys() == {one.member_id for one in members}
    given_out = [key for keys in plan.values() for key in keys]
    assert len(given_out) == len(set(given_out))
    missing = keys_of(partitions, members).difference(given_out)
    held = {key for one in members if one.is_holding for key in one.owned}
    assert missing <= (held if assignor.is_cooperative else set())


@EVERY
@given(partitions=COUNTS, members=groups(), random=st.randoms(use_true_random=False))
def test_order_does_not_matter(
    name: str, partitions: dict[str, int], members: list[Subscribed], random: Random
) -> None:
    """Every leader says the same, in whatever order it hears of topics and members."""
    first = ASSIGNORS[name].assign(partitions, members)
    topics = random.sample(sorted(partitions), len(partitions))
    others = random.sample(members, len(members))
    others = [one._replace(owned=frozenset(sorted(one.owned, reverse=True))) for one in others]
    second = ASSIGNORS[name].assign({topic: partitions[topic] for topic in topics}, others)
    assert texts(first) == texts(second)


# -- a program's own ---------------------------------------------------------------------------


def all_to_the_first(
    partitions: Mapping[str, int], members: Sequence[Subscribed]
) -> Mapping[str, Sequence[Key]]:
    keys = [(topic, number) for topic in partitions for number in range(partitions[topic])]
    return {members[0].member_id: keys}


def test_a_function_of_a_program() -> None:
    """It has a name, its members are eager, and whom it does not name gets nothing.

    A8.3, A17.6.
    """
    (assignor,) = assignors_of(all_to_the_first)
    assert (assignor.name, assignor.is_cooperative) == ("all_to_the_first", False)
    assert texts(assignor.assign({"a": 2}, [member("x"), member("y")])) == {"x": "a0 a1"}


@pytest.mark.parametrize(
    ("answered", "problem"),
    [
        ({"x": [("a", 0)]}, "a-1 is given to no member"),
        ({"x": [("a", 0), ("a", 1), ("a", 1)]}, "a-1 is given to 'x' and to 'x'"),
        ({"x": [("a", 0), ("a", 1)], "y": [("a", 0)]}, "which does not subscribe"),
        ({"x": [("a", 0), ("a", 1)], "z": []}, "a part for 'z', which is no member"),
        ({"x": [("a", 0), ("a", 1), ("a", 2)]}, "a-2 is given to 'x': the topic has 2 partitions"),
        ({"x": [("a", -1)]}, "the topic has 2 partitions"),
        ({"x": [("a", 0), ("a", True)]}, "('a', True) is no pair"),
        ({"x": "a"}, "expected a list, not str"),
        ([], "expected parts by member id, not list"),
        (None, "not NoneType"),
    ],
)
def test_a_wrong_plan_is_refused(answered: object, problem: str) -> None:
    """The function answers something else than a plan: what is wrong is named, and who it was."""

    def wrong(_partitions: object, _members: object) -> object:
        return answered

    (assignor,) = assignors_of(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig) as caught:
        assignor.assign({"a": 2}, [member("x"), member("y", "b")])
    assert problem in str(caught.value)
    assert "assignor 'wrong'" in str(caught.value)


def test_a_function_that_raises() -> None:
    """Its error is told, and kept as the cause."""

    def broken(_partitions: object, _members: object) -> Mapping[str, Sequence[Key]]:
        raise KeyError("weights")

    (assignor,) = assignors_of(broken)
    with pytest.raises(InvalidConfig, match=r"'broken' has failed: KeyError: 'weights'") as caught:
        assignor.assign({"a": 2}, [member("x")])
    assert isinstance(caught.value.__cause__, KeyError)


def test_many_problems_are_cut_short() -> None:
    """A plan that leaves out a thousand partitions: the first ones, and how many more."""
    problems = problems_of({}, {"a": 1000}, [member("x")])
    assert len(problems) == PROBLEMS_MAX + 1
    assert problems[-1] == f"and {1000 - PROBLEMS_MAX} more"


# -- by name -----------------------------------------------------------------------------------


def test_assignors_by_name() -> None:
    """One or several, in the order of preference."""
    assert [each.name for each in assignors_of("range")] == ["range"]
    several = assignors_of(["sticky", all_to_the_first, "range"])
    assert [each.name for each in several] == ["sticky", "all_to_the_first", "range"]


@pytest.mark.parametrize(
    ("wished", "problem"),
    [
        ("stiky", "did you mean 'sticky'?"),
        ("fair", "expected cooperative_sticky, sticky, round_robin, range"),
        (["range", "range"], "given twice"),
        ([], "expected 1 to 10, not 0"),
        (7, "expected a name, or a function that has one"),
        (lambda partitions, members: {}, "expected a name, or a function that has one"),
    ],
)
def test_what_is_no_assignor(wished: object, problem: str) -> None:
    """A mistake in the options is told before anybody joins."""
    with pytest.raises(InvalidConfig) as caught:
        assignors_of(wished)  # type: ignore[arg-type]
    assert problem in str(caught.value)


def test_names_of_ours_are_taken() -> None:
    """Members that mean different rules by one name would never notice."""

    def sticky(
        partitions: Mapping[str, int], members: Sequence[Subscribed]
    ) -> dict[str, list[Key]]:
        return {}

    with pytest.raises(InvalidConfig, match="that is one of ours"):
        assignors_of(sticky)
