"""Nodes on disks of their own: power cuts, stalls, full disks, and that nothing stays behind."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from jepsen_like.network.probe import lab_missing
from jepsen_like.nodes.capabilities import power_cuts
from jepsen_like.nodes.cluster import NodeCluster
from jepsen_like.nodes.disk import PREFIX, loop_disk
from jepsen_like.nodes.environment import packages_environment
from jepsen_like.nodes.freezer import MOUNTS, find_hierarchies
from jepsen_like.planted.patch import CALLED, places_told
from jepsen_like.workloads.keys import encode_value, key_of
from raftmq.errors import RaftmqError
from raftmq.sync import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jepsen_like.nodes.disk import LoopDisk

pytestmark = pytest.mark.powercut

PATIENCE_SECONDS = 30.0


@pytest.fixture(scope="module", autouse=True)
def _demands() -> None:
    if power_cuts():
        pytest.skip(power_cuts())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    with NodeCluster(tmp_path_factory.mktemp("logs"), disk_mib=64) as cluster:
        cluster.start_all()
        yield cluster


@pytest.fixture(autouse=True)
def _mended(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" in request.fixturenames:
        cluster: NodeCluster = request.getfixturevalue("cluster")
        for node_id in cluster.node_ids:
            cluster.resume_disk(node_id)
            cluster.free_disk(node_id)
        cluster.start_all()


def wait(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def test_a_power_cut_takes_what_was_not_synced(cluster: NodeCluster) -> None:
    """Two files on each disk, one synced; then the power of one, and of all.

    Each time by other names: an empty file may be left of the first cut, and ext4 writes at once
    what is put into a file that was truncated before.
    """
    for victims in ([2], [1, 2, 3]):
        places = [cluster.data_directory(node_id) / "lost+found" for node_id in victims]
        folders = [place / f"cut-{len(victims)}" for place in places]
        for folder in folders:
            folder.mkdir()
            sync(folder.parent)
            (folder / "synced").write_bytes(b"x")
            sync(folder / "synced")
            sync(folder)
            (folder / "unsynced").write_bytes(b"x")
        cuts = [cluster.page(node_id).power_cuts for node_id in victims]
        cluster.cut_power(victims)
        assert [(folder / "synced").exists() for folder in folders] == [True] * len(victims)
        assert not any(bytes_of(folder / "unsynced") for folder in folders)
        assert [cluster.page(node_id).power_cuts for node_id in victims] == [n + 1 for n in cuts]
        assert not any(cluster.is_running(node_id) for node_id in victims)
        cluster.start_all()


def bytes_of(path: Path) -> bytes:
    """A name may be there: nodes that sync take those of others with them, but not their bytes."""
    return path.read_bytes() if path.exists() else b""


def test_acknowledged_records_outlive_a_power_cut_of_all(cluster: NodeCluster, topic: str) -> None:
    """Three replicas synced them before they were acknowledged."""
    values = send(cluster, topic, count=20)
    cluster.cut_power(cluster.node_ids)
    assert values_on_disks(cluster, topic) == [values] * 3


def test_the_planted_bug_shows_at_the_first_power_cut(tmp_path: Path, topic: str) -> None:
    """Nodes that do not sync their logs acknowledge what a power cut of all takes away."""
    with NodeCluster(tmp_path, disk_mib=64, bug="no_fsync") as cluster:
        cluster.start_all()
        values = send(cluster, topic, count=20)
        cluster.cut_power(cluster.node_ids)
        assert all(found != values for found in values_on_disks(cluster, topic))
        said = cluster.log_path(1).read_text()
        assert "bug=no_fsync" in said
        assert "ControlledFile.sync" in places_told(CALLED, said)


def send(cluster: NodeCluster, topic: str, *, count: int) -> list[int]:
    with connect(cluster.bootstrap) as client, client.producer() as producer:
        client.admin.create_topic(topic, partitions=1, replication_factor=3)
        for value in range(count):
            producer.send(topic, encode_value(value))
    return list(range(count))


def values_on_disks(cluster: NodeCluster, topic: str) -> list[list[int]]:
    replicas = {node_id: list[int]() for node_id in cluster.node_ids}
    for event in cluster.read_replicas([key_of(topic, 0)]):
        replicas[event.node_id] = [each for *_, some in event.value["batches"] for each in some]
    return list(replicas.values())


def test_a_stalled_disk_is_no_end(cluster: NodeCluster, topic: str) -> None:
    """A node waits in the kernel for its disk, is killed there, and does end; the disk goes on."""
    cluster.stall_disk(1)
    cluster.stall_disk(1)
    work = Thread(target=send_or_not, args=(cluster, topic))
    work.start()
    wait(lambda: waits_in_kernel(cluster.pid(1)))
    cluster.kill(1)
    assert not cluster.is_running(1)
    (cluster.data_directory(1) / "lost+found" / "x").write_bytes(b"x")
    work.join()


def send_or_not(cluster: NodeCluster, topic: str) -> None:
    with suppress(RaftmqError):
        send(cluster, topic, count=1)


def waits_in_kernel(pid: int | None) -> bool:
    states = [
        path.read_text().rpartition(") ")[2][0] for path in Path(f"/proc/{pid}").glob("task/*/stat")
    ]
    return "D" in states


def test_a_stall_is_over(cluster: NodeCluster) -> None:
    """It goes on where it was."""
    cluster.stall_disk(1)
    cluster.resume_disk(1)
    cluster.resume_disk(1)
    (cluster.data_directory(1) / "lost+found" / "x").write_bytes(b"x")
    assert cluster.is_running(1)


def test_power_is_cut_of_a_stalled_disk(cluster: NodeCluster) -> None:
    """Two faults at once."""
    cluster.stall_disk(2)
    cluster.cut_power([2])
    cluster.start(2)
    assert cluster.wait_ready(2, PATIENCE_SECONDS)


def test_a_full_disk_has_no_room(cluster: NodeCluster) -> None:
    """Not for one block, and a power cut changes nothing about it, until it is freed."""
    block = cluster.data_directory(3) / "lost+found" / "block"
    cluster.fill_disk(3)
    cluster.fill_disk(3)
    assert errno_of(block) == errno.ENOSPC
    cluster.cut_power([3])
    assert errno_of(block) == errno.ENOSPC
    cluster.free_disk(3)
    cluster.free_disk(3)
    assert errno_of(block) == 0


def test_power_is_cut_while_a_disk_is_filled_and_freed() -> None:
    """Two faults at once, from two threads: neither gets in the way of the other."""
    with loop_disk(size_mib=16) as disk, ThreadPoolExecutor(1) as thread:
        is_over = Event()
        filling = thread.submit(fill_and_free, disk, is_over)
        try:
            for _ in range(10):
                disk.cut_power()
        finally:
            is_over.set()
        filling.result()
        assert errno_of(disk.mount_point / "block") == 0


def fill_and_free(disk: LoopDisk, is_over: Event) -> None:
    while not is_over.wait(0.001):
        disk.fill()
        disk.free()


def errno_of(path: Path) -> int:
    try:
        path.write_bytes(bytes(4096))
        sync(path)
    except OSError as error:
        return error.errno or -1
    return 0


HARNESS = """
import os, sys, time
from pathlib import Path
from jepsen_like.nodes.cluster import NodeCluster
cluster = NodeCluster(Path(sys.argv[1]), disk_mib=16).__enter__()
for node_id in cluster.node_ids:
    cluster.start(node_id)
