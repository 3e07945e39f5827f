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
from raftmq.metadata.apply.groups import group_name_refusal, offset_refusal, save_offsets
from raftmq.metadata.apply.limits import partition_refusal
from raftmq.metadata.commands import (
    NO_BROKER,
    NO_VERSION,
    Done,
    EndOutcome,
    FeatureLevel,
    PartitionId,
    Refused,
    TransactionOpened,
    TransactionsEnded,
)
from raftmq.metadata.image import (
    PRODUCER_ID_MAX,
    SLOT_COUNT,
    TransactionDecision,
    TransactionState,
    UnsettledCommit,
    slot_of,
)
from raftmq.metadata.transactions import LAST_EPOCH
from raftmq.model import TRANSACTION_ID_CHARS_MAX, AbortReason
from raftmq.wire.bodies import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.metadata.apply.draft import Draft
    from raftmq.metadata.commands import (
        AnyResult,
        DeleteTransactions,
        EndTransactions,
        ForgetSettled,
        OpenTransaction,
        SettledTransaction,
        TransactionEnd,
        TransactionOffsets,
    )

# Each id is about 520 bytes in memory on every node, and in every snapshot.
TRANSACTIONS_MAX = 100_000
# Ends of one command: each is about 50 us on the loop of every broker.
ENDS_MAX = 200
# Of one transaction. A command with so many blocks the loop of every node for about 10 ms.
PARTITIONS_MAX = 2_000
OFFSETS_MAX = 5_000
GROUPS_MAX = 100
# Commits of one id that are not settled yet: a coordinator that asks for their settling is behind.
# Those whose partitions have no leader now do not count: an outage of one topic must not stop the
# others; up to the second limit, which bounds the memory of an id.
UNSETTLED_MAX = 64
UNSETTLED_OFFLINE_MAX = 1_000
# Partitions of all unsettled commits of one id, as its row is encoded at one go for a snapshot:
# 25 bytes and about 0.2 us each. One commit is taken always.
UNSETTLED_PARTITIONS_MAX = 20_000


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
    refusal = _id_refusal(draft, name, slot_of(name), command.slot_epoch)
    if refusal is not None:
        return refusal
    if len(command.owner) != ID_BYTES:
        message = f"transaction {name}: owner of {len(command.owner)} bytes, it has {ID_BYTES}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    state = draft.transaction(name)
    if state is None:  # case 1
        return _open_new(draft, command)
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
    refusal = _slot_refusal(draft, command.slot, command.slot_epoch)
    if refusal is not None:
        return refusal
    if len(command.ends) > ENDS_MAX:
        message = f"{len(command.ends)} ends of transactions at once, at most {ENDS_MAX}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    outcomes = [_end(draft, command, place, end) for place, end in enumerate(command.ends)]
    return TransactionsEnded(tuple(each for each in outcomes if each is not None))


def forget_settled(draft: Draft, command: ForgetSettled) -> AnyResult:
    """What is not there any more is skipped, so a retry succeeds."""
    refusal = _slot_refusal(draft, command.slot, command.slot_epoch)
    if refusal is not None:
        return refusal
    for name, settled in ((one.transaction_id, one.settled) for one in command.transactions):
        state = draft.transaction(name)
        if state is None or slot_of(name) != command.slot:  # deleted since; or a faulty sender
            continue
        rest = _unsettled(state.settling, settled)
        if rest != state.settling:
            draft.put_transaction(name, replace(state, settling=rest))
    return Done()


def delete_transactions(draft: Draft, command: DeleteTransactions) -> AnyResult:
    """Those that have changed since they were seen stay."""
    refusal = _slot_refusal(draft, command.slot, command.slot_epoch)
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
    if draft.transaction_count >= TRANSACTIONS_MAX:
        message = (
            f"transaction {name} is new, and there are {TRANSACTIONS_MAX} ids already: forget ids"
            " that nobody needs, or let fewer programs have an id of their own"
        )
        return Refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)
    if draft.next_producer_id > PRODUCER_ID_MAX:
        return _no_producer_ids()
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
    refusal = _id_refusal(draft, name, command.slot, command.slot_epoch) or _form_refusal(end)
    if refusal is not None:
        return EndOutcome(place, refusal.code, refusal.message)
    state = draft.transaction(name)
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
    settling = _unsettled(state.settling, end.settled)
    if end.partitions and not _has_room(draft, settling, len(end.partitions)):  # case 5
        message = f"transaction {name}: {len(settling)} commits are not settled yet"
        return EndOutcome(place, ErrorCode.CONCURRENT_TRANSACTIONS, message)
    return None


def _decide(
    draft: Draft, command: EndTransactions, place: int, end: TransactionEnd, state: TransactionState
) -> EndOutcome | None:
    """The outcome that is told, or None if it is the usual one."""
    state = replace(state, settling=_unsettled(state.settling, end.settled))
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


