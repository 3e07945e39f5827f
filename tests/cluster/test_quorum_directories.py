"""A directory that is damaged, foreign, old or gone: its node stays out, the two others go on."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import pytest

from tests.cluster.quorum_outcasts import expect_counted, expect_out, flip_byte, follower_of
from tests.cluster.quorum_words import CORRUPT_JOURNAL, STORAGE_ERROR

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.quorum_cluster import QuorumCluster

pytestmark = pytest.mark.cluster

LONGER_THAN_ELECTIONS_SECONDS = 3.0
WAY_OUT = "away (keep it) and start with an empty"


def test_a_damaged_journal(cluster: QuorumCluster) -> None:
    """A byte in the middle flips: the node says where, stays out, and comes back empty."""
    cluster.work_until(50)
    node_id, directory = follower_and_directory(cluster)
    cluster.kill([node_id])
    newest = sorted(directory.glob("journal/*.journal"))[-1]
    flip_byte(newest)
    cluster.start([node_id])
    said = expect_out(cluster, node_id, status=CORRUPT_JOURNAL)
    assert f"{newest}: at byte " in said
    assert WAY_OUT in said
    directory.rename(directory.with_suffix(".kept"))
    cluster.start([node_id], is_replacement=1)
    expect_counted(cluster, node_id)


def test_a_damaged_snapshot(cluster: QuorumCluster) -> None:
    """The same for the snapshot, which no older one replaces."""
    node_id, directory = follower_and_directory(cluster)
    cluster.wait(
        f"a snapshot of node {node_id}", lambda: any(directory.glob("snapshot-*.snapshot"))
    )
    cluster.kill([node_id])
    [snapshot] = directory.glob("snapshot-*.snapshot")
    flip_byte(snapshot)
    cluster.start([node_id])
    said = expect_out(cluster, node_id, status=CORRUPT_JOURNAL)
    assert f"{snapshot}: " in said
    assert WAY_OUT in said


def test_the_directory_of_another_node(cluster: QuorumCluster) -> None:
    """Node 3 finds a copy of node 2's directory in its place."""
    cluster.work_until(10)
    cluster.kill([2])
    own, other = cluster.orders[3].directory, cluster.orders[2].directory
    shutil.copytree(other, other.with_suffix(".copy"))
    cluster.start([2])
    cluster.wait_settled()
    cluster.kill([3])
    own.rename(own.with_suffix(".kept"))
    other.with_suffix(".copy").rename(own)
    cluster.start([3])
    said = expect_out(cluster, 3, status=CORRUPT_JOURNAL)
    assert "is the journal of node 2 of cluster 'rehearsal', this is node 3" in said


def test_the_directory_of_another_cluster(cluster: QuorumCluster) -> None:
    """A node of another cluster is let in nowhere, and its directory is no use in this one."""
    cluster.work_until(10)
    cluster.kill([3])
    own = cluster.orders[3].directory
    own.rename(own.with_suffix(".kept"))
    cluster.start([3], cluster_id="another")
    cluster.wait_open([3])
    cluster.work_until(50)
    status = cluster.status(3)
    assert status is not None
    assert not any(voter.is_connected for voter in status.voters[1:])
    assert status.applied_index == 1
    cluster.stop([3])
    cluster.start([3])
    said = expect_out(cluster, 3, status=CORRUPT_JOURNAL)
    assert "is the journal of node 3 of cluster 'another', this is node 3 of" in said


def test_an_older_copy_of_the_directory(cluster: QuorumCluster) -> None:
    """A backup is put back although the directory was used since: the others refuse the node."""
    cluster.work_until(10)
    node_id, directory = follower_and_directory(cluster)
    copy = directory.with_suffix(".copy")
    cluster.stop([node_id])
    shutil.copytree(directory, copy)
    cluster.start([node_id])
    cluster.wait_settled()
    cluster.work_until(50)
    cluster.kill([node_id])
    shutil.rmtree(directory)
    copy.rename(directory)
    cluster.start([node_id])
    said = expect_out(cluster, node_id, status=CORRUPT_JOURNAL)
    assert f"the directory of voter {node_id} is an older copy" in said
    shutil.rmtree(directory)
    cluster.start([node_id], is_replacement=1)
    expect_counted(cluster, node_id)


@pytest.mark.parametrize("is_leader", [False, True])
def test_a_lost_directory(cluster: QuorumCluster, is_leader: bool) -> None:
    """A follower's, or the leader's: it fetches everything from the others, and counts again."""
    cluster.work_until(10)
    node_id = cluster.wait_leader() if is_leader else follower_of(cluster)
    cluster.kill([node_id])
    shutil.rmtree(cluster.orders[node_id].directory)
    cluster.start([node_id], is_replacement=1)
    expect_counted(cluster, node_id)


def test_a_lost_directory_elects_nobody(cluster: QuorumCluster) -> None:
    """Only two nodes hold the last acknowledged keys: one dies, the other loses its directory.

    The third knows nothing of those keys. With a vote of the empty one it would lead.
    """
    leader = cluster.wait_leader()
    late, lost = (node_id for node_id in cluster.nodes if node_id != leader)
    cluster.wait_settled()
    cluster.pause([late])
    cluster.work_until(50)
    cluster.kill([leader, lost])
    shutil.rmtree(cluster.orders[lost].directory)
    cluster.resume([late])
    cluster.start([lost], is_replacement=1)
    cluster.wait_open([lost])
    acknowledged = len(cluster.ledger.acknowledged)
    time.sleep(LONGER_THAN_ELECTIONS_SECONDS)
    assert cluster.leader() is None
    assert len(cluster.ledger.acknowledged) == acknowledged
    cluster.start([leader])
    cluster.wait_open([leader])
    expect_counted(cluster, lost)


def test_a_directory_in_use(cluster: QuorumCluster) -> None:
    """A second process on the directory of a running node is refused, and disturbs nobody."""
    cluster.work_until(10)
    cluster.kill([3])
    cluster.start([3], directory=cluster.orders[2].directory)
    said = expect_out(cluster, 3, status=STORAGE_ERROR)
    assert "is in use by another process" in said
    cluster.start([3])
    cluster.wait_settled()
    cluster.compare()


def follower_and_directory(cluster: QuorumCluster) -> tuple[int, Path]:
    node_id = follower_of(cluster)
    return node_id, cluster.orders[node_id].directory
