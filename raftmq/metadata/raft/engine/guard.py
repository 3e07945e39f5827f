"""Guard in front of PySyncObj: checks every Raft message (votes, appends, replies) of a peer.

Owns the safety rules that PySyncObj lacks (decision 0011 lists the hazards H1 to H15):
  1. An answer counts in the term it was given in (H5), and only from an established voter whose
     disk is the last one that the log enrols, applied or not (decision 0012).
  2. A follower commits no more than the message has shown to match (H1).
  3. Entries up to the commit index are never compared, let alone cut, again (H2).
  4. A leader never takes back what a follower has confirmed (H2).
  5. A vote counts once; a node that hears its leader, or is blank, gives none (H12).
  6. After a conflict the leader continues from the follower's commit index (H10).
  7. A follower whose log ends before what it has confirmed in this term came back with an older
     copy of its directory: none of its answers counts any more, and it must stop.
  8. A pre-vote counts only where the vote would. A node that cannot be elected must not campaign:
     each of its requests would take the others' votes and put off their own campaigns, for ever.
PySyncObj's other features (forwarded commands, membership, pickles) have no message (H9, H13).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from raftmq.errors import CorruptJournal, RemoteProtocolError
from raftmq.metadata.raft.engine.replication import would_grant
from raftmq.metadata.raft.engine.voter_disks import older_copy
from raftmq.metadata.raft.net.messages import (
    AppendEntries,
    AppendReply,
    PreVote,
    PreVoteReply,
    RequestVote,
    SnapshotOffer,
    Standing,
    StandingChanged,
    VoteReply,
)

if TYPE_CHECKING:
    from raftmq.metadata.raft.engine.replication import Reads, Replication
    from raftmq.metadata.raft.engine.voter_disks import VoterMembership
    from raftmq.metadata.raft.journal.journal import Journal
    from raftmq.metadata.raft.net.messages import AnyMessage, Entry


class GuardedNode(Protocol):
    """What the guard needs of its node: the engine behind it, and the state that rules compare."""

    @property
    def journal(self) -> Journal: ...

    @property
    def membership(self) -> VoterMembership: ...

    @property
    def reads(self) -> Reads: ...

    @property
    def replication(self) -> Replication: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def term(self) -> int: ...

    commit_index: int

    def engine_receive(self, peer: int, message: dict[str, Any], /) -> None: ...

    def send(self, peer: int, message: AnyMessage, /) -> bool: ...

    def counts(self, peer: int, /) -> bool: ...

    def step_down(self, term: int, /) -> None: ...

    def term_at(self, index: int, /) -> int: ...

    def next_index(self, peer: int, /) -> int: ...

    def set_next_index(self, peer: int, index: int, /) -> None: ...

    def match_index(self, peer: int, /) -> int: ...

    def forget_match(self, peer: int, /) -> None: ...

    def hears_leader(self) -> bool: ...

    def on_leader_contact(self) -> None: ...

    def on_pre_vote_reply(self, peer: int, reply: PreVoteReply, /) -> None: ...


class Guard:
    """Filters messages between the transport and the engine of one node, in both directions."""

    def __init__(self, node: GuardedNode) -> None:
        self._node = node
        self._voted: set[int] = set()  # who voted for this node in `_votes_term`
        self._votes_term = 0
        self._answering: AppendEntries | None = None

    def on_message(self, peer: int, message: AnyMessage) -> SnapshotOffer | None:
        """Returns the offer of a snapshot, unless a deposed leader made it.

        Raises:
            RemoteProtocolError: no node of this version sends that; drop the connection.
        """
        match message:
            case AppendEntries():
                self._on_append_entries(peer, message)
            case AppendReply():
                self._on_append_reply(peer, message)
            case SnapshotOffer():
                return self._on_offer(peer, message)
            case PreVote():
                self._on_pre_vote(peer, message)
            case PreVoteReply():
                self._on_pre_vote_reply(peer, message)
            case RequestVote():
                self._on_request_vote(peer, message)
            case VoteReply():
                self._on_vote(peer, message)
            case StandingChanged():
                self._node.membership.on_standing(peer, message.standing, message.term)
            case _:  # between voters there are no others after the handshake
                raise RemoteProtocolError(f"a {type(message).__name__} from voter {peer}")
        return None

    # A follower's side

    def _on_append_entries(self, peer: int, message: AppendEntries) -> None:
        node = self._node
        # A deposed leader, which gets an answer and no more.
        if self._is_from_deposed_leader(peer, message.term):
            return
        _check_entries(message)
        self._check_leader(peer, message.term)
        node.on_leader_contact()
        self._answering = self._beyond_commit(message)
        try:
            node.engine_receive(peer, _append_for_engine(self._answering))
        finally:
            self._answering = None
            node.journal.end_message()

    def _is_from_deposed_leader(self, peer: int, term: int) -> bool:
        """A deposed leader gets an answer with the newer term, from which it learns that."""
        node = self._node
        if term >= node.term:  # of this node's term or newer
            return False
        node.send(peer, self._reply(next_index=0, is_reset=False, is_success=False, round_number=0))
        return True

    def _check_leader(self, peer: int, term: int) -> None:
        """A term has one leader: another one in this node's own term is a protocol error."""
        if term == self._node.term and self._node.is_leader:
            raise RemoteProtocolError(f"voter {peer} leads term {term}, which is ours")

    def _beyond_commit(self, message: AppendEntries) -> AppendEntries:
        """Rule 3: a leader of this term holds all committed entries, so skip to the last one."""
        node, commit = self._node, self._node.commit_index
        if message.previous_index >= commit:  # it does not reach below the commit index
            return message
        self._check_committed(message)
        return AppendEntries(
            term=message.term,
            commit_index=message.commit_index,
            previous_index=commit,
            previous_term=node.term_at(commit),
            entries=tuple(entry for entry in message.entries if entry[1] > commit),
            round=message.round,
        )

    def _check_committed(self, message: AppendEntries) -> None:
        """Logs that differ in committed entries belong to two quorums: this node must stop."""
        node = self._node
        sent = [(message.previous_index, message.previous_term)]
        sent += [(index, term) for _, index, term in message.entries]
        for index, term in sent:
            held = node.journal.term_at(index)
            if index <= node.commit_index and held not in (None, term):
                raise CorruptJournal(
                    f"entry {index} is committed here in term {held}, and the leader has it of term"
                    f" {term}: this directory belongs to another quorum, voters differ in their"
                    " settings, or a majority runs on older copies of its directories"
                )

    def _on_offer(self, peer: int, message: SnapshotOffer) -> SnapshotOffer | None:
        """A heartbeat that proves nothing about this node's log (rule 2): no commit index."""
        node = self._node
        if self._is_from_deposed_leader(peer, message.term):  # as for AppendEntries
            return None
        self._check_leader(peer, message.term)
        node.on_leader_contact()
        heartbeat = {"type": "append_entries", "term": message.term, "commit_index": 0}
        node.engine_receive(peer, heartbeat)
        is_held = message.index <= node.commit_index  # installed: the leader continues behind it
        node.send(
            peer,
            self._reply(
                next_index=message.index + 1 if is_held else 0,
                is_reset=False,
                is_success=is_held,
                round_number=message.round,
            ),
        )
        return message

    def _reply(
        self, *, next_index: int, is_reset: bool, is_success: bool, round_number: int
    ) -> AppendReply:
        node = self._node
        return AppendReply(
            term=node.term,
            next_index=next_index,
            is_reset=is_reset,
            is_success=is_success,
            round=round_number,
            standing=node.membership.standing,
            last_index=node.journal.last_index,
        )

    # A leader's side

    def _on_append_reply(self, peer: int, message: AppendReply) -> None:
        node = self._node
        if message.term > node.term:  # an answer from a later term: this leader was deposed
            node.step_down(message.term)
        if message.term != node.term or not node.is_leader:  # a late answer of an earlier term
            return
        # Entries that were never sent: a peer of another quorum, or a faulty one.
        if message.next_index > node.journal.last_index + 1:
            raise RemoteProtocolError(f"voter {peer} has entries that we do not have")
        # No such answer is possible, and the leader would have nothing to send.
        if message.is_reset and message.next_index < 2:
            raise RemoteProtocolError(f"voter {peer} denies entry 1, which every log begins with")
        # A round that this leader has not begun: of another quorum.
        if message.round > node.reads.round:
            raise RemoteProtocolError(f"voter {peer} answers round {message.round}, not begun yet")
        if message.last_index < node.match_index(peer):  # rule 7
            self._stop_older_copy(peer, message.last_index)
        elif message.standing is Standing.ESTABLISHED and node.counts(peer):  # rule 1
            self._count(peer, message)
        else:
            self._feed(peer, message)

    def _stop_older_copy(self, peer: int, last_index: int) -> None:
        """Rule 7. Entries that it confirmed, and that may have been counted, are gone there."""
        node = self._node
        why = f"it ends with entry {last_index} and had confirmed {node.match_index(peer)}"
        node.forget_match(peer)
        node.membership.distrust(peer)
        node.send(peer, older_copy(peer, why))

    def _feed(self, peer: int, message: AppendReply) -> None:
        """A blank or replaced disk receives the log, but its answers do not count (rule 1)."""
        node = self._node
        if message.is_reset:  # a conflict: try again from there
            node.replication.on_reset(peer)
            node.set_next_index(peer, message.next_index)
        elif message.is_success:
            node.replication.on_confirmed(peer, message.next_index)
            node.set_next_index(peer, max(node.next_index(peer), message.next_index))

    def _count(self, peer: int, message: AppendReply) -> None:
        node = self._node
        node.reads.on_echo(peer, message.round)
        before, match = node.next_index(peer), node.match_index(peer)
        next_index = message.next_index
        if message.is_reset:
            next_index = max(next_index, match + 1)  # rule 4
            node.replication.on_reset(peer)
        node.engine_receive(
            peer,
            {
                "type": "next_node_idx",
                "next_node_idx": next_index,
                "reset": message.is_reset,
                "success": message.is_success,
            },
        )
        # PySyncObj may have moved it back: rule 4.
        if message.is_success:
            node.replication.on_confirmed(peer, next_index)
            node.set_next_index(peer, max(before, node.next_index(peer)))

    # Elections

    def _on_pre_vote(self, peer: int, message: PreVote) -> None:
        node = self._node
        if node.membership.standing is Standing.BLANK:  # a vote it gave before may be lost
            return
        is_granted = would_grant(
            message,
            term=node.term,
            last_log_index=node.journal.last_index,
            last_log_term=node.term_at(node.journal.last_index),
            hears_leader=node.hears_leader(),
        )
        reply = PreVoteReply(term=message.term, is_granted=is_granted, current_term=node.term)
        node.send(peer, reply)

    def _on_pre_vote_reply(self, peer: int, message: PreVoteReply) -> None:
        node = self._node
        if message.current_term > node.term:  # the voter is in a later term: follow there first
            node.step_down(message.current_term)
        elif node.counts(peer):  # rule 8
            node.on_pre_vote_reply(peer, message)

    def _on_request_vote(self, peer: int, message: RequestVote) -> None:
        node = self._node
        is_deaf = node.membership.standing is Standing.BLANK or node.hears_leader()
        if not is_deaf:  # rule 5: it needs no vote now, and sends none
            node.engine_receive(
                peer,
                {
                    "type": "request_vote",
                    "term": message.term,
                    "last_log_index": message.last_log_index,
                    "last_log_term": message.last_log_term,
                },
            )

    def _on_vote(self, peer: int, message: VoteReply) -> None:
        if message.term != self._node.term:
            return  # a late vote; and a wrong, high term must not reset `_voted` of the real one
        if message.term != self._votes_term:
            self._votes_term, self._voted = message.term, set()
        if peer not in self._voted and self._node.counts(peer):  # rule 5
            self._voted.add(peer)
            self._node.engine_receive(peer, {"type": "response_vote", "term": message.term})

    # Messages of the engine

    def from_engine(self, message: dict[str, Any]) -> AnyMessage:
        match message["type"]:
            case "next_node_idx":
                return self._append_reply(message)
            case "request_vote":
                return RequestVote(
                    message["term"], message["last_log_index"], message["last_log_term"]
                )
            case "response_vote":  # a vote; the engine sends no refusals
                return VoteReply(message["term"])
            case unknown:
                raise AssertionError(f"PySyncObj must not send {unknown}")

    def _append_reply(self, message: dict[str, Any]) -> AppendReply:
        answered = self._answering
        assert answered is not None, "an answer to nothing"
        next_index = message["next_node_idx"]
        # The follower's own log ends before, or conflicts.
        if message["reset"] and next_index <= answered.previous_index:
            next_index = min(next_index, self._node.commit_index + 1)  # rule 6
        return self._reply(
            next_index=next_index,
            is_reset=message["reset"],
            is_success=message["success"],
            round_number=answered.round,
        )


def _check_entries(message: AppendEntries) -> None:
    """Entries must be contiguous, and their terms must not fall."""
    index, term = message.previous_index, message.previous_term
    for _, entry_index, entry_term in message.entries:
        # Appending these would corrupt the log.
        if entry_index != index + 1 or not term <= entry_term <= message.term:
            raise RemoteProtocolError(
                f"entry {entry_index} of term {entry_term} after {index} of term {term}"
            )
        index, term = entry_index, entry_term


def _append_for_engine(message: AppendEntries) -> dict[str, Any]:
    entries: tuple[Entry, ...] = message.entries
    return {
        "type": "append_entries",
        "term": message.term,
        "commit_index": min(message.commit_index, message.previous_index + len(entries)),  # rule 2
        "prevLogIdx": message.previous_index,
        "prevLogTerm": message.previous_term,
        "entries": entries,
    }
