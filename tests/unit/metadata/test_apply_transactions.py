"""Transaction ids are opened, their transactions decided, settled and forgotten: each case once.

A11.3, A11.4.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply import transaction_checks
from raftmq.metadata.apply.transaction_checks import (
    ENDS_MAX,
    GROUPS_MAX,
    OFFSETS_MAX,
    PARTITIONS_MAX,
    TRANSACTIONS_MAX,
)
from raftmq.metadata.commands import (
    AnyCommand,
    CommandId,
    DeleteTopic,
    DeleteTransactions,
    EndOutcome,
    EndTransactions,
    ForgetSettled,
    GroupMemberRecord,
    OpenTransaction,
    PartitionId,
    SaveGroup,
    StoredOffset,
    TransactionEnd,
    TransactionOpened,
    TransactionsEnded,
)
from raftmq.metadata.image import (
    PRODUCER_ID_MAX,
    ChangeKind,
    MetadataImage,
    TouchedKey,
    TransactionDecision,
    UnsettledCommit,
    slot_of,
)
from raftmq.model import TRANSACTION_ID_CHARS_MAX, AbortReason
from raftmq.wire.messages import transactions as wire
from tests.metadata_invariants import check, check_step
from tests.unit.metadata.states import ORDERS, after, answer, apply_next, epoch_of, refusal
from tests.unit.metadata.transaction_ids import (
    FIRST,
    ID,
    OTHER,
    OWNER,
    PID,
    SECOND,
    SLOT,
    coordinated,
    decide,
    end,
    ends,
    offsets,
    open_once,
    opened,
    opening,
    state_of,
    told,
    touched,
)

# Opening


def test_a_new_id_gets_a_producer_id_of_its_own() -> None:
    """Epoch 0 of the next producer id, which is given to nobody else."""
    before = coordinated()
    image = after(before, opening(is_ephemeral=True, changed_at_ms=5))
    state = state_of(image)
    assert (state.producer_id, state.producer_epoch) == (PID, 0)
    assert (state.owner, state.opening, state.timeout_ms) == (OWNER, 1, 60_000)
    assert (state.is_ephemeral, state.changed_at_ms, state.last) == (True, 5, None)
    assert image.next_producer_id == before.next_producer_id + 1
    assert dict(image.transaction_ids) == {PID: ID}
    assert touched(PID) <= set(image.changes)
    check_step(before, image)
    check(image)


def test_the_same_opening_again_is_a_retry() -> None:
    """It is answered as of now, also after a transaction, and changes nothing."""
    image = open_once()
    again, result = apply_next(image, opening())
    assert result == TransactionOpened(PID, 0, 60_000)
    assert again.changes == ()
    image = after(image, ends(end(0, version=7, count=3)))
    assert answer(image, opening()) == TransactionOpened(PID, 1, 60_000, 7, 3)


def test_a_later_opening_of_the_same_owner_aborts_what_is_open() -> None:
    """A producer that gave up begins again: the next epoch, and its own timeout."""
    again = OpenTransaction(1, ID, OWNER, 2, 5_000, changed_at_ms=9)
    image = after(open_once(), again)
    state = state_of(image)
    assert (state.producer_epoch, state.opening, state.timeout_ms) == (1, 2, 5_000)
    assert state.last == TransactionDecision(PID, 0, is_committed=False, reason=AbortReason.OWNER)
    assert state.changed_at_ms == 9


def test_an_earlier_opening_comes_late() -> None:
    """A copy that was under way for long does not end what its own producer has open by now."""
    image = after(open_once(), opening(2))
    assert refusal(image, opening(1)).code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_another_owner_takes_over() -> None:
    """What was open is aborted, and the owner before is told that it is fenced."""
    image = after(open_once(), opening(owner=OTHER))
    assert state_of(image).owner == OTHER
    assert opened(image, opening(owner=OTHER)) == (PID, 1)
    late = told(image, end(0))
    assert (late.is_committed, late.reason) == (False, AbortReason.OWNER)
    image = after(image, ends(end(1, owner=OTHER)))
    assert told(image, end(0)).code is ErrorCode.PRODUCER_FENCED


def test_an_owner_that_was_overtaken_never_learns_the_transaction_of_its_successor() -> None:
    """With that number its records would join a commit of somebody else. Neither the retry of its
    end, nor an opening that expects its own transaction, tells it.
    """
    image = after(open_once(), opening(owner=OTHER))
    late = told(image, end(0))
    assert (late.producer_id, late.producer_epoch) == (-1, -1)
    expecting = opening(2, expected_producer_id=PID, expected_epoch=0)
    assert refusal(image, expecting).code is ErrorCode.PRODUCER_FENCED


def test_what_is_expected_may_be_the_newest_decision_of_the_same_owner() -> None:
    """A producer whose transaction was ended by its timeout begins again: nothing is open, and
    what was decided of the transaction that it asks for stays known.
    """
    timeout = end(0, commit=False, owner=b"", reason=AbortReason.TIMEOUT)
    image = after(open_once(), ends(timeout))
    again, result = apply_next(image, opening(2, expected_producer_id=PID, expected_epoch=0))
    assert result == TransactionOpened(PID, 1, 60_000)
    assert again.changes == ()
    assert told(again, end(0)).reason is AbortReason.TIMEOUT


@pytest.mark.parametrize(
    ("producer_id", "epoch", "is_opened"),
    [(PID, 1, True), (PID, 0, True), (PID, 2, False), (PID + 1, 1, False), (PID, -1, False)],
)
def test_who_expects_a_transaction_is_refused_if_there_was_another(
    producer_id: int, epoch: int, is_opened: bool
) -> None:
    """The present one is epoch 1, the newest decision epoch 0."""
    image = after(open_once(), ends(end(0)))
    wanted = opening(2, expected_producer_id=producer_id, expected_epoch=epoch)
    if is_opened:
        opened(image, wanted)
    else:
        assert refusal(image, wanted).code is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (opening(name=""), ErrorCode.INVALID_REQUEST),
        (opening(name="x" * (TRANSACTION_ID_CHARS_MAX + 1)), ErrorCode.INVALID_REQUEST),
        (opening(owner=b"short"), ErrorCode.INVALID_REQUEST),
        (replace(opening(), slot_epoch=2), ErrorCode.NOT_COORDINATOR),
    ],
)
def test_what_cannot_be_opened(command: OpenTransaction, code: ErrorCode) -> None:
    """A name that is no name, an owner that is none, a coordinator that is none any more."""
    assert refusal(coordinated(), command).code is code


def test_there_are_only_so_many_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one is refused with the way out; a known one is opened."""
    monkeypatch.setattr(transaction_checks, "TRANSACTIONS_MAX", 1)
    image = open_once()
    refused = refusal(image, opening(name="another"))
    assert refused.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert "forget ids" in refused.message
    opened(image, opening(2))
    assert TRANSACTIONS_MAX == 100_000


