"""Each rule of the guard, with messages by hand, and what no node of this version sends."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from raftmq.errors import CorruptJournal, RemoteProtocolError
from raftmq.metadata.raft.net.messages import (
    AnyMessage,
    AppendEntries,
    AppendReply,
    KeepAlive,
    ObserverFetch,
    PreVote,
    PreVoteReply,
    Refusal,
    RequestVote,
    SnapshotOffer,
    Standing,
    StandingChanged,
    StatusRequest,
    VoteReply,
    Welcome,
)
from tests.simulation.raft.lockstep import Lockstep, Voter, quorum
from tests.unit.metadata.raft.voters import hello_of

LOG_END = 1 << 40  # in answers of somebody who lacks nothing


@pytest.fixture
def world() -> Lockstep:
    """Voter 1 leads term 1; all have the same log, committed and applied."""
    return quorum(1)


def append(
    voter: Voter, *, previous: int, terms: tuple[int, ...] = (), **changes: Any
) -> AppendEntries:
    """What follows `previous` in the log of `voter`: one entry of each of these terms."""
    values: dict[str, Any] = {
        "term": 1,
        "commit_index": voter.node.commit_index,
        "previous_index": previous,
        "previous_term": voter.journal.term_at(previous) or 0,
        "entries": tuple((b"\x01", previous + n, term) for n, term in enumerate(terms, start=1)),
        "round": 0,
    }
    return AppendEntries(**{**values, **changes})


def reply(next_index: int, **changes: Any) -> AppendReply:
    values = {
        "term": 1,
        "next_index": next_index,
        "is_reset": False,
        "is_success": True,
        "round": 0,
        "standing": Standing.ESTABLISHED,
        "last_index": LOG_END,
    }
    return AppendReply(**{**values, **changes})


def answers(voter: Voter) -> list[AppendReply]:
    """Without the end of the log, which rule 7 alone looks at."""
    return [replace(message, last_index=LOG_END) for message in voter.take_sent(AppendReply)]


def offer(index: int, **changes: Any) -> SnapshotOffer:
    values = {"round": 0, "snapshot_term": 1, "size_bytes": 9, "crc": 0, "term": 1}
    return SnapshotOffer(**{**values, "index": index, **changes})


# Rule 1


def test_answers_count_in_their_term(world: Lockstep) -> None:
    """Of the term before: ignored. Of a later one: this node leads no more."""
    world.elect(2)
    leader = world.elect(1)
    leader.submit(b"a")
    end, match = leader.journal.last_index, leader.node.match_index(2)
    leader.node.receive(2, reply(end + 1, term=1))
    assert leader.node.match_index(2) == match
    leader.node.receive(2, reply(end + 1, term=leader.node.term))
    assert leader.node.match_index(2) == end
    leader.node.receive(3, reply(0, term=9, is_success=False))
    assert (leader.node.is_leader, leader.node.term) == (False, 9)


@pytest.mark.parametrize("says_so", [True, False])
def test_a_blank_voter_counts_nothing(world: Lockstep, says_so: bool) -> None:
    """Whether the answer says that it is blank, or the peer's greeting did."""
    leader = world[1]
    if not says_so:
        leader.node.receive(2, StandingChanged(Standing.BLANK, 1))
    standing = Standing.BLANK if says_so else Standing.ESTABLISHED
    leader.submit(b"a")
    match, contact = leader.node.match_index(2), _contact(leader, 2)
    world.now += 0.1
    leader.node.receive(2, reply(leader.journal.last_index + 1, standing=standing))
    assert (leader.node.match_index(2), _contact(leader, 2)) == (match, contact)
    assert leader.node.next_index(2) == leader.journal.last_index + 1  # but it is fed
    leader.node.receive(2, reply(2, standing=standing, is_success=False, is_reset=True))
    assert leader.node.next_index(2) == 2


def _contact(leader: Voter, peer: int) -> float:
    return float(leader.node._SyncObj__lastResponseTime[leader.node.peers[peer]])


def test_a_read_is_confirmed_by_answers(world: Lockstep) -> None:
    """A round of messages goes out at once, and the first answer makes a majority of three."""
    answers: list[bool] = []
    world[1].node.begin_read(answers.append)
    world.step()
    assert not answers
    world.step()
    world.step()
    assert answers == [True]


# Rule 2


def test_no_commit_beyond_what_is_shown(world: Lockstep) -> None:
    """A follower with a tail of its own commits no further than the message reaches."""
    voter = world[2]
    end = voter.journal.last_index
    voter.node.receive(1, append(voter, previous=end, terms=(1, 1, 1)))
    voter.node.receive(1, append(voter, previous=end, commit_index=end + 3))
    assert voter.node.commit_index == end
    voter.node.receive(1, append(voter, previous=end, terms=(1, 1), commit_index=end + 3))
    assert voter.node.commit_index == end + 2


def test_an_offer_is_a_heartbeat(world: Lockstep) -> None:
    """It proves nothing about the log, yet whoever sends it leads, and its round is answered."""
    voter = world[2]
    before = voter.node.commit_index
    voter.sent = []
    voter.node.receive(3, offer(99, term=4, round=7))
    assert (voter.node.commit_index, voter.node.term, voter.node.leader_id) == (before, 4, 3)
    assert answers(voter) == [reply(0, term=4, is_success=False, round=7)]


