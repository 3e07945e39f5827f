"""A snapshot on its way from node to node: every turn of both ends, and seeded runs of both.

In the small tests a snapshot has 250 bytes and a chunk 100, so that three chunks make it whole.
"""

from __future__ import annotations

import pytest

from raftmq.errors import RemoteProtocolError
from raftmq.metadata.raft.snapshot.transfer import (
    ANSWER_SECONDS,
    FAILURE_PAUSE_SECONDS,
    READER_IDLE_SECONDS,
    SNAPSHOT_BYTES_MAX,
    TERM_MAX,
    CloseReader,
    Discard,
    FetchChunk,
    Finish,
    Install,
    ReceiverEffect,
    ReceiverState,
    SendChunk,
    SendGone,
    SnapshotId,
    SnapshotReceiver,
    SnapshotSender,
    WriteChunk,
)
from tests.unit.metadata.raft.snapshot_world import FAULTS_END, World

FIRST = SnapshotId(index=10, term=1, size_bytes=250, crc=7)
SECOND = SnapshotId(index=20, term=1, size_bytes=250, crc=8)
A, B = 1, 2


def fetching(snapshot: SnapshotId = FIRST, now: float = 0.0) -> SnapshotReceiver:
    receiver = SnapshotReceiver(chunk_bytes=100)
    effects = receiver.on_offer(1, A, snapshot, now)
    assert effects == [FetchChunk(A, snapshot, 0), FetchChunk(A, snapshot, 100)]
    return receiver


def chunk(
    receiver: SnapshotReceiver, offset: int, now: float = 0.0, snapshot: SnapshotId = FIRST
) -> list[ReceiverEffect]:
    return receiver.on_chunk(snapshot, offset, bytes(min(100, 250 - offset)), now)


def written(snapshot: SnapshotId = FIRST, *, chunks: int) -> SnapshotReceiver:
    receiver = fetching(snapshot)
    for number in range(chunks):
        chunk(receiver, 100 * number, snapshot=snapshot)
        receiver.on_written(snapshot, 0)
    return receiver


def test_a_snapshot_is_fetched_verified_and_installed() -> None:
    """Nothing goes wrong: three chunks, each written before a further one is asked for."""
    receiver = fetching()
    assert chunk(receiver, 0) == [WriteChunk(FIRST, 0, bytes(100))]
    assert receiver.on_written(FIRST, 0) == [FetchChunk(A, FIRST, 200)]
    assert chunk(receiver, 100) == [WriteChunk(FIRST, 100, bytes(100))]
    assert chunk(receiver, 200) == [WriteChunk(FIRST, 200, bytes(50))]
    assert receiver.on_written(FIRST, 0) == []
    assert receiver.written_bytes == 200
    assert receiver.on_written(FIRST, 0) == [Finish(FIRST)]
    assert receiver.state is ReceiverState.VERIFYING
    assert receiver.on_verified(FIRST) == [Install(FIRST)]
    assert receiver.state is ReceiverState.INSTALLING
    receiver.on_installed(FIRST)
    assert (receiver.state, receiver.snapshot) == (ReceiverState.IDLE, None)
    assert receiver.on_offer(1, A, FIRST, 0) == []
    assert receiver.on_offer(1, A, SECOND, 0) != []


def test_a_slow_disk_stops_the_asking() -> None:
    """Both chunks are here and neither is written: no third one is asked for, not even later."""
    receiver = fetching()
    chunk(receiver, 0)
    chunk(receiver, 100)
    assert receiver.deadline is None
    assert receiver.on_tick(100.0) == []
    assert receiver.on_written(FIRST, 100.0) == [FetchChunk(A, FIRST, 200)]
    assert receiver.deadline == 100.0 + ANSWER_SECONDS


def test_a_silent_leader_is_asked_again() -> None:
    """The first chunk came, the second was lost: it is asked for again two seconds later."""
    receiver = fetching()
    chunk(receiver, 0, now=1.0)
    receiver.on_written(FIRST, 1.5)
    assert receiver.deadline == 1.0 + ANSWER_SECONDS
    assert receiver.on_tick(2.9) == []
    assert receiver.on_tick(3.0) == [FetchChunk(A, FIRST, 100), FetchChunk(A, FIRST, 200)]
    assert receiver.on_tick(3.1) == []


