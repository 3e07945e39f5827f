"""H2, H10 and H11: the log between a leader and its followers (docs/decisions/0011)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pysyncobj.config import SERIALIZER_STATE

from raftmq.metadata.raft.net.messages import AppendEntries, AppendReply, SnapshotOffer, Standing
from tests.simulation.raft.lockstep import quorum
from tests.simulation.raft.stock import ack, append

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.simulation.raft.stock import StockNode

TERM_ONE = [(b"\x01", index, 1) for index in range(2, 7)]


def test_stock_cuts_acknowledged_entries_on_a_late_duplicate(
    make_stock: Callable[..., StockNode],
) -> None:
    """H2: an AppendEntries that arrives twice deletes what stands behind it, though it matches."""
    follower = make_stock()
    first = append(TERM_ONE[:1], term=1, previous=(1, 0))
    rest = append(TERM_ONE[1:], term=1, previous=(2, 1), commit_index=6)
    follower.receive("B", first)
    follower.receive("B", rest)
    assert follower.take_sent()[-1] == ack(6)
    follower.receive("B", first)
    assert follower.last_index == 2


def test_ours_keeps_acknowledged_entries_on_a_late_duplicate() -> None:
    """H2: what matches stays, committed or not."""
    world = quorum(1)
    follower, last = world[2], world[2].journal.last_index
    first, *rest = [(b"\x00\x00%d" % index, index, 1) for index in range(last + 1, last + 6)]
    for entries in ([first], rest, [first]):
        follower.node.receive(1, _append(entries, commit_index=last))
    assert follower.journal.last_index == last + 5
    follower.node.receive(1, _append([first], commit_index=last + 1))
    assert follower.journal.last_index == last + 5


def test_stock_moves_back_where_it_sends_from(make_stock: Callable[..., StockNode]) -> None:
    """H2: every acknowledgement makes the leader send again what is on its way already."""
    leader = make_stock()
    leader.lead("B")
    leader.acknowledge("B", 2)
    for item in "abcd":
        leader.submit(item)
    leader.tick()
    leader.tick(1.0)
    assert _sent_indexes(leader.take_sent("B")) == [2, 3, 4, 5, 6]
    leader.acknowledge("B", 3)  # the answer to a shorter batch before
    leader.tick(1.0)
    assert _sent_indexes(leader.take_sent("B")) == [4, 5, 6]


def test_ours_sends_nothing_twice_over_a_live_connection() -> None:
    """H2: an acknowledgement of a part leaves the rest on its way."""
    world = quorum(1)
    leader = world[1]
    leader.node.replication.on_confirmed(2, leader.node.next_index(2))
    for number in range(4):
        leader.submit(b"%d" % number)
    leader.turn()
    next_index, leader.sent = leader.node.next_index(2), []
    leader.node.receive(2, _reply(next_index - 3))
    leader.turn()
    assert leader.node.next_index(2) == next_index
    assert not any(message.entries for message in leader.take_sent(AppendEntries, to=2))


def test_stock_goes_back_below_what_was_confirmed(make_stock: Callable[..., StockNode]) -> None:
    """H2: a late refusal moves the leader below a follower's confirmed entries."""
    leader = make_stock()
    leader.lead("B")
    leader.submit("a")
    leader.tick()
    leader.acknowledge("B", 3)
    leader.receive("B", {**ack(1), "reset": True, "success": False})
    leader.tick(1.0)
    assert _sent_indexes(leader.take_sent("B"))[-2:] == [2, 3]


def test_ours_never_goes_back_below_what_was_confirmed() -> None:
    """H2: a late refusal is clamped to the entry behind the last confirmed one."""
    world = quorum(1)
    leader = world[1]
    leader.submit(b"a")
    world.settle()
    world.run(0.3)
    leader.node.receive(2, _reply(2, is_reset=True))
    assert leader.node.next_index(2) == leader.node.match_index(2) + 1
    assert leader.node.match_index(2) == leader.journal.last_index


