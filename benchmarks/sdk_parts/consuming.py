"""Records read back: as columns, with and without a look at every value, and one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.sdk_parts.around import Stopwatch, keys_of, open_client, topic, values_of

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.report import Report
    from raftmq.client.consumer.consumer import Consumer

RECORDS = {100: 2_000_000, 1024: 300_000}
WAYS = ("batches", "batches, values and keys", "records")


async def bench_consume(report: Report, root: Path, scale: float) -> None:
    async with open_client(root) as client:
        for size, most in RECORDS.items():
            number = max(10_000, int(most * scale))
            async with topic(client) as name:
                async with client.producer(preset="high_throughput") as producer:
                    values, keys = values_of(size, number), keys_of(number)
                    await producer.send_columns(name, values=values, keys=keys)
                for way in WAYS:
                    async with client.consumer(
                        name, start="earliest", max_poll_records=10_000
                    ) as consumer:
                        watch = Stopwatch()
                        await _read(consumer, way, number)
                        columns = watch.columns(number, size)
                    report.row(way=way, record_bytes=size, **columns)


async def _read(consumer: Consumer, way: str, number: int) -> None:
    left = number
    if way == "records":
        async for _ in consumer:
            left -= 1
            if not left:
                return
    async for batch in consumer.batches():
        if way != "batches":
            assert len(batch.values) == len(batch.keys)
        left -= len(batch)
        if not left:
            return
