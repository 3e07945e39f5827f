"""`raftmq bench latency`: records at a steady rate, timed until acknowledged and consumed.

A record's time counts from when it was due, not from when it could be sent: waiting for a slow one
delays the next, and that delay is measured, too (no coordinated omission). The consumer is in the
same process, so that both ends have one clock.
"""

from __future__ import annotations

import time
from functools import partial
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from raftmq.cli.benching.figures import quantiles_of
from raftmq.cli.benching.load import BenchTopic, topic_of
from raftmq.cli.terminal.progress import Progress, show_progress

if TYPE_CHECKING:
    from raftmq.cli.terminal.output import Row
    from raftmq.client.client import Client
    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.producer.batch import RecordMetadata
    from raftmq.client.producer.producer import Producer
    from raftmq.errors import RaftmqError

MARK_BYTES = 8  # random: our records among those of other producers; the record's number follows
NUMBER_BYTES = 8  # big-endian
SIZE_MIN = MARK_BYTES + NUMBER_BYTES
WARM_UP_SECONDS = 1.0  # connections, metadata, caches: records of this first second do not count
ARRIVAL_SECONDS_MAX = 10.0  # after the last record was due; a failover fits, then it counts as lost


class LatencyPlan(NamedTuple):
    """Attributes:
    rate: records per second.
    """

    wanted: BenchTopic
    rate: float
    seconds: float
    size: int
    options: dict[str, Any]
    quiet: bool

    @property
    def warm_up_records(self) -> int:
        return round(self.rate * WARM_UP_SECONDS)

    @property
    def records(self) -> int:
        return self.warm_up_records + max(1, round(self.rate * self.seconds))


async def bench_latency(client: Client, plan: LatencyPlan) -> Row:
    async with (
        topic_of(client, plan.wanted) as topic,
        client.consumer(topic, start="latest") as consumer,
        client.producer(**plan.options) as producer,
    ):
        run = LatencyBench(plan, producer, topic)
        await run.go(consumer)
    figures: Row = {"bench": "latency", "topic": topic, "record_bytes": plan.size}
    figures |= {name: plan.options.get(name) for name in ("acks", "compression", "preset")}
    return figures | run.figures()


class LatencyBench:
    def __init__(self, plan: LatencyPlan, producer: Producer, topic: str) -> None:
        self._plan, self._producer, self._topic = plan, producer, topic
        self._mark, self._padding = token_bytes(MARK_BYTES), bytes(plan.size - SIZE_MIN)
        self._start = 0.0
        self._acknowledged: dict[int, float] = {}
        self._arrived: dict[int, float] = {}
        self._cpu_seconds = 0.0

    async def go(self, consumer: Consumer) -> None:
        cpu_start, self._start = time.process_time(), anyio.current_time()
        async with anyio.create_task_group() as tasks:
            progress = Progress(lambda: len(self._acknowledged), self._told, self._plan.records)
            tasks.start_soon(partial(show_progress, progress, quiet=self._plan.quiet))
            tasks.start_soon(self._send_all)
            # Until all have arrived; records that were lost never do.
            with anyio.move_on_after(self._seconds_max):
                await self._receive_all(consumer)
            tasks.cancel_scope.cancel()
        self._cpu_seconds = time.process_time() - cpu_start

    @property
    def _seconds_max(self) -> float:
        return WARM_UP_SECONDS + self._plan.seconds + ARRIVAL_SECONDS_MAX

    async def _send_all(self) -> None:
        for number in range(self._plan.records):
            # Until it is due; returns at once where `enqueue` has waited beyond that.
            await anyio.sleep_until(self._turn(number))
            value = self._mark + number.to_bytes(NUMBER_BYTES, "big") + self._padding
            on_delivery = partial(self._on_delivery, number)
            # Waits only for room in the buffer; the acknowledgement comes by the callback.
            await self._producer.enqueue(self._topic, value, on_delivery=on_delivery)

    async def _receive_all(self, consumer: Consumer) -> None:
        async for batch in consumer.batches():
            now = anyio.current_time()
            for value in batch.values:
                # Other producers may write to an existing topic.
                if value is not None and value.startswith(self._mark):
                    number = int.from_bytes(value[MARK_BYTES:SIZE_MIN], "big")
                    # A retried send may arrive twice: its first arrival counts.
                    self._arrived.setdefault(number, now)
            if len(self._arrived) == self._plan.records:
                break
        # The last records may arrive before they are acknowledged.
        await self._producer.flush()

    def _turn(self, number: int) -> float:
        return self._start + number / self._plan.rate

    def _on_delivery(
        self, number: int, error: RaftmqError | None, _metadata: RecordMetadata | None
    ) -> None:
        # A record that failed stays out: it counts as not acknowledged.
        if error is None:
            self._acknowledged[number] = anyio.current_time()

    # -- figures -----------------------------------------------------------------------------

    def figures(self) -> Row:
        counted = range(self._plan.warm_up_records, self._plan.records)
        return {
            "rate": self._plan.rate,
            "records": len(counted),
            "not_acknowledged": sum(number not in self._acknowledged for number in counted),
            "not_received": sum(number not in self._arrived for number in counted),
            "client_cpu_us_per_record": round(self._cpu_seconds / self._plan.records * 1e6, 3),
            "acknowledged_ms": quantiles_of(self._latencies(self._acknowledged)),
            "end_to_end_ms": quantiles_of(self._latencies(self._arrived)),
        }

    def _latencies(self, ends: dict[int, float]) -> list[float]:
        first = self._plan.warm_up_records
        return [at - self._turn(number) for number, at in ends.items() if number >= first]

    def _told(self) -> str:
        return f"{len(self._acknowledged)} acknowledged, {len(self._arrived)} received"
