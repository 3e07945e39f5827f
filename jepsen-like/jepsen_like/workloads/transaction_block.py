"""The blocks of one owner of a transaction id: what each does, and how it is recorded.

Owns the outcome of each block as its program knows it, and where a member of the group goes on
after a block that does not count. A record that could not be sent fails its whole block in the end:
the program goes on all the same, and asks for the commit.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import trio

from jepsen_like.history.event import ACKS_ALL, Type
from jepsen_like.workloads.generator import Send
from jepsen_like.workloads.keys import decode_value, key_of, split_key
from jepsen_like.workloads.polling import collect
from jepsen_like.workloads.sending import error_text, outcome_of, results_of
from jepsen_like.workloads.transaction_bench import GROUP
from jepsen_like.workloads.transaction_plan import Copy, End, Poll
from raftmq.errors import OutcomeUnknown, ProducerFenced, RaftmqError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from random import Random

    from jepsen_like.workloads.bench import Bench
    from jepsen_like.workloads.mortal_network import MortalNetwork
    from jepsen_like.workloads.transaction_bench import TransactionBench
    from jepsen_like.workloads.transaction_plan import Block, Step
    from raftmq.client.consumer.batch import ConsumedBatch
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.group.effects import Rebalance
    from raftmq.client.producer.producer import Producer
    from raftmq.client.transactions.transaction import Transaction

POLL_SECONDS = 0.05  # of a reader that goes along
COPY_SECONDS = 1.0  # for the group to hand something out
COPY_RECORDS_MAX = 50
RESOLVE_CHANCE = 0.5  # that a program asks at once; else the next block finds out
READER = "reader"  # its session: nothing sets its position

logger = logging.getLogger(__name__)


class Notes:
    """What one process does, until it crashes: its tasks may run on until they are cancelled."""

    def __init__(self, bench: Bench, network: MortalNetwork) -> None:
        self._recorder, self._network = bench.recorder, network
        self._process = next(bench.numbers)

    def invoke(self, f: str, value: object = None) -> None:
        self.record(Type.INVOKE, f, value)

    def record(
        self, kind: Type, f: str, value: object = None, *, error: RaftmqError | None = None
    ) -> None:
        if not self._network.is_dead:
            text = None if error is None else error_text(error)
            self._recorder.record(self._process, kind, f, value, error=text)


class Copies:
    """What a member was handed out in the present transaction.

    Attributes:
        session: another number whenever the position may have been set.
        firsts: by key, the first offset; without partitions that were given up since, which others
            may have read further.
        ends: by key, what to commit.
    """

    def __init__(self) -> None:
        self.session = 0
        self.firsts: dict[str, int] = {}
        self.ends: dict[str, int] = {}

    def begin(self) -> None:
        self.firsts, self.ends = {}, {}

    def on_batch(self, key: str, offsets: Sequence[int]) -> None:
        self.firsts.setdefault(key, offsets[0])
        self.ends[key] = offsets[-1] + 1

    def on_rebalance(self, rebalance: Rebalance) -> None:
        self.session += 1
        for topic, partition in (*rebalance.revoked, *rebalance.lost):
            self.firsts.pop(key_of(topic, partition), None)

    def seek_back(self, consumer: Consumer) -> None:
        """To where the transaction began: it has not happened."""
        self.session += 1
        for key, offset in self.firsts.items():
            topic, partition = split_key(key)
            if (topic, partition) in consumer.assignment:
                consumer.seek(topic, partition, offset=offset)

    def told(self) -> list[list[object]]:
        return [[GROUP, key, end] for key, end in self.ends.items()]


class BlockRun:
    """The blocks of an owner, one at a time.

    Args:
        name: the transaction id.
        before_end: called with each block when it has taken its steps, for what its end needs.
    """

    def __init__(
        self,
        shared: TransactionBench,
        name: str,
        notes: Notes,
        copies: Copies,
        *,
        producer: Producer,
        consumer: Consumer,
        before_end: Callable[[Block], Awaitable[None]],
        random: Random,
    ) -> None:
        self._shared, self._bench, self._name = shared, shared.bench, name
        self._notes, self._copies, self._random = notes, copies, random
        self._producer, self._consumer, self._before_end = producer, consumer, before_end
        self._batches = consumer.batches(max_records=COPY_RECORDS_MAX)
        self._number = -1
        self._has_begun = self._is_ending = False
        self._in_doubt: tuple[int, Transaction] | None = None

    async def run(self, block: Block, version: int | None) -> None:
        """
        Raises:
            RaftmqError: this owner cannot go on.
        """
        self._has_begun = self._is_ending = False
        self._copies.begin()
        tx: Transaction = self._producer.transaction(version=version)
        try:
            async with tx:
                self._begin(tx, version)
                if not tx.is_done:
                    await self._fill(tx, block)
            if self._is_ending and block.end is not End.ABORT:
                self._notes.record(Type.OK, "end", {"outcome": "committed"})
            if block.end is not End.ABORT:
                self._shared.on_committed(self._name, version)
            elif self._copies.firsts:
                self._copies.seek_back(self._consumer)
        except RaftmqError as error:
            await self._on_error(tx, error)

    def _begin(self, tx: Transaction, version: int | None) -> None:
        self._tell_doubt()
        self._number, self._has_begun = next(self._shared.numbers), True
        told = {"tx": self._number, "version": version, "is_done": tx.is_done}
        self._notes.invoke("begin", told)
        self._notes.record(Type.OK, "begin", told)

    async def _fill(self, tx: Transaction, block: Block) -> None:
        for step in block.steps:
            await self._step(tx, step)
        await self._before_end(block)
        for send in block.late:
            await self._step(tx, send)
        is_commit = block.end is not End.ABORT
        offsets = self._copies.told() if is_commit else []
        self._is_ending = True
        asked = {"tx": self._number, "commit": is_commit, "offsets": offsets}
        self._notes.invoke("end", asked)
        if not is_commit:
            await tx.abort()
            self._notes.record(Type.OK, "end", {"outcome": "aborted"})

    # -- steps -----------------------------------------------------------------------------

    async def _step(self, tx: Transaction, step: Step) -> None:
        match step:
            case Poll():
                await self._poll()
            case Copy(key=key):
                await self._copy(tx, key)
            case _:
                await self._send(tx, step.key, step.values)

    async def _send(
        self, tx: Transaction, key: str, count: int, of: list[list[object]] | None = None
    ) -> None:
        """An append that failed makes the whole transaction fail at its end, if the SDK is right:
        the program goes on, and asks for the commit.
        """
        operation = Send(key, self._bench.keys.take_steadily(key, count))
        asked: dict[str, Any] = {"key": key, "acks": ACKS_ALL, "values": operation.values}
        asked |= {"is_idempotent": True, "tx": self._number, **({"of": of} if of else {})}
        self._notes.invoke("send", asked)
        outcome = outcome_of(await results_of(self._bench, tx, operation))
        # What was refused does not count; whether it stands in the log is not known.
        kind = Type.OK if outcome.type is Type.OK else Type.INFO
        told = {**asked, "offsets": outcome.offsets, "is_repeated": False}
        self._record_send(kind, told, outcome.error)
        self._bench.seen.on_sent(key, outcome.offsets)

    def _record_send(self, kind: Type, told: dict[str, Any], error: str | None) -> None:
        self._notes.record(kind, "send", told)
        if error:
            logger.info("send: tx=%d reason=%s", self._number, error)

    async def _poll(self) -> None:
        self._notes.invoke("poll", {"tx": self._number})
        polled = await collect(self._consumer, seconds=POLL_SECONDS, records_max=COPY_RECORDS_MAX)
        told = {"records": list(polled.records.items()), "session": READER}
        is_bad = polled.error is not None and not polled.count
        self._notes.record(Type.FAIL if is_bad else Type.OK, "poll", told, error=polled.error)
        if polled.error is not None:
            raise polled.error

    async def _copy(self, tx: Transaction, key: str) -> None:
        self._notes.invoke("poll", {"tx": self._number})
        batch: ConsumedBatch | None = None
        try:
            with trio.move_on_after(COPY_SECONDS):
                batch = await anext(self._batches)
        except RaftmqError as error:
            self._notes.record(Type.FAIL, "poll", error=error)
            raise
        records = [] if batch is None else [_records(batch)]
        told = {"records": records, "session": f"copy {self._copies.session}"}
        self._notes.record(Type.OK, "poll", told)
        if batch is not None:
            source = key_of(batch.topic, batch.partition)
            self._copies.on_batch(source, batch.offsets)
            of: list[list[object]] = [[GROUP, source, offset] for offset in batch.offsets]
            await self._send(tx, key, len(of), of)
            tx.commit_offsets(batch)

    # -- what may come of it ---------------------------------------------------------------

    async def _on_error(self, tx: Transaction, error: RaftmqError) -> None:
        """
        1. It never began.
        2. The program had an error within: the block was aborted by leaving it.
        3. It certainly does not count.
        4. It may count.
        """
        if not self._has_begun:  # case 1
            raise error
        if not self._is_ending:  # case 2
            asked = {"tx": self._number, "commit": False, "offsets": []}
            self._notes.invoke("end", asked)
        kind = Type.FAIL if error.definite or not self._is_ending else Type.INFO
        self._notes.record(kind, "end", error=error)
        if kind is Type.INFO:  # case 4
            await self._ask(tx)
        if isinstance(error, ProducerFenced) or (tx.outcome is None and self._copies.firsts):
            raise error  # a member does not know where to go on
        if self._copies.firsts and tx.outcome == "aborted":
            self._copies.seek_back(self._consumer)

    async def _ask(self, tx: Transaction) -> None:
        if not self._copies.firsts and self._random.random() >= RESOLVE_CHANCE:
            self._in_doubt = self._number, tx
            return
        self._notes.invoke("resolve", {"tx": self._number})
        try:
            outcome = await tx.resolve()
        except OutcomeUnknown as error:
            self._notes.record(Type.INFO, "resolve", error=error)
        else:
            self._notes.record(Type.OK, "resolve", {"outcome": outcome})

    def _tell_doubt(self) -> None:
        """To begin, the SDK has found out what became of the one before."""
        if self._in_doubt is None:
            return
        (number, tx), self._in_doubt = self._in_doubt, None
        if tx.outcome is not None:
            self._notes.invoke("resolve", {"tx": number})
            self._notes.record(Type.OK, "resolve", {"outcome": tx.outcome})


def _records(batch: ConsumedBatch) -> list[object]:
    values = map(decode_value, batch.values)
    return [key_of(batch.topic, batch.partition), list(zip(batch.offsets, values, strict=True))]
