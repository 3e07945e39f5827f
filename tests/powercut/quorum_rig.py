"""Three quorum processes, each on a disk of its own that can lose its power.

Owns the disks. Killing comes first, as the rig of the logs demands: nothing may live on a disk
whose power is cut.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from jepsen_like.nodes.disk import loop_disk
from tests.cluster.quorum_cluster import QuorumCluster
from tests.cluster.quorum_disasters import Disaster, Disasters, Whom

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jepsen_like.nodes.disk import LoopDisk

NODES = (1, 2, 3)
DISK_MIB = 128
POWER_CUTS = [Disaster("cut", whom) for whom in Whom]


class QuorumRig:
    """Attributes:
    disks: by node id.
    disasters: `Disaster("cut", ...)` is a kill and a power cut.
    """

    def __init__(self, cluster: QuorumCluster, disks: dict[int, LoopDisk], *, seed: int) -> None:
        self.cluster, self.disks = cluster, disks
        self.disasters = Disasters(
            cluster, seed=seed, damage=lambda node_id: self.disks[node_id].cut_power()
        )

    @property
    def power_cuts(self) -> int:
        return sum(disk.power_cuts for disk in self.disks.values())


@contextmanager
def quorum_rig(*, seed: int, sync: int = 1) -> Iterator[QuorumRig]:
    """Nothing of it is left afterwards, neither a process nor a disk."""
    with ExitStack() as stack:
        disks = {node_id: stack.enter_context(loop_disk(size_mib=DISK_MIB)) for node_id in NODES}
        directories = {node_id: disk.mount_point / "quorum" for node_id, disk in disks.items()}
        cluster = QuorumCluster(directories, snapshot_entries=400, trailing_entries=100, sync=sync)
        yield QuorumRig(stack.enter_context(cluster), disks, seed=seed)
