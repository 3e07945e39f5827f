"""A read is served once a majority has answered what was asked after it, and not before."""

from __future__ import annotations

from raftmq.metadata.raft.engine.replication import Reads


def begun(reads: Reads) -> list[bool]:
    answers: list[bool] = []
    reads.begin(answers.append)
    return answers


def test_served_when_confirmed_and_applied() -> None:
    """Both are needed: a majority's echo of its round, and its index."""
    reads = Reads(3)
    answers = begun(reads)
    assert reads.open_round(commit_index=10)
    reads.serve(last_applied=10)
    assert not answers
    reads.on_echo(2, 1)
    reads.serve(last_applied=9)
    assert not answers
    reads.serve(last_applied=10)
    reads.serve(last_applied=11)
    assert answers == [True]
    assert len(reads) == 0


def test_an_earlier_round_confirms_nothing() -> None:
    """The echo of a question from before the read says nothing about a leader after it."""
    reads = Reads(3)
    first = begun(reads)
    reads.open_round(5)
    second = begun(reads)
    reads.open_round(5)
    reads.on_echo(2, 1)
    reads.serve(5)
    assert (first, second) == ([True], [])
    reads.on_echo(3, 2)
    reads.serve(5)
    assert second == [True]


def test_reads_share_a_round() -> None:
    """What was asked for between two rounds goes with the next one; without reads there is none."""
    reads = Reads(3)
    assert not reads.open_round(5)
    answers = [begun(reads) for _ in range(3)]
    assert len(reads) == 3
    reads.open_round(5)
    assert reads.round == 1
    reads.on_echo(2, 1)
    reads.serve(5)
    assert answers == [[True]] * 3


def test_a_majority_is_needed() -> None:
    """Of five voters two others must answer; a late, older echo takes nothing back."""
    reads = Reads(5)
    answers = begun(reads)
    reads.open_round(5)
    reads.on_echo(2, 1)
    reads.on_echo(2, 0)
    reads.serve(5)
    assert not answers
    reads.on_echo(3, 1)
    reads.serve(5)
    assert answers == [True]


def test_one_voter_alone_is_sure() -> None:
    """Nobody else could lead."""
    reads = Reads(1)
    answers = begun(reads)
    reads.open_round(5)
    reads.serve(5)
    assert answers == [True]


def test_a_deposed_leader_fails_all() -> None:
    """Reads with and without a round fail; what was heard before counts no more."""
    reads = Reads(3)
    waiting = begun(reads)
    reads.open_round(5)
    asked = begun(reads)
    reads.on_echo(2, 9)
    reads.fail_all()
    assert (waiting, asked) == ([False], [False])
    again = begun(reads)
    reads.open_round(5)
    reads.serve(5)
    assert not again
