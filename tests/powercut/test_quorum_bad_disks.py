"""A quorum with one disk that fails or is full: its node ends and says why, the others go on."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from jepsen_like.nodes.disk import loop_disk
from tests.cluster.quorum_cluster import QuorumCluster
from tests.cluster.quorum_outcasts import expect_counted, expect_out
from tests.cluster.quorum_words import STORAGE_ERROR
from tests.powercut.capabilities import loop_mounts, power_cuts, require, strace
from tests.powercut.injections import failing_syncs
from tests.powercut.quorum_rig import quorum_rig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.powercut

SMALL_MIB = 8
LEFT_BYTES = 256 << 10


@pytest.fixture
def small_disk() -> Iterator[Path]:
    require(loop_mounts)
    with loop_disk(size_mib=SMALL_MIB) as disk:
        yield disk.mount_point


@pytest.mark.parametrize("number", [1, 20])
def test_a_failed_sync_ends_the_node(number: int) -> None:
    """From the n-th on, each sync of one disk says EIO: what was not synced is not relied on."""
    require(power_cuts, strace)
    with quorum_rig(seed=3) as rig:
        cluster = rig.cluster
        cluster.start_all()
        cluster.work_until(10)
        cluster.kill([3])
        cluster.start([3], under=failing_syncs(number))
        said = expect_out(cluster, 3, status=STORAGE_ERROR)
        assert f"sync {cluster.orders[3].directory}" in said
        assert "Input/output error" in said
        cluster.start([3])
        cluster.wait_open([3])
        cluster.work_until(10)
        cluster.kill([3])
        rig.disks[3].cut_power()
        cluster.start([3])
        expect_counted(cluster, 3)
        assert not cluster.ledger.findings


def test_a_full_disk_ends_the_node(tmp_path: Path, small_disk: Path) -> None:
    """There is no room for the journal of one; with space again it comes back and counts."""
    directories = {1: tmp_path / "1", 2: tmp_path / "2", 3: small_disk / "3"}
    with QuorumCluster(directories) as cluster:
        cluster.start_all()
        cluster.work_until(10)
        filler = small_disk / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - LEFT_BYTES))
        said = expect_out(cluster, 3, status=STORAGE_ERROR)
        assert "No space left on device" in said
        filler.unlink()
        cluster.start([3])
        expect_counted(cluster, 3)
        assert not cluster.ledger.findings
