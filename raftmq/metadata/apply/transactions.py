"""Rules for transactions: opening an id, ending transactions, forgetting what is settled.

Owns the decision. An end that is applied is the commit point of its transaction: it moves the
offsets of groups, keeps the commit until its partitions are settled, and begins the next epoch, all
at once (decision 0038). So (producer id, epoch) names one transaction for ever. (Kafka:
TransactionCoordinator, as of KIP-890.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply.groups import save_offsets
from raftmq.metadata.apply.shared_transactions import end_version, not_single
from raftmq.metadata.apply.transaction_checks import (
    ENDS_MAX,
    form_refusal,
    has_room,
    id_refusal,
    new_id_refusal,
    no_producer_ids,
    slot_refusal,
    without_settled,
)
from raftmq.metadata.commands import (
    NO_VERSION,
    Done,
    EndOutcome,
    Refused,
    TransactionOpened,
    TransactionsEnded,
)
from raftmq.metadata.image import (
    PRODUCER_ID_MAX,
    TransactionDecision,
    TransactionState,
    UnsettledCommit,
    slot_of,
)
from raftmq.metadata.transactions import LAST_EPOCH
from raftmq.model import AbortReason
from raftmq.wire.bodies import ID_BYTES

if TYPE_CHECKING:
    from raftmq.metadata.apply.draft import Draft
    from raftmq.metadata.commands import (
        AnyResult,
        DeleteTransactions,
        EndTransactions,
        ForgetSettled,
        OpenTransaction,
        TransactionEnd,
        TransactionOffsets,
    )


def open_transaction(draft: Draft, command: OpenTransaction) -> AnyResult:
    """
    1. A new id: a producer id of its own, epoch 0.
    2. The same owner and opening: a retry, answered as of now.
    3. An earlier opening of this owner: it comes late.
    4. A transaction is expected that is neither the present one nor the newest decided one of the
       same owner. What another owner has opened must be told to nobody else, whose records
       would join that transaction.
    5. Expected is the newest decided one: its owner has nothing open.
    6. Else what is open is aborted, and the next epoch begins.
    """
    name = command.transaction_id
    refusal = id_refusal(draft, name, slot_of(name), command.slot_epoch)
    if refusal is not None:
        return refusal
    if len(command.owner) != ID_BYTES:
        message = f"transaction {name}: owner of {len(command.owner)} bytes, it has {ID_BYTES}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    state = draft.transaction(name)
    if state is None:  # case 1
        return _open_new(draft, command)
    if state.shared is not None:
        return not_single(name)
    if state.owner == command.owner and state.opening == command.opening:  # case 2
        return _opened(state)
    if state.owner == command.owner and command.opening < state.opening:  # case 3
        message = f"transaction {name}: its owner has opened it {state.opening} times since"
        return Refused(ErrorCode.INVALID_PRODUCER_EPOCH, message)
    expected = (command.expected_producer_id, command.expected_epoch)
    if command.expected_producer_id >= 0 and expected != (state.producer_id, state.producer_epoch):
        if state.owner != command.owner or expected != _last_of(state):  # case 4
            message = f"transaction {name}: another producer has opened it since"
            return Refused(ErrorCode.PRODUCER_FENCED, message)
        return _opened(state)  # case 5
    if (refusal := _ids_refusal(draft, state)) is not None:
        return refusal
    state = replace(  # case 6
        _decided(draft, state, is_committed=False, reason=AbortReason.OWNER),
        owner=command.owner,
        opening=command.opening,
        timeout_ms=command.timeout_ms,
        is_ephemeral=command.is_ephemeral,
        changed_at_ms=command.changed_at_ms,
    )
    draft.put_transaction(name, state)
    return _opened(state)


def end_transactions(draft: Draft, command: EndTransactions) -> AnyResult:
    """Each end is decided or refused by itself: they come from different producers."""
    refusal = slot_refusal(draft, command.slot, command.slot_epoch)
    if refusal is not None:
        return refusal
    if len(command.ends) > ENDS_MAX:
        message = f"{len(command.ends)} ends of transactions at once, at most {ENDS_MAX}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    outcomes = [_end(draft, command, place, end) for place, end in enumerate(command.ends)]
    return TransactionsEnded(tuple(each for each in outcomes if each is not None))


def forget_settled(draft: Draft, command: ForgetSettled) -> AnyResult:
    """What is not there any more is skipped, so a retry succeeds."""
    refusal = slot_refusal(draft, command.slot, command.slot_epoch)
    if refusal is not None:
        return refusal
    for name, settled in ((one.transaction_id, one.settled) for one in command.transactions):
        state = draft.transaction(name)
        if state is None or slot_of(name) != command.slot:  # deleted since; or a faulty sender
            continue
        rest = without_settled(state.settling, settled)
        if rest != state.settling:
            draft.put_transaction(name, replace(state, settling=rest))
    return Done()


def delete_transactions(draft: Draft, command: DeleteTransactions) -> AnyResult:
    """Those that have changed since they were seen stay."""
    refusal = slot_refusal(draft, command.slot, command.slot_epoch)
    if refusal is not None:
        return refusal
    for seen in command.seen:
        state = draft.transaction(seen.transaction_id)
        if state is None or slot_of(seen.transaction_id) != command.slot:
            continue
        is_settled = command.with_unsettled or not state.settling
        if is_settled and state.changed_at_ms == seen.changed_at_ms:
            draft.remove_transaction(seen.transaction_id)
    return Done()


# -- Opening --------------------------------------------------------------------------------------


def _open_new(draft: Draft, command: OpenTransaction) -> AnyResult:
    name = command.transaction_id
    if (refusal := new_id_refusal(draft, name)) is not None:
        return refusal
    if draft.next_producer_id > PRODUCER_ID_MAX:
        return no_producer_ids()
    state = TransactionState(
        producer_id=draft.next_producer_id,
        producer_epoch=0,
        owner=command.owner,
        opening=command.opening,
        timeout_ms=command.timeout_ms,
        is_ephemeral=command.is_ephemeral,
        changed_at_ms=command.changed_at_ms,
    )
    draft.set_next_producer_id(draft.next_producer_id + 1)
    draft.put_transaction(name, state)
    return _opened(state)


def _opened(state: TransactionState) -> TransactionOpened:
    return TransactionOpened(
        state.producer_id,
        state.producer_epoch,
        state.timeout_ms,
        state.last_version,
        state.last_count,
    )


# -- Ending ---------------------------------------------------------------------------------------


def _end(
    draft: Draft, command: EndTransactions, place: int, end: TransactionEnd
) -> EndOutcome | None:
    """
    1. A version that was committed before: done, and what is open under it is aborted. Before case
       2: its retry must hear the same, and not of that abort.
    2. The newest decision already: the same answer as then, whatever is asked now.
    3. Of another owner, or not the present transaction.
    4. A group refuses its offsets: the transaction stays open.
    5. Too many commits are not settled yet: it stays open.
    6. Decided.
    """
    name = end.transaction_id
    refusal = id_refusal(draft, name, command.slot, command.slot_epoch) or form_refusal(end)
    if refusal is not None:
        return EndOutcome(place, refusal.code, refusal.message)
    state = draft.transaction(name)
    if end.shared is not None or (state is not None and state.shared is not None):
        return end_version(draft, command, place, end, state)
    if state is None:
        message = f"transaction {name} is not known (any more): open it again"
        return EndOutcome(place, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, message)
    if _asked(end) == _present(state) and (refusal := _ids_refusal(draft, state)) is not None:
        return EndOutcome(place, refusal.code, refusal.message)
    return (
        _known_outcome(draft, command, place, end, state)
        or _refused(draft, place, end, state)
        or _decide(draft, command, place, end, state)  # case 6
    )


def _known_outcome(
    draft: Draft, command: EndTransactions, place: int, end: TransactionEnd, state: TransactionState
) -> EndOutcome | None:
    if end.is_commit and NO_VERSION < end.version <= state.last_version:  # case 1
        if end.owner == state.owner and _asked(end) == _present(state):
            after = _decided(draft, state, is_committed=False, reason=AbortReason.PROGRAM)
            state = replace(after, changed_at_ms=command.changed_at_ms)
            draft.put_transaction(end.transaction_id, state)
        count = state.last_count if end.version == state.last_version else NO_VERSION
        return _repeated(place, end, state, is_committed=True, count=count)
    last = state.last
    if last is not None and _asked(end) == _last_of(state):  # case 2
        return _repeated(place, end, state, is_committed=last.is_committed, reason=last.reason)
    return None


def _refused(
    draft: Draft, place: int, end: TransactionEnd, state: TransactionState
) -> EndOutcome | None:
    name = end.transaction_id
    if end.owner not in (b"", state.owner):  # case 3
        message = f"transaction {name}: another producer has opened it since"
        return EndOutcome(place, ErrorCode.PRODUCER_FENCED, message)
    if _asked(end) != _present(state):
        message = (
            f"transaction {name}: epoch {end.producer_epoch} of producer {end.producer_id} is over,"
            f" now is epoch {state.producer_epoch} of {state.producer_id}"
        )
        return EndOutcome(place, ErrorCode.INVALID_PRODUCER_EPOCH, message)
    if not end.is_commit:  # an abort keeps nothing, so nothing can be in its way
        return None
    if (refusal := _groups_refusal(draft, end.groups)) is not None:  # case 4
        return EndOutcome(place, refusal.code, f"transaction {name}: {refusal.message}")
    settling = without_settled(state.settling, end.settled)
    if end.partitions and not has_room(draft, settling, len(end.partitions)):  # case 5
        message = f"transaction {name}: {len(settling)} commits are not settled yet"
        return EndOutcome(place, ErrorCode.CONCURRENT_TRANSACTIONS, message)
    return None


def _decide(
    draft: Draft, command: EndTransactions, place: int, end: TransactionEnd, state: TransactionState
) -> EndOutcome | None:
    """The outcome that is told, or None if it is the usual one."""
    state = replace(state, settling=without_settled(state.settling, end.settled))
    reason = AbortReason.NONE if end.is_commit else end.reason
    after = _decided(draft, state, is_committed=end.is_commit, reason=reason, version=end.version)
    after = replace(after, changed_at_ms=command.changed_at_ms)
    dropped = 0
    if end.is_commit:
        if end.version != NO_VERSION:
            after = replace(after, last_version=end.version, last_count=end.count)
        if end.partitions:  # else there is nothing to settle
            commit = UnsettledCommit(*_asked(end), end.partitions, draft.version)
            after = replace(after, settling=(*after.settling, commit))
        dropped = sum(_save_offsets(draft, each) for each in end.groups)
    draft.put_transaction(end.transaction_id, after)
    has_new_id = after.producer_id != end.producer_id
    if not has_new_id and not dropped:
        return None
    return EndOutcome(
        place,
        is_committed=end.is_commit,
        reason=reason,
        producer_id=after.producer_id,
        producer_epoch=after.producer_epoch,
        dropped=dropped,
    )


def _asked(end: TransactionEnd) -> tuple[int, int]:
    return end.producer_id, end.producer_epoch


def _present(state: TransactionState) -> tuple[int, int]:
    return state.producer_id, state.producer_epoch


def _last_of(state: TransactionState) -> tuple[int, int] | None:
    return None if state.last is None else (state.last.producer_id, state.last.producer_epoch)


def _decided(
    draft: Draft,
    state: TransactionState,
    *,
    is_committed: bool,
    reason: AbortReason,
    version: int = NO_VERSION,
) -> TransactionState:
    """The present transaction is decided, and the next epoch begins: after the last one that of
    another producer id, as an epoch that came back would name two transactions.
    """
    producer_id, epoch = state.producer_id, state.producer_epoch
    last = TransactionDecision(producer_id, epoch, is_committed, reason, version)
    if epoch < LAST_EPOCH:
        return replace(state, last=last, producer_epoch=epoch + 1)
    following = draft.next_producer_id
    draft.set_next_producer_id(following + 1)
    return replace(state, last=last, producer_id=following, producer_epoch=0)


def _repeated(
    place: int,
    end: TransactionEnd,
    state: TransactionState,
    *,
    is_committed: bool,
    reason: AbortReason = AbortReason.NONE,
    count: int = NO_VERSION,
) -> EndOutcome:
    outcome = EndOutcome(
        place, is_committed=is_committed, is_repeated=True, reason=reason, count=count
    )
    # The transaction of another producer is not told, see `open_transaction`.
    if end.owner != state.owner:
        return outcome
    return replace(outcome, producer_id=state.producer_id, producer_epoch=state.producer_epoch)


def _ids_refusal(draft: Draft, state: TransactionState) -> Refused | None:
    """Nothing can be decided where no further producer id is left for what comes after."""
    if state.producer_epoch < LAST_EPOCH or draft.next_producer_id <= PRODUCER_ID_MAX:
        return None
    return no_producer_ids()


# -- Offsets --------------------------------------------------------------------------------------


def _groups_refusal(draft: Draft, groups: tuple[TransactionOffsets, ...]) -> Refused | None:
    """Why one of the groups does not take the offsets, as of this command. Members name the
    generation of their newest assignment, which is saved before it is told: the next owner of a
    partition reads what was committed before, and what comes after is refused here (decision 0021).
    """
    for each in groups:
        refusal = _member_refusal(draft, each)
        if refusal is not None:
            return refusal
    return None


def _member_refusal(draft: Draft, offsets: TransactionOffsets) -> Refused | None:
    name, group = offsets.group, draft.group(offsets.group)
    members = () if group is None else group.members
    if not offsets.member_id:  # a program without membership
        if not members:
            return None
        message = f"group {name} has {len(members)} members: join it, or stop them"
        return Refused(ErrorCode.UNKNOWN_MEMBER_ID, message)
    found = next((one for one in members if one.member_id == offsets.member_id), None)
    if found is None or found.instance_id != offsets.instance_id:
        instances = {one.instance_id for one in members}
        if offsets.instance_id is not None and offsets.instance_id in instances:
            message = f"group {name}: another process is {offsets.instance_id!r} now"
            return Refused(ErrorCode.FENCED_INSTANCE_ID, message)
        message = f"group {name} has no member {offsets.member_id!r}: join it"
        return Refused(ErrorCode.UNKNOWN_MEMBER_ID, message)
    assert group is not None, "it has members"
    if group.generation != offsets.generation:
        message = (
            f"group {name}: generation {offsets.generation} is over, now is {group.generation}"
        )
        return Refused(ErrorCode.ILLEGAL_GENERATION, message)
    return None


def _save_offsets(draft: Draft, offsets: TransactionOffsets) -> int:
    """Returns how many are of partitions that do not exist any more, and were dropped."""
    there = []
    for each in offsets.offsets:
        topic = draft.topic(each.topic_id)
        if topic is not None and each.partition < topic.partition_count:
            there.append(each)
    if there:
        save_offsets(draft, offsets.group, tuple(there))
    return len(offsets.offsets) - len(there)
