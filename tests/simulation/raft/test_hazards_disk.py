"""H3, H4, H6 and H8: what a crash finds on the disk (docs/decisions/0011)."""

from __future__ import annotations

import mmap
import os
import signal
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pysyncobj.journal as stock_journal
import pytest

from raftmq.errors import CorruptJournal
from raftmq.metadata.raft.net.messages import (
    AppendEntries,
    AppendReply,
    RequestVote,
    SnapshotOffer,
    Standing,
    VoteReply,
)
from tests.simulation.disk_faults import PowerCut, crash_at
from tests.simulation.raft.lockstep import DIRECTORY, Lockstep, quorum
from tests.simulation.raft.stock import StockNode, append

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.simulation.disk_faults import Moment

# PySyncObj leaves the reading of its files' end to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


# H3: snapshot and journal


def test_stock_loses_its_tail_between_dump_and_trim(
    make_stock: Callable[..., StockNode], tmp_path: Path
) -> None:
    """H3: killed after the dump got its name and before the journal was cut: the tail is gone."""
    paths = {"journalFile": str(tmp_path / "journal"), "fullDumpFile": str(tmp_path / "dump")}
    node = make_stock("A", "", **paths)
    node.lead("")
    for number in range(20):
        node.submit(str(number))
    node.tick()
    node.tick()
    node.forceLogCompaction()
    node.tick()  # the dump is in place; the journal would be cut in the next tick
    later = [node.submit(f"later {number}") for number in range(5)]
    node._checkCommandsToApply()
    before = node.last_index
    assert len(later) == 5
    restarted = make_stock("A", "", **paths)
    restarted.tick()
    assert restarted.last_index == before - 5


def test_stock_loses_entries_while_it_trims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H3: the journal is emptied and written anew in place; killed meanwhile, it is a torso."""
    path = str(tmp_path / "journal")
    journal = stock_journal.FileJournal(path)
    for index in range(1, 101):
        journal.add(b"command", index, 1)
    add, added = journal.add, []

    def add_until_killed(command: bytes, index: int, term: int) -> None:
        if len(added) == 10:
            raise PowerCut("kill -9")
        added.append(index)
        add(command, index, term)

    monkeypatch.setattr(journal, "add", add_until_killed)
    with pytest.raises(PowerCut):
        journal.deleteEntriesTo(50)
    found = stock_journal.FileJournal(path)
    assert len(found[:]) == 10
    for each in (journal, found):
        each._destroy()


@pytest.mark.parametrize("power_lost", [False, True])
@pytest.mark.parametrize("moment", ["before", "torn", "after"])
def test_ours_loses_nothing_at_any_step_of_a_snapshot(moment: Moment, power_lost: bool) -> None:
    """H3: a crash at every operation of snapshot and journal: all that was applied is there."""
    step = 1
    while _snapshot_with_a_crash_at(step, moment, power_lost=power_lost):
        step += 1
    assert step > 5


def _snapshot_with_a_crash_at(step: int, moment: Moment, *, power_lost: bool) -> bool:
    """One voter takes a snapshot and writes on; whether the crash was reached."""
    world = quorum(1, 1)
    voter = world[1]
    for number in range(20):
        voter.submit(b"%d" % number)
    world.run(0.05)
    assert len(voter.items) == 20
    voter.files.interrupt = crash_at(voter.files.count + step, moment)
    reached = False
    try:
        voter.take_snapshot()
        voter.journal.compact(voter.node.last_applied, 3)
        voter.turn()
    except PowerCut:
        reached = True
    restarted = world.restart(1, power_lost=power_lost)
    world.elect(1)
    world.run(0.05)
    assert restarted.items == [b"%d" % number for number in range(20)]
    return reached


# H4: forks


class Gated:
    """A state that takes as long to pickle as the test wants: a large one, so to speak."""

    gate = -1

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        os.read(self.gate, 1)
        return (str, ("large",))


def test_stock_snapshot_outlives_its_killed_parent(
    make_stock: Callable[..., StockNode], tmp_path: Path
) -> None:
    """H4: killed, the node leaves a child behind, which puts its dump in place later."""
    dump = tmp_path / "dump"
    gate, is_open = os.pipe()
    is_over, living = os.pipe()
    parent = os.fork()
    if parent == 0:
        _snapshot_and_wait(make_stock, dump, gate)
    os.close(living)
    _, status = os.waitpid(parent, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert not dump.exists()
    os.write(is_open, b"!")  # now the orphan may finish
    assert os.read(is_over, 1) == b""  # and it has ended
    assert dump.exists()
    for pipe in (gate, is_open, is_over):
        os.close(pipe)


def _snapshot_and_wait(make_stock: Callable[..., StockNode], dump: Path, gate: int) -> None:
    """In a process of its own: begin a snapshot, and be killed."""
    try:
        Gated.gate = gate
        node = make_stock("A", "", fullDumpFile=str(dump), useFork=True)
        node.lead("")
        node.submit("a")
        node.tick()
        node.tick()
        node.large = Gated()
        node.forceLogCompaction()
        node.tick()
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def test_ours_never_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """H4: with a fork that fails the test, snapshots are taken, sent and asked of PySyncObj."""

    def refuse() -> int:
        raise AssertionError("forked")

    monkeypatch.setattr(os, "fork", refuse)
    world = quorum(1)
    world.isolate(3)
    for number in range(10):
        world[1].submit(b"%d" % number)
    world.run(0.1)
    for node_id in (1, 2):
        world[node_id].node.forceLogCompaction()
    world.run(0.1)
    world[1].take_snapshot()
    world[1].journal.compact(world[1].node.last_applied, 0)
    world.connect_all()
    world.settle()
    assert world[3].items == world[1].items
    assert not world[1].node.conf.useFork


# H6: power


def test_stock_never_syncs(
    make_stock: Callable[..., StockNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H6: votes and entries are promised, and nothing was ever told to reach the disk."""
    syncs: list[str] = []

    class CountingMap(mmap.mmap):
        def flush(self, *args: Any) -> None:
            syncs.append("msync")

    monkeypatch.setattr(stock_journal, "mmap", SimpleNamespace(mmap=CountingMap))
    for name in ("fsync", "fdatasync", "sync"):
        monkeypatch.setattr(os, name, lambda *_: syncs.append("sync"))
    node = make_stock("B", "AC", journalFile=str(tmp_path / "journal"))
    node.receive("A", {"type": "request_vote", "term": 1, "last_log_index": 1, "last_log_term": 0})
    node.receive("A", append([(b"\x01", 2, 1)], term=1, previous=(1, 0)))
    node.tick(5.0)
    assert [said["type"] for said in node.take_sent("A")] == ["response_vote", "next_node_idx"]
    assert not syncs


