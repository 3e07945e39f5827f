"""What is expected of a node that cannot take part, and of the two that go on without it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.quorum_cluster import QuorumCluster


def follower_of(cluster: QuorumCluster) -> int:
    leader = cluster.wait_leader()
    return next(node_id for node_id in cluster.nodes if node_id != leader)


def expect_out(cluster: QuorumCluster, node_id: int, *, status: int) -> str:
    """It ends by itself with this exit status; what it said. The others serve all the while."""
    ending = cluster.wait_end(node_id)
    assert ending.status == status, ending
    others = [other for other in cluster.nodes if other != node_id]
    cluster.wait_acknowledged(by=others, after=time.monotonic())
    last_words = ending.stderr.strip().splitlines()[-1]
    assert last_words.startswith("quorum node: "), ending.stderr
    return last_words


def expect_counted(cluster: QuorumCluster, node_id: int) -> None:
    """Without one of the others, this node is needed for every acknowledgement."""
    cluster.wait_settled()
    other = next(other for other in cluster.nodes if other != node_id)
    cluster.kill([other])
    killed = time.monotonic()
    cluster.wait_acknowledged(by=cluster.running, after=killed)
    cluster.work_until(10)
    cluster.start([other])
    cluster.wait_open([other])
    cluster.wait_settled()
    cluster.compare()


def flip_byte(path: Path) -> None:
    """The one in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)
