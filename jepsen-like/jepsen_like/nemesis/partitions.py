"""Network partitions: shapes (majority, ring, one-way, leader cut off) as sets of one-way cuts.

Owns the shapes (`grudge`, pure), and the fault that applies one. Packets are dropped silently, as
with a cable that was pulled.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, TypeAlias

from jepsen_like.nemesis import kinds as parts
from jepsen_like.nemesis.machines import host_of
from jepsen_like.network.hosts import CLIENTS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from jepsen_like.nemesis.fault import Scene, Told

Cuts: TypeAlias = frozenset[tuple[str, str]]  # what the first one sends does not reach the second


def grudge(shape: str, players: Sequence[int], nodes: Sequence[int], random: Random) -> Cuts:
    """The cuts of a partition of this shape.

    1. `ring`: each node sees a majority, and no two the same one.
    2. `one way`: the target receives nothing, or nothing that it sends is received.
    3. `clients from leader`, and the other pairs: all other hosts reach both. `leader from
       followers`: clients reach it, and it accepts what it cannot replicate.
    4. A role: the nodes that have it are on a side of their own. Clients reach both sides, one of
       which must answer that it does not know; or they are with the others.
    """
    if shape == parts.RING:
        return _ring(players)
    if shape == parts.ONE_WAY:
        return _one_way(players[0], nodes, is_deaf=random.random() < 1 / 2)
    if shape == parts.FROM_CLIENTS:
        return _both_ways([host_of(players[0])], [CLIENTS.name])
    if shape in (parts.FROM_CONTROLLER, parts.FROM_FOLLOWER):
        return _both_ways([host_of(players[0])], [host_of(players[1])])
    others = [host_of(node) for node in nodes if node not in players]
    if shape == parts.FROM_FOLLOWERS:
        return _both_ways([host_of(players[0])], others)
    far = others if random.random() < 1 / 2 else [*others, CLIENTS.name]
    return _both_ways([host_of(node) for node in players], far)


def _both_ways(some: Sequence[str], others: Sequence[str]) -> Cuts:
    there = frozenset((one, other) for one in some for other in others if one != other)
    return there | {(other, one) for one, other in there}


def _ring(nodes: Sequence[int]) -> Cuts:
    """In a circle, each sees itself and the nearest ones up to a majority. Three nodes are all
    neighbours: there, each one does not hear one neighbour only."""
    count = len(nodes)
    if count <= 3:
        following = zip(nodes, [*nodes[1:], *nodes[:1]], strict=True)
        return frozenset((host_of(one), host_of(next_)) for one, next_ in following if one != next_)
    reach = (count // 2 + 1) // 2
    return frozenset(
        (host_of(nodes[one]), host_of(nodes[other]))
        for one, other in permutations(range(count), 2)
        if min((one - other) % count, (other - one) % count) > reach
    )


def _one_way(node: int, nodes: Sequence[int], *, is_deaf: bool) -> Cuts:
    others = [host_of(other) for other in nodes if other != node]
    here = host_of(node)
    return frozenset((other, here) if is_deaf else (here, other) for other in others)


class Partition:
    def __init__(self, scene: Scene) -> None:
        self._scene, self._is_cut = scene, False

    def begin(self) -> Told:
        scene, links = self._scene, self._scene.machines.links
        assert links is not None, "a cluster without a network of its own has no partitions"
        cuts = sorted(grudge(scene.whom, scene.nodes, scene.machines.node_ids, scene.random))
        self._is_cut = True
        for source, target in cuts:
            links.cut(source, target)
        return {"cuts": [f"{source}>{target}" for source, target in cuts]}

    def end(self) -> Told:
        links = self._scene.machines.links
        if self._is_cut and links is not None:
            links.heal()
        self._is_cut = False
        return {}
