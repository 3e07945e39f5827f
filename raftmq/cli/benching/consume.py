"""`raftmq bench consume`: read throughput of a topic, from its oldest record to its end.

The values are decoded and counted, as any program would; keys and headers are not touched.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import anyio

from raftmq.cli.benching.figures import quantiles_of, rates_of
from raftmq.cli.data.consume_run import (
    ConsumeOrder,
    RemainingRecords,
    begin,
    find_ranges,
    next_batch,
    open_consumer,
    take,
)
from raftmq.cli.data.log_bounds import check_all_read
from raftmq.cli.data.offset_option import From, StartPlace
from raftmq.cli.data.topic_check import check_there
from raftmq.cli.terminal.progress import Progress, show_progress, show_rates

if TYPE_CHECKING:
    from raftmq.cli.terminal.output import Row
    from raftmq.client.client import Client
    from raftmq.client.consumer.batch import ConsumedBatch
    from raftmq.client.consumer.consumer import Consumer


class ConsumePlan(NamedTuple):
    """Attributes:
    seconds: None: until the end of the log.
    """

    topic: str
    records_max: int | None
    seconds: float | None
    quiet: bool


async def bench_consume(client: Client, plan: ConsumePlan) -> Row:
    await check_there(client, plan.topic)
    wish = ConsumeOrder((plan.topic,), From(StartPlace.START), (), plan.records_max, until_end=True)
    ranges, silent = await find_ranges(client, wish)
    check_all_read(silent)
    there = sum((one.end or one.start) - one.start for one in ranges.values())
    run = ConsumeBench(
        RemainingRecords(ranges, plan.records_max), min(there, plan.records_max or there)
    )
    # A consumer of nothing but empty partitions would wait for ever.
    if there:
        async with open_consumer(client, wish, ranges) as consumer:
            begin(consumer, ranges)
            await run.go(consumer, plan)
    figures: Row = {"bench": "consume", "topic": plan.topic}
    return figures | run.rates() | {"batches": len(run.waits), "wait_ms": quantiles_of(run.waits)}


class ConsumeBench:
    """Attributes:
    waits: for each batch, in seconds.
    """

    def __init__(self, extent: RemainingRecords, total: int) -> None:
        self._extent, self._total = extent, total
        self._count = self._byte_count = 0
        self._start = self._end = time.monotonic()
        self._cpu_start = self._cpu_end = time.process_time()
        self.waits: list[float] = []

    async def go(self, consumer: Consumer, plan: ConsumePlan) -> None:
        async with anyio.create_task_group() as tasks:
            progress = Progress(lambda: self._count, self._told, self._total)
            tasks.start_soon(partial(show_progress, progress, quiet=plan.quiet))
            with anyio.move_on_after(plan.seconds) as scope:
                await self._read(consumer)
            # The time was over within a wait, which counts.
            if scope.cancelled_caught:
                self._note_end()
            tasks.cancel_scope.cancel()

    async def _read(self, consumer: Consumer) -> None:
        asked = time.monotonic()
        batches = consumer.batches()
        while (batch := await next_batch(consumer, batches, self._extent)) is not None:
            self.waits.append(time.monotonic() - asked)
            self._take(batch, take(consumer, batch, self._extent))
            self._note_end()
            asked = time.monotonic()

    def _note_end(self) -> None:
        """The end of the work so far; the check that nothing follows does not count."""
        self._end, self._cpu_end = time.monotonic(), time.process_time()

    def _take(self, batch: ConsumedBatch, rows: slice) -> None:
        self._count += rows.stop - rows.start
        self._byte_count += sum([len(value or b"") for value in batch.values[rows]])

    def rates(self) -> dict[str, object]:
        return rates_of(
            records=self._count,
            byte_count=self._byte_count,
            seconds=self._end - self._start,
            cpu_seconds=self._cpu_end - self._cpu_start,
        )

    def _told(self) -> str:
        seconds = time.monotonic() - self._start
        return show_rates(records=self._count, byte_count=self._byte_count, seconds=seconds)
