"""A11.4: transactions on a leader and its followers: markers, last stable offset, settling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import (
    ConcurrentTransactions,
    FencedLeaderEpoch,
    InvalidRecord,
    InvalidTransaction,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OutOfOrderSequence,
    UnknownLeaderEpoch,
)
from raftmq.model import TransactionOutcome
from raftmq.partition import replica as replicas
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.records import encode_batch, encode_control_batch
from tests.log_reading import read_batches
from tests.unit.partition.replica_world import (
    Machine,
    broker_epoch,
    exchange,
    led_by,
    machine,
    settle,
)
from tests.unit.storage.batches import NOW_MS, batch

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.partition.replica import Replica

ALL = -1
PID = 7
OPEN, COMMITTED, ABORTED, AHEAD, FORGED = TransactionOutcome


def sent(first: int = 0, *, epoch: int = 0, producer: int = PID, count: int = 1) -> bytes:
    data = encode_batch(
        values=[b"x"] * count,
        timestamp=NOW_MS,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=first,
        transactional=True,
    )
    return bytes(data)


class Metadata:
    """What one broker has heard; what it has not heard of is open."""

    def __init__(self, home: Machine) -> None:
        self.said: dict[tuple[int, int], TransactionOutcome] = {}
        home.around = home.around._replace(outcome=self.outcome)

    def outcome(self, producer_id: int, producer_epoch: int) -> TransactionOutcome:
        return self.said.get((producer_id, producer_epoch), OPEN)


async def copy(leader: Replica, follower: Replica) -> None:
    """All that there is, and word that it is held."""
    await exchange(leader, follower)
    await exchange(leader, follower)
    await settle()
    held, epoch = follower.log.held_end_offset, leader.leading().leader_epoch
    leader.on_replica_progress(
        2, broker_epoch(2), held, leader_epoch=epoch, now=trio.current_time()
    )


def markers(replica: Replica) -> list[tuple[int, int, int, ControlType | int]]:
    """Offset, producer id, epoch and type of each."""
    return [
        (each.header.base_offset, *each.header[9:11], each.control.type)
        for each in read_batches(replica.log, 0)
        if each.is_control
    ]


async def test_the_leader_appends_the_marker_that_its_metadata_tell(
    autojump_clock: MockClock,
) -> None:
    """Nobody has sent it one. Readers see the transaction once the marker is committed."""
    async with machine(1) as home, machine(2) as away:
        metadata = Metadata(home)
        leader, follower = await home.replica(), await away.replica()
        await leader.take_up(led_by(1))
        await follower.take_up(led_by(1))
        leader.append(sent(), acks=ALL)
        leader.append(batch(b"other"), acks=1)
        await copy(leader, follower)
        assert (leader.last_stable_offset, leader.high_watermark) == (0, 2)
        leader.resolve()  # nothing is decided
        assert leader.log.log_end_offset == 2
        metadata.said[PID, 0] = COMMITTED
        leader.resolve([PID, 99])
        leader.resolve()  # once
        assert markers(leader) == [(2, PID, 1, ControlType.COMMIT)]
        assert leader.last_stable_offset == 0
        await copy(leader, follower)
        assert leader.last_stable_offset == leader.high_watermark == 3
        await exchange(leader, follower)
        assert follower.last_stable_offset == 3


async def test_a_marker_needs_no_min_isr(autojump_clock: MockClock) -> None:
    """It is committed when enough replicas are back; until then it tells nobody anything."""
    async with machine(1) as home:
        metadata = Metadata(home)
        replica = await home.replica()
        await replica.take_up(led_by(1, isr=(1,)))
        replica.append(sent(), acks=ALL)
        await settle()
        await replica.take_up(led_by(1, change=1, isr=(1,), min_isr=2))
        metadata.said[PID, 0] = ABORTED
        replica.resolve()
        await settle()
        assert markers(replica) == [(1, PID, 1, ControlType.ABORT)]
        assert replica.last_stable_offset == 0


async def test_a_new_leader_ends_what_it_finds_open(autojump_clock: MockClock) -> None:
    """The leader before has died with a marker that nobody copied."""
    async with machine(1) as home, machine(2) as away:
        metadata, others = Metadata(home), Metadata(away)
        leader, follower = await home.replica(), await away.replica()
        await leader.take_up(led_by(1))
        await follower.take_up(led_by(1))
        leader.append(sent(), acks=ALL)
        leader.append(sent(producer=8), acks=ALL)
        await copy(leader, follower)
        metadata.said[PID, 0] = others.said[PID, 0] = COMMITTED
        leader.resolve()
        assert follower.open_transactions()[0][:3] == (PID, 0, 0)
        await follower.take_up(led_by(2, 1))
        assert markers(follower) == [(2, PID, 1, ControlType.COMMIT)]
        [left] = follower.open_transactions()
        assert left == (8, 0, 1, trio.current_time())  # time counts anew


async def test_many_markers_take_many_turns(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 in one turn would hold up the loop for 170 ms. Whoever begins to lead, and whoever
    follows the metadata, comes again."""
    monkeypatch.setattr(replicas, "MARKERS_AT_ONCE", 2)
    async with machine(1) as home:
        metadata = Metadata(home)
        replica = await home.replica()
        await replica.take_up(led_by(1, isr=(1,)))
        for producer in range(5):
            replica.append(sent(producer=producer), acks=ALL)
            metadata.said[producer, 0] = ABORTED
        assert [replica.resolve() for _ in range(4)] == [True, True, False, False]
        assert [found[1] for found in markers(replica)] == list(range(5))
        for producer in range(5):
            replica.append(sent(producer=producer, epoch=1), acks=ALL)
            metadata.said[producer, 1] = COMMITTED
        await replica.take_up(led_by(1, 1, isr=(1,)))
        assert not replica.open_transactions()


