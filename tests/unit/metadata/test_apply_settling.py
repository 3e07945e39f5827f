"""What becomes of decided transactions: settled, forgotten, and of ids that nobody needs.

And of producer ids after their last epoch. A11.3, A11.4.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply import transaction_checks, transactions
from raftmq.metadata.apply.transaction_checks import (
    PARTITIONS_MAX,
    UNSETTLED_MAX,
    UNSETTLED_OFFLINE_MAX,
    UNSETTLED_PARTITIONS_MAX,
)
from raftmq.metadata.commands import (
    DeleteTopic,
    DeleteTransactions,
    Done,
    EndOutcome,
    FenceBroker,
    ForgetSettled,
    ReviewPartitions,
    SettledCommits,
    SettledTransaction,
    TransactionSeen,
)
from raftmq.metadata.image import (
    PRODUCER_ID_MAX,
    MetadataImage,
    slot_of,
)
from tests.metadata_invariants import check, check_step
from tests.unit.metadata.states import ORDERS, after, apply_next, epoch_of, refusal
from tests.unit.metadata.transaction_ids import (
    FIRST,
    ID,
    OTHER,
    PID,
    SECOND,
    SLOT,
    decide,
    end,
    ends,
    open_once,
    opened,
    opening,
    state_of,
    told,
    touched,
)

# The last epoch


@pytest.fixture
def _short_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "LAST_EPOCH", 1)


@pytest.mark.usefixtures("_short_epochs")
def test_after_the_last_epoch_comes_another_producer_id() -> None:
    """Planted bug 15, `epoch_wraps_without_new_pid`: told in the answer, in the same command; the
    one that was left is found as long as a commit of it is not settled.
    """
    image = after(open_once(), ends(end(0)))
    before = image
    image, outcome = decide(image, end(1, partitions=(FIRST,)))
    assert outcome == EndOutcome(0, is_committed=True, producer_id=PID + 1, producer_epoch=0)
    assert dict(image.transaction_ids) == {PID: ID, PID + 1: ID}
    assert touched(PID, PID + 1) <= set(image.changes)
    check_step(before, image)
    check(image)
    again = told(image, end(1, partitions=(FIRST,)))
    assert (again.is_repeated, again.producer_id, again.producer_epoch) == (True, PID + 1, 0)
    before = image
    settled = SettledTransaction(PID, 1, (FIRST,))
    image = after(image, ForgetSettled(SLOT, 1, (SettledCommits(ID, (settled,)),)))
    assert dict(image.transaction_ids) == {PID + 1: ID}
    assert set(image.changes) == touched(PID, PID + 1)
    check_step(before, image)


@pytest.mark.usefixtures("_short_epochs")
def test_a_take_over_in_the_last_epoch() -> None:
    """It, too, begins the first epoch of another producer id."""
    image = after(open_once(), ends(end(0)), opening(owner=OTHER))
    assert opened(image, opening(owner=OTHER)) == (PID + 1, 0)
    assert touched(PID, PID + 1) <= set(image.changes)


@pytest.mark.usefixtures("_short_epochs")
def test_nothing_is_decided_where_no_producer_id_is_left() -> None:
    """The transaction of the last epoch stays open; a retry of the decision before is answered."""
    image = after(open_once(), ends(end(0)))._replace(next_producer_id=PRODUCER_ID_MAX + 1)
    assert told(image, end(1)).code is ErrorCode.INVALID_REQUEST
    assert told(image, end(0)).is_committed
    assert refusal(image, opening(owner=OTHER)).code is ErrorCode.INVALID_REQUEST


# Settling


def unsettled(count: int, *, first: int = 0, partitions: Any = (FIRST,)) -> MetadataImage:
    image = open_once()
    for epoch in range(first, first + count):
        image = after(image, ends(end(epoch, partitions=partitions)))
    return image


def epochs_of(image: MetadataImage) -> list[int]:
    return [one.producer_epoch for one in state_of(image).settling]


def forget(*settled: SettledTransaction, name: str = ID, slot: int = SLOT) -> ForgetSettled:
    return ForgetSettled(slot, 1, (SettledCommits(name, settled),))


def test_what_is_settled_leaves_partition_by_partition() -> None:
    """The entry keeps what is not settled yet, and goes with the last one; a retry finds nothing.

    The same transaction may be named more than once, as several leaders say it.
    """
    image = unsettled(3, partitions=(FIRST, SECOND))
    image = after(image, forget(SettledTransaction(PID, 1, (FIRST,))))
    assert [one.partitions for one in state_of(image).settling][1] == (SECOND,)
    command = forget(SettledTransaction(PID, 1, (SECOND,)), SettledTransaction(PID, 0, (FIRST,)),
                     SettledTransaction(PID, 0, (SECOND,)))  # fmt: skip
    image = after(image, command)
    assert epochs_of(image) == [2]
    assert set(image.changes) == touched(PID)
    assert after(image, command).changes == ()


def test_settling_leaves_with_the_next_end() -> None:
    """It costs no command of its own; also with an abort, and only if the end is decided."""
    image = unsettled(2)
    settled = (SettledTransaction(PID, 0, (FIRST,)),)
    refused, outcome = decide(image, end(7, settled=settled))
    assert outcome is not None
    assert epochs_of(refused) == [0, 1]
    image, _ = decide(image, end(2, commit=False, settled=settled))
    assert epochs_of(image) == [1]


def test_what_is_settled_is_not_what_was_named() -> None:
    """Another transaction, another partition, another id, another slot: nothing is forgotten."""
    image = unsettled(1)
    stranger = next(name for name in map(str, range(99)) if slot_of(name) != SLOT)
    done = SettledTransaction(PID, 0, (FIRST,))
    image = after(image, opening(name=stranger))
    for command in (
        forget(replace(done, producer_epoch=1)),
        forget(replace(done, partitions=(SECOND,))),
        forget(done, name="never opened"),
        forget(done, name=stranger),
    ):
        later, result = apply_next(image, command)
        assert result == Done()
        assert later.changes == ()


def test_64_commits_may_be_unsettled() -> None:
    """One more with partitions stays open until there is room; without any it needs none."""
    image = unsettled(UNSETTLED_MAX)
    wanted = end(UNSETTLED_MAX, partitions=(FIRST,))
    refused, outcome = decide(image, wanted)
    assert outcome is not None
    assert outcome.code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert refused.changes == ()
    assert decide(image, replace(wanted, partitions=()))[1] is None
    assert decide(image, replace(wanted, is_commit=False))[1] is None
    settled = (SettledTransaction(PID, 3, (FIRST,)),)
    image, outcome = decide(image, replace(wanted, settled=settled))
    assert outcome is None
    assert epochs_of(image) == [0, 1, 2, *range(4, UNSETTLED_MAX + 1)]


def test_commits_that_wait_for_a_leader_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage of one topic does not stop the others, up to a second limit."""
    monkeypatch.setattr(transaction_checks, "UNSETTLED_MAX", 3)
    monkeypatch.setattr(transaction_checks, "UNSETTLED_OFFLINE_MAX", 5)
    image = unsettled(3)
    assert told(image, end(3, partitions=(FIRST,))).code is ErrorCode.CONCURRENT_TRANSACTIONS
    offline = image
    for key in ((number, epoch_of(number)) for number in range(3)):
        offline = after(offline, FenceBroker(*key), ReviewPartitions(*key, (FIRST, SECOND)))
    for epoch in (3, 4):
        offline = after(offline, ends(end(epoch, partitions=(SECOND,))))
    assert epochs_of(offline) == [0, 1, 2, 3, 4]
    assert told(offline, end(5, partitions=(FIRST,))).code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert UNSETTLED_OFFLINE_MAX == 1_000


