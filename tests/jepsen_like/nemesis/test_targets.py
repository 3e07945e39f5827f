"""Whom a fault hits, with and without knowing who plays which part."""

from __future__ import annotations

from random import Random

import pytest

from jepsen_like.nemesis import kinds as parts
from jepsen_like.nemesis.kinds import KINDS
from jepsen_like.nemesis.targets import Roles, Target, read_roles, resolve
from tests.jepsen_like.nemesis.scripted_machines import NOBODY, ScriptedView

NODES = (1, 2, 3)
ROLES = Roles({"a-0": 1, "b-0": 2}, controller=2, coordinators={"g": 3})


def drawn(whom: str, roles: Roles = ROLES, nodes: tuple[int, ...] = NODES) -> list[Target]:
    return [resolve(whom, roles, nodes, Random(seed)) for seed in range(40)]


def groups(targets: list[Target]) -> set[tuple[int, ...]]:
    return {group for target in targets for group in target.groups}


def test_the_leader_is_rather_not_the_controller() -> None:
    """Two keys, one of them led by the controller: the other leader is hit, and its key told."""
    assert set(drawn(parts.LEADER)) == {Target(((1,),), "a-0")}
    only = Roles({"b-0": 2}, controller=2)
    assert groups(drawn(parts.LEADER, only)) == {(2,)}


def test_a_follower_leads_not_that_key_and_is_rather_not_the_controller() -> None:
    """The leader of a-0 is 1, the controller 2."""
    assert groups(drawn(parts.FOLLOWER)) == {(3,)}


def test_the_coordinator_of_some_group_is_hit() -> None:
    """Of two groups, either one's."""
    assert set(drawn(parts.COORDINATOR)) == {Target(((3,),))}
    two = Roles({}, None, {"g": 3, "h": 1})
    assert groups(drawn(parts.COORDINATOR, two)) == {(1,), (3,)}


def test_leader_and_controller_are_hit_together() -> None:
    """Two nodes, or one that is both."""
    assert groups(drawn(parts.BOTH)) == {(1, 2)}
    assert groups(drawn(parts.BOTH, Roles({"a-0": 3}, 3))) == {(3,)}


@pytest.mark.parametrize(
    "whom", [parts.LEADER, parts.FOLLOWER, parts.CONTROLLER, parts.COORDINATOR, parts.BOTH]
)
def test_where_nobody_knows_a_node_is_drawn_and_it_is_said(whom: str) -> None:
    """A view that has heard nothing, or knows only nodes that are none of ours."""
    for roles in (NOBODY, Roles({"a-0": 9}, 9)):
        targets = drawn(whom, roles)
        assert all(target.told() == {"guessed": True} for target in targets)
        assert {node for group in groups(targets) for node in group} == set(NODES)


@pytest.mark.parametrize(
    ("whom", "count"), [("one", 1), ("minority", 2), ("majority", 3), ("all", 5), ("halves", 2)]
)
def test_shares_have_their_size(whom: str, count: int) -> None:
    """Five nodes: how many are hit, and that it is not always the same ones."""
    hit = groups(drawn(whom, nodes=(1, 2, 3, 4, 5)))
    assert {len(group) for group in hit} == {count}
    assert count == 5 or len(hit) > 3


def test_rolling_is_each_in_turn() -> None:
    """Every node once, one after the other."""
    for target in drawn(parts.ROLLING):
        assert sorted(target.groups) == [(1,), (2,), (3,)]


def test_a_leader_is_cut_from_another_node() -> None:
    """Also where the controller leads everything, and where nobody knows."""
    for roles in (ROLES, Roles({"a-0": 2}, 2), NOBODY):
        for whom in (parts.FROM_CONTROLLER, parts.FROM_FOLLOWER):
            assert all(len(set(group)) == 2 for group in groups(drawn(whom, roles)))
    assert groups(drawn(parts.FROM_CONTROLLER)) == {(1, 2)}


def test_a_data_fault_names_single_nodes_only() -> None:
    """The table of kinds: of disks, one at a time."""
    for kind in KINDS.values():
        if kind.is_data_fault:
            targets = [target for whom in kind.whom for target in drawn(whom)]
            assert {len(group) for group in groups(targets)} == {1}


def test_roles_are_read_in_order() -> None:
    """A view whose keys come in any order: chance must not depend on it."""
    view = ScriptedView({"b-0": 2, "a-0": 1}, 3, coordinated_by={"h": 1, "g": 2})
    assert list(read_roles(view).leaders) == ["a-0", "b-0"]
    assert list(read_roles(view).coordinators) == ["g", "h"]
