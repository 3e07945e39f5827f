"""A local cluster before anything runs: what it refuses, and what it says of itself."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from raftmq.errors import BrokerIdNotRegistered, BrokerNotAvailable, InvalidConfig, Unreachable
from raftmq.local.cluster import LocalCluster
from raftmq.local.directory import find_layout, is_ours
from raftmq.local.plan import Layout
from raftmq.local.process import Process, this_process
from raftmq.local.running import NodeProcess, Running, write_running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Held, and nothing started."""
    cluster = LocalCluster.open(tmp_path, brokers=2, port=0)
    yield cluster
    cluster.close()


def write_ended(layout: Layout, node_id: int) -> None:
    """Of a process of which nothing is known but its log."""
    nodes = {node_id: NodeProcess(Process(2**22 + 1, "boot/1"), 0)}
    write_running(layout, Running(is_started=True, nodes=nodes))


def test_before_the_start(cluster: LocalCluster, tmp_path: Path) -> None:
    """Everything is known but the processes; the settings are there to be read."""
    rows = cluster.status()
    assert [(row.node_id, row.state, row.pid) for row in rows] == [
        (1, "stopped", None), (2, "stopped", None),
    ]  # fmt: skip
    assert cluster.bootstrap == ",".join(str(row.address) for row in rows)
    assert (tmp_path / "node-2.toml").exists()
    assert not cluster.is_detached


def test_after_the_end(cluster: LocalCluster, tmp_path: Path) -> None:
    """Closed, it may be opened again on the ports of last time."""
    cluster.close()
    assert not cluster.is_started
    again = LocalCluster.open(tmp_path)
    assert again.plan == cluster.plan
    again.close()


def test_nodes_that_do_not_exist(cluster: LocalCluster) -> None:
    """Nothing is done to any other."""
    for call in (cluster.start, cluster.stop, cluster.kill, cluster.wait_ready):
        with pytest.raises(BrokerIdNotRegistered, match="no broker 3; there are brokers 1 to 2"):
            call(1, 3)


def test_nothing_to_stop_or_kill(cluster: LocalCluster) -> None:
    """Says so."""
    assert cluster.kill() == []
    assert cluster.stop(1) == []
    assert cluster.is_started


def test_a_node_that_was_told_to_stop(cluster: LocalCluster, tmp_path: Path) -> None:
    """A command from elsewhere stops a cluster: whoever watches it sees no crash."""
    layout = Layout(tmp_path)
    nodes = {
        1: NodeProcess(this_process(), 0, is_stopping=True),
        2: NodeProcess(Process(2**22 + 1, "boot/1"), 0, is_stopping=True),
    }
    write_running(layout, Running(is_started=True, nodes=nodes))
    assert [row.state for row in cluster.status()] == ["stopping", "stopped"]
    write_running(layout, Running(is_started=True))


def test_waiting_for_nobody(cluster: LocalCluster) -> None:
    """A node that was never started will not be ready."""
    with pytest.raises(
        BrokerNotAvailable, match="broker 2 was stopped meanwhile, or never started"
    ):
        cluster.wait_ready(2)


def test_the_last_words_of_a_node(cluster: LocalCluster, tmp_path: Path) -> None:
    """The last line is in the error, the lines before it are its note."""
    layout = Layout(tmp_path)
    write_ended(layout, 1)
    with pytest.raises(BrokerNotAvailable, match="before it was ready: it has said nothing"):
        cluster.wait_ready(1)
    layout.log(1).write_text("starting\nraftmq: the disk is full\n")
    with pytest.raises(BrokerNotAvailable, match="ready: raftmq: the disk is full") as caught:
        cluster.wait_ready(1)
    assert caught.value.__notes__ == ["starting\nraftmq: the disk is full"]
    assert cluster.status()[0].state == "ended"


def test_a_visitor_sees_the_same(cluster: LocalCluster, tmp_path: Path) -> None:
    """And leaves it as it is."""
    visitor = LocalCluster.attach(tmp_path)
    assert visitor.status() == cluster.status()
    assert visitor.is_started


def test_nothing_to_visit(tmp_path: Path) -> None:
    """No directory, or another one."""
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InvalidConfig, match="is no directory of a local cluster"):
            LocalCluster.attach(path)


def test_wishes_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    """A wrong number makes no directory."""
    with pytest.raises(InvalidConfig, match="brokers = 0"):
        LocalCluster.open(tmp_path / "new", brokers=0)
    assert not (tmp_path / "new").exists()


def test_ports_in_use_leave_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    """The folder is made before the ports are tried, and removed again; one that was there stays,
    and so does a cluster in it."""
    new, plan = tmp_path / "new", cluster.plan
    with socket.create_server(plan.address(1)):
        with pytest.raises(Unreachable, match=f"port {plan.port} "):
            LocalCluster.open(new, port=plan.port)
        assert not new.exists()
        cluster.close()
        with pytest.raises(Unreachable, match=f"port {plan.port} "):
            LocalCluster.open(tmp_path)
    assert is_ours(find_layout(tmp_path))
