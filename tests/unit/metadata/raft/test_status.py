"""What `raftmq quorum status` shows, from voters in several states."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import trio

from raftmq.metadata.raft.status import QuorumStatus, VoterStatus, decode_status, encode_status
from tests.simulation.raft_cluster import open_cluster
from tests.unit.metadata.raft.talk import EAGER, fill

if TYPE_CHECKING:
    from trio.testing import MockClock

EXAMPLE = QuorumStatus("c", 1, "leader", 1, 3, 9, 8, 10, 4096, None, [], [])


def test_it_is_stable_json() -> None:
    """Names are part of the interface: scripts read them."""
    told = json.loads(encode_status(EXAMPLE))
    assert list(told) == [
        "cluster_id", "node_id", "state", "leader_id", "term", "commit_index", "applied_index",
        "last_index", "journal_bytes", "snapshot", "voters", "observers", "leader_address",
    ]  # fmt: skip
    assert decode_status(encode_status(EXAMPLE)) == EXAMPLE


async def test_of_a_leader(autojump_clock: MockClock) -> None:
    """Everybody is connected and established, and lags of all are known."""
    async with open_cluster(1, 2, 3, limits=EAGER) as cluster:
        await fill(cluster, 20)
        await trio.sleep(1)
        leader_id = await cluster.leader_id()
        status = await cluster.status(leader_id)
        assert (status.node_id, status.state, status.leader_id) == (leader_id, "leader", leader_id)
        assert status.term == (await cluster.leader()).leadership.term
        assert status.commit_index == status.applied_index == status.last_index
        assert {voter.node_id: voter.lag for voter in status.voters} == {1: 0, 2: 0, 3: 0}
        assert {voter.standing for voter in status.voters} == {"established"}
        assert all(voter.is_connected for voter in status.voters)
        assert status.snapshot is not None
        assert 10 < status.snapshot.index <= status.applied_index
        assert status.journal_bytes > 0


async def test_of_a_leader_whose_follower_is_gone(autojump_clock: MockClock) -> None:
    """Not connected: neither its standing nor how far it is can be known."""
    async with open_cluster(1, 2, 3) as cluster:
        await fill(cluster, 3)
        gone = await cluster.follower_id()
        await cluster.until(lambda: len({n.image.version for n in cluster.nodes.values()}) == 1)
        await trio.sleep(0.5)
        cluster.crash(gone)
        await fill(cluster, 4)
        voters = (await cluster.status(await cluster.leader_id())).voters
        (voter,) = [voter for voter in voters if voter.node_id == gone]
        assert voter == VoterStatus(gone, is_connected=False, standing=None, lag=None)


async def test_of_a_follower(autojump_clock: MockClock) -> None:
    """It knows who leads and its own lag, not that of the others."""
    async with open_cluster(1, 2, 3) as cluster:
        await fill(cluster, 3)
        await trio.sleep(1)
        follower_id, leader_id = await cluster.follower_id(), await cluster.leader_id()
        status = await cluster.status(follower_id)
        assert (status.state, status.leader_id) == ("follower", leader_id)
        assert status.leader_address == str(cluster.voters[leader_id])
        assert {v.lag for v in status.voters if v.node_id != follower_id} == {None}
        assert [v.lag for v in status.voters if v.node_id == follower_id] == [0]


async def test_of_a_voter_that_is_alone(autojump_clock: MockClock) -> None:
    """A new quorum of which one voter is up: blank, nobody leads, nothing is known of others."""
    async with open_cluster(2) as cluster:
        await trio.sleep(3)
        status = await cluster.status(2)
        assert (status.state, status.leader_id, status.term) == ("follower", None, 0)
        assert [v.standing for v in status.voters] == ["blank", None, None]
        assert status.snapshot is None


async def test_of_a_voter_that_lost_sight_of_its_leader(autojump_clock: MockClock) -> None:
    """Cut off from the voters, but not from the visitor: it names no leader any more."""
    async with open_cluster(1, 2, 3) as cluster:
        follower_id = await cluster.follower_id()
        for other in {1, 2, 3} - {follower_id}:
            cluster.network.cut_both(f"node-{follower_id}", f"node-{other}")
        await trio.sleep(3)
        assert (await cluster.status(follower_id)).leader_id is None