def test_chunks_that_are_not_due_are_ignored() -> None:
    """Twice the same, from beyond a hole, of another snapshot, or long after the end."""
    receiver = fetching()
    assert chunk(receiver, 100) == []
    assert chunk(receiver, 0, snapshot=SECOND) == []
    assert chunk(receiver, 0) != []
    assert chunk(receiver, 0) == []
    assert chunk(SnapshotReceiver(chunk_bytes=100), 0) == []


def test_a_chunk_that_was_not_asked_for_is_ignored() -> None:
    """The window is full and the next chunk comes all the same: memory stays bounded."""
    receiver = fetching()
    chunk(receiver, 0)
    chunk(receiver, 100)
    assert chunk(receiver, 200) == []


@pytest.mark.parametrize("length", [0, 99, 101])
def test_a_chunk_of_the_wrong_length_breaks_the_protocol(length: int) -> None:
    """The sender cuts its chunks otherwise: there would be holes, so it is told."""
    with pytest.raises(RemoteProtocolError, match=f"a chunk of {length} bytes instead of 100"):
        fetching().on_chunk(FIRST, 0, bytes(length), 0)


def test_a_newer_offer_of_the_same_leader_waits() -> None:
    """The leader wrote a newer snapshot meanwhile: the one that is half here comes first."""
    receiver = written(chunks=1)
    assert receiver.on_offer(1, A, SECOND, 0) == []
    assert receiver.snapshot == FIRST


def test_another_leader_with_the_same_snapshot_goes_on() -> None:
    """The leader is gone, the next one has equal bytes: only the rest is asked for, of it."""
    receiver = written(chunks=1)
    assert receiver.on_offer(2, B, FIRST, 0) == [
        FetchChunk(B, FIRST, 100),
        FetchChunk(B, FIRST, 200),
    ]
    assert chunk(receiver, 100) == [WriteChunk(FIRST, 100, bytes(100))]


def test_another_leader_with_another_snapshot_starts_over() -> None:
    """The next leader's snapshot differs: the half is thrown away."""
    receiver = written(chunks=1)
    fetches = [FetchChunk(B, SECOND, 0), FetchChunk(B, SECOND, 100)]
    assert receiver.on_offer(2, B, SECOND, 0) == [Discard(FIRST), *fetches]
    assert chunk(receiver, 100) == []


def test_a_deposed_leader_offers_in_vain() -> None:
    """An offer of an older term arrives late: nothing changes."""
    receiver = SnapshotReceiver(chunk_bytes=100)
    receiver.on_offer(2, B, SECOND, 0)
    assert receiver.on_offer(1, A, FIRST, 0) == []
    assert receiver.snapshot == SECOND


def test_a_write_of_an_abandoned_attempt_is_not_counted() -> None:
    """Leaders change twice, back to the first snapshot, before the disk has answered once."""
    receiver = fetching()
    chunk(receiver, 0)
    assert receiver.on_offer(2, B, SECOND, 0) == [Discard(FIRST), FetchChunk(B, SECOND, 0)]
    assert receiver.on_offer(3, A, FIRST, 0) == [Discard(SECOND), FetchChunk(A, FIRST, 0)]
    assert receiver.on_written(FIRST, 0) == [FetchChunk(A, FIRST, 100)]
    assert receiver.written_bytes == 0


def test_a_failure_of_an_abandoned_attempt_is_not_counted() -> None:
    """The same, and the first write fails: the new attempt at the same snapshot goes on."""
    receiver = fetching()
    chunk(receiver, 0)
    receiver.on_offer(2, B, SECOND, 0)
    receiver.on_offer(3, A, FIRST, 0)
    assert receiver.on_failed(FIRST, 0) == [FetchChunk(A, FIRST, 100)]
    assert receiver.state is ReceiverState.FETCHING


def test_a_snapshot_that_is_gone_is_resumed_elsewhere() -> None:
    """The leader dropped it: nothing is asked for until an offer; an equal one goes on."""
    receiver = written(chunks=1)
    receiver.on_gone(B, FIRST)
    assert receiver.state is ReceiverState.FETCHING
    receiver.on_gone(A, FIRST)
    assert receiver.state is ReceiverState.IDLE
    assert receiver.on_tick(100.0) == []
    assert receiver.on_offer(2, B, FIRST, 100.0)[0] == FetchChunk(B, FIRST, 100)


