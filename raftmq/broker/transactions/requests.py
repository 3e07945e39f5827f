"""Requests about transaction ids: InitProducerId, EndTxn, forget, describe and list.

Owns these requests. An end is put in line when it arrives, and answered once it is decided in the
quorum; a client whose wait ends without an outcome asks again, and the quorum knows what became of
it. Nothing about a transaction is kept here. (Kafka: TransactionCoordinator)
"""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, NoReturn

import trio
from msgspec.structs import replace

from raftmq.broker.groups.batches import Decision, LoneCommand
from raftmq.broker.groups.checks import check_room, told
from raftmq.broker.groups.pipeline import PendingEntry
from raftmq.broker.transactions.ends import EndEntry, end_of, outcome_of_end, reply_to_end
from raftmq.errors import (
    ErrorCode,
    InvalidRequest,
    InvalidTransaction,
    RaftmqError,
    UnknownTransaction,
)
from raftmq.metadata.commands import (
    DeleteTransactions,
    OpenTransaction,
    PartitionId,
    TransactionEnd,
    TransactionOpened,
    TransactionSeen,
    TransactionsEnded,
)
from raftmq.metadata.transactions import present_of
from raftmq.model import AbortReason
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import ABSENT, ID_BYTES, TopicPartition
from raftmq.wire.messages.producers import InitProducerId, InitProducerIdReply
from raftmq.wire.messages.transactions import (
    DESCRIBED_MAX,
    TRANSACTION_PARTITIONS_MAX,
    DescribeTransactions,
    DescribeTransactionsReply,
    EndTxn,
    EndTxnReply,
    ForgetTransaction,
    ForgetTransactionReply,
    ListTransactions,
    ListTransactionsReply,
    TransactionDescribed,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.broker.groups.coordinator import OwnedSlot
    from raftmq.broker.transactions.settling import Settling
    from raftmq.broker.transactions.slots import TransactionSlots
    from raftmq.metadata.commands import EndOutcome
    from raftmq.metadata.image import MetadataImage, TransactionState
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer


# Partitions of a reply that describes several ids. One alone is told whole.
PARTITIONS_TOLD_MAX = 10_000
SLICE = 5_000  # rows passed over in one step of the loop
SUMMARY_SECONDS = 60.0  # between lines of the log

logger = logging.getLogger("raftmq.broker")


class TransactionRequests:
    """
    Args:
        without_id: answers InitProducerId of producers without a transaction id.
    """

    def __init__(
        self,
        slots: TransactionSlots,
        settling: Settling,
        *,
        without_id: Callable[[InitProducerId], Reply | Awaitable[Reply]],
    ) -> None:
        self._slots, self._coordinator = slots, slots.coordinator
        self._settling, self._without_id = settling, without_id
        self._decided: Counter[str] = Counter()  # since the last line of the log

    def handlers(self) -> Handlers:
        return {
            InitProducerId: self.init,
            EndTxn: self.end,
            ForgetTransaction: self.forget,
            DescribeTransactions: self.describe,
            ListTransactions: self.list,
        }

    async def run(self) -> NoReturn:
        """Logs what was decided, and what waits, until cancelled."""
        while True:
            await trio.sleep(SUMMARY_SECONDS)
            decided, self._decided = self._decided, Counter()
            backlog = self._settling.backlog()
            if decided or backlog.commits:  # else there is nothing to tell
                logger.info(
                    "transactions: %s unsettled=%d oldest_seconds=%.1f",
                    " ".join(f"{what}={count}" for what, count in sorted(decided.items())) or "-",
                    backlog.commits,
                    backlog.oldest_seconds,
                )

    # Open

    def init(
        self, _context: RequestContext, request: InitProducerId, _payload: Buffer
    ) -> Reply | Awaitable[Reply]:
        """In line before this returns."""
        if not request.transaction_id:
            return self._without_id(request)
        deadline = trio.current_time() + request.timeout_ms / 1000
        try:
            slot = self._slots.find(request.transaction_id)
            self._check_open(request)
            waiting = PendingEntry(partial(LoneCommand, self._open_command(slot, request)))
            slot.transactions.put(waiting.entry)
        except RaftmqError as error:  # certainly nothing was put in line
            return Reply(InitProducerIdReply(**told(error)))
        return self._opened(slot, waiting, deadline)

    def _check_open(self, request: InitProducerId) -> None:
        name = request.transaction_id
        if len(request.owner) != ID_BYTES:
            raise InvalidRequest(
                f"transaction {name}: owner of {len(request.owner)} bytes, it has {ID_BYTES}"
            )
        self._slots.check_open(name, request.transaction_timeout_ms)

    def _open_command(self, slot: OwnedSlot, request: InitProducerId) -> OpenTransaction:
        return OpenTransaction(
            slot_epoch=slot.slot_epoch,
            transaction_id=request.transaction_id,
            owner=request.owner,
            opening=request.opening,
            timeout_ms=request.transaction_timeout_ms,
            is_ephemeral=request.is_ephemeral,
            expected_producer_id=request.expected_producer_id,
            expected_epoch=request.expected_epoch,
            changed_at_ms=self._coordinator.now_ms(),
        )

    async def _opened(self, slot: OwnedSlot, waiting: PendingEntry, deadline: float) -> Reply:
        outcome = await waiting.wait(slot.transactions, deadline)
        if isinstance(outcome, RaftmqError):
            return Reply(InitProducerIdReply(**told(outcome)))
        assert isinstance(outcome, TransactionOpened), f"{outcome} to an OpenTransaction"
        return Reply(
            InitProducerIdReply(
                producer_id=outcome.producer_id,
                producer_epoch=outcome.producer_epoch,
                transaction_timeout_ms=outcome.timeout_ms,
                last_version=outcome.last_version,
                last_count=outcome.last_count,
            )
        )

    # End

    async def end_here(self, request: EndTxn) -> EndTxnReply:
        """As if the request had come in: of a leader on this very broker."""
        ending = self._begin_end(request)
        return ending if isinstance(ending, EndTxnReply) else await ending

    def end(
        self, _context: RequestContext, request: EndTxn, _payload: Buffer
    ) -> Reply | Awaitable[Reply]:
        """In line before this returns."""
        ending = self._begin_end(request)
        return Reply(ending) if isinstance(ending, EndTxnReply) else _reply_of(ending)

    def _begin_end(self, request: EndTxn) -> EndTxnReply | Awaitable[EndTxnReply]:
        deadline = trio.current_time() + request.timeout_ms / 1000
        try:
            slot = self._slots.find(request.transaction_id)
            attempt = self._put(slot, request)
        except RaftmqError as error:  # certainly nothing was put in line
            return EndTxnReply(**told(error))
        return self._ended(slot, request, attempt, deadline)

    def _put(self, slot: OwnedSlot, request: EndTxn) -> _Attempt:
        """Raises RaftmqError: it is not in line."""
        name = request.transaction_id
        now_ms, settling = self._coordinator.now_ms(), self._settling
        end = end_of(request, now_ms=now_ms, settled=settling.settled_of(name))
        for group in end.groups:
            keys = [PartitionId(one.topic_id, one.partition) for one in group.offsets]
            check_room(self._coordinator.image, group.group, keys)
        attempt = _Attempt(end, now_ms, settling.settled_count)
        slot.transactions.put(attempt.waiting.entry)
        return attempt

    async def _ended(
        self, slot: OwnedSlot, request: EndTxn, attempt: _Attempt, deadline: float
    ) -> EndTxnReply:
        """
        1. Too many commits of the id are not settled: again, once there is room.
        2. Refused, or not known.
        3. Decided; a client that wants to read its records waits until they can be read.
        """
        name = request.transaction_id
        outcome = await attempt.wait(slot, deadline)
        while _lacks_room(outcome):  # case 1
            if not await self._settling.wait_room(slot, name, attempt.settled, deadline):
                break
            try:
                attempt = self._put(slot, request)
            except RaftmqError as error:  # the slot is lost, or the line is full
                return EndTxnReply(**told(error))
            outcome = await attempt.wait(slot, deadline)
        reply = reply_to_end(outcome)
        if reply.error:  # case 2
            return reply
        if not reply.is_repeated:
            self._decided[_word(reply)] += 1
        if not (request.wait_settled and reply.is_committed):
            return reply
        return await self._settled(slot, request, reply, deadline)  # case 3

    async def _settled(
        self, slot: OwnedSlot, request: EndTxn, reply: EndTxnReply, deadline: float
    ) -> EndTxnReply:
        name, version = request.transaction_id, request.transaction_version
        # Of a version that was committed before it is not known which transaction that was.
        if reply.is_repeated and version != ABSENT:
            waiting = self._settling.wait_all_settled(slot, name, deadline, version=version)
        else:
            transaction = (request.producer_id, request.producer_epoch)
            waiting = self._settling.wait_settled(slot, name, transaction, deadline)
        return replace(reply, is_settled=await waiting)

    # Forget

    async def forget(
        self, _context: RequestContext, request: ForgetTransaction, _payload: Buffer
    ) -> Reply:
        began_at, seconds = trio.current_time(), request.timeout_ms / 1000
        deadline, name = began_at + seconds, request.transaction_id
        try:
            slot = self._slots.find(name)
            # Most are settled by asking; what is left then is refused, in time.
            if not request.with_unsettled:
                await self._settling.wait_all_settled(slot, name, began_at + seconds / 2)
            decide = partial(self._forget_command, slot, request)
            waiting = PendingEntry(partial(Decision, decide))
            slot.transactions.put(waiting.entry)
        except RaftmqError as error:  # certainly nothing was put in line
            return Reply(ForgetTransactionReply(**told(error)))
        outcome = await waiting.wait(slot.transactions, deadline)
        if isinstance(outcome, RaftmqError):
            return Reply(ForgetTransactionReply(**told(outcome)))
        return Reply(ForgetTransactionReply())

    def _forget_command(
        self, slot: OwnedSlot, request: ForgetTransaction, image: MetadataImage
    ) -> DeleteTransactions:
        """The image shows all that was in line before.

        Raises:
            UnknownTransaction: there is no such id.
            InvalidTransaction: commits of it are not settled.
        """
        name = request.transaction_id
        state = image.transactions.get(name)
        if state is None:
            raise UnknownTransaction(_unknown(name))
        unsettled = self._settling.unsettled_count(name, state)
        if unsettled and not request.with_unsettled:
            raise InvalidTransaction(
                f"transaction {name}: {unsettled} commits are not settled yet, and would be torn:"
                " wait until the leaders of their partitions are back"
            )
        seen = (TransactionSeen(name, state.changed_at_ms),)
        # What leaders have called settled may go, though the metadata still list it.
        return DeleteTransactions(
            slot.slot, slot.slot_epoch, seen, with_unsettled=bool(state.settling)
        )

    # Describe and list

    def describe(
        self, _context: RequestContext, request: DescribeTransactions, _payload: Buffer
    ) -> Reply:
        image, told_rows, room = self._coordinator.image, [], PARTITIONS_TOLD_MAX
        for name in request.transaction_ids:
            state = image.transactions.get(name)
            if state is None:
                error = UnknownTransaction(_unknown(name))
                told_rows.append(TransactionDescribed(name, **told(error)))
                continue
            listed = {each: None for commit in state.settling for each in commit.partitions}
            partitions = [TopicPartition(*each) for each in listed]
            partitions = partitions[: min(room, TRANSACTION_PARTITIONS_MAX)]
            room -= len(partitions)
            told_rows.append(_described(name, state, tuple(partitions)))
        return Reply(DescribeTransactionsReply(tuple(told_rows)))

    async def list(
        self, _context: RequestContext, request: ListTransactions, _payload: Buffer
    ) -> Reply:
        rows = self._coordinator.image.transactions
        found: list[str] = []
        for at, (name, state) in enumerate(rows.items(), 1):
            if name > request.after and (state.settling or not request.only_unsettled):
                found.append(name)
            if not at % SLICE:  # 100,000 of them would hold up the loop
                found = nsmallest(DESCRIBED_MAX + 1, found)
                await trio.lowlevel.checkpoint()
        found = nsmallest(DESCRIBED_MAX + 1, found)
        page = found[:DESCRIBED_MAX]
        return Reply(
            ListTransactionsReply(
                tuple(_described(name, rows[name]) for name in page),
                page[-1] if len(found) > len(page) else "",
            )
        )


async def _reply_of(ending: Awaitable[EndTxnReply]) -> Reply:
    return Reply(await ending)


def _lacks_room(outcome: EndOutcome | RaftmqError) -> bool:
    is_known = not isinstance(outcome, RaftmqError)
    return is_known and outcome.code == ErrorCode.CONCURRENT_TRANSACTIONS


def _unknown(name: str) -> str:
    return (
        f"there is no transaction id {name!r}: it was never opened, or has rested for so long that "
        "it is forgotten; `raftmq transaction list` shows those that there are"
    )


def _word(reply: EndTxnReply) -> str:
    """In the log: "committed", or why it was aborted."""
    return (
        "committed" if reply.is_committed else f"aborted_{AbortReason(reply.reason).name.lower()}"
    )


def _described(
    name: str, state: TransactionState, unsettled_partitions: tuple[TopicPartition, ...] = ()
) -> TransactionDescribed:
    last = state.last
    facts: dict[str, Any] = {}
    if last is not None:
        facts = {
            "last_producer_id": last.producer_id,
            "last_epoch": last.producer_epoch,
            "last_is_committed": last.is_committed,
            "last_reason": last.reason,
        }
    if state.shared is not None:
        facts |= {
            "lineage": state.shared.lineage,
            "open_version": state.shared.open_version,
            "joined": state.shared.joined,
        }
    producer_id, producer_epoch = present_of(state)
    return TransactionDescribed(
        name,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=state.timeout_ms,
        is_ephemeral=state.is_ephemeral,
        last_version=state.last_version,
        last_count=state.last_count,
        unsettled=len(state.settling),
        unsettled_partitions=unsettled_partitions,
        changed_at_ms=state.changed_at_ms,
        **facts,
    )


class _Attempt:
    """An end in line.

    Attributes:
        settled: `Settling.settled_count` then: later ones make room that it did not have.
    """

    def __init__(self, end: TransactionEnd, changed_at_ms: int, settled: int) -> None:
        self._end, self.settled = end, settled
        self.waiting = PendingEntry(partial(EndEntry, end, changed_at_ms))

    async def wait(self, slot: OwnedSlot, deadline: float) -> EndOutcome | RaftmqError:
        outcome = await self.waiting.wait(slot.transactions, deadline)
        if isinstance(outcome, RaftmqError):
            return outcome
        assert isinstance(outcome, TransactionsEnded), f"{outcome} to an end"
        return outcome_of_end(self._end, outcome)