def test_no_producer_id_is_given_twice_for_want_of_others() -> None:
    """Behind the last one new ids are refused."""
    image = coordinated()._replace(next_producer_id=PRODUCER_ID_MAX + 1)
    assert refusal(image, opening()).code is ErrorCode.INVALID_REQUEST


# The level


@pytest.mark.parametrize(
    "command",
    [
        opening(), ends(end(0)), ForgetSettled(SLOT, 1, ()), DeleteTransactions(SLOT, 1, ()),
    ],
)  # fmt: skip
def test_nothing_of_it_below_its_level(command: AnyCommand) -> None:
    """Nodes of an earlier version would stop at the command: it is refused, with the way out."""
    image = coordinated()._replace(feature_level=2)
    refused = refusal(image, command)
    assert refused.code is ErrorCode.UNSUPPORTED_VERSION
    assert "upgrade" in refused.message


@pytest.mark.parametrize(
    "command",
    [
        ends(end(0), slot_epoch=2), ForgetSettled(SLOT, 2, ()), DeleteTransactions(SLOT, 2, ()),
        EndTransactions(64, 1, ()), ForgetSettled(-1, 1, ()),
    ],
)  # fmt: skip
def test_only_the_coordinator_decides(command: AnyCommand) -> None:
    """One that was deposed, or of a slot that there is not, changes nothing."""
    wanted = {ErrorCode.NOT_COORDINATOR, ErrorCode.INVALID_REQUEST}
    assert refusal(open_once(), command).code in wanted


