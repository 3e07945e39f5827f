"""Many records with acks=all: by single calls, by rows, by columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.sdk_parts.around import Stopwatch, keys_of, open_client, topic, values_of

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.report import Report
    from raftmq.client.client import Client
    from raftmq.client.producer.producer import Producer

RECORDS = {100: 1_500_000, 1024: 250_000}
CALLS = ("enqueue", "send_many", "send_columns")
PORTION = 100_000


async def bench_produce(report: Report, root: Path, scale: float) -> None:
    async with open_client(root) as client:
        for durability in ("page_cache", "fsync"):
            for size in RECORDS:
                for call in CALLS:
                    for has_keys in (False, True):
                        await _measure(report, client, durability, size, call, has_keys, scale)


async def _measure(
    report: Report,
    client: Client,
    durability: str,
    size: int,
    call: str,
    has_keys: bool,
    scale: float,
) -> None:
    number = max(PORTION // 10, int(RECORDS[size] * scale))
    values = values_of(size, number)
    keys = keys_of(number) if has_keys else None
    async with (
        topic(client, durability) as name,
        client.producer(preset="high_throughput") as producer,
    ):
        await producer.send(name, b"first")
        watch = Stopwatch()
        await send_all(producer, name, call, values, keys)
        await producer.flush()
        columns = watch.columns(number, size)
    report.row(call=call, durability=durability, record_bytes=size, keys=has_keys, **columns)


async def send_all(
    producer: Producer, name: str, call: str, values: list[bytes], keys: list[bytes] | None
) -> None:
    """Hand in all of them by that call."""
    if call == "send_columns":
        await producer.send_columns(name, values=values, keys=keys)
    elif call == "send_many" and keys is None:
        await producer.send_many(name, values)
    elif call == "send_many":
        pairs = zip(values, keys or (), strict=True)
        await producer.send_many(name, pairs, value=lambda pair: pair[0], key=lambda pair: pair[1])
    elif keys is None:
        for value in values:
            await producer.enqueue(name, value)
    else:
        for value, key in zip(values, keys, strict=True):
            await producer.enqueue(name, value, key=key)
