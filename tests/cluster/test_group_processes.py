"""A consumer group of processes hands out every record, whoever of it or of its brokers dies.

Two disasters here; many, drawn by a seed, with `python -m tests.cluster.groups`.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cluster.group_cluster import GroupCluster
from tests.cluster.group_disasters import COORDINATOR, Disaster, GroupDisasters
from tests.cluster.group_ownership import Blow
from tests.cluster.group_report import report
from tests.cluster.node_process import PROJECT
from tests.cluster.test_quorum_processes import wait_gone

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.cluster

QUICK = [
    Disaster((Blow.KILLED, Blow.STOPPED)),
    Disaster((Blow.LEFT,), COORDINATOR),
]


def test_no_disaster_keeps_records_from_the_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Members are killed, stopped and replaced, and the coordinator dies: all that was acknowledged
    is handed out, and twice only for a reason (A8.5, A11.2)."""
    with GroupCluster(tmp_path, seed=1) as cluster:
        cluster.start()
        disasters = GroupDisasters(cluster)
        for disaster in QUICK:
            disasters.strike(disaster)
        verdict = cluster.end()
    with capsys.disabled():
        sys.stdout.write(f"\n{report(disasters.outcomes, cluster)}")
    assert not cluster.findings
    assert len(cluster.acknowledged) > 500
    assert not verdict.never


def test_at_most_once_nothing_comes_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A smaller group whose members commit first: one is killed, one is stopped (A11.1)."""
    with GroupCluster(tmp_path, seed=2, members=3, partitions=6, is_at_most_once=True) as cluster:
        cluster.start()
        disasters = GroupDisasters(cluster)
        disasters.strike(Disaster((Blow.KILLED, Blow.STOPPED)))
        verdict = cluster.end()
    with capsys.disabled():
        sys.stdout.write(f"\n{report(disasters.outcomes, cluster)}")
    assert not cluster.findings
    assert len(cluster.acknowledged) > 100
    assert not verdict.repeats


def test_members_do_not_outlive_a_killed_test(tmp_path: Path) -> None:
    """The rig itself: kill -9 to the parent takes members and brokers along, even a stopped one."""
    script = f"""
import os
from pathlib import Path
from tests.cluster.group_cluster import GroupCluster
cluster = GroupCluster(Path({str(tmp_path)!r}), seed=1, members=2, partitions=2)
cluster.start()
stopped, other = cluster.members.running
cluster.members.stop(stopped)
print(*map(cluster.members.pid, [stopped, other]), *map(cluster.brokers.pid, [1, 2, 3]), flush=True)
os.kill(os.getpid(), 9)
"""
    died = subprocess.run(
        [sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    pids = died.stdout.split()
    assert len(pids) == 5
    wait_gone(pids)
