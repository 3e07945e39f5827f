"""Nodes on the loopback with plain folders: what may be done to processes anywhere."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from jepsen_like.nemesis.directories import empty
from jepsen_like.nodes.cluster import CapabilityMissing, NodeCluster
from jepsen_like.workloads.keys import encode_value, key_of
from raftmq.broker.meta import QUORUM_FOLDER
from raftmq.metadata.liveness import HEARTBEAT_SECONDS
from raftmq.sync import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.cluster

PATIENCE_SECONDS = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeCluster]:
    with NodeCluster(tmp_path_factory.mktemp("logs"), wants_disks=False) as cluster:
        cluster.start_all()
        yield cluster


@pytest.fixture(autouse=True)
def _mended(cluster: NodeCluster) -> Iterator[None]:
    yield
    for node_id in cluster.node_ids:
        cluster.page(node_id).calm()
        cluster.resume(node_id)
        cluster.thaw(node_id)
    cluster.start_all()


def wait(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state_of(pid: int | None) -> str:
    """As /proc has it: S sleeps, T is stopped, D cannot be disturbed."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def test_what_is_missing_is_said(cluster: NodeCluster) -> None:
    """Neither disks nor a network of their own: no fault that needs them, and a report says so."""
    assert cluster.links is None
    assert {"network", "disks", "power cuts"} <= set(cluster.describe()["missing"])
    with pytest.raises(CapabilityMissing, match="no disks were asked for"):
        cluster.fill_disk(1)
    with pytest.raises(CapabilityMissing, match="no disks were asked for"):
        cluster.cut_power([1])
    assert cluster.is_running(1)


def test_a_killed_node_comes_back(cluster: NodeCluster) -> None:
    """Killed means gone, twice is once; its log goes on with a line between the lives."""
    cluster.kill(1)
    cluster.kill(1)
    assert not cluster.is_running(1)
    assert cluster.has_ended(1) is None
    assert not cluster.wait_ready(1, 0.0)
    cluster.start(1)
    assert cluster.wait_ready(1, PATIENCE_SECONDS)
    said = cluster.log_path(1).read_text()
    assert said.count("\n-- ") >= 1
    assert said.count("ready: node=1") >= 2


def test_a_lost_disk_is_replaced_however_often_the_start_ends(cluster: NodeCluster) -> None:
    """The first one leaves a quorum's folder behind, and is not let in yet."""
    cluster.kill(2)
    directory = cluster.data_directory(2)
    empty(directory)
    cluster.page(2).kill_at_sync = 6  # the quorum's folder is there by then
    cluster.start(2)
    wait(lambda: not cluster.is_running(2))
    assert (directory / QUORUM_FOLDER).exists()
    cluster.page(2).calm()
    cluster.start(2)
    assert cluster.wait_ready(2, PATIENCE_SECONDS)


def test_a_node_outlives_the_thread_that_started_it(cluster: NodeCluster) -> None:
    """Nodes die with the harness, not with one of its threads."""
    cluster.kill(2)
    thread = Thread(target=cluster.start, args=(2,))
    thread.start()
    thread.join()
    assert cluster.wait_ready(2, PATIENCE_SECONDS)
    assert cluster.is_running(2)


def test_a_paused_node_runs_on(cluster: NodeCluster) -> None:
    """Stopped where it is, as a long pause of its machine; a paused one can be killed."""
    cluster.pause(3)
    wait(lambda: state_of(cluster.pid(3)) == "T")
    assert cluster.is_running(3)
    cluster.resume(3)
    wait(lambda: state_of(cluster.pid(3)) in "SRD")
    cluster.pause(3)
    cluster.kill(3)
    assert not cluster.is_running(3)


def test_a_frozen_node_runs_on(cluster: NodeCluster) -> None:
    """The same by the freezer, of which no signal wakes it; and it can be killed."""
    if cluster.capabilities["freezer"]:
        pytest.skip(cluster.capabilities["freezer"])
    cluster.freeze(3)
    cluster.thaw(3)
    assert cluster.is_running(3)
    cluster.freeze(3)
    cluster.kill(3)
    assert cluster.has_ended(3) is None
    cluster.freeze(3)  # of nobody: no error


