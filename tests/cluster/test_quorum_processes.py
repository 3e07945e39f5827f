"""Three processes lose nothing that was acknowledged, whoever of them dies or sleeps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.node_process import PROJECT, NodeFailed
from tests.cluster.nodes import PATIENCE_SECONDS
from tests.cluster.quorum_disasters import Disaster, Disasters, Verb, Whom
from tests.cluster.quorum_report import report

if TYPE_CHECKING:
    from tests.cluster.quorum_cluster import QuorumCluster

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("verb", list(Verb))
def test_no_disaster_loses_what_was_acknowledged(
    cluster: QuorumCluster, verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    """It hits the leader, a follower, two, and all; in the end all images are equal (A6.2)."""
    disasters = Disasters(cluster, seed=1)
    for whom in Whom:
        disasters.strike(Disaster(verb, whom))
    cluster.wait_settled()
    cluster.compare()
    assert len(cluster.ledger.acknowledged) > 100
    with capsys.disabled():
        sys.stdout.write("\n" + report(disasters.outcomes, cluster.ledger))


def test_a_node_that_slept_through_snapshots_catches_up(cluster: QuorumCluster) -> None:
    """A follower is dead until the others' logs no longer reach back to it, then starts again.

    A6.5.
    """
    follower = next(node for node in cluster.nodes if node != cluster.wait_leader())
    cluster.work_until(10)
    cluster.kill([follower])
    cluster.work_until(1500)
    cluster.start([follower])
    cluster.wait_open([follower])
    cluster.wait_settled()
    status = cluster.status(follower)
    assert status is not None
    assert status.snapshot is not None
    cluster.compare()


def test_one_node_of_three_acknowledges_nothing(cluster: QuorumCluster) -> None:
    """Two are killed; the leader is left alone for longer than any election (A6.4)."""
    cluster.work_until(10)
    rest = cluster.wait_leader()
    others = [node for node in cluster.nodes if node != rest]
    cluster.kill(others)
    time.sleep(0.5)  # what was on its way is heard
    before = len(cluster.ledger.acknowledged)
    time.sleep(2.5)
    assert len(cluster.ledger.acknowledged) == before
    cluster.start(others)
    cluster.work_until(10)
    cluster.wait_settled()
    cluster.compare()


def test_a_node_that_ends_is_noticed_at_once(cluster: QuorumCluster) -> None:
    """The rig itself: an end that nobody expects fails the test, with what the node said."""
    os.kill(cluster.pid(1), signal.SIGKILL)
    with pytest.raises(NodeFailed, match="node 1 has ended"):
        cluster.work_until(1_000_000)


def test_nodes_do_not_outlive_a_killed_test(tmp_path: Path) -> None:
    """The rig itself: kill -9 to the parent takes the nodes with it, even a paused one."""
    script = f"""
import os
from pathlib import Path
from tests.cluster.quorum_cluster import QuorumCluster
cluster = QuorumCluster({{node: Path({str(tmp_path)!r}, str(node)) for node in (1, 2, 3)}})
cluster.start_all()
cluster.pause([2])
print(*map(cluster.pid, cluster.nodes), flush=True)
os.kill(os.getpid(), 9)
"""
    died = subprocess.run(
        [sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    pids = died.stdout.split()
    assert len(pids) == 3
    wait_gone(pids)


def wait_gone(pids: list[str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.01)


def is_running(pid: str) -> bool:
    """Nobody may be there to bury it, so a zombie counts as gone."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
