"""H7, H9, H14 and H15: from a committed entry to an answer (docs/decisions/0011)."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from pysyncobj import replicated

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import Refused
from raftmq.metadata.machine import MetadataMachine
from raftmq.metadata.raft.engine.replication import Fate
from raftmq.metadata.raft.engine.timing import QuorumLimits
from raftmq.metadata.raft.net.messages import AnyMessage
from tests.simulation.raft.lockstep import quorum
from tests.simulation.raft.stock import StockNode, append

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# H7: exceptions


class Fragile(StockNode):
    @replicated
    def fail(self) -> None:
        self.items.append("half")
        raise ValueError("the other half")


def test_stock_applies_half_a_command_again_and_again(
    make_stock: Callable[..., StockNode],
) -> None:
    """H7: a command that raises is tried in every tick, and what it did before stays done."""
    node = make_stock("A", "", kind=Fragile)
    node.lead("")
    assert isinstance(node, Fragile)
    node.fail()
    node.tick()
    for _ in range(5):
        with pytest.raises(ValueError, match="other half"):
            node.tick()
    assert node.items == ["half"] * 5


def test_ours_answers_a_command_that_makes_no_sense() -> None:
    """H7: bytes that are no command are an answer on every node, change nothing, and pass."""
    world = quorum(1, make_machine=MetadataMachine)
    answers = world[1].submit(b"\xc1 no command")
    world.settle()
    [(fate, answer)] = answers
    assert fate is Fate.APPLIED
    assert isinstance(answer, Refused)
    assert answer.code is not ErrorCode.NONE
    images = [voter.machine.image for voter in world.voters.values()]
    assert images[0] == images[1] == images[2]


def test_stock_applies_twice_if_a_callback_raises(make_stock: Callable[..., StockNode]) -> None:
    """H7: an error in the one who waits makes this node apply the entry once more."""
    node = make_stock("A", "")
    node.lead("")

    def vanish(_result: object, _error: int) -> None:
        raise RuntimeError("the client has gone")

    node.put("once", callback=vanish)
    node.tick()
    with pytest.raises(RuntimeError, match="client"):
        node.tick()
    node.tick()
    assert node.items == ["once", "once"]


def test_ours_applies_once_even_if_a_callback_raises() -> None:
    """H7: the error ends the turn; what was applied counts as applied."""
    world = quorum(1, 1)

    def vanish(_fate: Fate, _result: object) -> None:
        raise RuntimeError("the client has gone")

    world[1].node.submit(b"once", vanish)
    world[1].turn()
    with pytest.raises(RuntimeError, match="client"):
        world[1].turn()
    world.run(0.1)
    assert world[1].items == [b"once"]


# H9: forwarded commands


def test_stock_acknowledges_another_command(make_stock: Callable[..., StockNode]) -> None:
    """H9: a late answer to the run before is taken for one to this run's first command."""
    follower = make_stock()
    follower.connect("B")
    follower.receive("B", append([(b"\x01", 2, 1)], term=1, previous=(1, 0)))
    new = follower.submit("new")  # sent to the leader, and lost on its way
    follower.tick()
    old = {"type": "apply_command_response", "request_id": 1, "log_idx": 3, "log_term": 1}
    follower.receive("B", old)
    follower.receive("B", append([(b"\x01", 3, 1)], term=1, previous=(2, 1), commit_index=3))
    follower.tick()
    assert new.is_success
    assert not follower.items


def test_ours_forwards_nothing() -> None:
    """H9: who does not lead takes no command, and no message could carry one."""
    world = quorum(1)
    heard: list[Fate] = []
    assert world[2].node.submit(b"new", lambda fate, _: heard.append(fate)) is None
    world.run(0.5)
    assert not heard
    assert not world[2].items
    names = {kind.__name__ for kind in AnyMessage.__args__}
    assert not [name for name in names if "Command" in name or "Propos" in name]


# H14: versions


class Versioned(StockNode):
    @replicated
    def mark(self) -> None:
        self.items.append("old meaning")

    @replicated(ver=1)
    def mark(self) -> None:  # noqa: F811  # that is how PySyncObj wants it
        self.items.append("new meaning")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_stock_goes_back_to_old_meanings_after_a_snapshot(
    make_stock: Callable[..., StockNode], tmp_path: Path
) -> None:
    """H14: the version is 1 before and after, but a call goes to the method of version 0."""
    paths = {"journalFile": str(tmp_path / "journal"), "fullDumpFile": str(tmp_path / "dump")}
    node = make_stock("A", "", kind=Versioned, **paths)
    assert isinstance(node, Versioned)
    node.lead("")
    node.setCodeVersion(1)
    node.tick()
    node.tick()
    node.mark()
    node.tick()
    node.tick()
    node.forceLogCompaction()
    node.tick()
    node.tick()
    restarted = make_stock("A", "", kind=Versioned, **paths)
    assert isinstance(restarted, Versioned)
    restarted.lead("")
    restarted.mark()
    restarted.tick()
    restarted.tick()
    assert node.items == ["new meaning"]
    assert restarted.items == ["new meaning", "old meaning"]


def test_ours_means_the_same_after_a_snapshot() -> None:
    """H14: the state machine gets the very bytes that were proposed, before and after."""
    world = quorum(1, 1)
    world[1].submit(b"\x01 of version 1")
    world.run(0.1)
    world[1].take_snapshot()
    restarted = world.restart(1)
    world.elect(1)
    restarted.submit(b"\x01 of version 1")
    world.run(0.1)
    assert restarted.items == [b"\x01 of version 1"] * 2


# H15: the backlog


def test_stock_applies_the_whole_backlog_in_one_tick(make_stock: Callable[..., StockNode]) -> None:
    """H15: committed entries are applied before anything else happens."""
    node = make_stock("A", "")
    node.lead("")
    for number in range(3000):
        node.submit(str(number))
    node._checkCommandsToApply()
    node.tick()
    assert len(node.items) == 3000


def test_ours_applies_the_backlog_in_portions() -> None:
    """H15: a turn applies its budget of commands and of bytes, and asks for another turn."""
    world = quorum(1, 1, limits=QuorumLimits(applied_per_tick=100, applied_bytes_per_tick=1000))
    for number in range(250):
        world[1].submit(b"%d" % number)
    applied = [0]
    world[1].turn()
    while world[1].node.has_work:
        world[1].node.tick()
        applied.append(len(world[1].items))
    portions = [after - before for before, after in pairwise(applied)]
    assert sum(portions) == 250
    assert max(portions) <= 100
    world[1].submit(b"x" * 900)
    world[1].submit(b"y" * 900)
    world[1].turn()
    world[1].node.tick()
    assert len(world[1].items) == 251
    assert world[1].node.has_work
