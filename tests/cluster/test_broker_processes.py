"""Three brokers lose nothing that was acknowledged, whoever of them dies, sleeps or stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.broker_disasters import Disaster, Disasters, Verb, Whom
from tests.cluster.broker_report import report
from tests.cluster.node_process import PROJECT
from tests.cluster.test_quorum_processes import wait_gone

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.cluster

QUICK = [
    Disaster(Verb.KILL, Whom.LEADER),
    Disaster(Verb.STOP, Whom.LEADER),
    Disaster(Verb.KILL, Whom.FOLLOWER),
    Disaster(Verb.PAUSE, Whom.LEADER),
    Disaster(Verb.KILL, Whom.CONTROLLER),
    Disaster(Verb.KILL, Whom.ALL),
    Disaster(Verb.STOP, Whom.ALL),
]
LONGER_THAN_A_SESSION_SECONDS = 8.0
# Far above what is measured, for a machine that does other things, too.
READY_SECONDS_MAX = 15.0
LEADERLESS_SECONDS_MAX = 20.0


def test_no_disaster_loses_what_was_acknowledged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other; after each all logs are alike, byte by byte, and hold every promise.

    A5.8.
    """
    with BrokerCluster(tmp_path) as cluster:
        began = time.monotonic()
        cluster.start_all()
        ready_seconds = time.monotonic() - began
        cluster.start_load()
        disasters = Disasters(cluster, seed=1, pause_seconds=LONGER_THAN_A_SESSION_SECONDS)
        for disaster in QUICK:
            outcome = disasters.strike(disaster, settled=1.0)
            assert outcome.leaderless < LEADERLESS_SECONDS_MAX
            cluster.compare()
            assert not cluster.ledger.findings
    assert ready_seconds < READY_SECONDS_MAX
    assert len(cluster.ledger.acknowledged) > 100
    with capsys.disabled():
        table = report(disasters.outcomes, cluster.ledger)
        sys.stdout.write(f"\nready after {ready_seconds:.1f} s\n{table}")


def test_a_stop_moves_leaders_first(brokers: BrokerCluster) -> None:
    """SIGTERM to a leader: others lead before it goes, and clients meet only what passes."""
    brokers.start_load()
    brokers.wait_whole()
    brokers.work_until(50)
    leader = brokers.view().leaders[0]
    [ending] = brokers.terminate([leader])
    assert "in_order=True" in ending.stderr
    brokers.wait_served(after=time.monotonic())
    assert not brokers.ledger.denied
    brokers.start([leader])
    brokers.wait_ready([leader])
    brokers.compare()


def test_a_broker_that_does_not_vote(tmp_path: Path) -> None:
    """Node 4 follows the quorum of the other three, hosts replicas, and comes back from a kill."""
    with BrokerCluster(tmp_path, nodes=[1, 2, 3, 4]) as cluster:
        cluster.start_all()
        cluster.start_load()
        cluster.work_until(50)
        cluster.compare()
        cluster.kill([4])
        cluster.work_until(50)
        cluster.start([4])
        cluster.wait_ready([4])
        cluster.compare()
        assert not cluster.ledger.findings


def test_a_second_signal_ends_it_at_once(brokers: BrokerCluster) -> None:
    """The others sleep, so that nobody takes over: it would wait for them, and may not."""
    brokers.pause([2, 3])
    brokers.expect_end([1])
    os.kill(brokers.pid(1), signal.SIGTERM)
    heard = "stopping: signal=SIGTERM"
    brokers.wait("the first signal to be heard", lambda: heard in brokers.stderr(1))
    began = time.monotonic()
    os.kill(brokers.pid(1), signal.SIGINT)
    assert brokers.wait_end(1).status == -signal.SIGINT
    assert time.monotonic() - began < 5.0


def test_brokers_do_not_outlive_a_killed_test(tmp_path: Path) -> None:
    """The rig itself: kill -9 to the parent takes the brokers with it, even a paused one."""
    script = f"""
import os
from pathlib import Path
from tests.cluster.broker_cluster import BrokerCluster
cluster = BrokerCluster(Path({str(tmp_path)!r}))
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