def test_stock_repairs_one_entry_per_heartbeat(make_stock: Callable[..., StockNode]) -> None:
    """H10: a follower with another tail of 50 entries is asked for each of them in turn."""
    leader, follower = make_stock("A", "BC"), make_stock("B", "AC")
    ours = [(b"\x01", index, 2) for index in range(2, 62)]
    theirs = [(b"\x01", index, 1) for index in range(2, 52)]
    leader.receive("C", append(ours, term=2, previous=(1, 0)))
    follower.receive("C", append(theirs, term=1, previous=(1, 0)))
    follower.take_sent()
    leader.connect("B")
    leader.lead("C")
    assert _heartbeats_until_matched(leader, follower) >= 49


def test_ours_repairs_from_the_commit_index() -> None:
    """H10: one refusal, and the leader goes on from what is certainly the same."""
    world = quorum(1)
    world.isolate(1)
    for number in range(500):
        world[1].submit(b"lost %d" % number)
    world[1].turn()
    world.elect(2)
    for number in range(600):
        world[2].submit(b"%d" % number)
    world.run(0.3)
    assert world[1].journal.last_index > 500
    world.connect_all()
    world[1].sent = []
    world.run_until(lambda: world[1].log == world[2].log, within=0.5)
    replies = world[1].take_sent(AppendReply, to=2)
    assert sum(reply.is_reset for reply in replies) <= 3


def test_stock_floods_while_a_snapshot_is_written(
    make_stock: Callable[..., StockNode], tmp_path: Path
) -> None:
    """H11: thousands of messages to one follower in one tick, and in every one that follows."""
    state = SERIALIZER_STATE.NOT_SERIALIZING
    leader = make_stock(
        fullDumpFile=str(tmp_path / "dump"),
        serializer=lambda path, _data: (tmp_path / "dump.tmp").write_bytes(b"state"),
        deserializer=lambda _path: None,
        serializeChecker=lambda: state,
    )
    leader.lead("B")
    leader.submit("a")
    leader.tick()
    leader.acknowledge("B", 3)
    leader.tick()
    leader.private("raftLog").deleteEntriesTo(1)  # an earlier snapshot covers what C lacks
    leader.forceLogCompaction()
    leader.tick()
    state = SERIALIZER_STATE.SERIALIZING
    leader.connect("C")
    leader.private("raftNextIndex").update(dict.fromkeys(leader.otherNodes, 2))
    leader.take_sent()
    leader.tick(1.0)
    assert len(leader.take_sent()) > 1000


def test_ours_offers_a_snapshot_once_per_heartbeat() -> None:
    """H11: a follower behind the log costs one message per heartbeat, under any load."""
    world = quorum(1)
    world.transfers_snapshots = False
    world.isolate(3)
    for number in range(20):
        world[1].submit(b"%d" % number)
    world.run(0.1)
    world[1].take_snapshot()
    world[1].journal.compact(world[1].node.last_applied, 0)
    world.connect_all()
    world[1].sent = []
    world.run(1.0)
    sent = world[1].take_sent(to=3)
    assert {type(message) for message in sent} <= {SnapshotOffer, AppendEntries}
    assert 5 <= len(sent) <= 15


def _sent_indexes(messages: list[dict[str, object]]) -> list[int]:
    entries = [entry for message in messages for entry in message.get("entries", ())]
    return [index for _, index, _ in entries]


def _heartbeats_until_matched(leader: StockNode, follower: StockNode) -> int:
    for count in range(100):
        leader.tick(1.0)
        for message in leader.take_sent("B"):
            follower.receive("A", message)
        for message in follower.take_sent("A"):
            leader.receive("B", message)
        leader.acknowledge("C", 1)
        if follower.log == leader.log:
            return count
    raise AssertionError("never matched")


def _append(entries: list[tuple[bytes, int, int]], *, commit_index: int) -> AppendEntries:
    return AppendEntries(
        term=1, commit_index=commit_index, previous_index=entries[0][1] - 1, previous_term=1,
        entries=tuple(entries), round=0,
    )  # fmt: skip


def _reply(next_index: int, *, is_reset: bool = False) -> AppendReply:
    return AppendReply(
        term=1, next_index=next_index, is_reset=is_reset, is_success=not is_reset, round=0,
        standing=Standing.ESTABLISHED, last_index=1 << 40,
    )  # fmt: skip
