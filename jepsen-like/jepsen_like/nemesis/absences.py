"""Faults that leave a stale replica alone: pause or cut off one node, then kill the others.

One node misses what is acknowledged while it is away. Then others lose their power: of three nodes
both, and one comes back beside it; of more nodes as many as leave a quorum. Where no node is left
that has all records, none may become leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jepsen_like.nemesis.fault import start_missing
from jepsen_like.nemesis.machines import host_of

if TYPE_CHECKING:
    from jepsen_like.nemesis.fault import Scene, Told

SMALL_CLUSTER = 3


class Absence:
    """Subclasses know how a node is away."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._has_begun = scene, False
        self._absent, *self._others = scene.random.sample(scene.nodes, len(scene.nodes))
        self._is_small = len(scene.nodes) <= SMALL_CLUSTER
        self._victims = self._others if self._is_small else self._others[: len(scene.nodes) // 2]

    def begin(self) -> Told:
        scene = self._scene
        self._has_begun = True
        self._leave()
        scene.sleep(scene.params["away_seconds"])
        power_goes = not scene.machines.capabilities.get("power cuts", "not known")
        self._fell(power_goes=power_goes)
        self._return()
        if self._is_small:
            scene.machines.start(self._victims[0])
        return {"absent": self._absent, "killed": self._victims, "cuts": power_goes}

    def end(self) -> Told:
        has_begun, self._has_begun = self._has_begun, False
        if has_begun:
            self._return()
            start_missing(self._scene.machines, self._scene.nodes)
        return {}

    def _fell(self, *, power_goes: bool) -> None:
        machines = self._scene.machines
        if power_goes:
            machines.cut_power(self._victims)
            return
        for node in self._victims:
            machines.kill(node)

    def _leave(self) -> None:
        raise NotImplementedError

    def _return(self) -> None:
        """Also if it has not left, or has died."""
        raise NotImplementedError


class PauseKill(Absence):
    def _leave(self) -> None:
        self._scene.machines.pause(self._absent)

    def _return(self) -> None:
        self._scene.machines.resume(self._absent)


class PartKill(Absence):
    """Clients can talk to it, and the other nodes cannot."""

    def _leave(self) -> None:
        links = self._scene.machines.links
        assert links is not None, "a cluster without a network of its own has no partitions"
        for other in self._others:
            links.cut(host_of(self._absent), host_of(other))
            links.cut(host_of(other), host_of(self._absent))

    def _return(self) -> None:
        links = self._scene.machines.links
        if links is not None:
            links.heal()