# Ending


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_begins_the_next_epoch(is_commit: bool) -> None:
    """Commit or abort: decided, kept for a retry, and nothing more of that epoch."""
    before = open_once()
    reason = AbortReason.NONE if is_commit else AbortReason.PROGRAM
    image, outcome = decide(before, end(0, commit=is_commit, reason=reason))
    assert outcome is None
    state = state_of(image)
    assert (state.producer_id, state.producer_epoch) == (PID, 1)
    assert state.last == TransactionDecision(PID, 0, is_commit, reason)
    assert (state.settling, state.changed_at_ms) == ((), 7)
    assert set(image.changes) == touched(PID)
    check_step(before, image)


def test_a_commit_is_kept_until_its_partitions_are_settled() -> None:
    """Its leaders find it there; an abort is presumed, and not kept."""
    image, outcome = decide(open_once(), end(0, partitions=(FIRST, SECOND)))
    assert outcome is None
    commit = UnsettledCommit(PID, 0, (FIRST, SECOND), image.version)
    assert state_of(image).settling == (commit,)
    image, _ = decide(image, end(1, commit=False, partitions=(FIRST,)))
    assert state_of(image).settling == (commit,)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_retry_of_an_end_is_told_what_was_decided(is_commit: bool) -> None:
    """Planted bug 12, `retry_of_end_decides_again`: another coordinator gets the same end, after a
    failover, and whatever it asks now: it hears the decision, and the epoch rises once.
    """
    first = end(0, commit=is_commit, reason=AbortReason(not is_commit), partitions=(FIRST,))
    image = after(open_once(), ends(first))
    for again in (first, end(0, commit=not is_commit), replace(first, owner=OTHER)):
        later, outcome = decide(image, again)
        assert outcome is not None
        assert outcome.code is ErrorCode.NONE
        assert (outcome.is_committed, outcome.is_repeated) == (is_commit, True)
        assert outcome.reason == AbortReason(not is_commit)
        assert later == image._replace(version=later.version, changes=())


def test_the_same_command_again_is_answered_from_memory() -> None:
    """The broker that proposed it repeats it under its id: the very same result."""
    command_id = CommandId(0, epoch_of(0), 1)
    command = ends(end(0), end(5))
    image, result = apply_next(open_once(), command, command_id)
    again, same = apply_next(image, command, command_id)
    assert same == result
    assert state_of(again).producer_epoch == 1


def test_a_commit_that_was_aborted_hears_the_reason() -> None:
    """`retry_hears_done`: never success, with the next transaction of the same owner."""
    timeout = end(0, commit=False, owner=b"", reason=AbortReason.TIMEOUT)
    image = after(open_once(), ends(timeout))
    assert told(image, end(0)) == EndOutcome(
        0, is_repeated=True, reason=AbortReason.TIMEOUT, producer_id=PID, producer_epoch=1
    )


@pytest.mark.parametrize(
    "wanted", [end(0), end(3), end(2, producer_id=PID + 1), end(-1), end(1 << 40)]
)
def test_another_than_the_present_transaction_is_refused(wanted: TransactionEnd) -> None:
    """Present is epoch 2, the newest decision 1."""
    image = after(open_once(), ends(end(0)), ends(end(1)))
    outcome = told(image, wanted)
    assert outcome.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert "epoch 2" in outcome.message


