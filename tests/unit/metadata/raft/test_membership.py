"""Whose disk can be trusted: each rule, and the whole story of a lost one (decision 0012)."""

from __future__ import annotations

from typing import Any

import pytest

from raftmq.metadata.raft.engine.replication import Fate
from raftmq.metadata.raft.engine.voter_disks import Enrolment, VoterMembership
from raftmq.metadata.raft.net.messages import NodeHello, Standing
from tests.simulation.raft.lockstep import Lockstep, quorum
from tests.unit.metadata.raft.voters import hello_of

OURS, OTHER = b"disk of one", b"another disk"


def membership(standing: Standing = Standing.BLANK) -> VoterMembership:
    return VoterMembership(1, (1, 2, 3), disk_id=OURS, standing=standing)


def hello(node_id: int, **changes: Any) -> NodeHello:
    values = {"disk_id": b"disk", "start_count": 1, "nonce": b"run", **changes}
    return hello_of(node_id, **values)


def established(node_id: int, **changes: Any) -> NodeHello:
    return hello(node_id, standing=Standing.ESTABLISHED, **changes)


# Rule 1


def test_a_new_quorum_establishes_itself() -> None:
    """Rule 1: blank, and all others are connected and in term 0."""
    voter = membership()
    voter.on_connected(hello(2))
    assert not voter.should_establish(0)
    voter.on_connected(hello(3))
    assert voter.should_establish(0)


@pytest.mark.parametrize(("own_term", "their_term"), [(1, 0), (0, 1)])
def test_a_quorum_that_has_begun_is_not_new(own_term: int, their_term: int) -> None:
    """Rule 1: one term above 0 anywhere means that something may have been promised."""
    voter = membership()
    voter.on_connected(hello(2, term=their_term))
    voter.on_connected(hello(3))
    assert not voter.should_establish(own_term)


def test_what_was_told_later_counts() -> None:
    """Rule 1: a peer that says it has left term 0 has left it, as has one that disconnects."""
    voter = membership()
    voter.on_connected(hello(2))
    voter.on_connected(hello(3))
    voter.on_standing(3, Standing.ESTABLISHED, 1)
    assert not voter.should_establish(0)
    voter.on_standing(3, Standing.ESTABLISHED, 0)
    assert voter.should_establish(0)
    voter.on_disconnected(3)
    assert not voter.should_establish(0)


def test_an_established_voter_stays_so() -> None:
    """There is nothing to do twice."""
    voter = membership(Standing.ESTABLISHED)
    voter.on_connected(hello(2))
    voter.on_connected(hello(3))
    assert not voter.should_establish(0)


def test_an_empty_directory_evicts_nobody() -> None:
    """A live voter is connected; somebody gives its id to another machine by mistake."""
    voter = membership(Standing.ESTABLISHED)
    voter.on_connected(established(2, disk_id=b"two"))
    refusal = voter.check_hello(hello(2, disk_id=b"mistake"), term=4)
    assert refusal is not None
    assert "have this node.id, stop one of them" in refusal.reason
    assert not refusal.is_final
    assert not refusal.must_stop
    voter.on_disconnected(2)
    new = hello(2, disk_id=b"its new disk", is_replacement=True)
    assert voter.check_hello(new, term=4) is None


def test_voters_of_another_set_are_refused() -> None:
    """Two majorities of different sets need not meet: both could commit."""
    voter = membership(Standing.ESTABLISHED)
    refusal = voter.check_hello(established(3, voters=(3,)), term=1)
    assert refusal is not None
    assert refusal.is_final
    assert "knows the voters [3], here they are [1, 2, 3]" in refusal.reason
    assert voter.check_hello(established(3, voters=(1, 2, 3)), term=1) is None


# Rule 2


def test_an_enrolment_of_its_own_disk_establishes() -> None:
    """Rule 2: the voter and the disk must be this one's; what it knows of others it keeps."""
    voter = membership()
    assert not voter.on_enrolled(2, OTHER, 5)
    assert not voter.on_enrolled(1, OTHER, 6)
    assert voter.on_enrolled(1, OURS, 7)
    assert voter.enrolled == {2: Enrolment(OTHER, 5), 1: Enrolment(OURS, 7)}
    voter.standing = Standing.ESTABLISHED
    assert not voter.on_enrolled(1, OURS, 8)


