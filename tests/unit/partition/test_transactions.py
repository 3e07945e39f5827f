"""A11.4: what is open in a partition, and its last stable offset, by the batches of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.errors import CorruptRecord
from raftmq.model import TransactionOutcome
from raftmq.partition.producer_format import pack_snapshot, read_snapshot
from raftmq.partition.producers import Producers, Remembered
from raftmq.partition.sequences import ProducerState, SequenceRun
from raftmq.partition.transactions import (
    ALL_READ,
    MARKERS_MAX,
    EndedTransaction,
    MarkerWanted,
    NotedMarker,
    Transactions,
    UnreadPart,
)
from raftmq.wire.batch.control import ControlType
from raftmq.wire.batch.header import (
    CONTROL_BIT,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

OPEN, COMMITTED, ABORTED, AHEAD, FORGED = TransactionOutcome


def header(
    base_offset: int, producer_id: int, epoch: int = 0, sequence: int = 0, *, count: int = 1
) -> BatchHeader:
    """Of records in a transaction."""
    return BatchHeader(
        base_offset, 100, 0, MAGIC, 0, TRANSACTIONAL_BIT, count - 1, 0, 0,
        producer_id, epoch, sequence, count,
    )  # fmt: skip


def marker(base_offset: int, producer_id: int, epoch: int = 1) -> BatchHeader:
    """What ends the transaction of the epoch before."""
    bits = TRANSACTIONAL_BIT | CONTROL_BIT
    return BatchHeader(
        base_offset, 100, 0, MAGIC, 0, bits, 0, 0, 0, producer_id, epoch, -1, 1
    )  # fmt: skip


def noted(headers: Iterable[BatchHeader]) -> Producers:
    producers = Producers()
    for each in headers:
        producers.note(each)
    return producers


def test_nothing_open_costs_nothing() -> None:
    """A partition without transactions: everything committed is stable."""
    assert Transactions().last_stable_offset(17) == 17


def test_a_transaction_holds_the_last_stable_offset_until_its_marker_is_committed() -> None:
    """Open, then ended and not replicated yet, then committed."""
    producers = noted([header(5, 7), header(6, 7, sequence=1)])
    transactions = producers.transactions
    assert transactions.last_stable_offset(7) == 5
    assert transactions.last_stable_offset(3) == 3
    assert producers.note(marker(7, 7)) == EndedTransaction(7, 5, 7, 8)
    assert transactions.last_stable_offset(7) == 5
    assert transactions.last_stable_offset(8) == 8
    transactions.on_high_watermark(8)
    assert not transactions.markers


def test_the_marker_begins_the_next_epoch() -> None:
    """What is late of the transaction before has a lower epoch."""
    producers = noted([header(5, 7), marker(6, 7)])
    assert producers.get(7) == ProducerState(1, 0, (), marker_offset=6)


def test_interleaved_transactions_hold_it_at_the_first() -> None:
    """The one that began first ends last; behind it the other one's marker counts for nothing."""
    producers = noted([header(0, 7), header(1, 8)])
    assert producers.note(marker(2, 8)) == EndedTransaction(8, 1, 2, 0)
    assert producers.transactions.last_stable_offset(3) == 0
    producers.note(marker(3, 7))
    assert producers.transactions.last_stable_offset(3) == 0  # 7's marker is not committed
    assert producers.transactions.last_stable_offset(4) == 4
    assert producers.transactions.markers[0] == NotedMarker(0, 3)


def test_markers_of_one_producer_in_a_row_all_count() -> None:
    """Several transactions were committed while a follower was behind."""
    producers = noted([header(0, 7), marker(1, 7), header(2, 7, 1), marker(3, 7, 2)])
    stable = [producers.transactions.last_stable_offset(mark) for mark in range(5)]
    assert stable == [0, 0, 2, 2, 4]


