"""Every command of somebody who looks after a cluster, with three brokers that are real."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from raftmq.client.network.network import AnyioTcpNetwork
from raftmq.client.routing.cluster import Cluster
from raftmq.wire.batch.records import encode_batch
from tests.producing import produce

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.cluster.broker_cluster import BrokerCluster

pytestmark = pytest.mark.cluster

SECONDS_MAX = 60.0


def run(
    brokers: BrokerCluster, line: str, *, status: int = 0, ask: Sequence[int] = (1, 2, 3)
) -> str:
    """What it says on stdout; and on stderr where it fails."""
    bootstrap = ",".join(str(brokers.address(node_id)) for node_id in ask)
    command = [sys.executable, "-m", "raftmq", *line.split(), "-b", bootstrap]
    process = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert process.returncode == status, f"{line}: {process.stdout}{process.stderr}"
    assert "Traceback" not in process.stderr, process.stderr
    return process.stdout + (process.stderr if status else "")


def rows(brokers: BrokerCluster, line: str, *, status: int = 0) -> list[dict[str, Any]]:
    return [
        json.loads(each) for each in run(brokers, f"{line} -o json", status=status).splitlines()
    ]


def fill(brokers: BrokerCluster, topic: str, partition: int, values: Sequence[bytes]) -> None:
    """A record for each value, in a batch of its own; the time of the n-th is n seconds."""

    async def send() -> None:
        async with Cluster([brokers.address(1)], AnyioTcpNetwork(), random=Random()) as cluster:
            for number, value in enumerate(values):
                batch = bytes(encode_batch(values=[value], timestamp=1000 * number))
                await produce(cluster, topic, partition, batch)

    anyio.run(send, backend="trio")


def at_a_terminal(brokers: BrokerCluster, line: str, answer: bytes) -> tuple[int, str]:
    """The exit code, and what stood there, once the question was answered."""
    command = [sys.executable, "-m", "raftmq", *line.split(), "-b", str(brokers.address(1))]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, command)
    seen, is_answered = b"", False
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            more = os.read(terminal, 4096)
        except OSError:  # how a terminal says that nobody is there any more
            break
        if not more:
            break
        seen += more
        if b"[y/N]" in seen and not is_answered:
            os.write(terminal, answer + b"\n")
            is_answered = True
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen.decode()


def test_topics_from_the_first_day_to_the_last(brokers: BrokerCluster) -> None:
    """Made, looked at, changed, emptied, deleted; with everything that is refused on the way."""
    say = partial(run, brokers)
    assert say("topic list") == ""
    made = say("topic create orders --partitions 2 -c retention.ms=-1")
    assert made == "topic orders: 2 partitions, replication factor 3 (the cluster's choice)\n"
    fill(brokers, "orders", 1, [b"a", b"b", b"c"])  # it can be used at once
    assert "exists already" in say("topic create orders", status=4)
    say("topic create orders --if-not-exists")
    assert "only 3 brokers" in say("topic create many --replication-factor 4", status=1)
    assert "did you mean 'retention.ms'?" in say("topic create x -c retention.mss=1", status=2)

    (topic,) = rows(brokers, "topic list")
    assert (topic["name"], topic["partitions"], topic["leaderless"]) == ("orders", 2, 0)
    assert (topic["records"], topic["replica_bytes"]) == (3, 3 * topic["bytes"])
    assert topic["bytes"] > 3 * 61  # three batches, in files of three brokers
    (details,) = rows(brokers, "topic describe orders")
    assert details["config"]["retention.ms"] == {"value": "-1", "is_default": False}
    assert [one["end_offset"] for one in details["partitions"]] == [0, 3]
    assert all(sorted(one["isr"]) == [1, 2, 3] for one in details["partitions"])
    assert "nope" in say("topic describe nope", status=3)

    say("topic alter orders --reset retention.ms -c durability=page_cache --partitions 4")
    (details,) = rows(brokers, "topic describe orders")
    assert len(details["partitions"]) == 4
    assert details["config"]["durability"] == {"value": "page_cache", "is_default": False}
    assert details["config"]["retention.ms"]["is_default"]
    assert "allowed 5 to" in say("topic alter orders --partitions 3", status=1)

    trimmed = say("topic trim orders --before-time 1970-01-01T00:00:01Z --yes")
    assert trimmed.splitlines()[1].split() == ["1", "1"]
    say("topic trim orders --before-offset 1:2 --yes")
    assert "not up to 9" in say("topic trim orders --before-offset 1:9 --yes", status=1)
    (details,) = rows(brokers, "topic describe orders")
    assert [one["start_offset"] for one in details["partitions"]] == [0, 2, 0, 0]

    assert "add --yes" in say("topic delete orders", status=2)
    status, seen = at_a_terminal(brokers, "topic delete orders", b"n")
    assert (status, "nothing was changed" in seen) == (1, True), seen
    status, seen = at_a_terminal(brokers, "topic trim orders --before-offset 1:3", b"y")
    assert (status, "partition 1: offsets 2 to 2" in seen) == (0, True), seen
    status, seen = at_a_terminal(brokers, "topic delete orders", b"y")
    assert (status, "topic orders: deleted" in seen) == (0, True), seen
    assert say("topic list") == ""
    assert "no topic orders" in say("topic delete orders --yes", status=3)


def test_a_broker_dies_and_comes_back(brokers: BrokerCluster) -> None:
    """Health says so, and waits for it; every address is known; voters are found by brokers."""
    run(brokers, "topic create orders --partitions 3 --replication-factor 3")
    run(brokers, "cluster health --wait")
    (info,) = rows(brokers, "cluster info")
    assert {one["node_id"]: one["address"] for one in info["voters"]} == {
        node_id: f"127.0.0.1:{ports[0]}" for node_id, ports in brokers.ports.items()
    }
    *nodes, summary = rows(brokers, "cluster status")
    assert sorted(one["leads"] for one in nodes) == [1, 1, 1]
    assert [one["address"] for one in nodes] == [str(brokers.address(one)) for one in (1, 2, 3)]
    assert (summary["partitions"], summary["under_replicated"]) == (3, 0)
    *voters, verdict = rows(brokers, "quorum status")
    assert {one["address"] for one in voters} == {one["address"] for one in info["voters"]}
    assert verdict["is_healthy"]

    brokers.kill([3])
    brokers.wait("broker 3 to be fenced", lambda: downs(brokers) == [3])
    (health,) = rows(brokers, "cluster health", status=7)
    assert health["brokers_down"] == [3]
    assert "broker down: 3" in run(brokers, "cluster health", status=7)
    assert "connect to" in run(brokers, "cluster status", ask=[3], status=5)
    refused = run(brokers, "topic create thin", ask=[1, 2], status=1)
    assert "these are not active: 3; start them" in refused
    run(brokers, "topic create thin --replication-factor 2", ask=[1, 2])
    (health,) = rows(brokers, "cluster health", status=7)
    assert [one["topic"] for one in health["fragile"]] == ["thin"]
    waited = run(brokers, "cluster health --wait --timeout 1", status=7)
    assert "waiting: " in waited
    brokers.start([3])
    assert run(brokers, "cluster health --wait --timeout 50").startswith("healthy: ")


def downs(brokers: BrokerCluster) -> list[int]:
    """The brokers that the cluster has fenced; before that they only do not answer."""
    bootstrap = str(brokers.address(1))
    command = [sys.executable, "-m", "raftmq", "cluster", "health", "-o", "json", "-b", bootstrap]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(process.stdout)["brokers_down"] if process.stdout else []


def test_two_of_three_have_died(brokers: BrokerCluster) -> None:
    """One is left and asked: no quorum can say so, but health names both with their addresses."""
    brokers.kill([2, 3])
    told = run(brokers, "cluster health", ask=[1, 2, 3], status=7)
    for node_id in (2, 3):
        assert f"{node_id} ({brokers.address(node_id)})" in told


@pytest.mark.parametrize("victims", [[2], [2, 3]], ids=["one", "two"])
def test_a_wait_that_begins_while_brokers_are_away(
    brokers: BrokerCluster, victims: list[int]
) -> None:
    """Killed and fenced, or all but one: `--wait` is called first, then they are started."""
    run(brokers, "topic create orders --partitions 6 --replication-factor 3")
    run(brokers, "cluster health --wait")
    brokers.kill(victims)
    if len(victims) == 1:
        brokers.wait("the broker to be fenced", lambda: downs(brokers) == victims)
    bootstrap = ",".join(str(brokers.address(node_id)) for node_id in (1, 2, 3))
    words = ["cluster", "health", "--wait", "--timeout", "50"]
    command = [sys.executable, "-m", "raftmq", *words, "-b", bootstrap]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stderr is not None
        assert "waiting: " in waiting.stderr.readline()
        brokers.start(victims)
        told, problem = waiting.communicate(timeout=SECONDS_MAX)
    assert waiting.returncode == 0, (told, problem)
    assert told.startswith("healthy: ")


def test_leaders_go_back(brokers: BrokerCluster) -> None:
    """After a restart others lead; --balance gives the partitions back at once."""
    run(brokers, "topic create orders --partitions 3 --replication-factor 3")
    brokers.kill([3])
    brokers.wait("broker 3 to be fenced", lambda: downs(brokers) == [3])
    brokers.start([3])
    run(brokers, "cluster health --wait --timeout 50")
    run(brokers, "cluster leaders --balance")
    rows_now = rows(brokers, "cluster leaders")
    assert [one["leader"] for one in rows_now] == [one["preferred"] for one in rows_now]


def test_the_wrong_port(brokers: BrokerCluster) -> None:
    """That of a voter: a client is told where it is."""
    port = brokers.ports[1][0]
    command = [sys.executable, "-m", "raftmq", "topic", "list", "-b", f"127.0.0.1:{port}"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 5
    assert f"127.0.0.1:{port} is where the voters of cluster 'rehearsal' meet" in process.stderr


def test_the_brokers_port(brokers: BrokerCluster) -> None:
    """Clients are told where they are served; another broker is let in."""
    port = brokers.ports[1][2]
    command = [sys.executable, "-m", "raftmq", "topic", "list", "-b", f"127.0.0.1:{port}"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 5
    told = f"clients are served on listener 'clients' at {brokers.address(1)}"
    assert told in process.stderr
