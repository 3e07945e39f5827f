"""`raftmq bench produce`: send throughput, and the latency of single probe records meanwhile.

The load goes in as `raftmq produce` sends it. Beside it a probe is sent every few milliseconds and
timed to its acknowledgement, from when it was due: a stall of the cluster delays many probes, as it
would delay the records of a program.
"""

from __future__ import annotations

import time
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from raftmq.cli.benching.figures import quantiles_of, rates_of
from raftmq.cli.benching.load import Amount, BenchTopic, Load, topic_of
from raftmq.cli.terminal.progress import Progress, show_progress, show_rates

if TYPE_CHECKING:
    from raftmq.cli.terminal.output import Row
    from raftmq.client.client import Client
    from raftmq.client.producer.batch import RecordMetadata
    from raftmq.client.producer.producer import Producer
    from raftmq.errors import RaftmqError

PROBE_SECONDS = 0.005  # 200 a second: enough for p99.9 of a 10 s run, too few to disturb the load


class ProducePlan(NamedTuple):
    """Attributes:
    options: of the producer.
    """

    wanted: BenchTopic
    amount: Amount
    size: int
    keys: int
    options: dict[str, Any]
    quiet: bool


async def bench_produce(client: Client, plan: ProducePlan) -> Row:
    load = Load(plan.size, plan.keys)
    async with (
        topic_of(client, plan.wanted) as topic,
        client.producer(**plan.options) as producer,
    ):
        run = ProduceBench(producer, topic, load)
        rates = await run.go(plan)
    figures: Row = {"bench": "produce", "topic": topic, "record_bytes": plan.size}
    figures |= {name: plan.options.get(name) for name in ("acks", "compression", "preset")}
    return figures | rates | {"latency_ms": quantiles_of(run.latencies)}


class ProduceBench:
    """Attributes:
    latencies: of the probes, in seconds.
    """

    def __init__(self, producer: Producer, topic: str, load: Load) -> None:
        self._producer, self._topic, self._load = producer, topic, load
        self._start = 0.0
        self.latencies: list[float] = []

    async def go(self, plan: ProducePlan) -> dict[str, object]:
        cpu_start, self._start = time.process_time(), time.monotonic()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._probe)
            tasks.start_soon(partial(show_progress, self._progress(plan.amount), quiet=plan.quiet))
            # Until every record of the load is acknowledged; the buffer's size is the
            # back-pressure.
            await self._producer.send_many(
                self._topic,
                self._load.rows(plan.amount),
                value=itemgetter(1),
                key=itemgetter(0) if plan.keys else None,
            )
            tasks.cancel_scope.cancel()
        # The last probes may still be in flight: they count, too.
        await self._producer.flush()
        return rates_of(
            records=self._count,
            byte_count=self._byte_count,
            seconds=time.monotonic() - self._start,
            cpu_seconds=time.process_time() - cpu_start,
        )

    async def _probe(self) -> None:
        key, value = self._load.pool[0]
        turn = anyio.current_time()
        while True:
            on_delivery = partial(self._on_delivery, turn)
            # Waits for room in the buffer, beside the load; that wait counts, as `turn` is past by
            # then.
            await self._producer.enqueue(self._topic, value, key=key, on_delivery=on_delivery)
            turn += PROBE_SECONDS
            await anyio.sleep_until(turn)

    def _on_delivery(
        self, turn: float, error: RaftmqError | None, _metadata: RecordMetadata | None
    ) -> None:
        """Failures are not counted: what fails a probe fails `send_many`, too."""
        if error is None:
            self.latencies.append(anyio.current_time() - turn)

    @property
    def _count(self) -> int:
        return self._producer.statistics.records

    @property
    def _byte_count(self) -> int:
        return round(self._count * self._load.record_bytes)

    def _progress(self, amount: Amount) -> Progress:
        if amount.records is not None:
            return Progress(lambda: self._count, self._told, amount.records)
        return Progress(lambda: time.monotonic() - self._start, self._told, amount.seconds)

    def _told(self) -> str:
        seconds = time.monotonic() - self._start
        return show_rates(records=self._count, byte_count=self._byte_count, seconds=seconds)
