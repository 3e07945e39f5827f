"""Power cuts: the process is killed, and writes that were not synced are lost.

Legal at any time and for any number of nodes: disks keep what they have synced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jepsen_like.nemesis.fault import start_missing

if TYPE_CHECKING:
    from jepsen_like.nemesis.fault import Scene, Told


class PowerCut:
    """With `second_after_seconds`, power comes back for so long and is lost again: recovery must
    bear to be interrupted."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._has_begun = scene, False

    def begin(self) -> Told:
        machines, nodes = self._scene.machines, self._scene.nodes
        self._has_begun = True
        machines.cut_power(nodes)
        second = self._scene.params.get("second_after_seconds")
        if second:
            start_missing(machines, nodes)
            self._scene.sleep(second)
            machines.cut_power(nodes)
        return {"cuts": 2 if second else 1}

    def end(self) -> Told:
        has_begun, self._has_begun = self._has_begun, False
        if has_begun:
            start_missing(self._scene.machines, self._scene.nodes)
        return {}
