"""How members handle records exactly once: in transactions of their own, or in the SDK's loop.

Owns what of a transaction is known: each record in it ends as the transaction does. After one that
is not committed (some are aborted by their programs) the member ends, as its consumer stands behind
records without a result; the next life goes on where the group stands.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import trio

import raftmq
from jepsen_like.history.event import Type
from jepsen_like.history.record_fate import RecordFate
from jepsen_like.workloads.retry_bench import RESULTS, FailedError, result_of
from raftmq.errors import ProducerFenced, RaftmqError, TransactionAborted

if TYPE_CHECKING:
    from jepsen_like.workloads.retry_bench import Handling
    from jepsen_like.workloads.retry_member import RetryLife
    from raftmq.client.client import Client
    from raftmq.client.consumer.batch import ConsumedBatch
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.consumer.record import ConsumerRecord
    from raftmq.client.producer.producer import Producer
    from raftmq.client.transactions.transaction import Transaction

BATCH_RECORDS_MAX = 20  # of a transaction: small, for many of them
LOOP_RECORDS_MAX = 8  # of the SDK's loop: one that fails is found in three halves
ABORT_CHANCE = 1 / 100  # that a program gives up when all of a transaction is sent
POLL_SECONDS = 0.5  # without records, until it checks whether to stop
PAUSE_SECONDS = 0.3  # before what could not be sent is sent again
TIMEOUT_MS = 10_000  # what a crash leaves behind holds up readers so long

logger = logging.getLogger(__name__)

KINDS = {"committed": Type.OK, "aborted": Type.FAIL}


async def handle_exactly_once(life: RetryLife, client: Client) -> None:
    """In transactions of its own, until its life is over."""
    async with _new_consumer(life, client) as consumer:
        await _OwnTransactions(life, consumer).run(client)


async def handle_in_loop(life: RetryLife, client: Client) -> None:
    """In the SDK's loop, until its life is over."""
    async with _new_consumer(life, client) as consumer:
        await _Loop(life).run(client, consumer)


def _new_consumer(life: RetryLife, client: Client) -> Consumer:
    options = {**life.member_options(), "delivery": "exactly_once"}
    return client.consumer(*life.shared.topics, **options)


# -- In transactions of its own -------------------------------------------------------------------


class _OwnTransactions:
    def __init__(self, life: RetryLife, consumer: Consumer) -> None:
        self._life, self._consumer = life, consumer
        self._committed: dict[tuple[str, int], int | None] = {}

    async def run(self, client: Client) -> None:
        settings = self._life.shared.bench.settings
        options: dict[str, Any] = {
            "transactions": True,
            "delivery": "exactly_once",
            "transaction_timeout_ms": TIMEOUT_MS,
            "linger_ms": 0,
            "request_timeout_ms": settings.request_timeout_ms,
            "delivery_timeout_ms": settings.delivery_timeout_ms,
        }
        batches = self._consumer.batches(max_records=BATCH_RECORDS_MAX)
        async with client.producer(**options) as producer:
            is_behind = False
            while not self._life.is_over and not is_behind:
                batch = None
                with trio.move_on_after(POLL_SECONDS):
                    batch = await anext(batches)
                if batch is not None:
                    is_behind = not await self._handle(producer, batch)
                else:
                    await self._commit_rest(producer)

    async def _handle(self, producer: Producer, batch: ConsumedBatch) -> bool:
        """False: it was aborted. Raises RaftmqError: it does not count, or nobody knows."""
        life = self._life
        handlings: list[Handling] = []
        tx = producer.transaction()
        try:
            async with tx:
                for record in batch:
                    handling = life.notes.begin(record)
                    handlings.append(handling)
                    await life.take_time()
                    await _end_in(tx, record, handling)
                tx.commit_offsets(batch)
                if life.random.random() < ABORT_CHANCE:
                    await tx.abort()
        finally:
            for handling in handlings:
                _tell_end(life, handling, tx)
        return tx.outcome == "committed"

    async def _commit_rest(self, producer: Producer) -> None:
        """What reading has passed over behind the last records, as markers: else a group that has
        read all would have a lag.
        """
        consumer = self._consumer
        at = {key: consumer.position(*key) for key in consumer.assignment}
        if at != self._committed:
            async with producer.transaction() as tx:
                tx.commit_offsets(consumer)
            self._committed = at


async def _end_in(tx: Transaction, record: ConsumerRecord, handling: Handling) -> None:
    error = FailedError(handling.fate.value)
    if handling.is_good:
        await tx.enqueue(RESULTS, result_of(record))
    elif handling.fate is RecordFate.REJECTED:
        await tx.reject(record, error)
    else:
        await tx.retry(record, error)


def _tell_end(life: RetryLife, handling: Handling, tx: Transaction) -> None:
    life.notes.end(handling, KINDS.get(tx.outcome or "", Type.INFO))


# -- In the SDK's loop ----------------------------------------------------------------------------


class _Loop:
    """What fails raises, and the SDK moves it. What became of the others is known once their
    transaction has ended.
    """

    def __init__(self, life: RetryLife) -> None:
        self._life = life
        self._under_way: list[tuple[Transaction, Handling]] = []

    async def run(self, client: Client, consumer: Consumer) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_with, scope)
                try:
                    await raftmq.exactly_once(
                        client,
                        consumer,
                        self._transform,
                        max_records=LOOP_RECORDS_MAX,
                        on_poison="retry",
                    )
                finally:
                    self._settle()

    async def _end_with(self, scope: trio.CancelScope) -> None:
        await self._life.over.wait()
        scope.cancel()

    async def _transform(self, batch: ConsumedBatch, tx: Transaction) -> None:
        self._settle()
        for record in batch:
            handling = self._life.notes.begin(record)
            await self._life.take_time()
            if not handling.is_good and handling.fate is not RecordFate.REJECTED:
                self._life.notes.end(handling, Type.INFO)
                raise FailedError(handling.fate.value)
            self._under_way.append((tx, handling))
            await self._insist(tx, record, handling)

    async def _insist(self, tx: Transaction, record: ConsumerRecord, handling: Handling) -> None:
        """Until it is sent, as what is raised is an attempt, also where only a topic of dead
        letters cannot be made. Raises TransactionAborted, ProducerFenced.
        """
        while True:
            try:
                return await _end_in(tx, record, handling)
            except (TransactionAborted, ProducerFenced):
                raise
            except RaftmqError as error:
                logger.info("transform: name=%s reason=%s", self._life.name, error)
                await trio.sleep(PAUSE_SECONDS)

    def _settle(self) -> None:
        """Tell of those whose transactions have ended."""
        over = [one for one in self._under_way if one[0].outcome is not None]
        self._under_way = [one for one in self._under_way if one[0].outcome is None]
        for tx, handling in over:
            _tell_end(self._life, handling, tx)