def test_commits_of_a_deleted_topic_take_room() -> None:
    """They are settled at once, by the coordinator alone."""
    image = after(unsettled(UNSETTLED_MAX), DeleteTopic(ORDERS))
    wanted = end(UNSETTLED_MAX, partitions=(FIRST,))
    assert told(image, wanted).code is ErrorCode.CONCURRENT_TRANSACTIONS


def test_unsettled_commits_have_only_so_many_partitions() -> None:
    """A row is encoded at one go: 11 commits of 2,000 partitions are one too many."""
    many = tuple((ORDERS, number) for number in range(PARTITIONS_MAX))
    count = UNSETTLED_PARTITIONS_MAX // PARTITIONS_MAX
    image = unsettled(count, partitions=many)
    wanted = end(count, partitions=(FIRST,))
    assert told(image, wanted).code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert decide(image, replace(wanted, partitions=()))[1] is None


def test_a_single_commit_always_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """However low the limit: else it would stay open for ever."""
    monkeypatch.setattr(transaction_checks, "UNSETTLED_PARTITIONS_MAX", 1)
    assert decide(open_once(), end(0, partitions=(FIRST, SECOND)))[1] is None


# Forgetting ids


def seen(image: MetadataImage, *, with_unsettled: bool = False) -> DeleteTransactions:
    rows = (TransactionSeen(ID, state_of(image).changed_at_ms),)
    return DeleteTransactions(SLOT, 1, rows, with_unsettled)


def test_an_idle_id_is_forgotten() -> None:
    """A retry finds nothing; an open of the same name begins with another producer id."""
    image = open_once()
    command = seen(image)
    before, image = image, after(image, command)
    assert (len(image.transactions), len(image.transaction_ids)) == (0, 0)
    assert set(image.changes) == touched(PID)
    check_step(before, image)
    assert after(image, command).changes == ()
    assert opened(image, opening(owner=OTHER)) == (PID + 1, 0)


def test_an_id_that_has_changed_since_stays() -> None:
    """Expiry saw it idle, and a transaction was decided before the command was applied."""
    image = open_once()
    command = seen(image)
    image = after(image, ends(end(0)))
    assert ID in after(image, command).transactions


def test_an_id_with_unsettled_commits_stays_unless_an_operator_insists() -> None:
    """They may be torn by it: their leaders would find neither the id nor the commit."""
    image = unsettled(1)
    assert ID in after(image, seen(image)).transactions
    assert ID not in after(image, seen(image, with_unsettled=True)).transactions


def test_an_id_of_another_slot_is_not_forgotten() -> None:
    """Its coordinator is another one."""
    image = open_once()
    other = (SLOT + 1) % 64
    command = replace(seen(image), slot=other)
    assert ID in after(image, command).transactions
