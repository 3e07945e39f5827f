"""Disk faults: slow syncs, sync errors, stalls, full disks, and SIGKILL at a chosen sync.

A node may end by itself when its disk fails: it promises to. The caretaker starts it again, while
the disk still fails as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jepsen_like.nemesis.fault import start_missing
from jepsen_like.nemesis.kinds import POWER_CUTS

if TYPE_CHECKING:
    from jepsen_like.nemesis.fault import Scene, Told
    from jepsen_like.nemesis.machines import Page


NOT_FELT = "nothing was synced meanwhile"


class SyncKill:
    """Killed in the middle of a sync, and then without power, where power can be cut: the data of
    this sync may be on the disk or not."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._has_begun = scene, False

    def begin(self) -> Told:
        self._has_begun = True
        for node in self._scene.nodes:
            self._scene.machines.page(node).kill_at_sync = self._scene.params["at_sync"]
        return {}

    def end(self) -> Told:
        if not self._has_begun:
            return {}
        self._has_begun = False
        machines, nodes = self._scene.machines, self._scene.nodes
        for node in nodes:
            machines.page(node).kill_at_sync = 0
        died = [node for node in nodes if not machines.is_running(node)]
        cuts_power = machines.capabilities.get(POWER_CUTS, "unknown") == ""
        if cuts_power:
            machines.cut_power(nodes)
        start_missing(machines, nodes)
        told: Told = {"died": died, "power_cut": cuts_power}
        return told if died or cuts_power else {**told, "skipped": NOT_FELT}


class _BadSyncs:
    """Tells how many syncs it hit: none, and nothing has happened.

    Attributes:
        scene: whom it hits.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene, self._has_begun = scene, False
        self._syncs_before = 0

    def begin(self) -> Told:
        self._has_begun = True
        self._syncs_before = self._count_syncs()
        for node in self.scene.nodes:
            self.spoil(self.scene.machines.page(node))
        return {}

    def end(self) -> Told:
        if not self._has_begun:
            return {}
        for node in self.scene.nodes:
            self.mend(self.scene.machines.page(node))
        self._has_begun = False
        count = self._count_syncs() - self._syncs_before
        return {"syncs": count} if count else {"syncs": 0, "skipped": NOT_FELT}

    def _count_syncs(self) -> int:
        return sum(self.scene.machines.page(node).syncs for node in self.scene.nodes)

    def spoil(self, page: Page) -> None:
        raise NotImplementedError

    def mend(self, page: Page) -> None:
        raise NotImplementedError


class SyncError(_BadSyncs):
    """Each sync says EIO."""

    def spoil(self, page: Page) -> None:
        page.fail_syncs = True

    def mend(self, page: Page) -> None:
        page.fail_syncs = False


class SlowSync(_BadSyncs):
    """Each sync takes `delay_seconds` longer."""

    def spoil(self, page: Page) -> None:
        page.sync_delay_seconds = self.scene.params["delay_seconds"]

    def mend(self, page: Page) -> None:
        page.sync_delay_seconds = 0.0


class _DiskState:
    """Attributes:
    scene: whom it hits.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._hit: list[int] = []

    def begin(self) -> Told:
        for node in self.scene.nodes:
            self._hit.append(node)
            self.spoil(node)
        return {}

    def end(self) -> Told:
        while self._hit:
            self.mend(self._hit[-1])
            self._hit.pop()
        return {}

    def spoil(self, node: int) -> None:
        raise NotImplementedError

    def mend(self, node: int) -> None:
        raise NotImplementedError


class DiskStall(_DiskState):
    """Writes wait, reads go on. The worst of disks: it never reports an error."""

    def spoil(self, node: int) -> None:
        self.scene.machines.stall_disk(node)

    def mend(self, node: int) -> None:
        self.scene.machines.resume_disk(node)


class DiskFull(_DiskState):
    def spoil(self, node: int) -> None:
        self.scene.machines.fill_disk(node)

    def mend(self, node: int) -> None:
        self.scene.machines.free_disk(node)
