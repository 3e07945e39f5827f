"""Three broker processes, each on a disk of its own that can lose its power.

Owns the disks, and the verdict on them while nobody lives. Killing comes first, as the rig of the
logs demands: nothing may live on a disk whose power is cut.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jepsen_like.nodes.disk import loop_disk
from raftmq.disk.checkpoint import read_checkpoint
from raftmq.disk.files import OsFiles
from raftmq.partition.storage.inspect import CHECKPOINTS_FOLDER
from tests.cluster.broker_cluster import VOTERS, BrokerCluster
from tests.cluster.broker_disasters import Disasters
from tests.cluster.broker_load import SYNCED, UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from jepsen_like.nodes.disk import LoopDisk

BOOTS = Path(CHECKPOINTS_FOLDER, "boots")
DISK_MIB = 256
COPIES = 2  # as many as min.insync.replicas of the topics


class BrokerRig:
    """Attributes:
    disks: by node id.
    disasters: `Disaster("cut", ...)` is a kill and a power cut, now and then two in a row.
    released: how often the topic that trusts the page cache lost it with all who were in sync.
    """

    def __init__(self, root: Path, disks: dict[int, LoopDisk], *, seed: int, syncs: bool) -> None:
        self.disks, self._syncs = disks, syncs
        self.cluster = BrokerCluster(
            root,
            topics=(SYNCED, UNSYNCED),
            directories={node_id: disk.mount_point / "data" for node_id, disk in disks.items()},
            program=self._program,
        )
        self.disasters = Disasters(self.cluster, seed=seed, damage=self.cut_power)
        self.synced, self.unsynced = self.cluster.loads
        self.released = 0

    @property
    def power_cuts(self) -> int:
        return sum(disk.power_cuts for disk in self.disks.values())

    def _program(self, node_id: int) -> list[str]:
        cuts = ["--power-cuts", str(self.disks[node_id].power_cuts)]
        return ["tests.powercut.broker_child", *cuts, *([] if self._syncs else ["--forgetful"])]

    def cut_power(self, victims: Collection[int]) -> None:
        """Of dead brokers. With nobody left, their disks are judged before anyone repairs them."""
        for node_id in victims:
            self.disks[node_id].cut_power()
        if not self.cluster.running:
            logs_of = self.cluster.read_logs(self.synced)
            self.synced.ledger.compare_disks(logs_of, copies=COPIES)
        if not self._keeps_page_cache():
            self.unsynced.release()
            self.released += 1

    def boots(self) -> dict[int, set[int]]:
        """Under which boots of the machine each broker has its logs open, as its disk says."""
        files = OsFiles(read_only=True)
        paths = {node_id: self.cluster.directory(node_id) / BOOTS for node_id in self.disks}
        return {
            node_id: set((read_checkpoint(files, path) or {}).values())
            for node_id, path in paths.items()
        }

    def _keeps_page_cache(self) -> bool:
        """Whether somebody lives on, in each partition, who was in sync."""
        running = set(self.cluster.running)
        views = [self.unsynced.view(node_id) for node_id in running]
        return any(view and all(running & isr for isr in view.isrs.values()) for view in views)


@contextmanager
def broker_rig(*, seed: int, syncs: bool = True) -> Iterator[BrokerRig]:
    """Nothing of it is left afterwards, neither a process nor a disk."""
    with ExitStack() as stack:
        disks = {node_id: stack.enter_context(loop_disk(size_mib=DISK_MIB)) for node_id in VOTERS}
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raftmq-brokers-")))
        rig = BrokerRig(root, disks, seed=seed, syncs=syncs)
        stack.enter_context(rig.cluster)
        yield rig
