"""Transactions that are open for too long: the leaders that they hold up have them aborted (0038).

Owns the time of transactions: it counts from the first batch that a leader saw, by its monotonic
clock, and anew after a change of leaders. The coordinator of the transaction id decides; asking it
late or twice does no harm, as the request names one transaction for ever. It is asked again, with
pauses, until the metadata show a decision. (Kafka: the coordinator's abortTimedOutTransactions)
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import trio

from raftmq.errors import ErrorCode, NotCoordinator, RaftmqError, error_for
from raftmq.metadata.commands import NO_BROKER
from raftmq.metadata.image import slot_of
from raftmq.metadata.transactions import block_of, present_of, transaction_id_of
from raftmq.model import AbortReason
from raftmq.wire.messages.transactions import EndTxn, EndTxnReply

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from raftmq.broker.replication.replicas import Replicas
    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.quorum import MetadataQuorum
    from raftmq.partition.replica_environment import PartitionTransaction

    Ask = Callable[[int, EndTxn], Awaitable[EndTxnReply]]

logger = logging.getLogger("raftmq.broker")

LOOK_SECONDS = 0.5  # readers wait for at most the timeout and a second
ASK_SECONDS = 5.0  # for one answer: an election of the quorum takes two
# Before the coordinator is asked again: each leader that is held up asks by itself.
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 1.0, 30.0
SLICE = 5_000  # transactions passed over in one step of the loop: about 4 ms
ASKED_MAX = 100  # at a time: a client that dies may leave thousands


class OverdueTransaction(NamedTuple):
    """Of a shared one `producer_id` is the block of its members."""

    transaction_id: str
    producer_id: int
    producer_epoch: int


class TransactionDeadlines:
    """`ask`: asks a broker, which may be this one; raises RaftmqError."""

    def __init__(self, replicas: Replicas, quorum: MetadataQuorum, ask: Ask) -> None:
        self._replicas, self._quorum, self._ask_broker = replicas, quorum, ask
        self._pauses: dict[OverdueTransaction, tuple[float, float]] = {}  # how long, and until when
        self._asked: set[OverdueTransaction] = set()

    async def run(self) -> NoReturn:
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(LOOK_SECONDS)
                for transaction in await self._overdue():
                    # The others have their turn when an answer is there.
                    if len(self._asked) >= ASKED_MAX:
                        break
                    if self._is_due(transaction):
                        self._asked.add(transaction)
                        nursery.start_soon(self._ask, transaction)

    async def _overdue(self) -> list[OverdueTransaction]:
        found: dict[OverdueTransaction, None] = {}
        passed = 0
        now, image = trio.current_time(), self._quorum.image
        for key in self._replicas.open_transactions.partitions():
            if passed >= SLICE:  # each may have 5,000
                passed = 0
                await trio.lowlevel.checkpoint()
            replica = self._replicas.find(key)
            if replica is None or replica.leader is None:  # another broker's by now
                continue
            there = replica.open_transactions()
            passed += len(there)
            for one in there:
                transaction = _overdue(one, image, now)
                if transaction is None:
                    continue
                if transaction not in self._pauses and transaction not in self._asked:
                    what = "transaction is open for too long: id=%s producer_id=%d epoch=%d log=%s"
                    logger.info(what, *transaction, replica.log.name)
                found[transaction] = None
        # Decided, or not led here any more.
        self._pauses = {one: it for one, it in self._pauses.items() if one in found}
        return list(found)

    def _is_due(self, transaction: OverdueTransaction) -> bool:
        _, until = self._pauses.get(transaction, (0.0, float("-inf")))
        return transaction not in self._asked and trio.current_time() >= until

    async def _ask(self, transaction: OverdueTransaction) -> None:
        try:
            await self._end(transaction)
        except RaftmqError as error:  # asked again after the pause
            what = "not aborted yet: id=%s producer_id=%d epoch=%d reason=%s"
            logger.info(what, *transaction, error)
        finally:
            self._asked.discard(transaction)
            pause, _ = self._pauses.get(transaction, (PAUSE_SECONDS_MIN / 2, 0.0))
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
            self._pauses[transaction] = pause, trio.current_time() + pause

    async def _end(self, transaction: OverdueTransaction) -> None:
        """Raises RaftmqError: it is not known to be decided."""
        request = EndTxn(
            *transaction,
            is_commit=False,
            reason=AbortReason.TIMEOUT,
            timeout_ms=int(ASK_SECONDS * 1000),
        )
        slot = self._quorum.image.slots[slot_of(transaction.transaction_id)]
        if slot.broker_id == NO_BROKER:
            raise NotCoordinator(f"transaction {transaction.transaction_id} has no coordinator")
        reply = await self._ask_broker(slot.broker_id, request)  # an answer, or its time is over
        if reply.error != ErrorCode.NONE:
            raise error_for(reply.error, reply.message)


def _overdue(
    one: PartitionTransaction, image: MetadataImage, now: float
) -> OverdueTransaction | None:
    transaction_id = transaction_id_of(image, one.producer_id)
    if transaction_id is None:  # decided, or not known here yet
        return None
    state = image.transactions[transaction_id]
    # A version is aborted as a whole, whichever of its members takes too long.
    is_single = state.shared is None
    producer_id = one.producer_id if is_single else block_of(one.producer_id)
    if present_of(state) != (producer_id, one.producer_epoch):
        return None  # as above
    if now < one.since + state.timeout_ms / 1000:
        return None
    return OverdueTransaction(transaction_id, producer_id, one.producer_epoch)
