"""A broker that cannot start says why, in one line; its exit code tells of what kind it is."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING

import pytest

from tests.cluster.broker_cluster import BrokerCluster
from tests.cluster.quorum_outcasts import flip_byte
from tests.cluster.quorum_words import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.cluster

FAILED, USAGE = 1, 2


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[BrokerCluster]:
    """Nobody runs yet."""
    with BrokerCluster(tmp_path) as cluster:
        yield cluster


def expect_end(cluster: BrokerCluster, *overrides: str, status: int) -> str:
    """Node 1 ends by itself; its last words."""
    cluster.expect_end([1])
    cluster.start([1], *overrides)
    ending = cluster.wait_end(1)
    assert ending.status == status, ending
    assert "Traceback" not in ending.stderr
    last_words = ending.stderr.strip().splitlines()[-1]
    assert last_words.startswith("raftmq: "), ending.stderr
    return last_words


def run_once(cluster: BrokerCluster, *nodes: int) -> None:
    """Until the directories are theirs."""
    cluster.start(nodes)
    for node_id in nodes:
        meta = cluster.directory(node_id) / "meta.json"
        journals = cluster.directory(node_id) / "quorum/journal"
        cluster.wait(
            f"node {node_id} to begin",
            lambda meta=meta, journals=journals: (
                meta.exists() and any(each.stat().st_size for each in journals.glob("*.journal"))
            ),
        )
    cluster.kill(nodes)


def test_bad_settings(alone: BrokerCluster) -> None:
    """Every problem at once, those of the command line, too."""
    said = expect_end(alone, "node.idd=3", "node.rack=3", status=USAGE)
    assert "node.idd: unknown, did you mean node.id?" in said
    assert "node.rack = 3: expected a text" in said


def test_no_settings(alone: BrokerCluster) -> None:
    """The file is not there."""
    alone.config(1).unlink()
    assert f"{alone.config(1)}: No such file or directory" in expect_end(alone, status=USAGE)


def test_a_port_in_use(alone: BrokerCluster) -> None:
    """Somebody else listens where clients are to come, or the other voters."""
    for port in (alone.ports[1][1], alone.ports[1][0]):
        with socket.create_server((HOST, port)):
            said = expect_end(alone, status=FAILED)
            assert f"listen on {HOST}:{port}: Address already in use" in said


def test_a_directory_in_use(alone: BrokerCluster) -> None:
    """By a broker that runs."""
    alone.start([2])
    alone.wait("node 2 to begin", lambda: alone.directory(2).joinpath("meta.json").exists())
    said = expect_end(alone, f"node.directory={alone.directory(2)}", status=FAILED)
    assert "is in use by another process" in said


def test_the_directory_of_another_node(alone: BrokerCluster) -> None:
    """Node 1 finds node 2's, or the one of a cluster that is not its own."""
    run_once(alone, 1, 2)
    said = expect_end(alone, f"node.directory={alone.directory(2)}", status=USAGE)
    assert "belongs to node 2 of cluster 'rehearsal', this is node 1 of" in said
    said = expect_end(alone, "node.cluster_id=another", status=USAGE)
    assert "belongs to node 1 of cluster 'rehearsal', this is node 1 of 'another'" in said


def test_a_damaged_journal(alone: BrokerCluster) -> None:
    """Of the quorum: the node must stay out of it."""
    run_once(alone, 1, 2)
    [journal] = alone.directory(1).glob("quorum/journal/*.journal")
    flip_byte(journal)
    assert f"{journal}: at byte " in expect_end(alone, status=FAILED)


def test_a_damaged_identity(alone: BrokerCluster) -> None:
    """The file that says whose the directory is cannot be read."""
    run_once(alone, 1)
    meta = alone.directory(1) / "meta.json"
    meta.write_text("{")
    assert f"{meta} is not readable" in expect_end(alone, status=FAILED)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_it_is_ready(alone: BrokerCluster, number: signal.Signals) -> None:
    """It waits for a majority that does not come, and ends in order."""
    alone.start([1])
    alone.wait("node 1 to listen", lambda: "voter unreachable" in alone.stderr(1))
    [ending] = alone.terminate([1], number)
    assert "Traceback" not in ending.stderr
    assert f"stopping: signal={number.name}" in ending.stderr
    assert "stopped: node=1" in ending.stderr
