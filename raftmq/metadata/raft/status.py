"""How the quorum is, as one voter sees it: what `raftmq quorum status` shows.

Owns the shape, which is stable JSON. Indexes count commands since the quorum began; a lag is the
number of commands that somebody is behind this node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from raftmq.metadata.raft.pinned import CANDIDATE, FOLLOWER, LEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.metadata.raft.messages import Standing
    from raftmq.metadata.raft.node import RaftNode

NESTS_MAX = 200  # a voter has 64 guests; and so few levels are no trouble for any interpreter
_STATES = {FOLLOWER: "follower", CANDIDATE: "candidate", LEADER: "leader"}


class VoterStatus(msgspec.Struct, frozen=True):
    node_id: int
    is_connected: bool
    standing: str | None  # blank or established; known while it is connected
    lag: int | None  # known to the leader only, while the voter is connected and has answered it


class ObserverStatus(msgspec.Struct, frozen=True):
    node_id: int
    lag: int


class SnapshotStatus(msgspec.Struct, frozen=True):
    index: int
    term: int
    size_bytes: int


class QuorumStatus(msgspec.Struct, frozen=True):
    cluster_id: str
    node_id: int
    state: str  # leader, candidate or follower
    leader_id: int | None
    term: int
    commit_index: int
    applied_index: int
    last_index: int
    journal_bytes: int
    snapshot: SnapshotStatus | None
    voters: list[VoterStatus]
    observers: list[ObserverStatus]


def quorum_status(node: RaftNode, cluster_id: str, observers: Mapping[int, int]) -> QuorumStatus:
    journal = node.journal
    return QuorumStatus(
        cluster_id=cluster_id,
        node_id=node.node_id,
        state=_STATES[node.state],
        leader_id=node.heard_leader_id,
        term=node.term,
        commit_index=node.commit_index,
        applied_index=node.last_applied,
        last_index=journal.last_index,
        journal_bytes=journal.size_bytes,
        snapshot=_snapshot_status(node),
        voters=[_own_status(node), *(_voter_status(node, peer) for peer in sorted(node.peers))],
        observers=[
            ObserverStatus(observer, max(0, node.last_applied + 1 - next_index))
            for observer, next_index in sorted(observers.items())
        ],
    )


def _snapshot_status(node: RaftNode) -> SnapshotStatus | None:
    snapshot = node.replication.snapshot
    if snapshot is None:
        return None
    return SnapshotStatus(snapshot.index, snapshot.term, snapshot.size_bytes)


def _own_status(node: RaftNode) -> VoterStatus:
    lag = node.commit_index - node.last_applied
    return VoterStatus(node.node_id, True, node.membership.standing.name.lower(), lag)


def _voter_status(node: RaftNode, peer: int) -> VoterStatus:
    is_connected = node.is_connected(peer)
    match_index = node.match_index(peer) if node.is_leader and is_connected else 0
    return VoterStatus(
        peer,
        is_connected=is_connected,
        standing=_name_of(node.membership.standing_of(peer)),
        lag=max(0, node.journal.last_index - match_index) if match_index else None,
    )


def _name_of(standing: Standing | None) -> str | None:
    return None if standing is None else standing.name.lower()


def encode_status(status: QuorumStatus) -> bytes:
    return msgspec.json.encode(status)


def decode_status(data: bytes) -> QuorumStatus:
    """Raises ValueError: it is none, or has more in it than a status can have."""
    if data.count(b"[") + data.count(b"{") > NESTS_MAX:
        raise ValueError(f"more than {NESTS_MAX} arrays and objects")
    return msgspec.json.decode(data, type=QuorumStatus)
