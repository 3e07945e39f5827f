"""What the metadata say of a transaction: each row of the table, and that it moves one way.

A11.3.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from raftmq.metadata.commands import DeleteTransactions, TransactionSeen
from raftmq.metadata.image import EMPTY_IMAGE
from raftmq.metadata.transactions import (
    EPOCHS_AHEAD_MAX,
    LAST_EPOCH,
    PRODUCER_IDS_AHEAD_MAX,
    outcome_of,
)
from raftmq.model import TransactionOutcome
from raftmq.wire.bodies import PRODUCER_EPOCH_MAX
from tests.unit.metadata.states import after
from tests.unit.metadata.transaction_ids import (
    FIRST,
    ID,
    SLOT,
    coordinated,
    end,
    ends,
    opening,
    state_of,
)

ABORTED, AHEAD, COMMITTED, FORGED, OPEN = (
    TransactionOutcome.ABORTED,
    TransactionOutcome.AHEAD,
    TransactionOutcome.COMMITTED,
    TransactionOutcome.FORGED,
    TransactionOutcome.OPEN,
)
PID = EMPTY_IMAGE.next_producer_id


@pytest.mark.parametrize(
    ("epoch", "outcome"),
    [
        (0, COMMITTED), (1, ABORTED), (2, ABORTED), (3, OPEN), (4, AHEAD), (-1, ABORTED),
        (3 + EPOCHS_AHEAD_MAX, AHEAD), (4 + EPOCHS_AHEAD_MAX, FORGED),
    ],
)  # fmt: skip
def test_epochs_of_a_known_producer_id(epoch: int, outcome: TransactionOutcome) -> None:
    """0 is committed and not settled, 1 committed without partitions, 2 aborted, 3 open."""
    decided = (end(0, partitions=(FIRST,)), end(1), end(2, commit=False))
    image = after(coordinated(), opening(), *map(ends, decided))
    assert outcome_of(image, PID, epoch) is outcome


@pytest.mark.parametrize(
    ("ahead", "outcome"),
    [
        (-2, OPEN), (-1, ABORTED), (0, AHEAD), (PRODUCER_IDS_AHEAD_MAX, AHEAD),
        (PRODUCER_IDS_AHEAD_MAX + 1, FORGED),
    ],
)  # fmt: skip
def test_producer_ids_without_a_transaction_id(ahead: int, outcome: TransactionOutcome) -> None:
    """Given out to a producer without transactions, and not given out yet, as far as is known."""
    image = after(coordinated(), opening())
    image = image._replace(next_producer_id=image.next_producer_id + 1)
    assert outcome_of(image, image.next_producer_id + ahead, 0) is outcome


def test_no_epoch_is_above_the_last_one() -> None:
    """Its marker would carry an epoch that the header cannot hold: it is forged, never ahead."""
    image = after(coordinated(), opening())
    state = replace(state_of(image), producer_epoch=LAST_EPOCH - 1)
    image = image._replace(transactions=image.transactions.set(ID, state))
    assert outcome_of(image, PID, LAST_EPOCH) is AHEAD
    assert outcome_of(image, PID, PRODUCER_EPOCH_MAX) is FORGED


def test_a_producer_id_that_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of its last epoch stays known until it is settled; all else of it is over."""
    monkeypatch.setattr("raftmq.metadata.apply.transactions.LAST_EPOCH", 0)
    image = after(coordinated(), opening(), ends(end(0, partitions=(FIRST,))))
    assert [outcome_of(image, PID, epoch) for epoch in (0, 1, 5)] == [COMMITTED, ABORTED, ABORTED]
    assert outcome_of(image, PID + 1, 0) is OPEN


def test_an_id_that_was_forgotten() -> None:
    """What was open under it is aborted, by every leader that holds some of it."""
    image = after(coordinated(), opening())
    seen = (TransactionSeen(ID, state_of(image).changed_at_ms),)
    image = after(image, DeleteTransactions(SLOT, 1, seen))
    assert outcome_of(image, PID, 0) is ABORTED
