"""200 tasks with a new producer each, every second, beside 1,000 plain ones, in one partition.

As a job of micro-batches writes: each task opens an id that nobody opens again, sends one record in
a transaction and commits it. A partition knows 10,000 plain producers; those of transactions must
not drive them out, nor be refused for them. Each plain producer sends a record every ten seconds.
What is counted is refusals: there must be none. Requests are bare, as the SDK's producers would
take this process all of its time.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import trio

from benchmarks.broker_parts.cluster import NODES, open_brokers, open_client
from benchmarks.broker_parts.load import Load, Meter
from benchmarks.broker_parts.topics import make_topic
from benchmarks.quorum_parts.figures import percentile, rounded_ms
from benchmarks.transaction_parts.raw_ids import TIMEOUT_MS, TIMEOUT_SECONDS, RawId
from raftmq.errors import RaftmqError
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.bodies import ACKS_ALL, TopicPartition
from raftmq.wire.messages.produce import Produce, ProducePartition
from raftmq.wire.messages.producers import InitProducerId

if TYPE_CHECKING:
    import argparse

    from benchmarks.report import Report
    from raftmq.client.routing.cluster import Cluster

TASKS, PLAIN = 200, 1_000
SECONDS, SECONDS_MIN = 600.0, 20.0
PLAIN_PERIOD_SECONDS = 10.0
LOOK_SECONDS = 0.5
VALUE = b"x" * 100


class Writers:
    """Attributes:
    refused: requests of either kind that brokers have refused, by error.
    """

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        self.refused: Counter[str] = Counter()
        self.transactions: list[float] = []  # seconds of each
        self.plain: list[float] = []

    async def transact(self, name: str) -> None:
        began = trio.current_time()
        try:
            one = RawId(self._cluster, name)
            await one.open(is_ephemeral=True)
            partition = await self._append(one.producer_id, one.producer_epoch, is_plain=False)
            await one.commit((partition,))
        except RaftmqError as error:
            self.refused[f"transaction: {error!r:.80}"] += 1
        else:
            self.transactions.append(trio.current_time() - began)

    async def write_plain(self, number: int) -> None:
        """For ever, one record in each period; producers begin one after the other."""
        await trio.sleep(number / PLAIN * PLAIN_PERIOD_SECONDS)
        deadline = trio.current_time() + TIMEOUT_SECONDS
        answer = await self._cluster.ask(NODES[0], InitProducerId(TIMEOUT_MS), deadline=deadline)
        sequence = 0
        while True:
            began = trio.current_time()
            try:
                await self._append(answer.body.producer_id, 0, sequence, is_plain=True)
                sequence += 1
                self.plain.append(trio.current_time() - began)
            except RaftmqError as error:
                self.refused[f"plain: {error!r:.80}"] += 1
            await trio.sleep_until(began + PLAIN_PERIOD_SECONDS)

    async def _append(
        self, producer_id: int, epoch: int, sequence: int = 0, *, is_plain: bool
    ) -> TopicPartition:
        """One attempt: the SDK would try again after a refusal, and hide it."""
        data = encode_batch(
            values=[VALUE],
            timestamp=time.time_ns() // 1_000_000,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=not is_plain,
        )
        place = self._cluster.routes.place(self._topic, 0)
        wanted = ProducePartition(place.topic_id, 0, place.leader_epoch, len(data))
        body = Produce(ACKS_ALL, TIMEOUT_MS, (wanted,))
        deadline = trio.current_time() + TIMEOUT_SECONDS
        await self._cluster.ask_leader(place, body, (data,), deadline=deadline)
        return TopicPartition(place.topic_id, 0)


async def bench_shelf(report: Report, options: argparse.Namespace) -> None:
    seconds = max(SECONDS_MIN, SECONDS * options.scale)
    async with open_brokers(options.root) as brokers, open_client(brokers) as cluster:
        topic = await make_topic(cluster, partitions=1, durability="fsync")
        writers = Writers(cluster, topic)
        before = brokers.usage()
        load, meter = Load(seconds), Meter(brokers)
        async with trio.open_nursery() as plain:
            for number in range(PLAIN):
                plain.start_soon(writers.write_plain, number)
            batches = await run_micro_batches(writers, seconds)
            plain.cancel_scope.cancel()
        meter.note(load)
        tell(report, writers, load, batches)
        growth = [
            after.resident_mib - before[node].resident_mib
            for node, after in brokers.usage().items()
        ]
        report.row(micro_batches=batches, memory_grown_mib=round(max(growth), 1))


async def run_micro_batches(writers: Writers, seconds: float) -> int:
    """How many: one a second, or one after the other where they take longer."""
    began, number = trio.current_time(), 0
    while (now := trio.current_time()) < began + seconds:
        async with trio.open_nursery() as tasks:
            for task in range(TASKS):
                tasks.start_soon(writers.transact, f"batch-{number}-task-{task}")
        number += 1
        await trio.sleep_until(now + 1.0)
    return number


def tell(report: Report, writers: Writers, load: Load, batches: int) -> None:
    for of, times in (("transaction", writers.transactions), ("plain record", writers.plain)):
        refused = {
            what: count for what, count in writers.refused.items() if what.startswith(of.split()[0])
        }
        report.row(
            of=of,
            done=len(times),
            refused=sum(refused.values()),
            p50_ms=rounded_ms(percentile(times, 50)),
            p99_ms=rounded_ms(percentile(times, 99)),
            aim="refused 0",
        )
        for what, count in refused.items():
            print(f"{count} times {what}")  # noqa: T201  # what the figures looked like
    count = len(writers.transactions)
    report.row(
        micro_batches_s=round(batches / load.seconds, 2),
        brokers_cpu_ms=rounded_ms(load.brokers_cpu_seconds / count),
        client_cpu_ms=rounded_ms(load.client_cpu_seconds / count),
    )