def test_the_present_transaction_is_ended_by_its_owner_alone() -> None:
    """Whoever got its numbers by whatever way, and says that it is somebody else."""
    image, outcome = decide(open_once(), end(0, owner=OTHER))
    assert outcome is not None
    assert outcome.code is ErrorCode.PRODUCER_FENCED
    assert image.changes == ()


def test_an_id_that_is_not_known() -> None:
    """Never opened, or forgotten: nothing is decided."""
    assert told(coordinated(), end(0)).code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_nobody_but_its_producer_commits() -> None:
    """A leader that is held up, or an operator, has no owner, and may abort."""
    image = open_once()
    assert told(image, end(0, owner=b"")).code is ErrorCode.INVALID_REQUEST
    assert decide(image, end(0, owner=b"", commit=False))[1] is None


def test_each_end_of_a_command_is_decided_by_itself() -> None:
    """One of three is refused, and named by its place."""
    names = [name for name in map(str, range(9_999)) if slot_of(name) == SLOT][:2]
    image = after(coordinated(), *(opening(name=name) for name in names))
    wanted = [end(0, name=name, producer_id=PID + place) for place, name in enumerate(names)]
    image, result = apply_next(image, ends(wanted[0], end(0), wanted[1]))
    assert isinstance(result, TransactionsEnded)
    assert [(one.place, one.code) for one in result.outcomes] == [
        (1, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    ]
    assert [state_of(image, name).producer_epoch for name in names] == [1, 1]
    assert set(image.changes) == touched(PID, PID + 1)


def test_an_end_of_another_slot_is_refused() -> None:
    """Its own slot may have another coordinator, whose epoch was not compared."""
    stranger = next(name for name in map(str, range(99)) if slot_of(name) != SLOT)
    outcome = told_in_slot(after(coordinated(), opening(name=stranger)), end(0, name=stranger))
    assert outcome.code is ErrorCode.NOT_COORDINATOR


def told_in_slot(image: MetadataImage, wanted: TransactionEnd) -> EndOutcome:
    result = answer(image, EndTransactions(SLOT, 1, (wanted,)))
    assert isinstance(result, TransactionsEnded)
    return result.outcomes[0]


# Versions


def test_a_version_is_committed_once() -> None:
    """Whoever asks again is told so, with the count; what it has open by then is aborted."""
    image = after(open_once(), ends(end(0, version=5, count=10, partitions=(FIRST,))))
    assert (state_of(image).last_version, state_of(image).last_count) == (5, 10)
    before = image
    image, outcome = decide(image, end(1, version=5, count=11, partitions=(SECOND,)))
    assert outcome == EndOutcome(
        0, is_committed=True, is_repeated=True, producer_id=PID, producer_epoch=2, count=10
    )
    assert [one.producer_epoch for one in state_of(image).settling] == [0]
    check_step(before, image)


def test_the_retry_of_a_version_that_was_done_before_hears_the_same() -> None:
    """Its first attempt aborted what it had open: that abort is not the answer."""
    image = after(open_once(), ends(end(0, version=5, count=10)), ends(end(1, version=5)))
    later, outcome = decide(image, end(1, version=5))
    assert outcome is not None
    assert (outcome.is_committed, outcome.count) == (True, 10)
    assert state_of(later).producer_epoch == state_of(image).producer_epoch == 2


def test_an_older_version_is_done_too_and_its_count_not_known() -> None:
    """Of the newest version alone the count is kept."""
    image = after(open_once(), ends(end(0, version=5, count=10)))
    outcome = told(image, end(1, version=3))
    assert (outcome.is_committed, outcome.count) == (True, -1)


def test_a_producer_that_was_overtaken_hears_that_its_version_is_done_and_ends_nothing() -> None:
    """The version was committed by its successor, whose next transaction stays open."""
    image = after(open_once(), opening(owner=OTHER), ends(end(1, owner=OTHER, version=5)))
    for wanted in (end(0, version=5), end(2, version=5)):
        later, outcome = decide(image, wanted)
        assert outcome is not None
        assert (outcome.is_committed, outcome.producer_epoch) == (True, -1)
        assert state_of(later) == state_of(image)


def test_an_aborted_version_is_not_done() -> None:
    """It is committed by the next transaction."""
    image = after(open_once(), ends(end(0, commit=False, version=5)))
    assert state_of(image).last_version == -1
    image, outcome = decide(image, end(1, version=5))
    assert outcome is None
    assert state_of(image).last_version == 5


def test_transactions_without_a_version_leave_the_versions_alone() -> None:
    """Both kinds may follow each other under one id."""
    image = after(open_once(), ends(end(0, version=5, count=2)), ends(end(1)))
    assert (state_of(image).last_version, state_of(image).last_count) == (5, 2)


# Offsets of groups


def group(generation: int, *members: GroupMemberRecord) -> SaveGroup:
    return SaveGroup(1, "g", generation, members=members)


MEMBER, STATIC = GroupMemberRecord("m"), GroupMemberRecord("s-2", instance_id="s")


def test_a_commit_moves_offsets() -> None:
    """In the same command, of several groups, whatever stood there."""
    both = (offsets((0, 5), (1, 6)), offsets((0, 9), group="h"))
    image, outcome = decide(open_once(), end(0, groups=both))
    assert outcome is None
    assert {key.partition: at.offset for key, at in image.offsets["g"].items()} == {0: 5, 1: 6}
    assert image.offsets["h"][PartitionId(*FIRST)].offset == 9
    assert TouchedKey(ChangeKind.OFFSETS, "g") in image.changes


@pytest.mark.parametrize("is_repeated", [True, False])
def test_what_does_not_commit_moves_no_offset(is_repeated: bool) -> None:
    """An abort; and the retry of a commit, behind which others have committed since."""
    image = open_once()
    if is_repeated:
        first = end(0, groups=(offsets((0, 5)),))
        image = after(image, ends(first), ends(end(1, groups=(offsets((0, 8)),))), ends(end(1)))
        image, _ = decide(image, first)
        assert image.offsets["g"][PartitionId(*FIRST)].offset == 8
    else:
        image, _ = decide(image, end(0, commit=False, groups=(offsets((0, 5)),)))
        assert "g" not in image.offsets


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (offsets((0, 5), member="m", generation=2), ErrorCode.NONE),
        (offsets((0, 5), member="s-2", instance="s", generation=2), ErrorCode.NONE),
        (offsets((0, 5), member="m", generation=1), ErrorCode.ILLEGAL_GENERATION),
        (offsets((0, 5), member="m", generation=3), ErrorCode.ILLEGAL_GENERATION),
        (offsets((0, 5), member="gone", generation=2), ErrorCode.UNKNOWN_MEMBER_ID),
        (offsets((0, 5)), ErrorCode.UNKNOWN_MEMBER_ID),
        (offsets((0, 5), member="s-1", instance="s", generation=2), ErrorCode.FENCED_INSTANCE_ID),
        (offsets((0, 5), member="s-1", instance="t", generation=2), ErrorCode.UNKNOWN_MEMBER_ID),
        (offsets((0, 5), member="s-2", generation=2), ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_group_fences_by_generation_and_member_at_the_decision(
    sent: Any, code: ErrorCode
) -> None:
    """Planted bug 9, `offsets_by_old_generation`: the group of two members is in generation 2 when
    the command is applied, whatever it was when the request came.
    """
    image = after(open_once(), group(1, MEMBER), group(2, MEMBER, STATIC))
    image, outcome = decide(image, end(0, groups=(sent,)))
    assert (ErrorCode.NONE if outcome is None else outcome.code) is code
    assert ("g" in image.offsets) == (code is ErrorCode.NONE)


def test_a_member_of_a_group_that_has_none_is_not_known() -> None:
    """The group was deleted, or all have left."""
    wanted = end(0, groups=(offsets((0, 5), member="m", generation=1),))
    assert told(open_once(), wanted).code is ErrorCode.UNKNOWN_MEMBER_ID
    assert told(after(open_once(), group(1)), wanted).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_where_a_group_refuses_the_transaction_stays_open() -> None:
    """No offset of the other group moves; the producer may ask again with its new generation."""
    image = after(open_once(), group(1, MEMBER))
    other = offsets((0, 9), group="h")
    stale = (other, offsets((0, 5), member="m", generation=0))
    image, outcome = decide(image, end(0, groups=stale, partitions=(FIRST,)))
    assert outcome is not None
    assert outcome.code is ErrorCode.ILLEGAL_GENERATION
    assert (state_of(image).producer_epoch, image.changes) == (0, ())
    fresh = (other, offsets((0, 5), member="m", generation=1))
    assert decide(image, end(0, groups=fresh))[1] is None


def test_an_abort_is_refused_by_no_group() -> None:
    """A member that was fenced must be able to give up."""
    image = after(open_once(), group(2, MEMBER))
    stale = offsets((0, 5), member="m", generation=1)
    assert decide(image, end(0, commit=False, groups=(stale,)))[1] is None


def test_offsets_of_partitions_that_are_gone_are_dropped_and_told() -> None:
    """The rest commits."""
    image, outcome = decide(open_once(), end(0, groups=(offsets((0, 5), (3, 5)),)))
    assert outcome == EndOutcome(0, is_committed=True, producer_id=PID, producer_epoch=1, dropped=1)
    assert set(image.offsets["g"]) == {PartitionId(*FIRST)}
    image = after(open_once(), DeleteTopic(ORDERS))
    image, outcome = decide(image, end(0, groups=(offsets((0, 5)),)))
    assert outcome is not None
    assert outcome.dropped == 1
    assert "g" not in image.offsets


# Limits


@pytest.mark.parametrize(
    "wanted",
    [
        end(0, partitions=(FIRST,) * (PARTITIONS_MAX + 1)),
        end(0, groups=(offsets(),) * (GROUPS_MAX + 1)),
        end(0, groups=(offsets(*[(0, 1)] * OFFSETS_MAX), offsets((0, 1)))),
        end(0, partitions=((b"short", 0),)),
        end(0, partitions=((ORDERS, -1),)),
        end(0, groups=(offsets((0, -1)),)),
        end(0, version=-2),
        end(0, count=-2),
    ],
)
def test_what_no_transaction_may_carry(wanted: TransactionEnd) -> None:
    """Too much, or what is no partition, offset or version: the transaction stays open."""
    image, outcome = decide(open_once(), wanted)
    assert outcome is not None
    assert outcome.code is ErrorCode.INVALID_REQUEST
    assert image.changes == ()


@pytest.mark.parametrize("name", ["", "x" * 300])
def test_offsets_of_a_group_without_a_proper_name(name: str) -> None:
    """As with plain commits."""
    wanted = end(0, groups=(offsets((0, 1), group=name),))
    assert told(open_once(), wanted).code is ErrorCode.INVALID_GROUP_ID


def test_a_transaction_expects_no_offset() -> None:
    """Compare-and-set is for plain commits."""
    expecting = replace(offsets(), offsets=(StoredOffset(ORDERS, 0, 5, expected=4),))
    assert told(open_once(), end(0, groups=(expecting,))).code is ErrorCode.INVALID_REQUEST


def test_one_command_has_only_so_many_ends() -> None:
    """All of it is refused."""
    command = ends(*[end(0)] * (ENDS_MAX + 1))
    assert refusal(open_once(), command).code is ErrorCode.INVALID_REQUEST


def test_requests_have_the_limits_of_the_rules() -> None:
    """Else what the wire takes would be refused by the quorum."""
    assert wire.TRANSACTION_PARTITIONS_MAX == PARTITIONS_MAX
    assert wire.TRANSACTION_GROUPS_MAX == GROUPS_MAX
    assert wire.TRANSACTION_OFFSETS_MAX == OFFSETS_MAX
