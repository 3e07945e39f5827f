"""Rules for shared transactions: members join a version, and one commit decides all of them.

A version is one transaction of many producers, each attempt of a task one member with a producer id
of its own. The commit lists the members that count; whoever is not listed is aborted by it, as is
all of an opening that was given up. So whoever writes twice, late or for nothing does no harm
(decision 0039).

Invariants: `last_version` only rises, and a version at or below it is never opened again; a block
belongs to one opening of one version for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply.transaction_checks import (
    JOINS_MAX,
    has_room,
    id_refusal,
    new_id_refusal,
    no_producer_ids,
    slot_refusal,
    without_settled,
)
from raftmq.metadata.commands import (
    NO_VERSION,
    EndOutcome,
    JoinOutcome,
    Refused,
    TransactionsJoined,
)
from raftmq.metadata.image import (
    MEMBERS_MAX,
    PRODUCER_ID_MAX,
    SharedVersions,
    TransactionDecision,
    TransactionState,
    UnsettledCommit,
)
from raftmq.metadata.transactions import MEMBER_EPOCH
from raftmq.model import LINEAGE_CHARS_MAX, AbortReason

if TYPE_CHECKING:
    from raftmq.metadata.apply.draft import Draft
    from raftmq.metadata.commands import (
        AnyResult,
        EndTransactions,
        JoinTransactions,
        TransactionEnd,
        TransactionJoin,
    )

NO_BLOCK = -1  # no version is open; in an end: none of its members has written anything


def not_single(name: str) -> Refused:
    """To a producer that opens the id of versions for itself."""
    message = (
        f"transaction {name} is shared, with versions that many producers write: take another id"
        " for a producer of its own, or forget this one"
    )
    return Refused(ErrorCode.INVALID_TXN_STATE, message)


# -- Joining --------------------------------------------------------------------------------------


def join_transactions(draft: Draft, command: JoinTransactions) -> AnyResult:
    """Each join is answered or refused by itself: they come from different clients."""
    refusal = slot_refusal(draft, command.slot, command.slot_epoch)
    if refusal is not None:
        return refusal
    if len(command.joins) > JOINS_MAX:
        message = f"{len(command.joins)} members join at once, at most {JOINS_MAX}"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    return TransactionsJoined(tuple([_join(draft, command, join) for join in command.joins]))


def _join(draft: Draft, command: JoinTransactions, join: TransactionJoin) -> JoinOutcome:
    """
    1. Another lineage's, or a single producer's.
    2. Committed before: there is nothing to write.
    3. A higher version is open: this one is a zombie's.
    4. More members of the version that is open.
    5. A new opening; what was open is aborted.
    """
    name = join.transaction_id
    refusal = id_refusal(draft, name, command.slot, command.slot_epoch)
    refusal = refusal or _join_refusal(join)
    state = draft.transaction(name)
    if refusal is None and state is not None:
        refusal = _row_refusal(name, state, join.lineage)  # case 1
    if refusal is not None:
        return JoinOutcome(refusal.code, refusal.message)
    if state is None:
        return _open_version(draft, command, join, None)
    shared = state.shared
    assert shared is not None, "it was not refused"
    if join.version <= state.last_version:  # case 2
        return JoinOutcome(is_done=True, count=_count_of(state, join.version))
    if join.version < shared.open_version:  # case 3
        return JoinOutcome(ErrorCode.PRODUCER_FENCED, _fenced(name, join.version, shared))
    if join.version > shared.open_version:  # case 5
        return _open_version(draft, command, join, state)
    if shared.joined + join.count > MEMBERS_MAX:  # case 4
        message = (
            f"transaction {name}: version {join.version} has {MEMBERS_MAX} members: let fewer, and"
            " larger, tasks write it; where these are of attempts that failed, `raftmq transaction"
            f" abort {name}` lets it begin anew"
        )
        return JoinOutcome(ErrorCode.INVALID_REQUEST, message)
    after = replace(shared, joined=shared.joined + join.count)
    draft.put_member(name, replace(state, shared=after, changed_at_ms=command.changed_at_ms))
    return JoinOutcome(block=shared.block, number=shared.joined, timeout_ms=state.timeout_ms)


def _open_version(
    draft: Draft, command: JoinTransactions, join: TransactionJoin, state: TransactionState | None
) -> JoinOutcome:
    """A new block, of which these are the first members."""
    name = join.transaction_id
    block = -(-draft.next_producer_id // MEMBERS_MAX) * MEMBERS_MAX
    if state is None and (refusal := new_id_refusal(draft, name)) is not None:
        return JoinOutcome(refusal.code, refusal.message)
    if block + MEMBERS_MAX - 1 > PRODUCER_ID_MAX:
        refused = no_producer_ids()
        return JoinOutcome(refused.code, refused.message)
    draft.set_next_producer_id(block + MEMBERS_MAX)
    state = _new_row(join.lineage, command.changed_at_ms) if state is None else state
    state = replace(
        _left(state, AbortReason.OWNER),
        shared=SharedVersions(join.lineage, join.version, block, joined=join.count),
        timeout_ms=join.timeout_ms,
        is_ephemeral=join.is_ephemeral,
        changed_at_ms=command.changed_at_ms,
    )
    draft.put_transaction(name, state)
    return JoinOutcome(block=block, number=0, timeout_ms=join.timeout_ms)


def _new_row(lineage: str, changed_at_ms: int) -> TransactionState:
    return TransactionState(
        producer_id=-1,
        producer_epoch=-1,
        owner=b"",
        opening=0,
        timeout_ms=0,
        changed_at_ms=changed_at_ms,
        shared=SharedVersions(lineage),
    )


def _left(
    state: TransactionState, reason: AbortReason, *, is_committed: bool = False
) -> TransactionState:
    """The version that is open is decided, if there is one; nothing of its block can be written
    any more."""
    shared = state.shared
    assert shared is not None, "of a shared transaction"
    if shared.block == NO_BLOCK:
        return state
    last = TransactionDecision(
        shared.block, MEMBER_EPOCH, is_committed, reason, shared.open_version
    )
    return replace(state, last=last, shared=SharedVersions(shared.lineage))


# -- Ending ---------------------------------------------------------------------------------------


def end_version(
    draft: Draft,
    command: EndTransactions,
    place: int,
    end: TransactionEnd,
    state: TransactionState | None,
) -> EndOutcome:
    """
    1. Of a row that is not there: a version without a record is remembered all the same, or a late
       member of it would open it again.
    2. Known already, see `_known_outcome`.
    3. Refused: nothing changes.
    4. Decided.
    """
    name, shared = end.transaction_id, end.shared
    refusal = _version_refusal(end)
    if state is None:  # case 1
        refusal = refusal or _new_row_refusal(draft, end)
        state = _new_row("" if shared is None else shared.lineage, command.changed_at_ms)
    elif shared is not None:
        refusal = refusal or _row_refusal(name, state, shared.lineage)
    if refusal is not None:
        return EndOutcome(place, refusal.code, refusal.message)
    if (known := _known_outcome(place, end, state)) is not None:  # case 2
        return known
    if (refusal := _end_refusal(draft, end, state)) is not None:  # case 3
        return EndOutcome(place, refusal.code, refusal.message)
    if end.is_commit:  # case 4
        return _commit(draft, command, place, end, state)
    after = replace(_left(state, end.reason), changed_at_ms=command.changed_at_ms)
    draft.put_transaction(name, after)
    return EndOutcome(place, reason=end.reason)


def _known_outcome(place: int, end: TransactionEnd, state: TransactionState) -> EndOutcome | None:
    """
    1. The newest version that was committed: the same, whatever is asked now.
    2. A version below the newest one counts as committed; not what members of it have written,
       unless that is known: their opening may have been given up, and a higher version begun.
    3. The newest decision: this opening was aborted.
    4. An abort of what is not open: there is nothing to do.
    """
    name, newest = end.transaction_id, state.last_version
    if NO_VERSION < end.version == newest:  # case 1
        return EndOutcome(place, is_committed=True, is_repeated=True, count=state.last_count)
    if NO_VERSION < end.version < newest:  # case 2
        is_known = any(commit.producer_id == end.producer_id for commit in state.settling)
        if is_known or not end.is_commit or end.producer_id == NO_BLOCK:
            return EndOutcome(place, is_committed=True, is_repeated=True)
        message = (
            f"transaction {name}: version {newest} is committed, which comes after {end.version}:"
            " whether that was is not known any more"
        )
        return EndOutcome(place, ErrorCode.PRODUCER_FENCED, message)
    last = state.last
    if last is not None and last.producer_id == end.producer_id and not last.is_committed:  # case 3
        return EndOutcome(place, is_repeated=True, reason=last.reason)
    if not end.is_commit and end.producer_id == NO_BLOCK and not _is_open(state, end):  # case 4
        return EndOutcome(place, is_repeated=True, reason=end.reason)
    return None


def _end_refusal(draft: Draft, end: TransactionEnd, state: TransactionState) -> Refused | None:
    """
    1. A higher version is open: this one is a zombie's.
    2. Not what is open: given up since, and perhaps begun anew.
    3. Members that nobody has joined as.
    4. Too many commits are not settled yet.
    """
    present, name = state.shared, f"transaction {end.transaction_id}"
    assert present is not None, "of a shared transaction"
    if end.is_commit and end.version < present.open_version:  # case 1
        message = _fenced(end.transaction_id, end.version, present)
        return Refused(ErrorCode.PRODUCER_FENCED, message)
    if not _is_open(state, end):  # case 2
        message = f"{name}: version {end.version} of block {end.producer_id} was aborted"
        if present.block != NO_BLOCK:
            message += f", and version {present.open_version} of block {present.block} is open"
        message += ": let all of its tasks run again"
        return Refused(ErrorCode.INVALID_PRODUCER_EPOCH, message)
    if not end.is_commit or end.shared is None:
        return None
    highest = int.from_bytes(end.shared.numbers, "little").bit_length() - 1
    if highest >= present.joined:  # case 3
        message = f"{name}: member {highest} is listed, and {present.joined} have joined"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    settling = without_settled(state.settling, end.settled)
    if end.partitions and not has_room(draft, settling, len(end.partitions)):  # case 4
        message = f"{name}: {len(settling)} commits are not settled yet"
        return Refused(ErrorCode.CONCURRENT_TRANSACTIONS, message)
    return None


def _is_open(state: TransactionState, end: TransactionEnd) -> bool:
    """Whether it may be ended. Of a version without a record nobody else knows the block; aborted
    is whatever has the block, or the version.
    """
    shared = state.shared
    assert shared is not None, "of a shared transaction"
    if end.shared is not None and end.version != shared.open_version:
        # Skipped, and nothing higher is open: then none of its members has written anything.
        is_skipped = end.version > shared.open_version and end.producer_id == NO_BLOCK
        return is_skipped and end.is_commit
    return end.producer_id in (NO_BLOCK, shared.block)


def _commit(
    draft: Draft, command: EndTransactions, place: int, end: TransactionEnd, state: TransactionState
) -> EndOutcome:
    shared = end.shared
    assert shared is not None, "checked"
    settling = without_settled(state.settling, end.settled)
    has_members = bool(end.partitions)  # else there is nothing to settle
    if has_members:
        commit = UnsettledCommit(
            end.producer_id, MEMBER_EPOCH, end.partitions, draft.version, shared.numbers
        )
        settling = (*settling, commit)
    # Nothing of what is open counts in a version that is committed without members.
    reason = AbortReason.NONE if has_members else AbortReason.PROGRAM
    after = replace(
        _left(state, reason, is_committed=has_members),
        settling=settling,
        last_version=end.version,
        last_count=end.count,
        changed_at_ms=command.changed_at_ms,
    )
    draft.put_transaction(end.transaction_id, after)
    return EndOutcome(place, is_committed=True)


# -- Refusals -------------------------------------------------------------------------------------


def _join_refusal(join: TransactionJoin) -> Refused | None:
    name = join.transaction_id
    if len(join.lineage) > LINEAGE_CHARS_MAX:
        message = (
            f"transaction {name}: lineage of {len(join.lineage)} characters, at most"
            f" {LINEAGE_CHARS_MAX}"
        )
        return Refused(ErrorCode.INVALID_REQUEST, message)
    if join.version < 0:
        message = f"transaction {name}: version {join.version}, it is 0 or more"
        return Refused(ErrorCode.INVALID_REQUEST, message)
    if not 1 <= join.count <= MEMBERS_MAX:
        message = (
            f"transaction {name}: {join.count} members at once, allowed are 1 to {MEMBERS_MAX}"
        )
        return Refused(ErrorCode.INVALID_REQUEST, message)
    return None


def _row_refusal(name: str, state: TransactionState, lineage: str) -> Refused | None:
    if state.shared is None:
        message = (
            f"transaction {name} is that of a single producer: take another id for versions that"
            " many producers write, or forget this one"
        )
        return Refused(ErrorCode.INVALID_TXN_STATE, message)
    if state.shared.lineage == lineage:
        return None
    newest = "none committed yet"
    if state.last_version != NO_VERSION:
        newest = f"{state.last_version} the newest"
    message = (
        f"transaction {name}: its versions, {newest}, are those of lineage"
        f" {state.shared.lineage!r}, not of {lineage!r}, whose numbers mean other rows: take"
        " another id, or forget this one once nobody needs its versions"
    )
    return Refused(ErrorCode.INVALID_TXN_STATE, message)


def _version_refusal(end: TransactionEnd) -> Refused | None:
    """The form of what is asked of versions only; `form_refusal` has checked the rest."""
    name, shared = f"transaction {end.transaction_id}", end.shared
    if shared is None:
        if not end.is_commit and end.producer_id >= 0:  # a leader, or an operator
            return None
        message = f"{name} is shared: name the lineage and the version to commit"
    elif len(shared.lineage) > LINEAGE_CHARS_MAX or 8 * len(shared.numbers) > MEMBERS_MAX:
        message = f"{name}: a lineage or a list of members that is too long"
    elif end.version < 0:
        message = f"{name}: version {end.version}, it is 0 or more"
    elif end.groups:
        message = f"{name}: a version commits no offsets of groups"
    elif bool(end.partitions) != any(shared.numbers) or (
        any(shared.numbers) and end.producer_id == NO_BLOCK
    ):
        message = f"{name}: members, their block and their partitions belong together"
    else:
        return None
    return Refused(ErrorCode.INVALID_REQUEST, message)


def _fenced(name: str, version: int, shared: SharedVersions) -> str:
    return (
        f"transaction {name}: version {shared.open_version} is open, which comes after {version};"
        f" if nobody writes it, `raftmq transaction abort {name}` ends it"
    )


def _new_row_refusal(draft: Draft, end: TransactionEnd) -> Refused | None:
    if end.is_commit and end.producer_id == NO_BLOCK:
        return new_id_refusal(draft, end.transaction_id)
    message = (
        f"transaction {end.transaction_id} is not known (any more): if it was forgotten, nobody can"
        " say whether this version was committed: look for its records"
    )
    return Refused(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, message)


def _count_of(state: TransactionState, version: int) -> int:
    """Rows of a version that was committed; known of the newest one only."""
    return state.last_count if version == state.last_version else NO_VERSION
