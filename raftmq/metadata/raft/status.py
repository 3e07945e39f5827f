"""Status of the quorum as one voter sees it (`raftmq quorum status`), and why there is no leader.

Owns the status types, which are stable JSON. Indexes count commands since the quorum began; a lag
is the number of commands that a voter or observer is behind this node.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from raftmq.metadata.raft.net.messages import Standing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from raftmq.metadata.raft.engine.node import RaftNode


logger = logging.getLogger("raftmq.metadata")


# Arrays and objects in a status: one for each of at most 99 voters and 64 observers, and a few. A
# hostile answer is refused before it can nest deeper than the decoder's recursion allows.
NESTS_MAX = 200


class VoterStatus(msgspec.Struct, frozen=True):
    node_id: int
    is_connected: bool
    # blank or established; known while it is connected; of the node itself also replaced
    standing: str | None
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
    leader_address: str | None = None  # as this voter knows it; older ones do not send it


def quorum_status(
    node: RaftNode, cluster_id: str, observers: Mapping[int, int], voters: Mapping[int, object]
) -> QuorumStatus:
    """
    Args:
        observers: the next index of each, by node id.
        voters: the address of each, by node id.
    """
    journal, leader_id = node.journal, node.heard_leader_id
    return QuorumStatus(
        cluster_id=cluster_id,
        node_id=node.node_id,
        state=node.state_name,
        leader_id=leader_id,
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
        leader_address=None if leader_id is None else str(voters[leader_id]),
    )


def _snapshot_status(node: RaftNode) -> SnapshotStatus | None:
    snapshot = node.replication.snapshot
    if snapshot is None:
        return None
    return SnapshotStatus(snapshot.index, snapshot.term, snapshot.size_bytes)


def _own_status(node: RaftNode) -> VoterStatus:
    lag = node.commit_index - node.last_applied
    return VoterStatus(node.node_id, True, _own_standing(node), lag)


def _voter_status(node: RaftNode, peer: int) -> VoterStatus:
    is_connected = node.is_connected(peer)
    match_index = node.match_index(peer) if node.is_leader and is_connected else 0
    return VoterStatus(
        peer,
        is_connected=is_connected,
        standing=_name_of(node.membership.standing_of(peer)),
        lag=max(0, node.journal.last_index - match_index) if match_index else None,
    )


def _own_standing(node: RaftNode) -> str | None:
    is_replaced = node.membership.standing is Standing.ESTABLISHED and node.is_replaced()
    return REPLACED if is_replaced else _name_of(node.membership.standing)


def _name_of(standing: Standing | None) -> str | None:
    return None if standing is None else standing.name.lower()


def encode_status(status: QuorumStatus) -> bytes:
    return msgspec.json.encode(status)


def decode_status(data: bytes) -> QuorumStatus:
    """Raises ValueError: it is no status, or has more arrays and objects than one can have."""
    if data.count(b"[") + data.count(b"{") > NESTS_MAX:
        raise ValueError(f"more than {NESTS_MAX} arrays and objects")
    return msgspec.json.decode(data, type=QuorumStatus)


# -- Leaderless -----------------------------------------------------------------------------------
# Why there is no leader, as a text for operators, and one log line when that lasts.
#
# The texts are guesses from what one voter sees: which voters it is connected to, and whose disks
# count (decision 0012). Pure: the caller passes in the time.


# Time without a leader before it is logged: elections take a second or two.
PATIENCE_SECONDS = 5.0
BLANK, ESTABLISHED = "blank", "established"
# Its own log enrols another disk in its place: it came back just while that one was let in.
REPLACED = "replaced"


class VoterView(NamedTuple):
    """What one voter knows of the others.

    Attributes:
        standings: of every voter by id, its own included; None where it is not connected.
    """

    term: int
    standings: dict[int, str | None]


def explain(sight: VoterView) -> str:
    """Why no leader is elected, or none is heard.

    1. There has never been a leader, as far as this voter knows: the first needs all voters.
    2. This voter's own log says that it was replaced: it does not campaign.
    3. Too few voters are connected and established.
    4. Nothing is missing: an election is in progress, or disks and network are slow.
    """
    missing = _with(sight, None)
    blank, established = _with(sight, BLANK), _with(sight, ESTABLISHED)
    needed = len(sight.standings) // 2 + 1
    facts = [f"not connected: {_listed(missing)}"] if missing else []
    if blank:
        facts.append(f"blank: {_listed(blank)}")
    # Case 1, as far as this voter knows: a quorum that is being set up
    if sight.term == 0 and missing and not established:
        facts.append("a new quorum begins when all of its voters are up at the same time")
    elif sight.term == 0 and missing:  # others may be in a later term
        facts.append(
            "a quorum that never had a leader needs all of its voters up at the same time, any"
            f" other one {needed} that are established"
        )
    elif replaced := _with(sight, REPLACED):  # case 2
        facts.append(
            f"the log of {_listed(replaced)} itself has an enrolment of another disk in its place,"
            " so it does not campaign: start the voters that are missing; the other disk, in place"
            " of this one, helps only if it was established"
        )
    elif len(established) < needed:  # case 3
        facts.append(f"{needed} established voters are needed, {len(established)} are here")
        if blank:
            facts.append("a blank one, whose disk is new, counts once a leader has filled it")
    else:
        facts.append("enough voters are here: an election is under way, or their disks are slow")
    return "; ".join(facts)


def _with(sight: VoterView, standing: str | None) -> list[int]:
    return sorted(voter for voter, found in sight.standings.items() if found == standing)


def _listed(voters: Iterable[int]) -> str:
    return ", ".join(f"voter {voter}" for voter in voters)


class LeaderWatch:
    """Logs why there is no leader, when the reason changes, and when there is one again."""

    def __init__(self, node: RaftNode, *, now: float) -> None:
        self._node = node
        self._since = self._logged_at = now
        self._logged_reason = ""

    def on_turn(self, now: float) -> None:
        if self._node.heard_leader_id is not None:  # elected, and heard recently
            self._on_leader(now)
        elif now - self._since >= PATIENCE_SECONDS:
            self._log(explain(sight_of(self._node)), now)

    def _on_leader(self, now: float) -> None:
        if self._logged_reason:  # only if the absence was logged
            self._logged_reason = ""
            leader, seconds = self._node.heard_leader_id, now - self._since
            logger.info("leader found: leader=%s after_seconds=%.0f", leader, seconds)
        self._since = now

    def _log(self, reason: str, now: float) -> None:
        # Also not more often than that, even if voters come and go all the time.
        if reason != self._logged_reason and now - self._logged_at >= PATIENCE_SECONDS:
            self._logged_reason, self._logged_at = reason, now
            where = f"node={self._node.node_id} term={self._node.term}"
            seconds = now - self._since
            logger.warning("no leader: %s for_seconds=%.0f reason=%s", where, seconds, reason)


def sight_of(node: RaftNode) -> VoterView:
    standings = {node.node_id: _own_standing(node)}
    for peer in node.peers:
        standings[peer] = _name_of(node.membership.standing_of(peer))
    return VoterView(node.term, standings)
