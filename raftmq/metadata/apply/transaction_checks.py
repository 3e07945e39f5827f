"""Checks of commands about transactions: limits, forms, slots, room for unsettled commits.

Owns the limits and what is refused whatever a transaction's state is; the rules are
`transactions.py` and, of versions that many producers write, `shared_transactions.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from raftmq.errors import ErrorCode
from raftmq.metadata.apply.groups import group_name_refusal, offset_refusal
from raftmq.metadata.apply.limits import partition_refusal
from raftmq.metadata.commands import NO_BROKER, NO_VERSION, FeatureLevel, PartitionId, Refused
from raftmq.metadata.image import PRODUCER_ID_MAX, SLOT_COUNT, slot_of
from raftmq.model import TRANSACTION_ID_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.metadata.apply.draft import Draft
    from raftmq.metadata.commands import SettledTransaction, TransactionEnd
    from raftmq.metadata.image import UnsettledCommit

# Each id is about 520 bytes in memory on every node, and in every snapshot.
TRANSACTIONS_MAX = 100_000
# Ends of one command: each is about 50 us on the loop of every broker.
ENDS_MAX = 200
# Joins of one command, each of any number of members.
JOINS_MAX = 200
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


# -- Unsettled commits ----------------------------------------------------------------------------


def has_room(draft: Draft, settling: tuple[UnsettledCommit, ...], wanted: int) -> bool:
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


def without_settled(
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


# -- Refusals -------------------------------------------------------------------------------------


def slot_refusal(draft: Draft, number: int, slot_epoch: int) -> Refused | None:
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


def id_refusal(draft: Draft, name: str, number: int, slot_epoch: int) -> Refused | None:
    if not 1 <= len(name) <= TRANSACTION_ID_CHARS_MAX:
        message = (
            f"transaction id of {len(name)} characters: allowed are 1 to {TRANSACTION_ID_CHARS_MAX}"
        )
        return Refused(ErrorCode.INVALID_REQUEST, message)
    if slot_of(name) != number:
        message = f"transaction {name} belongs to slot {slot_of(name)}, not to {number}"
        return Refused(ErrorCode.NOT_COORDINATOR, message)
    return slot_refusal(draft, number, slot_epoch)


def new_id_refusal(draft: Draft, name: str) -> Refused | None:
    if draft.transaction_count < TRANSACTIONS_MAX:
        return None
    message = (
        f"transaction {name} is new, and there are {TRANSACTIONS_MAX} ids already: forget ids"
        " that nobody needs, or let fewer programs have an id of their own"
    )
    return Refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)


def no_producer_ids() -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, f"there are no producer ids above {PRODUCER_ID_MAX}")


def form_refusal(end: TransactionEnd) -> Refused | None:
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
    if end.is_commit and not end.owner and end.shared is None:
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