def test_a_snapshot_that_is_gone_makes_room_for_a_newer() -> None:
    """The same leader offers its newer one after it said that the older one is gone."""
    receiver = written(chunks=1)
    receiver.on_gone(A, FIRST)
    fetches = [FetchChunk(A, SECOND, 0), FetchChunk(A, SECOND, 100)]
    assert receiver.on_offer(1, A, SECOND, 0) == [Discard(FIRST), *fetches]


def test_nothing_disturbs_an_installation() -> None:
    """While verifying and installing there are offers, chunks and farewells: all in vain."""
    receiver = written(chunks=3)
    for state in (ReceiverState.VERIFYING, ReceiverState.INSTALLING):
        assert receiver.state is state
        assert receiver.on_offer(5, B, SECOND, 0) == []
        assert chunk(receiver, 0) == []
        receiver.on_gone(B, FIRST)
        assert receiver.on_tick(100.0) == []
        assert receiver.on_caught_up(5) == []
        if state is ReceiverState.VERIFYING:
            receiver.on_verified(FIRST)
    receiver.on_installed(FIRST)
    assert receiver.on_offer(5, B, SECOND, 0)[0] == FetchChunk(B, SECOND, 0)


@pytest.mark.parametrize("state", list(ReceiverState)[1:])
def test_after_a_failure_it_pauses(state: ReceiverState) -> None:
    """Full disk or damaged bytes: thrown away, and begun anew after a pause, not at once."""
    receiver = written(chunks=2)
    chunk(receiver, 200)
    if state is not ReceiverState.FETCHING:
        receiver.on_written(FIRST, 0)
    if state is ReceiverState.INSTALLING:
        receiver.on_verified(FIRST)
    assert receiver.state is state
    assert receiver.on_failed(FIRST, 1.0) == [Discard(FIRST)]
    assert receiver.on_offer(1, A, FIRST, 1.0 + FAILURE_PAUSE_SECONDS - 0.1) == []
    assert receiver.on_offer(1, A, FIRST, 1.0 + FAILURE_PAUSE_SECONDS)[0] == FetchChunk(A, FIRST, 0)


def test_one_failure_is_not_counted_twice() -> None:
    """Two chunks wait for the disk and it fails: the second answer changes nothing more."""
    receiver = fetching()
    chunk(receiver, 0)
    chunk(receiver, 100)
    assert receiver.on_failed(FIRST, 0) == [Discard(FIRST)]
    assert receiver.on_failed(FIRST, 4.0) == []
    assert receiver.on_offer(1, A, FIRST, 5.0) == [
        FetchChunk(A, FIRST, 0),
        FetchChunk(A, FIRST, 100),
    ]


def test_entries_may_overtake_a_snapshot() -> None:
    """A new leader still had the entries: the half of a snapshot is thrown away."""
    receiver = written(chunks=1)
    assert receiver.on_caught_up(9) == []
    assert receiver.on_caught_up(10) == [Discard(FIRST)]
    assert receiver.on_offer(1, A, FIRST, 0) == []
    assert receiver.state is ReceiverState.IDLE


def test_an_overtaken_snapshot_is_not_installed() -> None:
    """It was being verified when the entries came: this node must not go back."""
    receiver = written(chunks=3)
    receiver.on_caught_up(15)
    assert receiver.on_verified(FIRST) == []
    assert receiver.state is ReceiverState.IDLE


@pytest.mark.parametrize(
    ("snapshot", "problem"),
    [
        (SnapshotId(1, 1, 0, 1), "size_bytes 0"),
        (SnapshotId(1, 1, SNAPSHOT_BYTES_MAX + 1, 1), "size_bytes 8589934593"),
        (SnapshotId(1, TERM_MAX + 1, 10, 1), "term 10000000000"),
        (SnapshotId(1 << 63, 1, 10, -1), "index 9223372036854775808, .*; crc -1"),
    ],
)
def test_an_impossible_offer_breaks_the_protocol(snapshot: SnapshotId, problem: str) -> None:
    """Offers come from outside: what no file can be is refused before a byte is asked for."""
    with pytest.raises(RemoteProtocolError, match=problem):
        SnapshotReceiver().on_offer(1, A, snapshot, 0)