def test_ours_keeps_what_it_promised_when_the_power_goes() -> None:
    """H6: once a vote or an answer has left, no power cut takes it back, after any disk fault."""
    for seed in range(20):
        world = Lockstep(seed=seed)
        world.connect_all()
        world.run(0.02)
        voter = world[2]
        voter.node.receive(1, RequestVote(term=1, last_log_index=1, last_log_term=0))
        voter.node.receive(1, _first_entries())
        voter.sync()
        promised = {type(message) for message in voter.take_sent(to=1)}
        assert {VoteReply, AppendReply} <= promised
        found = voter.files.photograph(Random(seed), power_lost=True, reorder=True)
        world.crash(2)
        restarted = world.start(2, found)
        assert (restarted.node.term, restarted.journal.getVotedForNodeId()) == (1, 1)
        assert restarted.log == [(1, 0), (2, 1), (3, 1)]
        assert restarted.node.membership.standing is Standing.ESTABLISHED


def test_ours_says_nothing_that_is_not_synced() -> None:
    """H6: between a message and the sync behind it, nothing is on its way."""
    world = Lockstep()
    world.connect_all()
    world.run(0.05)
    world[2].node.receive(1, RequestVote(term=5, last_log_index=9, last_log_term=4))
    assert world[2].journal.dirty
    assert not world.wires[2, 1]
    world[2].sync()
    world[2].flush()
    assert world.wires[2, 1]


def _first_entries() -> AppendEntries:
    return AppendEntries(
        term=1, commit_index=1, previous_index=1, previous_term=0,
        entries=((b"\x01", 2, 1), (b"\x00\x00a", 3, 1)), round=0,
    )  # fmt: skip


def test_stock_acknowledges_alone_with_a_commit_index_beyond_its_log(
    make_stock: Callable[..., StockNode], tmp_path: Path
) -> None:
    """H6: the commit index survived and the entries did not: new ones commit without a majority."""
    path = str(tmp_path / "journal")
    journal = stock_journal.FileJournal(path)
    for index in range(1, 4):
        journal.add(b"\x01", index, 0)
    journal.setRaftCommitIndex(30)
    journal.onOneSecondTimer()
    journal._destroy()
    leader = make_stock("A", "BC", journalFile=path)
    leader.lead("B")
    alone = leader.submit("alone")
    leader.tick()
    leader.tick()
    assert alone.is_success


def test_ours_never_finds_a_commit_index_beyond_its_log() -> None:
    """H6: at every operation of a busy voter, the disk holds what it says is committed."""
    world = quorum(1, 1)
    voter, pictures = world[1], []

    def photograph(_number: int, _moment: object) -> None:
        pictures.append(voter.files.photograph(Random(7), power_lost=True, reorder=True))

    voter.files.interrupt = photograph
    for number in range(5):
        voter.submit(b"%d" % number)
        world.step()
    assert len(pictures) > 10
    for files in pictures:
        found = Lockstep(1).start(1, files)
        assert found.journal.getRaftCommitIndex() <= found.journal.last_index


# H8: damaged snapshots


def test_stock_swallows_a_damaged_snapshot(make_stock: Callable[..., StockNode]) -> None:
    """H8: bytes that are no snapshot are answered with success, as if the own log were right."""
    follower = make_stock()
    follower.receive("B", append([(b"\x01", 2, 1)], term=1, previous=(1, 0)))
    follower.take_sent()
    for part in ((b"no snapshot", True, False), (b"", False, True)):
        follower.receive(
            "B", {"type": "append_entries", "term": 2, "commit_index": 1, "serialized": part}
        )
    [answer] = follower.take_sent("B")
    assert answer["success"]
    assert answer["next_node_idx"] == 3


def test_ours_refuses_a_damaged_snapshot() -> None:
    """H8: a flipped bit is found at the start, and stops the voter with a way out."""
    world = quorum(1)
    world[1].submit(b"a")
    world.settle()
    world[1].take_snapshot()
    files = world.crash(1, power_lost=False)
    [path] = [path for path in files.paths(DIRECTORY) if path.suffix == ".snapshot"]
    files.flip_bit(path, files.size(path) // 2, 3)
    with pytest.raises(CorruptJournal, match="move"):
        world.start(1, files)


def test_ours_confirms_a_snapshot_only_when_it_is_installed() -> None:
    """H8: the answer to an offer confirms nothing as long as the snapshot is not in place."""
    world = quorum(1)
    offer = SnapshotOffer(term=1, round=0, index=99, snapshot_term=1, size_bytes=9, crc=0)
    world.transfers_snapshots = False
    world[3].sent = []
    world[3].node.receive(1, offer)
    [answer] = world[3].take_sent(AppendReply)
    assert not answer.is_success
