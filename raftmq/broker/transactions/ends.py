"""Ends of transactions: checked, batched into commands, and the reply that each outcome makes.

Pure. Ends of several ids share a command (`EndTransactions`); each is decided by itself. Two
transactions of one id never share one: a command that is repeated must find each of its ends as the
newest decision of its id, or its sender would be told something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.broker.groups.batches import Outcome, SharedEntry, size_of
from raftmq.broker.groups.checks import check_name, told
from raftmq.errors import (
    InvalidRequest,
    OffsetMetadataTooLarge,
    RaftmqError,
)
from raftmq.metadata.apply.groups import OFFSET_METADATA_BYTES_MAX
from raftmq.metadata.apply.transaction_checks import ENDS_MAX, OFFSETS_MAX
from raftmq.metadata.commands import (
    EndOutcome,
    EndTransactions,
    SettledTransaction,
    SharedEnd,
    StoredOffset,
    TransactionEnd,
    TransactionOffsets,
    TransactionsEnded,
)
from raftmq.model import AbortReason
from raftmq.wire.bodies import clip_message
from raftmq.wire.messages.cluster import COMMAND_BYTES_MAX
from raftmq.wire.messages.transactions import EndTxnReply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from raftmq.metadata.commands import AnyResult
    from raftmq.wire.messages.transactions import EndTxn, GroupOffsets

# Partitions and offsets of all ends of a command: it takes every node's loop about 10 ms. A larger
# end, which is allowed, goes alone.
BLOCKS_MAX = 2_000
BATCH_BYTES_MAX = 1 << 19  # half of `COMMAND_BYTES_MAX`, as sizes are estimates
ALONE_BYTES_MAX = COMMAND_BYTES_MAX * 9 // 10  # of a single end: the metadata of its offsets count
END_BYTES = 100  # estimate, without its texts
GROUP_BYTES = 30  # the same
PARTITION_BYTES = 32


# -- Requests -------------------------------------------------------------------------------------


def end_of(
    request: EndTxn, *, now_ms: int, settled: tuple[SettledTransaction, ...]
) -> TransactionEnd:
    """What the request asks for, as it goes into a command.

    Raises:
        InvalidRequest: a commit by nobody, a thing named twice, or too much.
        InvalidGroupId, OffsetMetadataTooLarge: of its offsets.
    """
    name, is_shared = f"transaction {request.transaction_id}", request.lineage is not None
    if request.is_commit and not (request.owner or is_shared):  # others abort only
        raise InvalidRequest(f"{name}: only the producer that opened it may commit it")
    if not request.is_commit and (request.partitions or request.groups):
        raise InvalidRequest(f"{name}: an abort names neither partitions nor offsets")
    partitions = tuple((each.topic_id, each.partition) for each in request.partitions)
    _check_distinct(f"{name}: a partition", partitions)
    _check_distinct(f"{name}: a group", [each.group for each in request.groups])
    count = sum(len(each.offsets) for each in request.groups)
    if count > OFFSETS_MAX:
        raise InvalidRequest(f"{name}: {count} offsets, at most {OFFSETS_MAX}: commit more often")
    end = TransactionEnd(
        transaction_id=request.transaction_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        is_commit=request.is_commit,
        owner=request.owner,
        reason=_reason_of(request),
        version=request.transaction_version,
        count=request.count,
        partitions=partitions,
        groups=tuple(_offsets_of(each, now_ms) for each in request.groups),
        settled=settled,
        shared=None if request.lineage is None else SharedEnd(request.lineage, request.numbers),
    )
    if (size := bytes_of(end)) > ALONE_BYTES_MAX:
        raise InvalidRequest(
            f"{name}: {size} bytes of partitions and offsets, at most {ALONE_BYTES_MAX}: commit"
            " more often, or with less metadata"
        )
    return end


def _reason_of(request: EndTxn) -> AbortReason:
    if request.is_commit:
        return AbortReason.NONE
    return AbortReason(request.reason) or AbortReason.PROGRAM  # an abort has some reason


def _offsets_of(offsets: GroupOffsets, now_ms: int) -> TransactionOffsets:
    check_name(offsets.group)
    keys = [(each.topic_id, each.partition) for each in offsets.offsets]
    _check_distinct(f"group {offsets.group}: a partition", keys)
    stored = []
    for each in offsets.offsets:
        if each.expected is not None:
            raise InvalidRequest(
                f"group {offsets.group}: a transaction commits offsets whatever is there: expect"
                " none"
            )
        if len(each.metadata.encode()) > OFFSET_METADATA_BYTES_MAX:
            raise OffsetMetadataTooLarge(
                f"group {offsets.group}: metadata of an offset with more than"
                f" {OFFSET_METADATA_BYTES_MAX} bytes"
            )
        stored.append(
            StoredOffset(
                each.topic_id, each.partition, each.offset, each.leader_epoch, each.metadata, now_ms
            )
        )
    return TransactionOffsets(
        offsets.group, offsets.generation, offsets.member_id, offsets.instance_id, tuple(stored)
    )


def _check_distinct(what: str, keys: Iterable[object]) -> None:
    """Raises InvalidRequest."""
    listed = list(keys)
    if len(set(listed)) < len(listed):
        raise InvalidRequest(f"{what} is named twice, name it once")


# -- Batches --------------------------------------------------------------------------------------


class EndEntry(SharedEntry):
    """One end. Its part of the result has one outcome, or none where that is the usual one."""

    __slots__ = ("changed_at_ms", "end")

    def __init__(
        self, end: TransactionEnd, changed_at_ms: int, tell: Callable[[Outcome], None]
    ) -> None:
        super().__init__(tell, bytes_of(end))
        self.end, self.changed_at_ms = end, changed_at_ms

    def new_batch(self) -> EndBatch:
        return EndBatch()


class EndBatch:
    """Ends that share one command."""

    def __init__(self) -> None:
        self._places: dict[EndEntry, int] = {}
        self._present: dict[str, tuple[int, ...]] = {}  # by id: the transaction that is ended
        self._size = self._blocks = self._changed_at_ms = 0

    def maybe_add(self, entry: EndEntry) -> bool:
        end = entry.end
        asked = (end.producer_id, end.producer_epoch, end.version)
        blocks = blocks_of(end)
        if self._places and not (
            len(self._places) < ENDS_MAX
            and self._blocks + blocks <= BLOCKS_MAX
            and self._size + entry.size <= BATCH_BYTES_MAX
            # Copies of one end get the same answer, however often the command is repeated.
            and self._present.get(end.transaction_id, asked) == asked
        ):
            return False
        self._present[end.transaction_id] = asked
        self._places[entry] = len(self._places)
        self._size, self._blocks = self._size + entry.size, self._blocks + blocks
        self._changed_at_ms = max(self._changed_at_ms, entry.changed_at_ms)
        return True

    def command(self, *, slot: int, slot_epoch: int) -> EndTransactions:
        ends = tuple(entry.end for entry in self._places)
        return EndTransactions(slot, slot_epoch, ends, self._changed_at_ms)

    def part_of(self, result: AnyResult, entry: EndEntry) -> TransactionsEnded:
        assert isinstance(result, TransactionsEnded), f"{result} to ends of transactions"
        place = self._places[entry]
        return TransactionsEnded(tuple(one for one in result.outcomes if one.place == place))


def bytes_of(end: TransactionEnd) -> int:
    """In a command, at most."""
    settled = sum(len(one.partitions) for one in end.settled)
    size = END_BYTES + len(end.transaction_id.encode())
    size += END_BYTES * len(end.settled) + PARTITION_BYTES * (len(end.partitions) + settled)
    if end.shared is not None:
        size += len(end.shared.lineage.encode()) + len(end.shared.numbers)
    for group in end.groups:
        texts = (group.group, group.member_id, group.instance_id or "")
        size += GROUP_BYTES + sum(len(text.encode()) for text in texts)
        size += sum(map(size_of, group.offsets))
    return size


def blocks_of(end: TransactionEnd) -> int:
    """Partitions and offsets, by which the cost of applying it is counted."""
    settled = sum(len(one.partitions) for one in end.settled)
    return len(end.partitions) + settled + sum(len(group.offsets) for group in end.groups)


# -- Replies --------------------------------------------------------------------------------------


def outcome_of_end(end: TransactionEnd, ended: TransactionsEnded) -> EndOutcome:
    """With the usual outcome written out: decided as asked, the next epoch is the one after."""
    if ended.outcomes:
        (outcome,) = ended.outcomes
        return outcome
    return EndOutcome(
        0,
        is_committed=end.is_commit,
        reason=end.reason,
        producer_id=end.producer_id,
        producer_epoch=end.producer_epoch + 1,
    )


def reply_to_end(outcome: EndOutcome | RaftmqError) -> EndTxnReply:
    """
    1. The command is not known to be applied, or certainly was not.
    2. The end was refused: the transaction stays as it is.
    3. Decided, now or before: the outcome is that of the decision, whatever was asked for. A commit
       may find that the transaction was aborted, and is told so.
    """
    if isinstance(outcome, RaftmqError):  # case 1
        return EndTxnReply(**told(outcome))
    if outcome.code:  # case 2
        return EndTxnReply(outcome.code, clip_message(outcome.message))
    return EndTxnReply(  # case 3
        producer_id=outcome.producer_id,
        producer_epoch=outcome.producer_epoch,
        is_committed=outcome.is_committed,
        is_repeated=outcome.is_repeated,
        reason=outcome.reason,
        count=outcome.count,
        dropped=outcome.dropped,
    )