def test_an_answer_that_nobody_waits_for_is_a_bug() -> None:
    """The driver answers in order and once; anything else would corrupt the count."""
    with pytest.raises(AssertionError, match="an answer to no WriteChunk"):
        fetching().on_written(FIRST, 0)
    with pytest.raises(AssertionError):
        fetching().on_verified(FIRST)


def sending(snapshot: SnapshotId = FIRST) -> SnapshotSender:
    sender = SnapshotSender(chunk_bytes=100)
    assert sender.on_newest(snapshot, 0.0) == []
    return sender


def test_a_request_is_answered_with_a_chunk() -> None:
    """Any offset is served, from the beginning or in the middle; the last chunk is shorter."""
    sender = sending()
    assert sender.offer(A, 0) == FIRST
    assert sender.on_fetch(A, FIRST, 0, 0) == SendChunk(A, FIRST, 0, 100)
    assert sender.on_fetch(B, FIRST, 130, 0) == SendChunk(B, FIRST, 130, 100)
    assert sender.on_fetch(A, FIRST, 200, 0) == SendChunk(A, FIRST, 200, 50)


@pytest.mark.parametrize("offset", [-1, 250, 1 << 40])
def test_an_impossible_offset_breaks_the_protocol(offset: int) -> None:
    """A request for bytes that the snapshot does not have."""
    with pytest.raises(RemoteProtocolError, match="of a snapshot of 250 bytes"):
        sending().on_fetch(A, FIRST, offset, 0)


def test_without_a_snapshot_there_is_nothing_to_offer() -> None:
    """A node that has never taken one; whoever asks all the same is told so."""
    sender = SnapshotSender()
    assert sender.offer(A, 0) is None
    assert sender.on_fetch(A, FIRST, 0, 0) == SendGone(A, FIRST)


def test_an_old_snapshot_is_served_while_it_is_read() -> None:
    """It is replaced in the middle of a transfer: open until nobody asked for 30 seconds."""
    sender = sending()
    sender.on_fetch(A, FIRST, 0, 0.0)
    assert sender.on_newest(SECOND, 1.0) == []
    assert sender.offer(A, 1.0) == SECOND
    assert sender.on_fetch(A, FIRST, 100, 20.0) == SendChunk(A, FIRST, 100, 100)
    assert sender.on_tick(20.0 + READER_IDLE_SECONDS - 0.1) == []
    assert sender.on_tick(20.0 + READER_IDLE_SECONDS) == [CloseReader(FIRST)]
    assert sender.on_fetch(A, FIRST, 200, 51.0) == SendGone(A, FIRST)


def test_an_old_snapshot_that_nobody_reads_is_closed_at_once() -> None:
    """Replaced, and never offered to anybody."""
    sender = sending()
    assert sender.on_newest(SECOND, 1.0) == [CloseReader(FIRST)]


def test_what_was_offered_just_now_stays_open() -> None:
    """The peer's first request crosses the next snapshot: it is served."""
    sender = sending()
    sender.offer(A, 0.0)
    sender.offer(A, 29.0)
    assert sender.on_newest(SECOND, 31.0) == []
    assert isinstance(sender.on_fetch(A, FIRST, 0, 32.0), SendChunk)


def test_a_peer_holds_one_old_snapshot_only() -> None:
    """It moved on to the newer one: the older one is closed at the next tick."""
    sender = sending()
    sender.on_fetch(A, FIRST, 0, 0.0)
    sender.on_newest(SECOND, 1.0)
    sender.on_fetch(A, SECOND, 0, 2.0)
    assert sender.on_tick(2.0) == [CloseReader(FIRST)]


@pytest.mark.parametrize("seed", range(40))
def test_the_follower_gets_the_newest_in_the_end(seed: int) -> None:
    """Half a minute of broken connections, changing leaders and failing disks, then peace."""
    world = World(seed)
    world.run(FAULTS_END + 40)
    assert world.installed
    assert world.installed[-1].index >= world.offered.index
    indexes = [snapshot.index for snapshot in world.installed]
    assert indexes == sorted(set(indexes))
