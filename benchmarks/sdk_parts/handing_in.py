"""What one `send_nowait` costs, without and with the encoding of its batch, and a bare loop."""

from __future__ import annotations

import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import trio

from benchmarks.sdk_parts.around import keys_of, open_client, topic, values_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.report import Report
    from raftmq.client.client import Client
    from raftmq.client.producer.producer import Producer

RECORDS = 20_000  # fit into the buffer, and nothing leaves meanwhile: one turn of the loop
ROUNDS = 15


async def bench_hand_in(report: Report, root: Path, scale: float) -> None:
    async with open_client(root) as client:
        for size in (100, 1024):
            for has_keys in (False, True):
                await _measure(report, client, size, has_keys, max(3, int(ROUNDS * scale)))


async def _measure(report: Report, client: Client, size: int, has_keys: bool, rounds: int) -> None:
    values, keys = values_of(size, RECORDS), keys_of(RECORDS)
    calls, alls, loops = [], [], []
    async with topic(client) as name:
        for _ in range(rounds):
            loops.append(_seconds(partial(_bare, values, keys)))
            async with client.producer(preset="high_throughput", linger_ms=1000) as producer:
                await producer.send(name, b"first")
                cpu = time.process_time()
                keys_or_none = keys if has_keys else None
                calls.append(_seconds(partial(_hand_in, producer, name, values, keys_or_none)))
                await producer.flush()
                alls.append((time.process_time() - cpu) / RECORDS)
            await trio.lowlevel.checkpoint()
    report.row(
        call="send_nowait",
        record_bytes=size,
        keys=has_keys,
        call_us=round(median(calls) * 1e6, 2),
        with_delivery_cpu_us=round(median(alls) * 1e6, 2),
        bare_loop_us=round(median(loops) * 1e6, 3),
    )


def _seconds(work: Callable[[], None]) -> float:
    """CPU time for each record: others on this machine do not count."""
    began = time.process_time()
    work()
    return (time.process_time() - began) / RECORDS


def _hand_in(producer: Producer, name: str, values: list[bytes], keys: list[bytes] | None) -> None:
    send = producer.send_nowait
    if keys is None:
        for value in values:
            send(name, value)
    else:
        for value, key in zip(values, keys, strict=True):
            send(name, value, key=key)


def _bare(values: list[bytes], keys: list[bytes]) -> None:
    """How fast this machine is just now: a list of tuples."""
    pairs: list[tuple[bytes, bytes]] = []
    for value, key in zip(values, keys, strict=True):
        pairs.append((value, key))  # a loop is what is measured