def test_whom_a_leader_enrols() -> None:
    """Disks that nobody enrolled yet, and new disks of blank voters, as far as connected."""
    leader = membership(Standing.ESTABLISHED)
    leader.on_connected(established(2, disk_id=b"two"))
    assert leader.unenrolled() == [(1, OURS), (2, b"two")]
    leader.on_enrolled(1, OURS, 5)
    leader.on_enrolled(2, b"two", 6)
    assert leader.unenrolled() == []
    leader.on_connected(hello(2, disk_id=b"new"))  # before the quorum had begun
    leader.on_connected(hello(3, disk_id=b"three"))
    assert leader.unenrolled() == []
    leader.on_connected(hello(2, disk_id=b"new", is_replacement=True))
    leader.on_disconnected(3)
    assert leader.unenrolled() == [(2, b"new")]
    leader.on_disconnected(2)
    assert leader.unenrolled() == []


# Campaigns


def test_in_term_0_all_must_be_ready() -> None:
    """Nobody campaigns in term 0 before all others are connected and established."""
    voter = membership(Standing.ESTABLISHED)
    voter.on_connected(established(2))
    assert not voter.may_campaign(0)
    voter.on_connected(hello(3))
    assert not voter.may_campaign(0)
    voter.on_standing(3, Standing.ESTABLISHED, 0)
    assert voter.may_campaign(0)


def test_later_anybody_who_is_not_blank() -> None:
    """Above term 0 the quorum has begun; a blank voter never campaigns."""
    assert membership(Standing.ESTABLISHED).may_campaign(1)
    assert not membership().may_campaign(1)


def test_standing_is_known_while_connected() -> None:
    """Of a peer that is not there nothing is known, and what it is said to be changes nothing."""
    voter = membership()
    assert voter.standing_of(2) is None
    voter.on_standing(2, Standing.ESTABLISHED, 0)
    assert voter.standing_of(2) is None
    voter.on_connected(hello(2))
    assert voter.is_blank(2)


# Older copies


@pytest.mark.parametrize(
    ("changes", "is_accepted"),
    [
        ({}, True),  # the same run connects again
        ({"start_count": 8}, True),
        ({"start_count": 6}, False),  # a restored copy
        ({"nonce": b"other"}, False),  # two processes on copies of one directory
        ({"disk_id": OTHER, "start_count": 1}, True),  # a new disk
    ],
)
def test_older_copies_of_a_directory(changes: dict[str, Any], is_accepted: bool) -> None:
    """Run 7 of a disk was seen here; who comes next?"""
    voter = membership()
    voter.on_connected(established(2, start_count=7))
    voter.on_disconnected(2)
    refusal = voter.check_hello(established(2, **{"start_count": 7, **changes}), term=1)
    assert (refusal is None) is is_accepted
    if refusal:
        assert refusal.is_final
        assert refusal.must_stop
        assert "voter 2 is an older copy" in refusal.reason


@pytest.mark.parametrize(
    ("newcomer", "is_accepted"),
    [
        (established(2, disk_id=OTHER), True),  # the one that is enrolled
        (established(2, disk_id=b"old", enrolled_index=10), False),  # enrolled before it
        (established(2, disk_id=b"old"), False),
        (established(2, disk_id=b"new", enrolled_index=30), True),  # it knows more than we do
        (hello(2, disk_id=b"new", is_replacement=True), True),  # blank: it promises nothing yet
    ],
)
def test_a_replaced_disk_comes_back(newcomer: NodeHello, is_accepted: bool) -> None:
    """At entry 20 another disk was enrolled for voter 2; who comes next?"""
    voter = membership(Standing.ESTABLISHED)
    voter.on_enrolled(2, OTHER, 20)
    refusal = voter.check_hello(newcomer, term=1)
    assert (refusal is None) is is_accepted
    if refusal:
        assert refusal.must_stop
        assert "replaced" in refusal.reason


# The whole story


def with_a_lost_disk() -> Lockstep:
    """Voters 1 and 3 committed an entry without 2; then the disk of 3 is lost."""
    world = quorum(1)
    world.isolate(2)
    [fate] = committed(world, 1, b"precious")
    assert fate is Fate.APPLIED
    world.replace_disk(3)
    return world


def committed(world: Lockstep, leader: int, command: bytes) -> list[Fate]:
    fates = world[leader].submit(command)
    world.run(0.3)
    return [fate for fate, _ in fates]


def test_a_lost_disk_elects_nobody() -> None:
    """Voter 3 has forgotten the entry: with 2, which never had it, it must make no leader."""
    world = with_a_lost_disk()
    files = world.crash(1)
    world.connect_all()
    world.run(10)
    assert world.leaders == []
    assert world[3].membership.standing is Standing.BLANK
    world.start(1, files)
    world.connect_all()
    world.settle()
    world.run_until(lambda: bool(world.leaders))
    assert world.leaders == [1]
    assert all(voter.items == [b"precious"] for voter in world.voters.values())