def _has_room(draft: Draft, settling: tuple[UnsettledCommit, ...], wanted: int) -> bool:
    held = sum(len(commit.partitions) for commit in settling)
    if settling and held + wanted > UNSETTLED_PARTITIONS_MAX:
        return False
    if len(settling) < UNSETTLED_MAX:  # the usual case
        return True
    waiting = sum(not _is_offline(draft, commit) for commit in settling)
    return waiting < UNSETTLED_MAX and len(settling) < UNSETTLED_OFFLINE_MAX


def _is_offline(draft: Draft, commit: UnsettledCommit) -> bool:
    """Whether nobody can settle it now: none of its partitions has a leader."""
    states = (draft.partition(PartitionId(*each)) for each in commit.partitions)
    return all(state is not None and state.leader == NO_BROKER for state in states)


def _unsettled(
    settling: tuple[UnsettledCommit, ...], settled: Iterable[SettledTransaction]
) -> tuple[UnsettledCommit, ...]:
    """Without the partitions that are settled, and without commits of which none is left."""
    gone: dict[tuple[int, int], set[tuple[bytes, int]]] = {}
    for one in settled:  # the same transaction more than once: of several leaders
        gone.setdefault((one.producer_id, one.producer_epoch), set()).update(one.partitions)
    if not gone:  # the usual case
        return settling
    rest = []
    for commit in settling:
        there = gone.get((commit.producer_id, commit.producer_epoch))
        if there is None:
            rest.append(commit)
        elif left := tuple(each for each in commit.partitions if each not in there):
            rest.append(replace(commit, partitions=left))
    return tuple(rest)


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


# -- Refusals -------------------------------------------------------------------------------------


def _slot_refusal(draft: Draft, number: int, slot_epoch: int) -> Refused | None:
    """Why a coordinator with `slot_epoch` may not change anything of the slot."""
    if draft.feature_level < FeatureLevel.TRANSACTIONS:
        message = f"feature level {draft.feature_level} knows no transactions: upgrade all nodes"
        return Refused(ErrorCode.UNSUPPORTED_VERSION, message)
    if not 0 <= number < SLOT_COUNT:
        message = f"slot {number}: there are 0 to {SLOT_COUNT - 1}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    slot = draft.slot(number)
    if slot.broker_id != NO_BROKER and slot.epoch == slot_epoch:
        return None
    message = f"slot {number} has epoch {slot.epoch}, not {slot_epoch}: another broker has it"
    return Refused(ErrorCode.NOT_COORDINATOR, message)


def _id_refusal(draft: Draft, name: str, number: int, slot_epoch: int) -> Refused | None:
    if not 1 <= len(name) <= TRANSACTION_ID_CHARS_MAX:
        message = (
            f"transaction id of {len(name)} characters: allowed are 1 to {TRANSACTION_ID_CHARS_MAX}"
        )
        return Refused(ErrorCode.INVALID_REQUEST, message)
    if slot_of(name) != number:
        message = f"transaction {name} belongs to slot {slot_of(name)}, not to {number}"
        return Refused(ErrorCode.NOT_COORDINATOR, message)
    return _slot_refusal(draft, number, slot_epoch)


def _ids_refusal(draft: Draft, state: TransactionState) -> Refused | None:
    """Nothing can be decided where no further producer id is left for what comes after."""
    if state.producer_epoch < LAST_EPOCH or draft.next_producer_id <= PRODUCER_ID_MAX:
        return None
    return _no_producer_ids()


def _no_producer_ids() -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, f"there are no producer ids above {PRODUCER_ID_MAX}")


def _form_refusal(end: TransactionEnd) -> Refused | None:
    """Limits, and the form of partition ids and offsets: they need not exist."""
    name = f"transaction {end.transaction_id}"
    offsets = sum(len(each.offsets) for each in end.groups)
    for count, most, what in (
        (len(end.partitions), PARTITIONS_MAX, "partitions"),
        (len(end.groups), GROUPS_MAX, "groups"),
        (offsets, OFFSETS_MAX, "offsets"),
    ):
        if count > most:
            message = f"{name}: {count} {what}, at most {most}: commit more often"
            return Refused(ErrorCode.INVALID_REQUEST, message)
    if min(end.version, end.count) < NO_VERSION:
        message = f"{name}: version {end.version} with count {end.count}: both are 0 or more"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    if end.is_commit and not end.owner:
        message = f"{name}: only the producer that opened it may commit it, others may abort it"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    return _parts_refusal(name, end)


def _parts_refusal(name: str, end: TransactionEnd) -> Refused | None:
    for topic_id, partition in end.partitions:
        if (refusal := partition_refusal(name, topic_id, partition)) is not None:
            return refusal
    for each in end.groups:
        if (refusal := group_name_refusal(each.group)) is not None:
            return refusal
        for offset in each.offsets:
            if (refusal := offset_refusal(each.group, offset)) is not None:
                return refusal
            if offset.expected is not None:
                message = f"{name}: a transaction commits offsets whatever is there"
                return Refused(ErrorCode.INVALID_REQUEST, message)
    return None
