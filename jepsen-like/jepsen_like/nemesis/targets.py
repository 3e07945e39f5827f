"""Targets of a fault: the role it names (leader, controller, follower) resolved to nodes. Pure.

Chance is passed in. Where it is not known which node has the role, one is drawn, and the target
says so.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from jepsen_like.nemesis import kinds as parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

    from jepsen_like.nemesis.machines import View


class Roles(NamedTuple):
    """The nodes' roles at the last observation. `leaders` by key, `coordinators` by group."""

    leaders: Mapping[str, int]
    controller: int | None
    coordinators: Mapping[str, int] = MappingProxyType({})


class Player(NamedTuple):
    """Attributes:
    key: of which it is the leader; empty if of none.
    is_guess: the role's holder was not known, so a node was drawn.
    """

    node: int
    key: str = ""
    is_guess: bool = False


class Target(NamedTuple):
    """Attributes:
    groups: hit one after the other; all of a group at the same time.
    key: whose leader, or follower, was meant; may be empty.
    is_guess: the role's holder was not known.
    """

    groups: tuple[tuple[int, ...], ...]
    key: str = ""
    is_guess: bool = False

    def told(self) -> dict[str, Any]:
        key = {"key": self.key} if self.key else {}
        return key | ({"guessed": True} if self.is_guess else {})


def read_roles(view: View) -> Roles:
    leaders, coordinators = view.leaders(), view.coordinators()
    return Roles(
        {key: leaders[key] for key in sorted(leaders)},
        view.controller(),
        {group: coordinators[group] for group in sorted(coordinators)},
    )


def pick_leader(roles: Roles, nodes: Sequence[int], random: Random) -> Player:
    """Of some key; rather not the controller, which other faults are for."""
    known = [(key, node) for key, node in roles.leaders.items() if node in nodes]
    others = [(key, node) for key, node in known if node != roles.controller]
    if not known:
        return Player(random.choice(nodes), is_guess=True)
    key, node = random.choice(others or known)
    return Player(node, key)


def pick_controller(roles: Roles, nodes: Sequence[int], random: Random) -> Player:
    controller = roles.controller
    if controller is not None and controller in nodes:
        return Player(controller)
    return Player(random.choice(nodes), is_guess=True)


def pick_coordinator(roles: Roles, nodes: Sequence[int], random: Random) -> Player:
    """Of some group."""
    known = [node for node in roles.coordinators.values() if node in nodes]
    return Player(random.choice(known or nodes), is_guess=not known)


def pick_follower(roles: Roles, nodes: Sequence[int], random: Random) -> Player:
    """Of the key of `pick_leader`; rather not the controller."""
    leader = pick_leader(roles, nodes, random)
    rest = [node for node in nodes if node != leader.node]
    calm = [node for node in rest if node != roles.controller]
    return leader._replace(node=random.choice(calm or rest or list(nodes)))


def resolve(whom: str, roles: Roles, nodes: Sequence[int], random: Random) -> Target:
    """
    Args:
        whom: a role, or the shape of a partition. Of a shape, the nodes that have a role in it:
            the one that is cut off first, and in the order of the ring.
    """
    if whom in _PLAYERS:
        player = _PLAYERS[whom](roles, nodes, random)
        return Target(((player.node,),), player.key, player.is_guess)
    if whom in _PAIRS:
        return _PAIRS[whom](roles, nodes, random)
    if whom == parts.ROLLING:
        return Target(tuple((node,) for node in random.sample(nodes, len(nodes))))
    if whom == parts.RING:
        return Target((tuple(random.sample(nodes, len(nodes))),))
    return Target((tuple(sorted(random.sample(nodes, _count(whom, len(nodes))))),))


def _leader_and_controller(roles: Roles, nodes: Sequence[int], random: Random) -> Target:
    leader = pick_leader(roles, nodes, random)
    controller = pick_controller(roles, nodes, random)
    group = tuple(sorted({leader.node, controller.node}))
    return Target((group,), leader.key, leader.is_guess or controller.is_guess)


def _leader_from_controller(roles: Roles, nodes: Sequence[int], random: Random) -> Target:
    """Where the controller leads everything, another node stands in for the leader."""
    controller = pick_controller(roles, nodes, random)
    rest = [node for node in nodes if node != controller.node] or list(nodes)
    leader = pick_leader(roles, rest, random)
    is_guess = leader.is_guess or controller.is_guess
    return Target(((leader.node, controller.node),), leader.key, is_guess)


def _leader_from_follower(roles: Roles, nodes: Sequence[int], random: Random) -> Target:
    leader = pick_leader(roles, nodes, random)
    rest = [node for node in nodes if node != leader.node] or list(nodes)
    return Target(((leader.node, random.choice(rest)),), leader.key, leader.is_guess)


def _count(whom: str, node_count: int) -> int:
    if whom in (parts.ONE, parts.ONE_WAY):
        return 1
    if whom == parts.MINORITY:
        return max(1, (node_count - 1) // 2)
    if whom == parts.HALVES:
        return max(1, node_count // 2)
    return node_count // 2 + 1 if whom == parts.MAJORITY else node_count


_PLAYERS = {
    parts.LEADER: pick_leader,
    parts.FOLLOWER: pick_follower,
    parts.CONTROLLER: pick_controller,
    parts.COORDINATOR: pick_coordinator,
    parts.FROM_FOLLOWERS: pick_leader,
    parts.FROM_CLIENTS: pick_leader,
}
_PAIRS = {
    parts.BOTH: _leader_and_controller,
    parts.FROM_CONTROLLER: _leader_from_controller,
    parts.FROM_FOLLOWER: _leader_from_follower,
}