def test_a_node_ends_by_itself(cluster: NodeCluster) -> None:
    """That is no error of the harness: it is told, and the node is started again."""
    pid = cluster.pid(1)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait(lambda: cluster.has_ended(1) is not None)
    assert cluster.has_ended(1) == -signal.SIGKILL
    assert not cluster.is_running(1)
    cluster.pause(1)
    cluster.start(1)
    assert cluster.has_ended(1) is None


def test_a_node_dies_at_a_sync(cluster: NodeCluster) -> None:
    """At the second from now, and its next life does not."""
    cluster.page(1).kill_at_sync = 6  # the quorum's folder is there by then
    wait(lambda: cluster.has_ended(1) is not None)
    assert cluster.has_ended(1) == -signal.SIGKILL
    cluster.start(1)
    assert cluster.wait_ready(1, PATIENCE_SECONDS)


def test_a_node_dies_while_it_starts(cluster: NodeCluster) -> None:
    """The countdown is set before its life begins."""
    cluster.kill(1)
    cluster.page(1).kill_at_sync = 6  # the quorum's folder is there by then
    cluster.start(1)
    assert not cluster.wait_ready(1, PATIENCE_SECONDS)
    wait(lambda: cluster.has_ended(1) == -signal.SIGKILL)


def test_a_journal_on_a_failed_disk(cluster: NodeCluster) -> None:
    """Syncs fail, of the quorum's journal as of all files: the node gives up, and says why."""
    cluster.page(2).fail_syncs = True
    wait(lambda: cluster.has_ended(2) is not None)
    assert cluster.has_ended(2) == 1
    assert "Input/output error" in cluster.log_path(2).read_text()
    cluster.page(2).fail_syncs = False
    cluster.start(2)
    assert cluster.wait_ready(2, PATIENCE_SECONDS)


def test_clocks_differ(cluster: NodeCluster, topic: str) -> None:
    """All nodes stamp what they append, ten minutes ahead, then half a minute behind, once they
    have heard that all agree.
    """
    offsets_ms, sent_at_ms = (600_000, -30_000), list[int]()
    with connect(cluster.bootstrap) as client, client.producer() as producer:
        config = {"message.timestamp.type": "LogAppendTime"}
        client.admin.create_topic(topic, partitions=1, replication_factor=3, config=config)
        for offset_ms in offsets_ms:
            for node_id in cluster.node_ids:
                cluster.page(node_id).clock_offset_ms = offset_ms
            time.sleep(3 * HEARTBEAT_SECONDS)
            sent_at_ms.append(time.time_ns() // 1_000_000)
            producer.send(topic, b"x")
        records = client.consumer(topic, start="earliest").records(timeout=PATIENCE_SECONDS)
        for offset_ms, sent_ms, record in zip(offsets_ms, sent_at_ms, records, strict=False):
            assert 0 <= record.timestamp - sent_ms - offset_ms < 10_000


def test_slow_syncs_are_waited_for(cluster: NodeCluster, topic: str) -> None:
    """A record that three replicas must hold is acknowledged no sooner than their disks allow."""
    with connect(cluster.bootstrap) as client, client.producer() as producer:
        client.admin.create_topic(topic, partitions=1, replication_factor=3)
        producer.send(topic, b"x")
        for node_id in cluster.node_ids:
            cluster.page(node_id).sync_delay_seconds = 0.3
        began_at = time.monotonic()
        producer.send(topic, b"x")
        assert time.monotonic() - began_at >= 0.3


def test_logs_and_leaders_become_events(cluster: NodeCluster, topic: str) -> None:
    """Three nodes hold the same two batches, and one said that it leads them."""
    with connect(cluster.bootstrap) as client, client.producer() as producer:
        client.admin.create_topic(topic, partitions=1, replication_factor=3)
        for value in (1, 2):
            producer.send(topic, encode_value(value, padding_bytes=10))
    key = key_of(topic, 0)
    leads = [event.value for event in cluster.leads_events() if event.value["key"] == key]
    assert leads == [{"key": key, "epoch": leads[0]["epoch"]}]
    wait(lambda: len(cluster.read_replicas([key])) == 3)
    one, *others = [event.value["batches"] for event in cluster.read_replicas([key])]
    assert [values for *_, values in one] == [[1], [2]]
    assert others == [one, one]
    assert cluster.stop(1) == 0
    assert cluster.read_replicas([key])[0].value["high_watermark"] == 2
