"""What a leader sends, and how much of it at once: voter 1 leads, the others answer by hand."""

from __future__ import annotations

from typing import Any

from raftmq.metadata.raft.engine.replication import MESSAGE_BYTES, Flow
from raftmq.metadata.raft.engine.timing import QuorumLimits
from raftmq.metadata.raft.net.messages import (
    APPEND_BYTES_MAX,
    AppendEntries,
    AppendReply,
    SnapshotOffer,
    Standing,
)
from tests.simulation.raft.lockstep import Lockstep, Voter, quorum

LARGE = b"x" * APPEND_BYTES_MAX


def confirmed(next_index: int, **changes: Any) -> AppendReply:
    values = {"is_reset": False, "is_success": True, "term": 1, "round": 0}
    return AppendReply(
        **{
            **values,
            "next_index": next_index,
            "standing": Standing.ESTABLISHED,
            "last_index": 1 << 40,
            **changes,
        }
    )


def sent_entries(leader: Voter, peer: int = 2) -> list[list[int]]:
    """The indexes of each message with entries since the last call."""
    messages = leader.take_sent(AppendEntries, to=peer)
    return [[index for _, index, _ in message.entries] for message in messages if message.entries]


def leading(**settings: Any) -> Voter:
    """Matched with its followers, nothing on its way, and no heartbeat due."""
    world = quorum(1, **settings)
    world.run(0.3)
    leader = world[1]
    leader.sent = []
    return leader


# Flow


def test_a_flow_probes_with_one_message() -> None:
    """Until the logs are known to match, one message waits for its answer."""
    flow = Flow()
    assert flow.has_room(1000)
    flow.on_sent(10, 5)
    assert not flow.has_room(1000)
    flow.on_confirmed(10)
    assert flow.is_matched
    assert flow.has_room(1000)


def test_a_matched_flow_has_a_window() -> None:
    """Bytes count from sending to confirming; a part confirmed frees that part."""
    flow = Flow()
    flow.on_confirmed(2)
    flow.on_sent(10, 600)
    assert flow.has_room(1000)
    flow.on_sent(20, 600)
    assert not flow.has_room(1000)
    flow.on_confirmed(9)
    assert not flow.has_room(1000)
    flow.on_confirmed(10)
    assert flow.has_room(1000)
    flow.on_confirmed(20)
    flow.on_sent(30, 999)
    assert flow.has_room(1000)


def test_a_flow_starts_anew() -> None:
    """What was on its way is forgotten, and probing begins again."""
    flow = Flow()
    flow.on_confirmed(2)
    flow.on_sent(10, 2000)
    flow.restart()
    assert not flow.is_matched
    flow.on_sent(11, 1)
    assert not flow.has_room(1000)


# Entries


def test_entries_go_out_at_once() -> None:
    """All that was proposed before a turn leaves with it, in one message for each follower."""
    leader = leading()
    end = leader.journal.last_index
    for _ in range(3):
        leader.submit(b"a")
    leader.turn()
    messages = leader.take_sent(AppendEntries)
    assert len(messages) == 2
    assert [index for _, index, _ in messages[0].entries] == [end + 1, end + 2, end + 3]
    leader.turn()
    assert leader.take_sent() == []


def test_batches_have_a_size() -> None:
    """A message holds APPEND_BYTES_MAX of commands, or one that is larger alone."""
    leader = leading()
    end = leader.journal.last_index
    for command in (LARGE, b"a", b"b", LARGE):
        leader.submit(command)
    leader.turn()
    assert sent_entries(leader) == [[end + 1], [end + 2, end + 3], [end + 4]]


def test_the_window_holds_back() -> None:
    """In flight there is at most one message more than the window allows; answers open it."""
    leader = leading(limits=QuorumLimits(in_flight_bytes=2 * APPEND_BYTES_MAX))
    end = leader.journal.last_index
    for _ in range(5):
        leader.submit(LARGE)
    leader.turn()
    assert sent_entries(leader) == [[end + 1], [end + 2]]
    leader.node.receive(2, confirmed(end + 2))
    leader.turn()
    assert sent_entries(leader) == [[end + 3]]
    leader.node.receive(2, confirmed(end + 4))
    leader.turn()
    assert sent_entries(leader) == [[end + 4], [end + 5]]


def test_many_small_entries_fill_the_window() -> None:
    """An empty command counts, too: for what surrounds it."""
    leader = leading(limits=QuorumLimits(in_flight_bytes=10 * MESSAGE_BYTES))
    for _ in range(10):
        leader.submit(b"")
    leader.turn()
    leader.submit(b"")
    leader.turn()
    assert [len(batch) for batch in sent_entries(leader)] == [10]


def test_a_new_leader_probes() -> None:
    """In office it sends one message, and the rest when that is answered."""
    world = quorum(1)
    leader = world.elect(2)
    world.settle()
    world.isolate(3)
    leader.inbox.clear()
    leader.node.replication.begin_office()
    end = leader.journal.last_index
    leader.sent = []
    for _ in range(3):
        leader.submit(LARGE)
    leader.turn()
    assert sent_entries(leader, 1) == [[end + 1]]
    leader.node.receive(1, confirmed(end + 2, term=leader.node.term))
    leader.turn()
    assert sent_entries(leader, 1) == [[end + 2], [end + 3]]