def test_many_markers_are_merged_and_hold_it_back() -> None:
    """A walk in recovery does not know the high watermark, and must not fill the memory."""
    transactions = Transactions()
    count = MARKERS_MAX + 1
    for number in range(count):
        first = 2 * number
        transactions.note(7, ProducerState(number, 1, open_offset=first))
        transactions.note(7, ProducerState(number + 1, 0, marker_offset=first + 1))
    assert len(transactions.markers) <= MARKERS_MAX // 2 + 1
    stable = [transactions.last_stable_offset(mark) for mark in range(0, 2 * count + 1, 2)]
    assert stable == sorted(stable)
    assert all(offset <= 2 * number for number, offset in enumerate(stable))
    assert stable[-1] == 2 * count


def test_no_limit_forgets_what_is_open() -> None:
    """Planted: idle_shelf_forgets_open. A producer that is idle for a month, and many others."""
    producers = Producers()
    producers.note(header(0, 7), 0.0)
    producers.forget_idle(30 * 86_400.0)
    assert 7 in producers
    assert producers.transactions.last_stable_offset(1) == 0


@pytest.mark.parametrize(
    ("outcome", "high_watermark", "is_known"),
    [(COMMITTED, 2, False), (ABORTED, 2, False), (COMMITTED, 1, True), (OPEN, 2, True)],
)
def test_a_producer_is_forgotten_once_its_decision_is_known_and_its_marker_committed(
    outcome: TransactionOutcome, high_watermark: int, *, is_known: bool
) -> None:
    """Planted: admits_decided_when_forgotten. Before that its epoch is what refuses a late copy."""
    producers = noted([header(0, 7), marker(1, 7)])
    producers.release(high_watermark, lambda _pid, epoch: outcome if epoch == 0 else OPEN)
    assert (7 in producers) == is_known


def test_one_that_wrote_outside_of_transactions_stays_as_a_plain_one() -> None:
    """Its sequence still detects duplicates."""
    plain = header(2, 7, 1)._replace(attributes=0)
    producers = noted([header(0, 7), marker(1, 7), plain])
    producers.release(3, lambda *_: COMMITTED)
    assert producers.get(7) == ProducerState(1, 1, (SequenceRun(0, 2, 1),))
    assert not producers.transactions.known


def test_what_is_due_follows_from_the_outcomes() -> None:
    """One committed, one aborted, one open, one that the metadata do not know yet."""
    producers = noted([header(number, number) for number in range(1, 5)])
    said = {1: COMMITTED, 2: ABORTED, 3: OPEN, 4: AHEAD}
    transactions = producers.transactions
    both = [MarkerWanted(1, 0, ControlType.COMMIT), MarkerWanted(2, 0, ControlType.ABORT)]
    assert transactions.due(None, lambda producer_id, _: said[producer_id]) == both
    assert transactions.due([2, 3, 9, 2], lambda producer_id, _: said[producer_id]) == both[1:]


def test_a_transaction_is_settled_once_its_marker_is_committed() -> None:
    """Planted: forgets_before_marker_is_committed."""
    producers = noted([header(0, 7)])
    assert not producers.transactions.is_ended([7], 0, 1)
    producers.note(marker(1, 7))
    assert [producers.transactions.is_ended([7], 0, mark) for mark in (1, 2)] == [False, True]
    producers.note(header(2, 7, 1))  # the next one says nothing of the one before
    assert [producers.transactions.is_ended([7], 0, mark) for mark in (1, 2)] == [False, True]
    assert not producers.transactions.is_ended([7], 1, 3)
    assert producers.transactions.is_ended([8], 0, 0)  # nothing of it ever came here


def test_a_block_of_members_is_settled_once_all_of_their_markers_are_committed() -> None:
    """Also of those that do not count: nothing of the block is open in a log then."""
    producers = noted([header(0, 8_192), header(1, 8_195), header(2, 9)])
    block = range(8_192, 2 * 8_192)
    for number, offset in ((8_195, 3), (8_192, 4)):
        assert not producers.transactions.is_ended(block, 0, 9)
        producers.note(marker(offset, number))
    assert [producers.transactions.is_ended(block, 0, mark) for mark in (4, 5)] == [False, True]
    assert producers.transactions.is_ended(range(2 * 8_192, 3 * 8_192), 0, 0)


