"""A program that commits and aborts one transaction after the other, and what must come of them.

Owns the load, in a thread of this process, and the verdict: each transaction writes its number into
all partitions of two topics, and an offset of a group: all of it is there afterwards, or nothing.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

import trio

import raftmq
from raftmq.errors import OutcomeUnknown, RaftmqError, TransactionAborted
from tests.cluster.load_thread import LoadThread

if TYPE_CHECKING:
    from raftmq.client.client import Client

TOPICS = ("left", "right")
PARTITIONS = 2
PLACES = [(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]
GROUP, PROGRESS = "progress", ("left", 0)
TIMEOUT_MS = 20_000
ABORTED = 0.25  # of the transactions, by the program
AGAIN_SECONDS = 0.1
LOOK_SECONDS = 0.05
PATIENCE_SECONDS = 60


class TransactionLoad(LoadThread):
    """Attributes:
    outcomes: "committed", "aborted" or "unknown", by the number of the transaction.
    """

    def __init__(self, bootstrap: str, *, seed: int, durability: str = "fsync") -> None:
        super().__init__(is_working=True)
        self._bootstrap, self._random = bootstrap, Random(seed)
        self._config = {"min.insync.replicas": 2, "durability": durability}
        self.outcomes: dict[int, str] = {}

    async def _run_load(self) -> None:
        async with raftmq.connect(self._bootstrap) as mq:
            for topic in TOPICS:
                await mq.admin.create_topic(
                    topic, partitions=PARTITIONS, replication_factor=3, config=self._config
                )
            async with mq.producer(
                transaction_id="writer", transaction_timeout_ms=TIMEOUT_MS
            ) as producer:
                await self._write(producer)

    async def _write(self, producer: Any) -> None:
        for number in count():
            self._in_flight = 0
            while not self._is_working:  # noqa: ASYNC110  # another thread sets it
                await trio.sleep(LOOK_SECONDS)
            self._in_flight = 1
            try:
                self.outcomes[number] = await self._transact(producer, number)
            except RaftmqError:  # it has not begun
                await trio.sleep(AGAIN_SECONDS)

    async def _transact(self, producer: Any, number: int) -> str:
        tx = producer.transaction()
        await tx.__aenter__()
        try:
            for topic, partition in PLACES:
                await tx.enqueue(topic, b"%d" % number, partition=partition)
            tx.commit_offsets({PROGRESS: number}, group=GROUP)
            if self._random.random() < ABORTED:
                await producer.flush()
                await tx.abort()
            await tx.__aexit__(None, None, None)
        except OutcomeUnknown:
            return await _resolved(tx)
        except TransactionAborted as error:
            await tx.__aexit__(type(error), error, None)
            return "aborted"
        except RaftmqError:  # `abort` without an answer: nothing of it counts
            return "aborted"
        return tx.outcome or "unknown"


async def _resolved(tx: Any) -> str:
    with trio.move_on_after(PATIENCE_SECONDS):
        while tx.outcome is None and tx.state != "closed":
            with suppress(OutcomeUnknown):
                await tx.resolve()
            await trio.sleep(AGAIN_SECONDS)
    return tx.outcome or "unknown"


async def find_faults(bootstrap: str, outcomes: dict[int, str]) -> list[str]:
    """What readers of committed records see otherwise than the program was told."""
    async with raftmq.connect(bootstrap) as mq:
        found = {place: await _read(mq, place) for place in PLACES}
        faults = [
            f"{place}: out of order" for place in PLACES if found[place] != sorted(found[place])
        ]
        times = Counter(number for numbers in found.values() for number in numbers)
        for number in sorted(times.keys() | outcomes.keys()):
            allowed = {"committed": (len(PLACES),), "unknown": (0, len(PLACES))}
            outcome = outcomes.get(number, "never begun")
            if times[number] not in allowed.get(outcome, (0,)):
                faults.append(f"{number}: {outcome}, and read {times[number]} times")
        newest = max(times, default=None)
        if newest is not None:
            offset = (await mq.admin.group_offsets(GROUP))[PROGRESS].offset
            if offset != newest:
                faults.append(f"the group is at {offset}, the newest transaction is {newest}")
    return faults


async def _read(mq: Client, place: tuple[str, int]) -> list[int]:
    """All of it, once nothing is open there."""
    topic, partition = place
    found: list[int] = []
    with trio.fail_after(PATIENCE_SECONDS):
        while await mq.admin.open_transactions(topic):  # noqa: ASYNC110  # it is asked
            await trio.sleep(LOOK_SECONDS)
        end = (await mq.admin.offsets(topic, "latest"))[partition] or 0
        async with mq.consumer(assign=[place], start="earliest") as consumer:
            batches = consumer.batches()
            while (consumer.position(*place) or 0) < end:
                with trio.move_on_after(LOOK_SECONDS):
                    found += map(int, (await anext(batches)).values)
    return found
