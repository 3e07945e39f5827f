"""Rules of shared transactions: members that join a version, and the commit that lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from raftmq.errors import ErrorCode
from raftmq.metadata.apply import transaction_checks
from raftmq.metadata.commands import (
    AllocateProducerIds,
    DeleteTransactions,
    EndOutcome,
    ForgetSettled,
    JoinOutcome,
    JoinTransactions,
    Refused,
    SettledCommits,
    SettledTransaction,
    SharedEnd,
    TransactionEnd,
    TransactionJoin,
    TransactionSeen,
    TransactionsJoined,
)
from raftmq.metadata.image import MEMBERS_MAX, ChangeKind, SharedVersions, TouchedKey, slot_of
from raftmq.metadata.transactions import outcome_of
from raftmq.model import AbortReason, TransactionOutcome
from tests.unit.metadata.states import after, answer, apply_next
from tests.unit.metadata.transaction_ids import (
    FIRST,
    SECOND,
    SLOT,
    coordinated,
    decide,
    end,
    open_once,
    opening,
    state_of,
    told,
)
from tests.unit.metadata.transaction_ids import (
    ID as SINGLE,
)

if TYPE_CHECKING:
    from raftmq.metadata.image import MetadataImage

ID = "etl-7"
BLOCK = MEMBERS_MAX  # the first one: in a new cluster ids below were given out before
OPEN, COMMITTED, ABORTED, AHEAD = (
    TransactionOutcome.OPEN,
    TransactionOutcome.COMMITTED,
    TransactionOutcome.ABORTED,
    TransactionOutcome.AHEAD,
)


def cluster() -> MetadataImage:
    """Some producer ids are given out."""
    return after(coordinated(), AllocateProducerIds(0, coordinated().brokers[0].broker_epoch, 10))


def joining(
    version: int, *, lineage: str = "", count: int = 1, members: int = 1, **fields: Any
) -> JoinTransactions:
    """`count` joins, each of so many members."""
    join = TransactionJoin(ID, lineage, version, 30_000, count=members, **fields)
    return JoinTransactions(slot_of(ID), 1, (join,) * count, changed_at_ms=5)


def join(
    image: MetadataImage, version: int, **fields: Any
) -> tuple[MetadataImage, tuple[JoinOutcome, ...]]:
    after_it, result = apply_next(image, joining(version, **fields))
    assert isinstance(result, TransactionsJoined), result
    return after_it, result.outcomes


def joined(image: MetadataImage, version: int, count: int = 1) -> MetadataImage:
    return join(image, version, count=count)[0]


def commit(
    version: int, *numbers: int, block: int = BLOCK, lineage: str = "", **fields: Any
) -> TransactionEnd:
    bits = sum(1 << number for number in numbers)
    shared = SharedEnd(lineage, bits.to_bytes(MEMBERS_MAX // 8, "little").rstrip(bytes(1)))
    fields.setdefault("partitions", (FIRST, SECOND) if numbers else ())
    fields.setdefault("count", 10)
    return TransactionEnd(ID, block, 0, is_commit=True, version=version, shared=shared, **fields)


def abort(version: int = -1, *, block: int = -1, by_leader: bool = False) -> TransactionEnd:
    shared = None if by_leader else SharedEnd("")
    reason = AbortReason.TIMEOUT if by_leader else AbortReason.PROGRAM
    return TransactionEnd(
        ID, block, 0, is_commit=False, version=version, shared=shared, reason=reason
    )


def ended(image: MetadataImage, wanted: TransactionEnd) -> MetadataImage:
    image, outcome = decide(image, wanted)
    assert outcome is not None
    assert not outcome.code, outcome
    return image


def outcomes(image: MetadataImage, *members: int, block: int = BLOCK) -> list[TransactionOutcome]:
    return [outcome_of(image, block + number, 0) for number in members]


# -- Joining --------------------------------------------------------------------------------------


def test_members_get_the_numbers_of_a_block() -> None:
    """A14.3"""
    image, told_of = join(cluster(), 0, count=2)
    assert told_of == (
        JoinOutcome(block=BLOCK, number=0, timeout_ms=30_000),
        JoinOutcome(block=BLOCK, number=1, timeout_ms=30_000),
    )
    image, (third,) = join(image, 0)
    assert (third.block, third.number) == (BLOCK, 2)
    assert state_of(image, ID).shared == SharedVersions("", 0, BLOCK, joined=3)
    assert image.next_producer_id == BLOCK + MEMBERS_MAX, "nobody else gets an id of the block"
    assert outcomes(image, 0, 2, 3) == [OPEN, OPEN, AHEAD]
    assert outcome_of(image, BLOCK, 1) is ABORTED, "members have one epoch"


def test_one_more_member_wakes_no_leader() -> None:
    image = joined(cluster(), 0)
    assert TouchedKey(ChangeKind.TRANSACTION_BLOCK, BLOCK) in image.changes
    assert joined(image, 0).changes == ()


def test_a_higher_version_aborts_the_open_one() -> None:
    image = joined(joined(cluster(), 3), 5)
    assert outcomes(image, 0) == [ABORTED]
    assert outcomes(image, 0, block=2 * BLOCK) == [OPEN]
    blocks = {change.key for change in image.changes if change.kind == ChangeKind.TRANSACTION_BLOCK}
    assert blocks == {BLOCK, 2 * BLOCK}, "leaders look at what is left, and what is taken"
    last = state_of(image, ID).last
    assert last is not None
    assert (last.is_committed, last.reason, last.version) == (False, AbortReason.OWNER, 3)


def test_a_lower_version_is_a_zombies() -> None:
    image = joined(cluster(), 5)
    same, (outcome,) = join(image, 4)
    assert outcome.code is ErrorCode.PRODUCER_FENCED
    assert same.transactions == image.transactions
    assert told(image, commit(4, 0)).code is ErrorCode.PRODUCER_FENCED
    assert told(image, commit(4, block=-1)).code is ErrorCode.PRODUCER_FENCED


def test_another_lineage_is_refused() -> None:
    image = ended(joined(cluster(), 7), commit(7, 0))
    _, (outcome,) = join(image, 0, lineage="another checkpoint")
    assert outcome.code is ErrorCode.INVALID_TXN_STATE
    assert "'another checkpoint'" in outcome.message
    assert "another id" in outcome.message
    refused = told(image, commit(8, block=-1, lineage="another checkpoint"))
    assert refused.code is ErrorCode.INVALID_TXN_STATE


def test_an_id_is_shared_or_a_single_producers() -> None:
    image, (outcome,) = join(cluster(), 0)
    assert not outcome.code
    refused = answer(image, opening(name=ID))
    assert isinstance(refused, Refused)
    assert refused.code is ErrorCode.INVALID_TXN_STATE
    single = JoinTransactions(SLOT, 1, (TransactionJoin(SINGLE, "", 0, 30_000),))
    result = answer(open_once(), single)
    assert isinstance(result, TransactionsJoined)
    assert result.outcomes[0].code is ErrorCode.INVALID_TXN_STATE
    wanted = TransactionEnd(SINGLE, -1, 0, is_commit=True, version=1, shared=SharedEnd(""))
    assert told(open_once(), wanted).code is ErrorCode.INVALID_TXN_STATE


def test_a_block_is_full_in_the_end() -> None:
    image = joined(cluster(), 0)
    image, (last,) = join(image, 0, members=MEMBERS_MAX - 1)
    assert last.number == 1, "the first of those that have joined together"
    assert outcomes(image, MEMBERS_MAX - 1) == [OPEN]
    _, (outcome,) = join(image, 0)
    assert outcome.code is ErrorCode.INVALID_REQUEST
    assert f"{MEMBERS_MAX} members" in outcome.message
    image = ended(image, commit(0, *range(0, MEMBERS_MAX, 2)))
    assert outcomes(image, 0, 1, MEMBERS_MAX - 2, MEMBERS_MAX - 1) == [COMMITTED, ABORTED] * 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"version": -1}, ErrorCode.INVALID_REQUEST),
        ({"lineage": "x" * 256}, ErrorCode.INVALID_REQUEST),
        ({"members": 0}, ErrorCode.INVALID_REQUEST),
        ({"members": MEMBERS_MAX + 1}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_joins_that_make_no_sense(fields: dict[str, Any], code: ErrorCode) -> None:
    _, (outcome,) = join(cluster(), **{"version": 0, **fields})
    assert outcome.code is code


def test_too_many_joins_at_once_are_refused_as_a_whole() -> None:
    refused = answer(cluster(), joining(0, count=transaction_checks.JOINS_MAX + 1))
    assert isinstance(refused, Refused)


def test_new_ids_are_refused_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_checks, "TRANSACTIONS_MAX", 0)
    _, (outcome,) = join(cluster(), 0)
    assert outcome.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert told(cluster(), commit(0, block=-1)).code is ErrorCode.THROTTLING_QUOTA_EXCEEDED


# -- Committing -----------------------------------------------------------------------------------


def test_a_commit_counts_the_listed_members_and_aborts_the_others() -> None:
    """A14.3: copies of a task that are not listed never count."""
    image, outcome = decide(joined(cluster(), 0, count=4), commit(0, 1, 3))
    assert outcome == EndOutcome(0, is_committed=True)
    assert outcomes(image, 0, 1, 2, 3, 4) == [ABORTED, COMMITTED, ABORTED, COMMITTED, ABORTED]
    state = state_of(image, ID)
    assert (state.last_version, state.last_count, state.shared) == (0, 10, SharedVersions(""))
    assert TouchedKey(ChangeKind.TRANSACTION_BLOCK, BLOCK) in image.changes


def test_a_version_is_committed_once() -> None:
    """A14.3: whoever commits it again hears so, whatever it lists now."""
    image = ended(joined(cluster(), 4, count=2), commit(4, 0))
    for again in (commit(4, 0), commit(4, 1, count=99), commit(4, block=-1), abort(4)):
        same, outcome = decide(image, again)
        assert outcome == EndOutcome(0, is_committed=True, is_repeated=True, count=10)
        assert same.transactions == image.transactions
    assert told(image, commit(3, block=-1)) == EndOutcome(0, is_committed=True, is_repeated=True)
    _, (late,) = join(image, 4)
    assert late == JoinOutcome(is_done=True, count=10)
    _, (later,) = join(image, 2)
    assert later == JoinOutcome(is_done=True, count=-1)


@pytest.mark.parametrize("has_members", [True, False])
def test_receipts_of_a_version_that_was_given_up_for_a_higher_one(*, has_members: bool) -> None:
    """Not told as committed, though the version is below the newest: their records are gone."""
    image = joined(joined(cluster(), 4), 5) if has_members else joined(cluster(), 4)
    five = commit(5, 0, block=2 * BLOCK) if has_members else commit(5, block=-1)
    image = ended(image, five)
    assert told(image, commit(4, 0)).code is ErrorCode.PRODUCER_FENCED
    assert outcomes(image, 0) == [ABORTED]


def test_a_commit_that_is_not_settled_is_known_below_the_newest() -> None:
    image = ended(joined(cluster(), 4), commit(4, 0))
    image = ended(joined(image, 5), commit(5, 0, block=2 * BLOCK))
    assert told(image, commit(4, 0)) == EndOutcome(0, is_committed=True, is_repeated=True)


def test_receipts_of_an_opening_that_is_over_refuse_the_commit() -> None:
    image = ended(joined(cluster(), 0, count=2), abort(block=BLOCK, by_leader=True))
    outcome = told(image, commit(0, 0))
    assert (outcome.is_committed, outcome.reason) == (False, AbortReason.TIMEOUT)
    image = ended(joined(image, 0), abort(0))  # begun anew, and given up
    image = joined(image, 0)
    refused = told(image, commit(0, 0))
    assert refused.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert f"of block {3 * BLOCK} is open" in refused.message
    assert outcomes(image, 0) == [ABORTED]
    assert outcomes(ended(image, commit(0, 0, block=3 * BLOCK)), 0, block=3 * BLOCK) == [COMMITTED]


def test_members_that_nobody_has_joined_as_refuse_the_commit() -> None:
    image = joined(cluster(), 0, count=2)
    outcome = told(image, commit(0, 1, 2))
    assert outcome.code is ErrorCode.INVALID_REQUEST
    assert outcomes(image, 0, 1) == [OPEN, OPEN]


def test_a_version_without_records_is_remembered() -> None:
    """Else a late copy of one of its tasks would open it again."""
    image = ended(cluster(), commit(0, block=-1, count=0))
    _, (late,) = join(image, 0)
    assert late == JoinOutcome(is_done=True, count=0)
    image = joined(image, 1, count=2)  # copies that nobody lists
    image = ended(image, commit(1, block=-1, count=0))
    assert outcomes(image, 0, 1) == [ABORTED, ABORTED]
    image = ended(joined(image, 2), commit(5, block=-1, count=0))  # versions may be skipped
    assert outcomes(image, 0, block=2 * BLOCK) == [ABORTED]
    assert state_of(image, ID).last_version == 5


def test_a_commit_of_what_is_forgotten_counts_nothing() -> None:
    image = joined(cluster(), 0)
    seen = TransactionSeen(ID, state_of(image, ID).changed_at_ms)
    image = after(image, DeleteTransactions(slot_of(ID), 1, (seen,)))
    assert told(image, commit(0, 0)).code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert outcomes(image, 0) == [ABORTED]


@pytest.mark.parametrize(
    "wanted",
    [
        commit(-1, 0),
        commit(0, 0, partitions=()),
        commit(0, partitions=(FIRST,)),
        commit(0, 0, block=-1),
        commit(0, 0, lineage="x" * 256),
        end(0, name=ID, producer_id=BLOCK),
        TransactionEnd(ID, -1, 0, is_commit=False),
    ],
)
def test_ends_that_make_no_sense(wanted: TransactionEnd) -> None:
    image = joined(cluster(), 0)
    assert told(image, wanted).code is ErrorCode.INVALID_REQUEST
    assert outcomes(image, 0) == [OPEN]


# -- Aborting and settling ------------------------------------------------------------------------


def test_an_abort_names_the_block_or_the_version() -> None:
    for wanted in (abort(0), abort(0, block=BLOCK), abort(block=BLOCK, by_leader=True)):
        image = ended(joined(cluster(), 0), wanted)
        assert outcomes(image, 0, 1) == [ABORTED, ABORTED]
        assert state_of(image, ID).last_version == -1
    nothing = told(image, abort(3))
    assert (nothing.code, nothing.is_repeated, nothing.is_committed) == (0, True, False)
    late = told(joined(image, 0), abort(block=BLOCK, by_leader=True))
    assert (late.is_repeated, late.reason) == (True, AbortReason.TIMEOUT)


def test_a_commit_is_kept_until_it_is_settled() -> None:
    image = ended(joined(cluster(), 0), commit(0, 0))
    settled = (SettledTransaction(BLOCK, 0, (FIRST, SECOND)),)
    forgotten = after(image, ForgetSettled(slot_of(ID), 1, (SettledCommits(ID, settled),)))
    assert state_of(forgotten, ID).settling == ()
    assert outcomes(forgotten, 0, 1) == [ABORTED, ABORTED]
    along = ended(joined(image, 1), commit(1, 0, block=2 * BLOCK, settled=settled))
    assert [one.producer_id for one in state_of(along, ID).settling] == [2 * BLOCK]


def test_64_versions_may_be_unsettled() -> None:
    image = cluster()
    for version in range(transaction_checks.UNSETTLED_MAX):
        image = joined(image, version)
        image = ended(image, commit(version, 0, block=(version + 1) * BLOCK))
    image = joined(image, 100)
    outcome = told(image, commit(100, 0, block=65 * BLOCK))
    assert outcome.code is ErrorCode.CONCURRENT_TRANSACTIONS
    assert outcomes(image, 0, block=65 * BLOCK) == [OPEN]


def test_what_is_allocated_beside_never_lies_in_a_block() -> None:
    image = after(joined(cluster(), 0), opening())
    single = state_of(image, SINGLE).producer_id
    assert single == BLOCK + MEMBERS_MAX
    assert outcome_of(image, single, 0) is OPEN
    assert outcome_of(image, single + 1, 0) is AHEAD, "of no block, and not given out"
    image = joined(image, 1)
    assert state_of(image, ID).shared == SharedVersions("", 1, 3 * BLOCK, joined=1)
