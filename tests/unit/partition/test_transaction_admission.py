"""A11.4: which batches of transactions a leader takes, by what it knows of their outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidTransaction,
    OutOfOrderSequence,
    ProducerFenced,
    RaftmqError,
    TooManyProducers,
    TransactionAborted,
    UnknownProducerId,
)
from raftmq.model import TransactionOutcome
from raftmq.partition import admission
from raftmq.partition.admission import Admission, EarlierTransactionDecided
from raftmq.partition.producers import Producers
from tests.unit.partition.test_transactions import header, marker, noted

if TYPE_CHECKING:
    from raftmq.wire.batch.header import BatchHeader

OPEN, COMMITTED, ABORTED, AHEAD, FORGED = TransactionOutcome
NAMED = 2**62


def admitted(
    producers: Producers,
    *headers: BatchHeader,
    acks_all: bool = True,
    outcomes: dict[int, TransactionOutcome] | None = None,
) -> list[int | None]:
    """The offsets of originals. `outcomes`: by epoch, of all producers; others are open."""
    said = outcomes or {}
    rules = Admission(
        producers,
        0.0,
        outcome_of=lambda _pid, epoch: said.get(epoch, OPEN),
        has_acks_all=acks_all,
    )
    return [rules.original_offset(each) for each in headers]


def test_a_transaction_begins_and_goes_on() -> None:
    """In one request, and in the next."""
    producers = noted([header(0, 7)])
    assert admitted(producers, header(1, 7, sequence=1), header(2, 7, sequence=2)) == [None, None]


@pytest.mark.parametrize("outcome", [OPEN, AHEAD])
def test_what_is_open_or_not_heard_of_yet_is_taken(outcome: TransactionOutcome) -> None:
    """A broker whose metadata are behind does not hold up a producer."""
    assert admitted(Producers(), header(0, 7), outcomes={0: outcome}) == [None]


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (COMMITTED, ProducerFenced),
        (ABORTED, TransactionAborted),
        (FORGED, ConcurrentTransactions),
    ],
)
def test_what_is_decided_or_forged_is_refused(
    outcome: TransactionOutcome, error: type[RaftmqError]
) -> None:
    """Where nothing of it stands, and where it is open here still."""
    for producers in (Producers(), noted([header(0, 7)])):
        with pytest.raises(error):
            admitted(producers, header(1, 7, sequence=len(producers)), outcomes={0: outcome})


def test_a_duplicate_is_found_before_the_outcome() -> None:
    """Its acknowledgement was lost, and the transaction was decided meanwhile."""
    producers = noted([header(0, 7, count=2), header(2, 7, sequence=2)])
    assert admitted(producers, header(3, 7, count=2), outcomes={0: COMMITTED}) == [0]
    producers.note(marker(3, 7))
    with pytest.raises(ProducerFenced):  # behind the marker it is late
        admitted(producers, header(4, 7, count=2), outcomes={0: COMMITTED})


def test_a_late_copy_is_refused_by_its_epoch_while_metadata_are_behind() -> None:
    """The marker came from an earlier leader, whose metadata were newer."""
    producers = noted([header(0, 7), marker(1, 7)])
    with pytest.raises(InvalidProducerEpoch):
        admitted(producers, header(2, 7))


def test_the_transaction_before_ends_first() -> None:
    """Known here: its marker is due. Not known yet: the producer sends again."""
    producers = noted([header(0, 7)])
    for outcome in (COMMITTED, ABORTED):
        with pytest.raises(EarlierTransactionDecided) as told:
            admitted(producers, header(1, 7, 1), outcomes={0: outcome})
        assert told.value.producer_id == 7
    for outcome in (OPEN, AHEAD):
        with pytest.raises(ConcurrentTransactions):
            admitted(producers, header(1, 7, 1), outcomes={0: outcome})


def test_two_transactions_in_one_request_are_refused() -> None:
    """The first one would need its marker in the middle of the request."""
    with pytest.raises(ConcurrentTransactions):
        admitted(Producers(), header(0, 7), header(1, 7, 1))


def test_a_batch_outside_of_the_open_transaction_is_refused() -> None:
    """It would be read as a part of it."""
    plain = header(1, 7, sequence=1)._replace(attributes=0)
    with pytest.raises(InvalidTransaction, match="end it before"):
        admitted(noted([header(0, 7)]), plain)
    with pytest.raises(InvalidTransaction):
        admitted(Producers(), header(0, 7), plain)


def test_transactions_need_acks_all_and_no_name() -> None:
    """An error that tells the way out, before anything is appended."""
    with pytest.raises(InvalidTransaction, match="acks=all"):
        admitted(Producers(), header(0, 7), acks_all=False)
    with pytest.raises(InvalidTransaction, match="without the name"):
        admitted(Producers(), header(0, NAMED))


def test_a_partition_has_a_limit_of_open_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is told to wait; one that is open goes on."""
    monkeypatch.setattr(admission, "OPEN_MAX", 2)
    producers = noted([header(0, 7)])
    assert admitted(producers, header(1, 8), header(2, 7, sequence=1)) == [None, None]
    with pytest.raises(TooManyProducers, match="2 open transactions"):
        admitted(producers, header(1, 8), header(2, 9))


def test_sequences_hold_within_a_transaction() -> None:
    """A gap, and a beginning that is missing."""
    with pytest.raises(OutOfOrderSequence):
        admitted(noted([header(0, 7)]), header(1, 7, sequence=5))
    with pytest.raises(UnknownProducerId):
        admitted(Producers(), header(1, 7, sequence=5))


def test_nothing_joins_a_transaction_of_which_batches_cannot_be_read() -> None:
    """Its sequence may have gone on there."""
    producers = noted([header(0, 7)])
    producers.on_unread(1, 5)
    with pytest.raises(UnknownProducerId, match="abort it"):
        admitted(producers, header(5, 7, sequence=1))
    with pytest.raises(ConcurrentTransactions):  # its end is not known
        admitted(producers, header(5, 7, 1), outcomes={0: ABORTED})
