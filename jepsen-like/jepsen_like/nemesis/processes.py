"""Process faults: SIGKILL, SIGSTOP (pause), and the freezer of control groups.

A killed process leaves the page cache behind: what it wrote is there, synced or not. A paused one
keeps its connections, and goes on later as if nothing had happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jepsen_like.nemesis.fault import start_missing

if TYPE_CHECKING:
    from jepsen_like.nemesis.fault import Scene, Told


class Kill:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._killed: tuple[int, ...] = ()

    def begin(self) -> Told:
        self._killed = tuple(self._scene.running())
        for node in self._killed:
            self._scene.machines.kill(node)
        return {"killed": list(self._killed)}

    def end(self) -> Told:
        killed, self._killed = self._killed, ()
        start_missing(self._scene.machines, killed)
        return {}


class _StandStill:
    """Attributes:
    scene: whom it hits.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._stopped: list[int] = []

    def begin(self) -> Told:
        for node in self.scene.running():
            self._stopped.append(node)
            self.stop(node)
        return {"stopped": list(self._stopped)}

    def end(self) -> Told:
        while self._stopped:
            node = self._stopped[-1]
            if self.scene.machines.is_running(node):
                self.go_on(node)
            self._stopped.pop()
        return {}

    def stop(self, node: int) -> None:
        raise NotImplementedError

    def go_on(self, node: int) -> None:
        raise NotImplementedError


class Pause(_StandStill):
    """By a signal: each thread stops where it is."""

    def stop(self, node: int) -> None:
        self.scene.machines.pause(node)

    def go_on(self, node: int) -> None:
        self.scene.machines.resume(node)


class Freezer(_StandStill):
    """By the control group, with everything that the node has started."""

    def stop(self, node: int) -> None:
        self.scene.machines.freeze(node)

    def go_on(self, node: int) -> None:
        self.scene.machines.thaw(node)