async def test_the_next_transaction_brings_the_marker_of_the_one_before(
    autojump_clock: MockClock,
) -> None:
    """In the same turn, where its outcome is known; else the producer sends again."""
    async with machine(1) as home:
        metadata = Metadata(home)
        replica = await home.replica()
        await replica.take_up(led_by(1, replicas=(1,)))
        replica.append(sent(), acks=ALL)
        replica.append(sent(producer=8), acks=ALL)
        with pytest.raises(ConcurrentTransactions):
            replica.append(sent(epoch=1), acks=ALL)
        assert replica.log.log_end_offset == 2
        metadata.said |= {(PID, 0): ABORTED, (8, 0): COMMITTED}
        both = sent(epoch=1) + sent(epoch=1, producer=8)
        assert replica.append(both, acks=ALL).base_offset == 4
        assert markers(replica) == [
            (2, PID, 1, ControlType.ABORT),
            (3, 8, 1, ControlType.COMMIT),
        ]
        assert [each.first_offset for each in replica.open_transactions()] == [4, 5]
        await settle()
        assert (replica.last_stable_offset, replica.high_watermark) == (4, 6)


async def test_a_refused_request_leaves_the_marker(autojump_clock: MockClock) -> None:
    """The marker is right whatever becomes of the request, and readers hear of it."""
    async with machine(1) as home:
        metadata = Metadata(home)
        replica = await home.replica()
        await replica.take_up(led_by(1, replicas=(1,)))
        replica.append(sent(), acks=ALL)
        metadata.said[PID, 0] = COMMITTED
        with pytest.raises(OutOfOrderSequence):
            replica.append(sent(3, epoch=1), acks=ALL)
        await settle()
        assert markers(replica) == [(1, PID, 1, ControlType.COMMIT)]
        assert replica.last_stable_offset == 2


async def test_what_no_transaction_may_send(autojump_clock: MockClock) -> None:
    """One acknowledgement, a marker of its own, no producer id: nothing is appended."""
    async with machine(1) as home:
        Metadata(home)
        replica = await home.replica()
        await replica.take_up(led_by(1, replicas=(1,)))
        with pytest.raises(InvalidTransaction, match="acks=all"):
            replica.append(sent(), acks=1)
        for what, reason in (
            (encode_batch(values=[b"x"], timestamp=1, transactional=True), "needs a producer id"),
            (marker_of_a_client(), "by brokers only"),
        ):
            with pytest.raises(InvalidRecord, match=reason):
                replica.append(bytes(what), acks=ALL)
        assert replica.log.log_end_offset == 0


def marker_of_a_client() -> bytes:
    return bytes(
        encode_control_batch(
            kind=ControlType.COMMIT,
            coordinator_epoch=0,
            producer_id=PID,
            producer_epoch=1,
            timestamp=NOW_MS,
        )
    )


