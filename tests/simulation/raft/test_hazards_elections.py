"""H12: who disturbs whom, and how long a leader without followers stays (docs/decisions/0011)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.metadata.raft.net.messages import RequestVote
from tests.simulation.raft.lockstep import quorum
from tests.simulation.raft.stock import StockPeer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.raft.stock import StockNode


def test_stock_raises_its_term_without_hope(make_stock: Callable[..., StockNode]) -> None:
    """H12: cut off from all voters, but seen by one that only reads, a node campaigns for ever."""
    lonely = make_stock()
    lonely.wire._onReadonlyNodeConnected(StockPeer("R"))
    lonely.set_private("raftElectionDeadline", -1.0)
    for _ in range(1000):
        lonely.tick()
    assert lonely.raftCurrentTerm > 10


def test_ours_keeps_its_term_without_hope() -> None:
    """H12: cut off from all others, a node keeps its term, and deposes no leader on its return."""
    world = quorum(1)
    world.isolate(3)
    world.run(20)
    assert world[3].node.term == 1
    world.connect_all()
    world.run(3)
    assert world.leaders == [1]
    assert world[1].node.term == 1


def test_ours_disturbs_no_leader_over_a_cut_link() -> None:
    """H12: one link is cut, to the leader; the other voter hears it, and refuses the pre-vote."""
    world = quorum(1)
    world.disconnect(1, 3)
    world.run(20)
    assert world.leaders == [1]
    assert {voter.node.term for voter in world.voters.values()} == {1}


def test_stock_deposes_a_healthy_leader(make_stock: Callable[..., StockNode]) -> None:
    """H12: one request of a higher term makes the leader a follower, from any node."""
    leader = make_stock()
    leader.lead("B")
    asked = {"type": "request_vote", "term": 9, "last_log_index": 1, "last_log_term": 0}
    leader.receive("C", asked)
    assert not leader._isLeader()


def test_ours_is_deaf_while_there_is_a_leader() -> None:
    """H12: neither a leader nor its followers take part in an election that is not needed."""
    world = quorum(1)
    for node_id in (1, 2):
        world[node_id].node.receive(3, RequestVote(term=9, last_log_index=99, last_log_term=8))
    assert world.leaders == [1]
    assert [world[node_id].node.term for node_id in (1, 2)] == [1, 1]


def test_stock_leads_for_half_a_minute_without_followers(
    make_stock: Callable[..., StockNode],
) -> None:
    """H12: cut off from everybody, a leader believes in itself for 30 seconds."""
    zombie = make_stock()
    zombie.lead("B")
    zombie.disconnect("B")
    zombie.tick(29.0)
    assert zombie._isLeader()


def test_ours_resigns_within_four_seconds() -> None:
    """H12: a leader that hears no majority stops calling itself one, and fails its reads."""
    world = quorum(1)
    answers: list[bool] = []
    world.isolate(1)
    world[1].node.begin_read(answers.append)
    took = world.run_until(lambda: not world[1].node.is_leader, within=4.0)
    assert took > 0.5  # but a pause of the network deposes no leader
    assert answers == [False]


def test_a_deposed_leader_sleeps() -> None:
    """A commit notice that it was about to send wakes no follower once it is deposed."""
    world = quorum(1)
    world[1].submit(b"a")
    world.run_until(lambda: world[1].node.seconds_to_wake(1.0) < 1.0)
    world[1].node.step_down(2)
    world[1].turn()
    world.now += 1.0
    assert world[1].node.seconds_to_wake(1.0) == 1.0
