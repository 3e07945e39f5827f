"""Directories that were taken for lost: what their voters say meanwhile, and how they come back."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftmq.local.cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cluster

PROJECT = Path(__file__).parents[2]
LONGER_THAN_ELECTIONS_SECONDS = 4.0
ELECTION_SECONDS_MAX = 10.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes in service."""
    with LocalCluster.open(tmp_path / "cluster", brokers=3, port=0) as cluster:
        cluster.start()
        cluster.wait_ready()
        yield cluster


def raftmq(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "raftmq", *arguments]
    return subprocess.run(command, cwd=PROJECT, check=False, capture_output=True, text=True)


def leader_of(cluster: LocalCluster) -> int:
    logs = [row.log.read_text() for row in cluster.status()]
    (leader,) = (at for at, log in enumerate(logs, 1) if "controller elected" in log)
    return leader


def probe(cluster: LocalCluster, node_id: int) -> int:
    config = cluster.directory / f"node-{node_id}.toml"
    return raftmq("broker", "--config", str(config), "--probe", "ready").returncode


def test_directories_that_were_taken_for_lost(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three are killed, and start with empty directories, as their operator takes the disks
    for lost: there is no leader, and neither of them is ready; then the old directories are put
    back, and there is one, and nothing is lost."""
    assert raftmq("-b", cluster.bootstrap, "topic", "create", "orders").returncode == 0
    keeper = leader_of(cluster)
    victims = [node_id for node_id in (1, 2, 3) if node_id != keeper]
    directories = [row.directory for row in cluster.status() if row.node_id in victims]
    cluster.kill(*victims)
    for directory in directories:
        directory.rename(directory.with_suffix(".kept"))
    with monkeypatch.context() as patch:
        patch.setenv("RAFTMQ_QUORUM__REPLACE", "true")
        cluster.start(*victims)
    time.sleep(LONGER_THAN_ELECTIONS_SECONDS)
    assert raftmq("-b", cluster.bootstrap, "quorum", "status").returncode == 7
    assert [probe(cluster, victim) for victim in victims] == [7, 7]
    cluster.kill(*victims)
    for directory in directories:
        directory.rename(directory.with_suffix(".empty"))
        directory.with_suffix(".kept").rename(directory)
    began = time.monotonic()
    cluster.start(*victims)
    while (found := raftmq("-b", cluster.bootstrap, "quorum", "status")).returncode:
        assert time.monotonic() < began + ELECTION_SECONDS_MAX, found.stdout
    cluster.wait_ready()
    assert raftmq("-b", cluster.bootstrap, "topic", "describe", "orders").returncode == 0
