"""Signs that a node gives to those who run it: probes, systemd's datagrams, the log."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raftmq.local.cluster import LocalCluster
from raftmq.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cluster

PROJECT = Path(__file__).parents[2]
SECONDS_MAX = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes, of which none runs."""
    cluster = LocalCluster.open(tmp_path / "cluster", brokers=3, port=0)
    yield cluster
    cluster.kill()
    cluster.close()


def broker(cluster: LocalCluster, node_id: int, *options: str) -> list[str]:
    config = cluster.directory / f"node-{node_id}.toml"
    return [sys.executable, "-m", "raftmq", "broker", "--config", str(config), *options]


def probe(cluster: LocalCluster, node_id: int, what: str) -> int:
    command = broker(cluster, node_id, "--probe", what)
    return subprocess.run(command, cwd=PROJECT, check=False, capture_output=True).returncode


def test_probes_through_the_life_of_a_cluster(cluster: LocalCluster) -> None:
    """One of three is alive and not ready, as it waits; with the others it is ready; one that was
    stopped is not."""
    cluster.start(1)
    assert probe(cluster, 1, "live") == 0
    assert probe(cluster, 1, "ready") in {5, 7}
    cluster.start(2, 3)
    cluster.wait_ready()
    assert [probe(cluster, 1, what) for what in ("live", "ready")] == [0, 0]
    cluster.stop(1)
    assert probe(cluster, 1, "ready") == 5


def test_a_node_that_is_full_is_alive(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients have taken all of its places: it is not to be killed for that."""
    monkeypatch.setenv("RAFTMQ_LIMITS__CONNECTIONS_MAX", "16")
    cluster.start(1, 2, 3)
    cluster.wait_ready()
    with ExitStack() as clients:
        for _ in range(20):
            clients.enter_context(socket.create_connection(cluster.plan.address(1)))
        assert [probe(cluster, 1, what) for what in ("live", "ready")] == [0, 5]


def test_what_systemd_hears(cluster: LocalCluster, tmp_path: Path) -> None:
    """Alive at once, ready when the cluster counts on it, stopping at the signal; its log is of
    JSON, as its environment says."""
    cluster.start(2, 3)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(SECONDS_MAX)
        environment = os.environ | {
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "2000000",
            "RAFTMQ_LOG__FORMAT": "json",
        }
        with subprocess.Popen(
            broker(cluster, 1), cwd=PROJECT, env=environment, stderr=subprocess.PIPE, text=True
        ) as process:
            seen = [heard.recv(1000).decode()]
            while "READY=1" not in seen[-1]:
                seen.append(heard.recv(1000).decode())
            process.terminate()
            while "STOPPING=1" not in seen[-1]:
                seen.append(heard.recv(1000).decode())
            log = process.communicate()[1]
    assert seen[0] == "WATCHDOG=1"
    assert "READY=1\nSTATUS=in service" in seen
    messages = [json.loads(line)["message"] for line in log.splitlines()]
    name, directory = cluster.plan.cluster_id, cluster.status()[0].directory
    who = f"raftmq={__version__} node=1 cluster={name}"
    assert messages[0] == f"starting: {who} roles=voter,broker directory={directory}"
    assert messages[-1] == "stopped: node=1"


def test_few_descriptors(tmp_path: Path) -> None:
    """A node may open 700 files: it warns of that at its start, and that it takes fewer connections
    than its settings ask for; it refuses a topic with more partitions than it could hold, before
    any of them is made."""
    cluster = LocalCluster.open(tmp_path / "cluster", brokers=1, port=0)
    limited = ["sh", "-c", 'ulimit -n 700; exec "$@"', "sh", *broker(cluster, 1)]
    raftmq = [sys.executable, "-m", "raftmq", "-b", cluster.bootstrap]
    with subprocess.Popen(
        limited,
        cwd=PROJECT,
        env=os.environ | {"RAFTMQ_LIMITS__CONNECTIONS_MAX": "5000"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready: node 1")
        made = subprocess.run(
            [*raftmq, "topic", "create", "big", "-p", "600", "-r", "1"],
            cwd=PROJECT, check=False, capture_output=True, text=True,
        )  # fmt: skip
        process.terminate()
        log = process.communicate()[1]
    cluster.close()
    assert "warning: few file descriptors: limit=700" in log
    assert "WARNING raftmq.broker connections: max=" in log
    assert " wanted=5000 " in log
    assert made.returncode != 0
    assert "LimitNOFILE" in made.stderr


def test_what_the_controller_tells(cluster: LocalCluster) -> None:
    """A topic is made, altered and deleted, a broker dies: one node of three has a line for each,
    and no line is made for each of fifty partitions (A10.1)."""
    cluster.start()
    cluster.wait_ready()
    raftmq = [sys.executable, "-m", "raftmq", "-b", cluster.bootstrap]
    for command in (
        "topic create orders --partitions 50",
        "topic alter orders -c retention.ms=60000",
        "quorum status",
        "topic create gone",
        "topic delete gone --yes",
    ):
        subprocess.run([*raftmq, *command.split()], cwd=PROJECT, check=True, capture_output=True)
    logs = [row.log for row in cluster.status()]
    (leader,) = (at for at, log in enumerate(logs, 1) if "controller elected" in log.read_text())
    victim = leader % 3 + 1
    cluster.kill(victim)
    health = [*raftmq, "cluster", "health"]
    while subprocess.run(health, cwd=PROJECT, check=False, capture_output=True).returncode != 7:
        pass
    cluster.start(victim)
    subprocess.run([*health, "--wait"], cwd=PROJECT, check=True, capture_output=True)
    text = logs[leader - 1].read_text()
    for line in (
        "topic created: topic=orders partitions=50 replicas=3",
        "topic altered: topic=orders retention.ms=default->60000",
        "topic deleted: topic=gone",
        f"broker fenced: broker={victim}",
        f"leader elected: from={victim} to=",
        f"in-sync replicas changed: left={victim} joined=-",
        f"broker registered: broker={victim}",
    ):
        assert line in text, line
    assert text.count("leader elected: ") < 20
    assert " leads: count=" in text
    assert text.count(" leads: ") < 20
    others = "".join(log.read_text() for at, log in enumerate(logs, 1) if at != leader)
    assert "topic created" not in others
    assert "connection ended" not in "".join(
        line for line in (text + others).splitlines() if " WARNING " in line
    )
