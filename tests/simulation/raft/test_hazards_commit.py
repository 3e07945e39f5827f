"""H1 and H5: what counts as committed, on stock PySyncObj and here (docs/decisions/0011)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.metadata.raft.net.messages import AppendReply, SnapshotOffer, Standing
from tests.simulation.raft.lockstep import quorum
from tests.simulation.raft.stock import ack

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.raft.stock import StockNode


def test_stock_commits_its_own_tail_when_a_snapshot_arrives(
    make_stock: Callable[..., StockNode],
) -> None:
    """H1: a deposed leader acknowledges a command that only it has, on a snapshot's first bytes."""
    deposed = make_stock()
    deposed.lead("B")
    lost = deposed.submit("lost")
    deposed.tick()
    begun = {"type": "append_entries", "term": 2, "commit_index": 50, "serialized": None}
    deposed.receive("C", begun)
    deposed.tick()
    assert lost.is_success
    assert deposed.items == ["lost"]


def test_ours_commits_nothing_when_a_snapshot_is_offered() -> None:
    """H1: the offer of a snapshot says nothing about the log of the one who gets it."""
    world = quorum(1)
    deposed = world[1]
    world.isolate(1)
    lost = deposed.submit(b"lost")
    deposed.turn()
    offer = SnapshotOffer(
        term=deposed.node.term + 1, round=0, index=50, snapshot_term=2, size_bytes=9, crc=0
    )
    world.transfers_snapshots = False
    before = deposed.node.commit_index
    deposed.node.receive(3, offer)
    deposed.turn()
    assert deposed.node.leader_id == 3
    assert (deposed.node.commit_index, deposed.node.last_applied) == (before, before)
    assert not lost
    assert not deposed.items


def test_ours_discards_the_tail_that_a_snapshot_replaces() -> None:
    """H1: the whole story: cut off, overtaken by a snapshot, and nothing is acknowledged."""
    world = quorum(1)
    world.isolate(1)
    lost = world[1].submit(b"lost")
    world[1].turn()
    world.elect(2)
    for number in range(10):
        world[2].submit(b"%d" % number)
    world.run(0.1)
    world[2].take_snapshot()
    world[2].journal.compact(world[2].node.last_applied, 0)
    world.connect_all()
    world.settle()
    assert not lost or lost[0][0].name in ("DISCARDED", "UNKNOWN")
    assert world[1].items == world[2].items == [b"%d" % number for number in range(10)]


def test_ours_goes_on_behind_a_snapshot_that_was_installed() -> None:
    """A follower that caught up by a snapshot gets the entries behind it."""
    world = quorum(1)
    world.isolate(3)
    world[1].submit(b"1")
    world.run(0.1)
    world[1].take_snapshot()
    world[1].journal.compact(world[1].node.last_applied, 0)
    world.connect_all()
    world.settle()
    world[1].submit(b"2")
    world.settle()
    assert world[3].items == [b"1", b"2"]


def test_stock_counts_the_answer_of_an_old_term(make_stock: Callable[..., StockNode]) -> None:
    """H5: an answer to this node's earlier reign confirms entries that no node has."""
    leader = make_stock()
    leader.lead("B")
    for item in "abcd":
        leader.submit(item)
    leader.tick()
    late = ack(leader.last_index)  # on its way when another leader overwrote these entries
    overwriting = {
        "type": "append_entries", "term": 2, "commit_index": 1,
        "entries": [], "prevLogIdx": 1, "prevLogTerm": 0,
    }  # fmt: skip
    leader.receive("C", overwriting)
    leader.lead("B")
    never = [leader.submit(item) for item in "wxyz"]
    leader.tick()
    leader.receive("B", late)
    leader.tick()
    assert leader.raftCurrentTerm == 3
    assert never[0].is_success


def test_ours_ignores_the_answer_of_an_old_term() -> None:
    """H5: every answer names its term, and counts in that one only."""
    world = quorum(1)
    old_term = world[1].node.term
    world.elect(2)
    world.elect(1)
    world.isolate(2)
    world.isolate(3)
    never, before = world[1].submit(b"never"), world[1].node.commit_index
    late = AppendReply(
        term=old_term, next_index=world[1].journal.last_index + 1, is_reset=False,
        is_success=True, round=0, standing=Standing.ESTABLISHED, last_index=1 << 40,
    )  # fmt: skip
    world[1].node.receive(2, late)
    world[1].turn()
    assert world[1].node.is_leader
    assert (world[1].node.commit_index, never) == (before, [])
