"""The two presets and the defaults, each at what the other is made for; and in turns.

In turns: rates of one machine vary by a factor of two within minutes, so each round measures all
presets, and a preset is compared with the defaults of the same round.
"""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import trio

from benchmarks.quorum_parts.figures import percentile, rounded_ms
from benchmarks.sdk_parts.around import Stopwatch, keys_of, open_client, topic, values_of
from benchmarks.sdk_parts.producing import send_all

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.report import Report
    from raftmq.client.client import Client

PRESETS = {
    "low_latency": {"preset": "low_latency"},
    "defaults": {},
    "high_throughput": {"preset": "high_throughput"},
}
SIZE = 1024
RECORDS = 200_000
PER_SECOND, SECONDS = 100, 10.0
TURNS = 9  # rounds, of all presets each


async def bench_presets(report: Report, root: Path, scale: float) -> None:
    async with open_client(root) as client:
        for durability in ("page_cache", "fsync"):
            for name in PRESETS:
                await _measure(report, client, durability, name, scale)


async def _measure(
    report: Report, client: Client, durability: str, name: str, scale: float
) -> None:
    latencies = await _latencies(client, durability, name, max(1.0, SECONDS * scale))
    number = max(10_000, int(RECORDS * scale))
    columns, requests = await _throughput(
        client, durability, name, "enqueue", number, has_keys=True
    )
    report.row(
        preset=name,
        durability=durability,
        p50_ms=rounded_ms(median(latencies)),
        p99_ms=rounded_ms(percentile(latencies, 99)),
        records_s=columns["records_s"],
        MB_s=columns["MB_s"],
        records_per_request=round(number / requests, 1),
        cpu_us_per_record=columns["cpu_us_per_record"],
    )


async def _throughput(
    client: Client, durability: str, name: str, call: str, number: int, *, has_keys: bool
) -> tuple[dict[str, float], int]:
    """Of that many records by that call, until all are acknowledged; and how many requests."""
    values = values_of(SIZE, number)
    keys = keys_of(number) if has_keys else None
    async with (
        topic(client, durability) as topic_name,
        client.producer(**PRESETS[name]) as producer,
    ):
        await producer.send(topic_name, b"first")
        watch = Stopwatch()
        await send_all(producer, topic_name, call, values, keys)
        await producer.flush()
        return watch.columns(number, SIZE), producer.statistics.requests


async def bench_preset_turns(report: Report, root: Path, scale: float) -> None:
    """Records/s of each preset, and its median ratio to the defaults of the same round."""
    number = max(10_000, int(RECORDS * scale))
    async with open_client(root) as client:
        for durability in ("page_cache", "fsync"):
            for call in ("enqueue", "send_columns"):
                for has_keys in (True, False):
                    await _turns(report, client, durability, call, number, has_keys=has_keys)


async def _turns(
    report: Report, client: Client, durability: str, call: str, number: int, *, has_keys: bool
) -> None:
    rates: dict[str, list[float]] = {name: [] for name in PRESETS}
    costs: dict[str, list[float]] = {name: [] for name in PRESETS}
    for turn in range(TURNS):
        # Another one begins each round: none is always the first after a pause.
        first = turn % len(PRESETS)
        for name in [*PRESETS][first:] + [*PRESETS][:first]:
            columns, _ = await _throughput(
                client, durability, name, call, number, has_keys=has_keys
            )
            rates[name].append(columns["records_s"])
            costs[name].append(columns["cpu_us_per_record"])
    for name in PRESETS:
        report.row(
            preset=name,
            durability=durability,
            call=call,
            keys=has_keys,
            records_s_median=round(median(rates[name])),
            records_s_least=round(min(rates[name])),
            records_s_most=round(max(rates[name])),
            to_defaults_median=_ratio(rates, name),
            cpu_us_per_record=round(median(costs[name]), 2),
            cpu_to_defaults_median=_ratio(costs, name),
        )


def _ratio(figures: dict[str, list[float]], name: str) -> float:
    pairs = zip(figures[name], figures["defaults"], strict=True)
    return round(median(own / plain for own, plain in pairs), 3)


async def _latencies(client: Client, durability: str, preset: str, seconds: float) -> list[float]:
    """Of single records, so many a second, each awaited; counted from when it was due."""
    found: list[float] = []
    async with (
        topic(client, durability) as name,
        client.producer(**PRESETS[preset]) as producer,
        trio.open_nursery() as nursery,
    ):
        await producer.send(name, b"first")

        async def send(due: float) -> None:
            await producer.send(name, b"x" * SIZE, key=b"%d" % len(found))
            found.append(time.perf_counter() - due)

        begin = time.perf_counter()
        for each in range(int(PER_SECOND * seconds)):
            due = begin + each / PER_SECOND
            await trio.sleep(max(0.0, due - time.perf_counter()))
            nursery.start_soon(send, due)
    return found