def test_batches_that_cannot_be_read_leave_the_end_in_doubt() -> None:
    """A transaction began before the rot, and "aborted" may mean a commit whose marker is in it."""
    producers = noted([header(0, 7), header(1, 8)])
    producers.on_unread(2, 10)
    producers.note(header(10, 9))
    transactions = producers.transactions
    assert transactions.due(None, lambda *_: ABORTED) == [MarkerWanted(9, 0, ControlType.ABORT)]
    assert len(transactions.due(None, lambda *_: COMMITTED)) == 3
    restored = read_snapshot(pack_snapshot(11, *producers.picture().saved()), 11).restored()
    assert restored.transactions.is_doubtful(7)
    restored.transactions.accept_unread()  # no other replica has them
    assert len(restored.transactions.due(None, lambda *_: ABORTED)) == 3
    producers.note(header(11, 8, 1))  # the marker was among what could not be read
    assert list(transactions.open) == [7, 9, 8]
    assert transactions.open[8].first_offset == 11


def test_nothing_is_stable_behind_what_could_not_be_read() -> None:
    """A transaction may be open there of which nothing else is known."""
    producers = noted([header(0, 7), marker(1, 7)])
    producers.on_unread(2, 10)
    producers.on_unread(20, 30)
    producers.note(header(30, 8))
    transactions = producers.transactions
    transactions.on_high_watermark(31)
    assert transactions.unread == UnreadPart(2, 30)
    assert [transactions.last_stable_offset(mark) for mark in (1, 2, 15, 31)] == [1, 2, 2, 2]
    assert transactions.decided_end(31) == 30  # what is known to be open
    restored = read_snapshot(pack_snapshot(31, *producers.picture().saved()), 31).restored()
    assert restored.transactions.last_stable_offset(31) == 2
    restored.transactions.on_log_start(29)  # a part of it is still in the log
    assert restored.transactions.last_stable_offset(31) == 2
    restored.transactions.on_log_start(30)
    assert restored.transactions.last_stable_offset(31) == 30
    producers.note(marker(31, 8))
    assert transactions.last_stable_offset(32) == 2
    transactions.accept_unread()  # no other replica has it
    assert transactions.last_stable_offset(32) == 32


def test_a_snapshot_keeps_what_is_open_and_the_markers() -> None:
    """Planted: snapshot_drops_open_offset. Read back, the state is the same."""
    producers = noted(
        [header(0, 7), header(1, 8), header(2, 9), marker(3, 7), header(4, 7, 1), marker(5, 9)]
    )
    packed = pack_snapshot(6, *producers.picture().saved())
    restored = read_snapshot(packed, 6).restored()
    assert restored.transactions.known == producers.transactions.known
    assert list(restored.transactions.open) == [8, 7]
    for mark in range(7):
        stable = producers.transactions.last_stable_offset(mark)
        assert restored.transactions.last_stable_offset(mark) == stable


@pytest.mark.parametrize(
    "wrong",
    [
        Remembered(7, ProducerState(0, 0, open_offset=6), 0.0),
        Remembered(7, ProducerState(0, 0, marker_offset=-2), 0.0),
        Remembered(2**62, ProducerState(0, 0, (), 1, open_offset=3), 0.0),
    ],
)
def test_what_no_transaction_can_be_is_refused(wrong: Remembered) -> None:
    """Beyond the end, negative, or of a name."""
    with pytest.raises(CorruptRecord, match="producer"):
        read_snapshot(pack_snapshot(6, [wrong]), 6)


@pytest.mark.parametrize(
    ("markers", "unread"),
    [
        ([NotedMarker(3, 3)], ALL_READ),
        ([NotedMarker(0, 6)], ALL_READ),
        ([NotedMarker(0, 2), NotedMarker(0, 3)], ALL_READ),
        ([NotedMarker(0, 3), NotedMarker(1, 3)], ALL_READ),
        ([], UnreadPart(2, 7)),
        ([], UnreadPart(3, 3)),
        ([], UnreadPart(-1, 3)),
    ],
)
def test_markers_that_cannot_stand_are_refused(
    markers: list[NotedMarker], unread: UnreadPart
) -> None:
    """Before their beginning, beyond the end, or out of order; so what could not be read."""
    with pytest.raises(CorruptRecord, match="unread from"):
        read_snapshot(pack_snapshot(6, [], markers, unread), 6)
