"""docs/DEPLOYING.md with real processes on the settings of deploy/: restarts, and a new disk."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster.broker_cluster import VOTERS, BrokerCluster
from tests.cluster.node_process import PROJECT
from tests.cluster.quorum_words import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.cluster

DEPLOY = PROJECT / "deploy"
HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
REPLACE = "quorum.replace=true"
LONGER_THAN_SESSIONS_SECONDS = 8.0  # of brokers: after six seconds of silence one is given up


class Deployed(BrokerCluster):
    """The settings of deploy/ as they are, and above them the addresses of this machine."""

    def _settings(self, node_id: int) -> str:
        return (DEPLOY / f"node-{node_id}.toml").read_text("utf-8")

    def start(self, nodes: Iterable[int], *overrides: str) -> None:
        for node_id in nodes:
            super().start([node_id], *self._here(node_id), *overrides)

    def _here(self, node_id: int) -> list[str]:
        _, clients, brokers = self.ports[node_id]
        voters = [f"quorum.voters.{each}={self.for_voters(each)}" for each in VOTERS]
        return [
            *voters,
            f"node.directory={self.directory(node_id)}",
            f"listeners.clients.bind={HOST}:{clients}",
            f"listeners.clients.advertised={HOST}:{clients}",
            f"listeners.brokers.bind={HOST}:{brokers}",
        ]

    def for_voters(self, node_id: int) -> str:
        return f"{HOST}:{self.ports[node_id][0]}"

    def wait_healthy(self) -> None:
        """As the page has it, and as the brokers' metadata says."""
        addresses = ",".join(str(self.address(node_id)) for node_id in self.nodes)
        ask("-b", addresses, "cluster", "health", "--wait", "--timeout", "60")
        self.wait_whole()

    def quorum_status(self) -> str:
        voters = ",".join(self.for_voters(each) for each in VOTERS)
        return ask("-b", voters, "quorum", "status")


def ask(*words: str) -> str:
    """What `raftmq` answers; it must be content."""
    done = subprocess.run(
        [sys.executable, "-m", "raftmq", *words],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, (words, done)
    return done.stdout


@pytest.fixture
def deployed(tmp_path: Path) -> Iterator[Deployed]:
    """Three nodes that run, with clients that produce and consume all the while."""
    with Deployed(tmp_path) as cluster:
        cluster.start_all()
        cluster.start_load()
        cluster.wait_healthy()
        yield cluster
        cluster.compare()
        assert not cluster.ledger.findings


def test_a_rolling_restart(deployed: Deployed) -> None:
    """One at a time, the next one when all is well again: clients are never told no (A13.3)."""
    for node_id in deployed.nodes:
        [ending] = deployed.terminate([node_id])
        assert "in_order=True" in ending.stderr
        deployed.start([node_id])
        deployed.wait_ready([node_id])
        deployed.wait_healthy()
        deployed.work_until(20)
    assert not deployed.ledger.denied


def test_a_broker_with_an_empty_disk(deployed: Deployed, tmp_path: Path) -> None:
    """Killed, its directory moved away: under its old id it is filled again, vote and all.

    A10.1.
    """
    deployed.kill([3])
    deployed.directory(3).rename(tmp_path / "broken")
    deployed.work_until(20)
    deployed.start([3], REPLACE)
    deployed.wait_ready([3])
    deployed.wait_healthy()
    deployed.wait("voter 3 to be established", lambda: "blank" not in deployed.quorum_status())
    assert deployed.quorum_status().count("established") >= len(VOTERS)


def test_an_empty_directory_takes_no_seat(deployed: Deployed, tmp_path: Path) -> None:
    """Node 3 is stopped; a copy of its settings is started on an empty directory. It stays out,
    however often a supervisor starts it, says how it would be let in, and node 3 comes back."""
    deployed.terminate([3])
    copied = f"node.directory={tmp_path / 'copied'}"
    for _ in range(3):
        deployed.start([3], copied)
        deployed.wait("the way out", lambda: deployed.said(3).count(REPLACE) >= len(VOTERS) - 1)
        deployed.kill([3])
    deployed.start([3], copied)
    time.sleep(LONGER_THAN_SESSIONS_SECONDS)
    assert not deployed.is_ready(3)
    deployed.work_until(20)
    deployed.kill([3])
    deployed.start([3])
    deployed.wait_ready([3])
    deployed.wait_healthy()
    assert deployed.quorum_status().count("established") >= len(VOTERS)


def test_a_fourth_broker(tmp_path: Path) -> None:
    """It has no vote, nothing changes on the others, and new topics lie on it, too (A10.7)."""
    with Deployed(tmp_path, nodes=[*VOTERS, 4]) as cluster:
        cluster.start(VOTERS)
        cluster.wait_ready(VOTERS)
        cluster.start([4])
        cluster.wait_ready([4])
        cluster.start_load()
        cluster.work_until(20)
        view = cluster.wait_view("four brokers", lambda view: view.brokers == {1, 2, 3, 4})
        assert len(view.leaders) == 2
        cluster.compare()
        assert not cluster.ledger.findings


class Configured(Deployed):
    """The settings that `raftmq cluster configure` writes for three hosts with two brokers each."""

    def __init__(self, root: Path) -> None:
        hosts = [word for host in HOSTS for word in ("--host", host)]
        words = ("cluster", "configure", "--id", "orders", *hosts, "--brokers-per-host", "2")
        ask(*words, "--into", str(root / "plan"))
        self._files = {path.name: path for path in (root / "plan").glob("*/node-*.toml")}
        super().__init__(root, nodes=range(1, 7))

    def _settings(self, node_id: int) -> str:
        return self._files[f"node-{node_id}.toml"].read_text("utf-8")

    def on_host(self, host: str) -> list[int]:
        return [node for node in self.nodes if self._files[f"node-{node}.toml"].parent.name == host]


def test_several_brokers_on_a_host(tmp_path: Path) -> None:
    """No two replicas of a partition are on one host, so one that goes leaves each a leader and
    enough replicas in sync, and takes no acknowledged record (A5.4, A13.3)."""
    with Configured(tmp_path) as cluster:
        cluster.start_all()
        cluster.start_load()

        def partitions() -> list[dict[str, Any]]:
            said = ask("-b", str(cluster.address(1)), "topic", "describe", "spread", "-o", "json")
            found: list[dict[str, Any]] = json.loads(said)["partitions"]
            return found

        ask("-b", str(cluster.address(1)), "topic", "create", "spread", "--partitions", "6")
        hosts = [set(cluster.on_host(host)) for host in HOSTS]
        for partition in partitions():
            assert [len(host.intersection(partition["replicas"])) for host in hosts] == [1, 1, 1]
        lost = sorted(hosts[1])
        assert lost == [2, 5]
        cluster.kill(lost)
        cluster.work_until(20)
        cluster.wait(
            "two replicas in sync of each partition, one of which leads",
            lambda: all(
                len(one["isr"]) == 2
                and one["leader"] in one["isr"]
                and hosts[1].isdisjoint(one["isr"])
                for one in partitions()
            ),
        )
        cluster.start(lost)
        cluster.wait_ready(lost)
        cluster.wait_healthy()
        cluster.compare()
        assert not cluster.ledger.findings
