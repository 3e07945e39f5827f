"""200 tasks with a new producer each, every second, beside 1,000 plain ones, in one partition.

As a job of micro-batches writes: each is a version of a shared transaction, of which each task is a
member that sends one record; then the driver commits the version. A partition knows 10,000 plain
producers; members must not drive them out, nor be refused for them. Each plain producer sends a
record every ten seconds. What is counted is refusals: there must be none. Requests are bare, as the
SDK's producers would take this process all of its time.
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
from benchmarks.transaction_parts.raw_ids import TIMEOUT_MS, TIMEOUT_SECONDS
from raftmq.client.group.coordinator import CoordinatorLookup, checked
from raftmq.errors import RaftmqError
from raftmq.wire.batch.records import encode_batch
from raftmq.wire.bodies import ACKS_ALL, TopicPartition
from raftmq.wire.messages.produce import Produce, ProducePartition
from raftmq.wire.messages.producers import InitProducerId
from raftmq.wire.messages.transactions import EndTxn, JoinTransaction

if TYPE_CHECKING:
    import argparse

    from benchmarks.report import Report
    from raftmq.client.routing.cluster import Cluster
    from raftmq.rpc.reply import Answer
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.transactions import JoinTransactionReply

TASKS, PLAIN = 200, 1_000
SECONDS, SECONDS_MIN = 600.0, 20.0
PLAIN_PERIOD_SECONDS = 10.0
LOOK_SECONDS = 0.5
VALUE = b"x" * 100
ID = "shelf"


class Writers:
    """Attributes:
    refused: requests of either kind that brokers have refused, by error.
    """

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        self.refused: Counter[str] = Counter()
        self.members: list[float] = []  # seconds of each
        self.versions: list[float] = []  # of each commit
        self.plain: list[float] = []
        self._coordinator = CoordinatorLookup(cluster, ID)

    async def write_version(self, version: int) -> None:
        joined: list[JoinTransactionReply] = []
        async with trio.open_nursery() as tasks:
            for _ in range(TASKS):
                tasks.start_soon(self._write_member, version, joined)
        began = trio.current_time()
        blocks = {one.block for one in joined}
        partition = TopicPartition(self._cluster.routes.place(self._topic, 0).topic_id, 0)
        body = EndTxn(
            ID,
            min(blocks),
            0,
            is_commit=True,
            transaction_version=version,
            count=len(joined),
            partitions=(partition,),
            lineage="",
            numbers=sum(1 << one.number for one in joined).to_bytes(TASKS // 8 + 1, "little"),
        )
        try:
            checked((await self._ask(body)).body)
        except RaftmqError as error:
            self.refused[f"version: {error!r:.80}"] += 1
        else:
            self.versions.append(trio.current_time() - began)

    async def _write_member(self, version: int, joined: list[JoinTransactionReply]) -> None:
        began = trio.current_time()
        try:
            reply = checked((await self._ask(JoinTransaction(ID, "", version))).body)
            await self._append(reply.block + reply.number, 0, is_plain=False)
        except RaftmqError as error:
            self.refused[f"member: {error!r:.80}"] += 1
        else:
            joined.append(reply)
            self.members.append(trio.current_time() - began)

    async def _ask(self, body: Request) -> Answer:
        deadline = trio.current_time() + TIMEOUT_SECONDS
        return await self._coordinator.ask_once(body, deadline=deadline)

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
    ) -> None:
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
        await writers.write_version(number)
        number += 1
        await trio.sleep_until(now + 1.0)
    return number


def tell(report: Report, writers: Writers, load: Load, batches: int) -> None:
    for of, times in (
        ("member", writers.members), ("version", writers.versions), ("plain record", writers.plain)
    ):  # fmt: skip
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
    count = len(writers.members)
    report.row(
        micro_batches_s=round(batches / load.seconds, 2),
        brokers_cpu_ms=rounded_ms(load.brokers_cpu_seconds / count),
        client_cpu_ms=rounded_ms(load.client_cpu_seconds / count),
    )
