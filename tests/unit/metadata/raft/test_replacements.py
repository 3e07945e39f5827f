"""An empty directory under a voter's id: whose word lets it in (decision 0028)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import CorruptJournal
from raftmq.metadata.raft.engine.replication import Fate
from raftmq.metadata.raft.engine.voter_disks import VoterMembership
from raftmq.metadata.raft.net.messages import NodeHello, Standing
from raftmq.metadata.raft.status import LeaderWatch
from tests.simulation.raft.lockstep import quorum
from tests.simulation.raft_cluster import open_cluster
from tests.unit.metadata.raft.talk import fill
from tests.unit.metadata.raft.voters import hello_of

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.simulation.raft.lockstep import Lockstep, Voter


def empty(voter: int, disk_id: bytes = b"empty", *, is_replacement: bool = False) -> NodeHello:
    return hello_of(voter, disk_id=disk_id, nonce=b"run", is_replacement=is_replacement)


@pytest.mark.parametrize(
    ("newcomer", "term", "is_accepted"),
    [
        (empty(2), 1, False),
        (empty(2, is_replacement=True), 1, True),
        (empty(2, b"two"), 1, True),  # killed before it knew of its seat
        (hello_of(2, disk_id=b"two", standing=Standing.ESTABLISHED), 1, True),
        (empty(3), 1, False),  # all were there once: it has been another one
        (empty(2), 0, True),  # nothing has begun yet
    ],
)
def test_an_empty_directory_takes_no_seat(
    newcomer: NodeHello, term: int, is_accepted: bool
) -> None:
    """In a quorum that has begun, its operator has to say that the disk before it is lost."""
    voter = VoterMembership(1, (1, 2, 3), disk_id=b"one", standing=Standing.ESTABLISHED)
    voter.on_enrolled(2, b"two", 5)
    refusal = voter.check_hello(newcomer, term=term)
    assert (refusal is None) is is_accepted
    if refusal:
        assert refusal.is_final
        assert not refusal.must_stop
        assert f"the directory of voter {newcomer.node_id} is empty" in refusal.reason
        assert "-o quorum.replace=true" in refusal.reason


def test_an_empty_directory_waits_for_its_operators_word() -> None:
    """Voter 3 is down, its disk is whole: a process with its id and an empty directory comes,
    stays out however long it knocks, also when all others were started anew; then 3 comes back."""
    world = quorum(1)
    fates = world[1].submit(b"first")
    world.settle()
    assert [fate for fate, _ in fates] == [Fate.APPLIED]
    own = world.crash(3)
    world.replace_disk(3, is_replacement=False)
    world.connect_all()
    assert not world.connect(1, 3)
    world.run(10)
    world.restart(1)
    world.restart(2)  # whoever has just started has applied no enrolment yet
    assert not world.connect(1, 3)
    assert not world.connect(2, 3)
    world.connect_all()
    world.run_until(lambda: bool(world.leaders))
    world.run(1)
    assert world[3].membership.standing is Standing.BLANK
    assert not world.refusals[3].must_stop
    world.crash(3)
    world.start(3, own)
    world.connect_all()
    world.settle()
    assert world[3].membership.standing is Standing.ESTABLISHED
    assert world[3].items == [b"first"]


@pytest.mark.parametrize("back", [(2,), (3,), (2, 3)])
def test_directories_that_come_back_count_again(back: tuple[int, ...]) -> None:
    """Two of three die, their operator gives both an empty directory in place of the lost one, sees
    that no leader comes of it, and puts back what was whole: one of them is enough for a leader."""
    world = quorum(1)
    world[1].submit(b"first")
    world.settle()
    end = world[1].journal.last_index
    own = {voter: world.crash(voter) for voter in (2, 3)}
    for voter in own:
        world.replace_disk(voter)
    world.connect_all()
    world.run(10)
    assert not world.leaders
    assert [world[voter].membership.standing for voter in own] == [Standing.BLANK] * 2
    assert world[1].journal.last_index == end  # no enrolment that no majority could commit
    for voter in own:
        world.crash(voter)
    for voter in back:
        world.start(voter, own[voter])
    world.connect_all()
    world.run_until(lambda: bool(world.leaders), within=4.0)
    world.settle()
    assert [world[voter].items for voter in (1, *back)] == [[b"first"]] * (1 + len(back))


def test_a_voter_that_cannot_be_elected_lets_the_others_elect() -> None:
    """Of five, the leader has enrolled new disks of 4 and 5, and the others never heard of it; then
    the old disks of these come back. To the leader they are replaced, to voter 2 they are not."""
    world = quorum(1, 5)
    own = {voter: world.crash(voter) for voter in (4, 5)}
    for voter in own:
        world.replace_disk(voter)
    world.connect_all()
    end = world[1].journal.last_index
    world[1].turn()
    assert world[1].journal.last_index == end + 2
    own |= {voter: world.crash(voter) for voter in (2, 3)}
    world.run_until(lambda: not world.leaders)
    for voter in (4, 5):
        world.crash(voter)
    for voter in (2, 4, 5):
        world.start(voter, own[voter])
    world.connect_all()
    world.run_until(lambda: bool(world.leaders), within=6.0)
    assert world.leaders != [1]
    assert world[1].node.term <= 4  # it does not raise the term again and again
    world.start(3, own[3])
    world.connect_all()
    world.settle()
    assert {voter.membership.standing for voter in world.voters.values()} == {Standing.ESTABLISHED}


def test_a_replaced_disk_that_comes_back_does_not_campaign() -> None:
    """Voter 2 is cut off, and an empty directory gets its seat; just then the old process is back,
    takes the enrolment from the leader, and is cut off again. The new disk is elected, while the
    old one meets voter 3, which has the enrolment and does not know yet that it is committed."""
    world = quorum(1)
    old, three = world[2], world[3]
    world.isolate(2)
    del world.voters[2]
    new = world.replace_disk(2)
    world.connect(1, 2)
    world[1].turn()
    enrolment = world[1].journal.last_index
    world.isolate(3)
    _take_place(world, old)
    world.run(0.5)
    assert old.journal.last_index == enrolment > old.node.commit_index
    world.isolate(2)
    world.connect(1, 3)
    world.run_until(lambda: world[1].node.commit_index == enrolment)
    world.isolate(3)
    assert three.journal.last_index == enrolment > three.node.commit_index
    _take_place(world, new)
    world.run_until(lambda: new.membership.standing is Standing.ESTABLISHED)
    assert world.elect(2) is new
    world.isolate(2)
    world.voters = {2: old, 3: three}
    assert world.connect(2, 3)
    world.run(10)
    assert not world.leaders  # `new` leads the term in which `old` would be elected
    assert (new.node.term, old.node.term) == (2, 1)


def test_a_replaced_disk_whose_vote_is_missing_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """It took the enrolment and is the longest log of the two voters that are left: there is no
    leader (the exception in Q6), and its log says once why, until the leader of before is back."""
    world = quorum(1)
    one, old = world[1], world[2]
    world.isolate(2)
    del world.voters[2]
    world.replace_disk(2)
    world.connect(1, 2)
    one.turn()
    world.isolate(3)
    _take_place(world, old)
    world.run(0.5)
    assert old.journal.last_index == one.journal.last_index > one.node.commit_index
    world.isolate(1)
    del world.voters[1]
    assert world.connect(2, 3)
    watch = LeaderWatch(old.node, now=world.now)
    for _ in range(30):
        world.run(1)
        watch.on_turn(world.now)
    assert not world.leaders
    (line,) = (it.getMessage() for it in caplog.records if it.levelno == logging.WARNING)
    assert "the log of voter 2 itself has an enrolment of another disk in its place" in line
    assert "not connected: voter 1" in line
    assert "start the voters that are missing" in line
    world.voters[1] = one
    world.connect_all()
    with pytest.raises(CorruptJournal, match="the disk of voter 2 was replaced"):
        world.run(10)
    assert world.leaders == [1]


def _take_place(world: Lockstep, voter: Voter) -> None:
    """Of the other process with its id, connected to voter 1 alone."""
    world.isolate(voter.node_id)
    world.voters[voter.node_id] = voter
    assert world.connect(1, voter.node_id)


async def test_an_empty_directory_is_let_in_by_its_operator_only(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A voter is stopped; a process with its id and an empty directory knocks for a minute, then
    the voter comes back as it was. The operator's word counts for empty directories only."""
    caplog.set_level(logging.INFO)
    async with open_cluster(1, 2, 3) as cluster:
        await fill(cluster, 30)
        victim = await cluster.leader_id()
        cluster.crash(victim)
        own = cluster.disks.pop(victim)
        await cluster.leader()
        await cluster.start(victim)
        await trio.sleep(60)
        assert cluster.nodes[victim].image.version == 0
        said = [it.getMessage() for it in caplog.records if it.levelno == logging.ERROR]
        assert all("-o quorum.replace=true" in line for line in said)
        assert len(said) == 2  # one of each of the others, not one a second
        ends = [it for it in caplog.records if "refused by" in it.getMessage()]
        assert [it for it in ends if it.levelno == logging.INFO] == []  # nor at each attempt
        cluster.crash(victim)
        cluster.disks[victim] = own
        await cluster.start(victim, is_replacement=True)
        assert "is not empty: take it out of the settings" in caplog.text
        leader = await cluster.leader()
        await cluster.nodes[victim].wait_changed(leader.image.version - 1)