def test_an_offer_of_what_is_held_is_confirmed(world: Lockstep) -> None:
    """Once the snapshot is installed its index is committed: the leader may go on behind it."""
    voter = world[2]
    commit_index = voter.node.commit_index
    voter.sent = []
    voter.node.receive(1, offer(commit_index))
    voter.node.receive(1, offer(commit_index + 1))
    assert answers(voter) == [reply(commit_index + 1), reply(0, is_success=False)]


# Rule 3


def test_what_is_committed_is_not_compared_again(world: Lockstep) -> None:
    """A message from far below, even with other terms, touches nothing up to the commit index."""
    voter = world[2]
    log, commit_index = voter.log, voter.node.commit_index
    terms = (1,) * commit_index
    voter.sent = []
    voter.node.receive(1, append(voter, previous=1, terms=terms, previous_term=0))
    assert voter.log == [*log, (commit_index + 1, 1)]
    assert answers(voter) == [reply(commit_index + 2)]


def test_what_conflicts_above_is_replaced(world: Lockstep) -> None:
    """Entries of another term above the commit index give way, and those behind them."""
    voter = world[2]
    end = voter.journal.last_index
    voter.node.receive(1, append(voter, previous=end, terms=(1, 1, 1)))
    voter.node.receive(3, append(voter, previous=end + 1, terms=(2,), term=2))
    assert voter.log[-2:] == [(end + 1, 1), (end + 2, 2)]


# Rule 4


def test_what_was_confirmed_stays_confirmed(world: Lockstep) -> None:
    """Neither a late refusal nor a late confirmation of less moves the leader back."""
    leader = world[1]
    match = leader.node.match_index(2)
    assert match == leader.journal.last_index
    leader.node.receive(2, reply(2, is_success=False, is_reset=True))
    assert leader.node.next_index(2) == match + 1
    leader.node.receive(2, reply(2))
    assert (leader.node.match_index(2), leader.node.next_index(2)) == (match, match + 1)


# Rule 5


def test_a_vote_counts_once() -> None:
    """Of five voters one grants twice: that makes two votes with this node's own, not three."""
    world = quorum(1, 5)
    candidate = _campaigning(world, 2)
    term = candidate.node.term
    for _ in range(3):
        candidate.node.receive(3, VoteReply(term))
    assert not candidate.node.is_leader
    candidate.node.receive(4, VoteReply(term - 1))
    assert not candidate.node.is_leader
    candidate.node.receive(4, VoteReply(term))
    assert candidate.node.is_leader


def test_a_wild_term_hides_no_vote() -> None:
    """A vote for a term that nobody asked about is ignored: it adds nothing and forgets nothing."""
    world = quorum(1, 5)
    candidate = _campaigning(world, 2)
    for peer, term in ((3, 2), (3, 1 << 60), (3, 2), (1, 1 << 60)):
        candidate.node.receive(peer, VoteReply(term))
        assert not candidate.node.is_leader
    candidate.node.receive(4, VoteReply(2))
    assert candidate.node.is_leader


def _campaigning(world: Lockstep, node_id: int) -> Voter:
    """A candidate whose requests have not arrived anywhere."""
    voter = world[node_id]
    world.now += 10
    voter.node.election_deadline = world.now - 1
    voter.node.tick()
    for peer in world.ids:
        if peer != node_id:
            voter.node.receive(peer, PreVoteReply(2, is_granted=True, current_term=1))
    voter.node.tick()
    assert voter.node.term == 2
    return voter


def test_no_vote_while_there_is_a_leader(world: Lockstep) -> None:
    """Neither a pre-vote nor a vote, of a leader or a follower; the term stays."""
    for node_id in (1, 2):
        voter = world[node_id]
        voter.sent = []
        voter.node.receive(3, PreVote(9, last_log_index=99, last_log_term=8))
        voter.node.receive(3, RequestVote(9, last_log_index=99, last_log_term=8))
        assert voter.take_sent() == [PreVoteReply(9, is_granted=False, current_term=1)]
        assert voter.node.term == 1


def test_a_blank_voter_gives_no_vote() -> None:
    """It does not even answer the question."""
    world = quorum(1)
    voter = world.replace_disk(3)
    world.connect(2, 3)
    voter.node.receive(2, PreVote(9, last_log_index=99, last_log_term=8))
    voter.node.receive(2, RequestVote(9, last_log_index=99, last_log_term=8))
    assert voter.take_sent() == []
    assert voter.node.term == 0


def test_votes_without_a_leader(world: Lockstep) -> None:
    """After the silence a vote is given once in a term, and for a log that lacks nothing."""
    voter = world[2]
    world.now += 5
    voter.sent = []
    last_index = voter.journal.last_index
    voter.node.receive(3, PreVote(2, last_log_index=last_index, last_log_term=1))
    voter.node.receive(3, RequestVote(2, last_log_index=last_index - 1, last_log_term=1))
    voter.node.receive(3, RequestVote(2, last_log_index=last_index, last_log_term=1))
    voter.node.receive(1, RequestVote(2, last_log_index=last_index, last_log_term=1))
    assert voter.take_sent(to=3) == [
        PreVoteReply(2, is_granted=True, current_term=1),
        VoteReply(2),
    ]
    assert voter.journal.getVotedForNodeId() == 3