# Refusals and connections


def test_a_refusal_starts_over() -> None:
    """From where the follower says, one message at a time again."""
    leader = leading()
    world, end = leader.world, leader.journal.last_index
    follower = world.restart(2)
    world.connect_all()
    leader.node.forget_match(2)
    leader.node.receive(2, confirmed(4, is_success=False, is_reset=True))
    assert leader.node.next_index(2) == 4
    leader.sent = []
    leader.turn()
    assert sent_entries(leader) == [list(range(4, end + 1))]
    leader.submit(b"a")
    leader.turn()
    assert sent_entries(leader) == []
    world.settle()
    assert follower.log == leader.log


def test_a_connection_that_broke() -> None:
    """What was on its way is lost: it goes on behind what was confirmed."""
    leader = leading()
    world, end = leader.world, leader.journal.last_index
    for _ in range(3):
        leader.submit(b"a")
    leader.turn()
    assert leader.node.next_index(2) == end + 4
    world.disconnect(1, 2)
    leader.sent = []
    world.connect(1, 2)
    assert leader.node.next_index(2) == end + 1
    leader.turn()
    assert sent_entries(leader) == [[end + 1, end + 2, end + 3]]


def test_a_disk_that_is_new() -> None:
    """What the old one confirmed counts no more."""
    leader = leading()
    world = leader.world
    world.replace_disk(2)
    assert leader.node.match_index(2) > 0
    world.connect(1, 2)
    assert leader.node.match_index(2) == 0
    world.connect_all()
    world.settle()
    assert world[2].log[-1] == leader.log[-1]


def test_nobody_is_sent_what_cannot_arrive() -> None:
    """Without a connection nothing is sent, and the place to go on from stays."""
    leader = leading()
    leader.world.isolate(2)
    next_index = leader.node.next_index(2)
    leader.submit(b"a")
    leader.turn()
    assert leader.take_sent(to=2) == []
    assert leader.node.next_index(2) == next_index


# Heartbeats


def heartbeat_time(world: Lockstep) -> None:
    world.now += world.timing.heartbeat_seconds * 1.1


def test_a_heartbeat_is_for_all() -> None:
    """Idle or with a full window, each follower hears once in a heartbeat's time."""
    leader = leading(limits=QuorumLimits(in_flight_bytes=1))
    heartbeat_time(leader.world)
    leader.turn()
    messages = leader.take_sent()
    assert [message.entries for message in messages] == [(), ()]
    leader.submit(b"a")
    leader.turn()
    leader.sent = []
    heartbeat_time(leader.world)
    leader.turn()
    [heartbeat] = leader.take_sent(to=2)
    assert heartbeat.entries == ()
    assert heartbeat.previous_index == leader.journal.last_index


def test_a_commit_is_told_soon() -> None:
    """A commit that no entries carry is told before the next heartbeat."""
    leader = leading()
    leader.submit(b"a")
    leader.turn()
    leader.sent = []
    leader.node.receive(2, confirmed(leader.journal.last_index + 1))
    leader.turn()
    assert leader.take_sent() == []
    leader.world.now += leader.world.timing.commit_notice_seconds
    leader.turn()
    commits = [message.commit_index for message in leader.take_sent(AppendEntries)]
    assert commits == [leader.journal.last_index] * 2
    assert leader.node.replication.commit_told == leader.node.commit_index


# Snapshots


def test_where_the_log_does_not_reach() -> None:
    """A follower behind the base is offered the snapshot, by heartbeats and not otherwise."""
    leader = leading()
    world = leader.world
    world.isolate(2)
    leader.submit(b"a")
    world.run(0.2)
    leader.take_snapshot()
    leader.journal.compact(leader.node.last_applied, 0)
    world.transfers_snapshots = False
    world.connect_all()
    leader.sent = []
    leader.submit(b"b")
    leader.turn()
    assert not leader.take_sent(AppendEntries, to=2)
    heartbeat_time(world)
    leader.turn()
    [offer] = leader.take_sent(to=2)
    assert isinstance(offer, SnapshotOffer)
    assert leader.snapshot is not None
    assert (offer.index, offer.crc) == (leader.snapshot.index, leader.snapshot.crc)
    leader.node.receive(2, confirmed(offer.index + 1))
    leader.turn()
    assert sent_entries(leader) == [[offer.index + 1]]


def test_nothing_is_offered_before_there_is_a_snapshot() -> None:
    """A log is cut a moment before the snapshot is known: that follower waits for the next turn."""
    leader = leading()
    leader.journal.compact(leader.node.last_applied, 0)
    leader.node.set_next_index(2, 2)
    heartbeat_time(leader.world)
    leader.take_sent()
    leader.node.tick()
    assert not leader.take_sent(to=2)
