"""The question before an election: who would grant it, and when it is won."""

from __future__ import annotations

import pytest

from raftmq.metadata.raft.engine.replication import PreVotes, would_grant
from raftmq.metadata.raft.net.messages import PreVote, PreVoteReply


@pytest.mark.parametrize(
    ("term", "last_log", "hears_leader", "is_granted"),
    [
        (6, (3, 10), False, True),  # the same log
        (6, (3, 11), False, True),  # a longer one
        (6, (4, 1), False, True),  # a later term beats any length
        (6, (3, 9), False, False),  # rule 3: a shorter one
        (6, (2, 99), False, False),  # rule 3: an earlier term
        (5, (9, 99), False, False),  # rule 2: the term has begun
        (4, (9, 99), False, False),  # rule 2: it is over
        (6, (9, 99), True, False),  # rule 1: there is a leader
    ],
)
def test_who_would_be_granted_a_vote(
    term: int, last_log: tuple[int, int], hears_leader: bool, is_granted: bool
) -> None:
    """A node in term 5 whose log ends with entry 10 of term 3 is asked."""
    question = PreVote(term, last_log_index=last_log[1], last_log_term=last_log[0])
    answer = would_grant(
        question, term=5, last_log_index=10, last_log_term=3, hears_leader=hears_leader
    )
    assert answer is is_granted


def granted(term: int) -> PreVoteReply:
    return PreVoteReply(term, is_granted=True, current_term=0)


def test_a_majority_wins() -> None:
    """Of five voters three are needed, this one included; each counts once."""
    votes = PreVotes(1, 5)
    votes.ask(7)
    votes.on_reply(2, granted(7))
    votes.on_reply(2, granted(7))
    assert not votes.is_won(7)
    votes.on_reply(3, granted(7))
    assert votes.is_won(7)
    assert not votes.is_won(8)


def test_half_is_no_majority() -> None:
    """Of four voters two are not enough."""
    votes = PreVotes(1, 4)
    votes.ask(7)
    votes.on_reply(2, granted(7))
    assert not votes.is_won(7)


def test_one_voter_alone_has_won() -> None:
    """It is its own majority, once it has asked."""
    votes = PreVotes(1, 1)
    assert not votes.is_won(1)
    votes.ask(1)
    assert votes.is_won(1)


def test_refusals_and_late_answers_do_not_count() -> None:
    """An answer counts for the newest question only."""
    votes = PreVotes(1, 3)
    votes.ask(7)
    votes.on_reply(2, PreVoteReply(7, is_granted=False, current_term=6))
    votes.on_reply(3, granted(6))
    assert not votes.is_won(7)
    votes.on_reply(2, granted(7))
    votes.ask(8)
    assert not votes.is_won(7)
    assert not votes.is_won(8)


def test_a_leader_was_heard() -> None:
    """What was granted before is worth nothing, this node's own vote included."""
    votes = PreVotes(1, 3)
    votes.ask(7)
    votes.on_reply(2, granted(7))
    votes.forget()
    assert not votes.is_won(7)