async def test_settled_is_what_can_never_be_open_again(autojump_clock: MockClock) -> None:
    """Planted: settled_by_deposed_leader, forgets_before_marker_is_committed. Only the leader of
    that epoch says so, once it knows what is committed, and once the marker is."""
    async with machine(1) as home, machine(2) as away:
        metadata = Metadata(home)
        leader, follower = await home.replica(), await away.replica()
        await leader.take_up(led_by(1, 3))
        await follower.take_up(led_by(1, 3))
        leader.append(sent(), acks=ALL)
        await leader.take_up(led_by(1, 4))
        await follower.take_up(led_by(1, 4))
        with pytest.raises(OffsetNotAvailable):
            leader.is_settled(4, [PID], 0)
        await copy(leader, follower)
        assert not leader.is_settled(4, [PID], 0)
        metadata.said[PID, 0] = COMMITTED
        leader.resolve()
        assert not leader.is_settled(4, [PID], 0)
        await copy(leader, follower)
        assert leader.is_settled(4, [PID], 0)
        leader.tick(trio.current_time())  # both are known now, so the producer is forgotten
        assert PID not in leader.log.transactions.known
        assert leader.is_settled(4, [PID], 0)
        with pytest.raises(FencedLeaderEpoch):
            leader.is_settled(3, [PID], 0)
        with pytest.raises(UnknownLeaderEpoch):
            leader.is_settled(5, [PID], 0)
        with pytest.raises(NotLeaderOrFollower):
            follower.is_settled(4, [PID], 0)


async def test_retention_stops_at_the_last_stable_offset(autojump_clock: MockClock) -> None:
    """A transaction keeps its beginning while it is open."""
    async with machine(1) as home:
        metadata = Metadata(home)
        replica = await home.replica()
        await replica.take_up(led_by(1, replicas=(1,)))
        replica.append(batch(b"before"), acks=1)
        replica.append(sent(), acks=ALL)
        await settle()
        assert replica.log.retirable_end is not None
        assert replica.log.retirable_end() == 1
        metadata.said[PID, 0] = ABORTED
        replica.resolve()
        await settle()
        assert replica.log.retirable_end() == 3


@pytest.mark.parametrize("epoch", [0, 1])
async def test_the_only_replica_takes_what_it_could_not_read_for_lost(
    autojump_clock: MockClock, epoch: int
) -> None:
    """Nobody has it. Where another replica may, readers of committed records stop before it; until
    it is the only one, in another leader epoch or the same."""
    async with machine(1) as home:
        replica = await home.replica()
        await replica.take_up(led_by(1, isr=(1,)))
        replica.append(batch(b"a", b"b"), acks=ALL)
        await settle()
        replica.log.producers.now.on_unread(1, 2)
        assert replica.last_stable_offset == 1
        assert replica.log.retirable_end is not None
        assert replica.log.retirable_end() == 2
        with pytest.raises(OffsetNotAvailable):
            replica.is_settled(0, [PID], 0)
        await replica.take_up(led_by(1, epoch, change=1, replicas=(1,)))
        assert replica.last_stable_offset == 2
        assert replica.is_settled(epoch, [PID], 0)


async def test_only_a_leader_resolves(autojump_clock: MockClock) -> None:
    """A follower copies the marker, and its own metadata do not count."""
    async with machine(1) as home, machine(2) as away:
        Metadata(home)
        leader, follower = await home.replica(), await away.replica()
        Metadata(away).said[PID, 0] = ABORTED
        await leader.take_up(led_by(1))
        await follower.take_up(led_by(1))
        leader.append(sent(), acks=ALL)
        await copy(leader, follower)
        follower.resolve()
        assert follower.log.log_end_offset == 1
        assert len(follower.open_transactions()) == 1


async def test_a_cut_reopens_what_the_lost_marker_had_ended(autojump_clock: MockClock) -> None:
    """A leader comes back as a follower; its marker was in the tail that nobody copied."""
    async with machine(1) as home, machine(2) as away:
        Metadata(home)
        Metadata(away).said[PID, 0] = COMMITTED
        other, replica = await home.replica(), await away.replica()
        await other.take_up(led_by(1))
        await replica.take_up(led_by(1))
        other.append(sent(), acks=ALL)
        await copy(other, replica)
        await replica.take_up(led_by(2, 1))
        assert not replica.open_transactions()
        await other.take_up(led_by(1, 2))
        other.append(batch(b"else"), acks=1)
        await replica.take_up(led_by(1, 2))
        await exchange(other, replica)  # learns where they part
        await exchange(other, replica)
        assert [each.first_offset for each in replica.open_transactions()] == [0]
        assert (replica.last_stable_offset, replica.log.log_end_offset) == (0, 2)