time.sleep(0.7)
cluster.stall_disk(1)
if not cluster.capabilities["freezer"]:
    cluster.freeze(2)
cluster.pause(3)
print(cluster.data_directory(1).parents[1], *map(cluster.pid, cluster.node_ids), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("prefix", [(), ("unshare", "--mount", "--propagation", "private")])
def test_nothing_is_left_of_a_killed_harness(tmp_path: Path, prefix: tuple[str, ...]) -> None:
    """It dies with a disk stalled, a node frozen and one paused; with mounts of its own, or not."""
    died = subprocess.run(
        [*prefix, sys.executable, "-c", HARNESS, str(tmp_path)],
        env=packages_environment(), stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert died.returncode == -9
    folder, *pids = died.stdout.split()
    assert Path(folder).name.startswith(PREFIX)
    owner = Path(folder).name.split("-")[2]
    wait(lambda: not Path(folder).exists())
    wait(lambda: not any(Path("/proc", pid).exists() for pid in pids))
    wait(lambda: not groups_of(owner))
    assert folder not in Path("/proc/self/mounts").read_text()
    wait(
        lambda: (
            folder
            not in subprocess.run(
                ["losetup", "-a"], capture_output=True, text=True, check=True
            ).stdout
        )
    )


def groups_of(owner: str) -> list[Path]:
    roots = [hierarchy.root for hierarchy in find_hierarchies(MOUNTS.read_text())]
    return [path for root in roots for path in root.glob(f"raftmq-jepsen-{owner}-*")]


IN_A_LAB = """
import sys
from pathlib import Path
from jepsen_like.network.lab import Lab
from jepsen_like.network.namespaces import unshare_here
from jepsen_like.nodes.cluster import NodeCluster
from raftmq.errors import RaftmqError
from raftmq.sync import connect
unshare_here()
with Lab.open((1, 2, 3), seed=1) as lab, NodeCluster(Path(sys.argv[1]), lab=lab) as cluster:
    cluster.start_all()
    assert cluster.bootstrap[0] == "10.77.0.1:9292", cluster.bootstrap
    with connect(cluster.bootstrap) as client, client.producer() as producer:
        client.admin.create_topic("t", partitions=1, replication_factor=3)
        producer.send("t", b"1")
    cluster.cut_power([1, 2, 3])
    assert cluster.links is lab.links
    print(cluster.describe()["missing"])
"""


def test_nodes_with_networks_of_their_own(tmp_path: Path) -> None:
    """The whole of it: namespaces, disks, and clients that reach the nodes from the harness."""
    if lab_missing():
        pytest.skip(lab_missing())
    ran = subprocess.run(
        [sys.executable, "-c", IN_A_LAB, str(tmp_path)],
        env=packages_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "network" not in ran.stdout