def test_a_higher_term_ends_the_question(world: Lockstep) -> None:
    """Who asks in vain because its term is old learns the newer one by the answer."""
    voter = world[2]
    voter.node.receive(3, PreVoteReply(2, is_granted=False, current_term=8))
    assert voter.node.term == 8


# Rule 6


def test_after_a_conflict_from_the_commit_index_on(world: Lockstep) -> None:
    """One refusal names the place from which on the logs may differ."""
    voter = world[2]
    end = voter.journal.last_index
    voter.node.receive(1, append(voter, previous=end, terms=(1,) * 50))
    voter.sent = []
    message = append(voter, previous=end + 40, term=3, previous_term=2)
    voter.node.receive(3, message)
    assert answers(voter) == [reply(end + 1, term=3, is_success=False, is_reset=True)]


def test_after_a_gap_from_the_commit_index_on(world: Lockstep) -> None:
    """A message that begins beyond the own log is refused likewise."""
    voter = world[2]
    end = voter.journal.last_index
    voter.sent = []
    voter.node.receive(1, append(voter, previous=end + 100, previous_term=1))
    assert answers(voter) == [reply(end + 1, is_success=False, is_reset=True)]


# Deposed leaders


@pytest.mark.parametrize("kind", ["append", "offer"])
def test_a_deposed_leader_is_told(world: Lockstep, kind: str) -> None:
    """Its messages change nothing; the answer has the newer term and confirms nothing."""
    voter = world[2]
    voter.node.step_down(5)
    log, voter.sent = voter.log, []
    end = voter.journal.last_index
    message = append(voter, previous=end, terms=(1,)) if kind == "append" else offer(end)
    voter.node.receive(1, message)
    assert voter.log == log
    assert voter.node.leader_id is None
    assert answers(voter) == [reply(0, term=5, is_success=False)]


# What nobody sends


def test_other_kinds_of_messages(world: Lockstep) -> None:
    """Between voters there are greetings before, and nothing for guests."""
    rubbish: list[AnyMessage] = [
        hello_of(2), Welcome(), Refusal("no"), KeepAlive(), StatusRequest(), ObserverFetch(2),
    ]  # fmt: skip
    for message in rubbish:
        with pytest.raises(RemoteProtocolError, match=f"{type(message).__name__} from voter 2"):
            world[1].node.receive(2, message)


@pytest.mark.parametrize(
    "entries",
    [
        ((b"\x01", 90, 1),),  # a gap
        ((b"\x01", 10, 1), (b"\x01", 10, 1)),  # twice
        ((b"\x01", 10, 1), (b"\x01", 12, 1)),
        ((b"\x01", 10, 0),),  # a term that falls
        ((b"\x01", 10, 2),),  # a term that has not begun
    ],
)
def test_entries_that_are_no_log(
    world: Lockstep, entries: tuple[tuple[bytes, int, int], ...]
) -> None:
    """Holes, repetitions and wrong terms end the connection before anything is written."""
    voter = world[2]
    log = voter.log
    message = append(voter, previous=9, previous_term=1, entries=entries)
    with pytest.raises(RemoteProtocolError, match=r"after (9|10) of term 1"):
        voter.node.receive(1, message)
    assert voter.log == log


def test_another_leader_in_our_term(world: Lockstep) -> None:
    """A term has one leader, and that is this node."""
    leader = world[1]
    end = leader.journal.last_index
    for message in (append(leader, previous=end), offer(99)):
        with pytest.raises(RemoteProtocolError, match="leads term 1, which is ours"):
            leader.node.receive(2, message)
    assert leader.node.is_leader


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (reply(1000), "entries that we do not have"),
        (reply(0, is_reset=True, is_success=False), "denies entry 1"),
        (reply(1, is_reset=True, is_success=False), "denies entry 1"),
        (reply(2, round=5), "round 5, not begun yet"),
    ],
)
def test_answers_that_cannot_be(world: Lockstep, message: AppendReply, match: str) -> None:
    """More than the leader has, less than everybody has, or to a question not asked yet."""
    with pytest.raises(RemoteProtocolError, match=match):
        world[1].node.receive(2, message)
    world.settle()


@pytest.mark.parametrize("where", ["before the entries", "among them"])
def test_a_leader_with_another_history_ends_this_node(world: Lockstep, where: str) -> None:
    """What is committed here is of another term there: going on would hide that they differ."""
    voter = world[2]
    commit = voter.node.commit_index
    if where == "among them":
        message = append(voter, previous=commit - 1, terms=(2,), term=2)
    else:
        message = append(voter, previous=commit - 1, previous_term=2, terms=(2,), term=2)
    with pytest.raises(CorruptJournal, match="belongs to another quorum"):
        voter.node.receive(3, message)