def test_a_lost_disk_leads_nobody() -> None:
    """It was fed all there is, and 2 has less: still it does not campaign before it is enrolled."""
    world = with_a_lost_disk()
    world.connect(1, 3)
    world.run_until(lambda: world[3].log == world[1].log)
    world.crash(1)
    world.connect_all()
    world.run(10)
    assert world.leaders == []
    assert world[3].node.term == 1


def test_a_new_quorum_waits_for_all() -> None:
    """With one of three missing nobody is established or campaigns; with all, a leader is found."""
    world = Lockstep()
    world.connect(1, 2)
    world.run(10)
    assert {(v.node.term, v.membership.standing) for v in world.voters.values()} == {
        (0, Standing.BLANK)
    }
    world.connect(1, 3)  # voter 1 sees all now, the others do not
    world.run(10)
    assert world[1].membership.standing is Standing.ESTABLISHED
    assert world.leaders == []
    assert {voter.node.term for voter in world.voters.values()} == {0}
    world.connect_all()
    world.run_until(lambda: bool(world.leaders))


def test_a_lost_disk_counts_nothing_until_it_is_enrolled() -> None:
    """Alone with a blank voter, a leader commits nothing, serves no read, and resigns."""
    world = with_a_lost_disk()
    world.connect(1, 3)
    reads: list[bool] = []
    fates = world[1].submit(b"alone")
    world[1].node.begin_read(reads.append)
    world.run_until(lambda: not world[1].node.is_leader, within=4.0)
    assert (fates, reads) == ([], [False])
    assert world[3].membership.standing is Standing.BLANK


def test_a_lost_disk_is_enrolled_and_counts_again() -> None:
    """With 2 back the new disk is enrolled; then 1 and 3 are a majority, also after a restart."""
    world = with_a_lost_disk()
    new_disk = world[3].membership.disk_id
    world.connect_all()
    world.elect(1)
    world.run_until(lambda: world[3].membership.standing is Standing.ESTABLISHED)
    world.settle()
    assert {world[n].membership.enrolled[3].disk_id for n in (1, 2, 3)} == {new_disk}
    world.isolate(2)
    assert committed(world, 1, b"with three") == [Fate.APPLIED]
    world.restart(3)
    assert world[3].membership.standing is Standing.ESTABLISHED
    world.connect(1, 3)
    assert committed(world, 1, b"and again") == [Fate.APPLIED]
    assert world[3].items == [b"precious", b"with three", b"and again"]


def test_the_lost_disk_is_found_again() -> None:
    """It was replaced: whoever knows refuses it for good, and it must stop."""
    world = quorum(1)
    found = world.crash(3)
    world.replace_disk(3)
    world.connect_all()
    world.run_until(lambda: world[3].membership.standing is Standing.ESTABLISHED)
    world.settle()
    world.crash(3)
    world.start(3, found)
    assert not world.connect(1, 3)
    assert not world.connect(2, 3)
    assert world.refusals[3].must_stop


def test_a_new_disk_gets_a_snapshot_and_is_established_by_it() -> None:
    """The enrolment may be in the snapshot already: reading it there counts as well."""
    world = quorum(1)
    world.replace_disk(3)
    world.connect_all()
    world.step()
    world.isolate(3)  # before it holds the enrolment
    world.run(0.5)
    assert world[3].membership.standing is Standing.BLANK
    assert world[1].membership.enrolled[3].disk_id == world[3].membership.disk_id
    world[1].take_snapshot()
    world[1].journal.compact(world[1].node.last_applied, 0)
    world.connect_all()
    world.settle()
    assert world[3].membership.standing is Standing.ESTABLISHED
    assert world[3].journal.first_index == world[1].journal.first_index


def test_a_disk_that_is_being_replaced_counts_no_more() -> None:
    """A new disk of 3 is in the log to be enrolled when the old one comes back, and goes again.

    Whatever the old one confirms from then on, the new one does not hold when it is established.
    """
    world = quorum(1)
    old = world.crash(3)
    world.isolate(2)
    world.replace_disk(3)
    world.connect(1, 3)
    world.run(0.05)
    new = world.crash(3)
    world.start(3, old)
    world.connect(1, 3)
    fates = [world[1].submit(command) for command in (b"small", b"large" * 210_000)]
    world.run(0.3)
    world.crash(3)
    world.start(3, new, is_replacement=True)
    world.connect(1, 3)
    for _ in range(50):  # it is sent the log in two messages; stop between them
        if world[3].membership.standing is Standing.BLANK:
            world.step()
    world.crash(1)
    world.connect_all()
    world.run(5)
    acknowledged = [bool(fate) for fate in fates].count(True)
    assert len(world[3].items) >= acknowledged or not world.leaders
