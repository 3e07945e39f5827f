"""JoinTransaction: members of shared transactions, batched into commands.

Owns these requests. The tasks of a microbatch join at about the same time: what is in line together
is one command. A client whose wait ends without a number asks again, and gets another one: numbers
under which nothing is written do no harm.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio
from msgspec.structs import replace

from raftmq.broker.groups.batches import SharedEntry
from raftmq.broker.groups.checks import told
from raftmq.broker.groups.pipeline import PendingEntry
from raftmq.errors import RaftmqError
from raftmq.metadata.apply.transaction_checks import JOINS_MAX
from raftmq.metadata.commands import JoinTransactions, TransactionJoin, TransactionsJoined
from raftmq.rpc.reply import Reply
from raftmq.wire.bodies import clip_message
from raftmq.wire.messages.transactions import JoinTransaction, JoinTransactionReply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.broker.groups.batches import Outcome
    from raftmq.broker.groups.coordinator import OwnedSlot
    from raftmq.broker.transactions.slots import TransactionSlots
    from raftmq.metadata.commands import AnyResult
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.server import Handlers
    from raftmq.wire.batch.header import Buffer

JOIN_BYTES = 60  # estimate of one in a command, without its texts
TOGETHER_MAX = 1_000  # members that join a version by one command


class JoinRequests:
    def __init__(self, slots: TransactionSlots) -> None:
        self._slots = slots

    def handlers(self) -> Handlers:
        return {JoinTransaction: self.join}

    def join(
        self, _context: RequestContext, request: JoinTransaction, _payload: Buffer
    ) -> Reply | Awaitable[Reply]:
        """In line before this returns."""
        deadline = trio.current_time() + request.timeout_ms / 1000
        try:
            slot = self._slots.find(request.transaction_id)
            self._slots.check_open(request.transaction_id, request.transaction_timeout_ms)
            join, now_ms = _join_of(request), self._slots.coordinator.now_ms()
            waiting = PendingEntry(partial(JoinEntry, join, now_ms))
            slot.transactions.put(waiting.entry)
        except RaftmqError as error:  # certainly nothing was put in line
            return Reply(JoinTransactionReply(**told(error)))
        return _joined(slot, waiting, deadline)


async def _joined(slot: OwnedSlot, waiting: PendingEntry, deadline: float) -> Reply:
    outcome = await waiting.wait(slot.transactions, deadline)
    if isinstance(outcome, RaftmqError):
        return Reply(JoinTransactionReply(**told(outcome)))
    assert isinstance(outcome, TransactionsJoined), f"{outcome} to a join"
    (joined,) = outcome.outcomes
    if joined.code:
        return Reply(JoinTransactionReply(joined.code, clip_message(joined.message)))
    return Reply(
        JoinTransactionReply(
            is_done=joined.is_done,
            count=joined.count,
            block=joined.block,
            number=joined.number,
            transaction_timeout_ms=joined.timeout_ms,
        )
    )


def _join_of(request: JoinTransaction) -> TransactionJoin:
    return TransactionJoin(
        request.transaction_id,
        request.lineage,
        request.transaction_version,
        request.transaction_timeout_ms,
        request.is_ephemeral,
    )


# -- Batches --------------------------------------------------------------------------------------


class JoinEntry(SharedEntry):
    """One member. Its part of the result has one outcome."""

    __slots__ = ("changed_at_ms", "join")

    def __init__(
        self, join: TransactionJoin, changed_at_ms: int, tell: Callable[[Outcome], None]
    ) -> None:
        texts = join.transaction_id.encode(), join.lineage.encode()
        super().__init__(tell, JOIN_BYTES + sum(map(len, texts)))
        self.join, self.changed_at_ms = join, changed_at_ms

    def new_batch(self) -> JoinBatch:
        return JoinBatch()


class JoinBatch:
    """Joins that share one command: members of one version are one join of it. All together are far
    below the largest command.
    """

    def __init__(self) -> None:
        self._wanted: dict[TransactionJoin, dict[JoinEntry, int]] = {}
        self._changed_at_ms = 0

    def maybe_add(self, entry: JoinEntry) -> bool:
        others = self._wanted.get(entry.join)
        if others is None:
            if len(self._wanted) >= JOINS_MAX:
                return False
            others = self._wanted[entry.join] = {}
        elif len(others) >= TOGETHER_MAX:
            return False
        others[entry] = len(others)
        self._changed_at_ms = max(self._changed_at_ms, entry.changed_at_ms)
        return True

    def command(self, *, slot: int, slot_epoch: int) -> JoinTransactions:
        joins = [replace(join, count=len(its)) for join, its in self._wanted.items()]
        return JoinTransactions(slot, slot_epoch, tuple(joins), self._changed_at_ms)

    def part_of(self, result: AnyResult, entry: JoinEntry) -> TransactionsJoined:
        assert isinstance(result, TransactionsJoined), f"{result} to joins"
        outcomes = dict(zip(self._wanted, result.outcomes, strict=True))
        outcome = outcomes[entry.join]
        if outcome.number >= 0:
            place = self._wanted[entry.join][entry]
            outcome = replace(outcome, number=outcome.number + place)
        return TransactionsJoined((outcome,))
