"""Would I win? A node asks before it raises its term, so that a lonely one disturbs nobody.

Owns the rules of the question and of the answer (Ongaro's thesis, 9.6 and 4.2.3). Pure: the
guard sends what is decided here. A node that hears its leader grants nothing (stickiness).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raftmq.metadata.raft.messages import PreVote, PreVoteReply


def would_grant(
    question: PreVote, *, term: int, last_log_index: int, last_log_term: int, hears_leader: bool
) -> bool:
    """Whether the one who asks could have this node's vote in `question.term`.

    1. Not while this node hears a leader.
    2. Not in a term that has begun already.
    3. Not with a log that lacks something of ours (5.4.1 of the Raft paper).
    """
    if hears_leader or question.term <= term:
        return False
    theirs = question.last_log_term, question.last_log_index
    return theirs >= (last_log_term, last_log_index)


class PreVotes:
    """The answers to this node's own question; a new question forgets the old answers."""

    def __init__(self, node_id: int, voter_count: int) -> None:
        self._node_id, self._voter_count = node_id, voter_count
        self._term = 0
        self._granted: set[int] = set()

    def ask(self, term: int) -> None:
        self._term, self._granted = term, {self._node_id}

    def on_reply(self, peer: int, reply: PreVoteReply) -> None:
        if reply.is_granted and reply.term == self._term:
            self._granted.add(peer)

    def forget(self) -> None:
        self._granted = set()

    def is_won(self, term: int) -> bool:
        """Whether a majority would vote for this node in `term`."""
        return term == self._term and 2 * len(self._granted) > self._voter_count
