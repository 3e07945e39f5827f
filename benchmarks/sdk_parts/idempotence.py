"""What numbers cost: the same records with idempotence and without, in turns, and the ratio.

The rounds of both alternate, and which one begins does, too, so that whatever else the machine does
meets both. Ratios are those of the two of a round; medians.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.sdk_parts.around import Stopwatch, keys_of, open_client, topic, values_of

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.report import Report
    from raftmq.client.client import Client

SIZE = 100
RECORDS = 200_000
ROUNDS = 5
AIM_RATE_RATIO = 0.9
# Of a record in a large batch a number costs next to nothing; small batches show it.
BATCHES = {"default": {}, "small": {"batch_size": 1024, "linger_ms": 0}}


async def bench_idempotence(report: Report, root: Path, scale: float) -> None:
    async with open_client(root) as client:
        for batches, batch_options in BATCHES.items():
            number = max(10_000, int(RECORDS * scale))
            found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
            for turn in range(ROUNDS):
                for idempotence in sorted(found, reverse=bool(turn % 2)):
                    options = {**batch_options, "idempotence": idempotence}
                    found[idempotence].append(await _round(client, number, options))
            _tell(report, batches, found)


async def _round(client: Client, number: int, options: dict[str, Any]) -> dict[str, Any]:
    values, keys = values_of(SIZE, number), keys_of(number)
    async with (
        topic(client, "page_cache") as name,
        client.producer(**options) as producer,
    ):
        await producer.send(name, b"first")
        watch = Stopwatch()
        for value, key in zip(values, keys, strict=True):
            await producer.enqueue(name, value, key=key)
        await producer.flush()
        return watch.columns(number, SIZE)


def _tell(report: Report, batches: str, found: dict[bool, list[dict[str, Any]]]) -> None:
    for idempotence, rounds in found.items():
        report.row(
            batches=batches,
            idempotence=idempotence,
            records_s=median(each["records_s"] for each in rounds),
            rate_ratio=_ratio(rounds, found[False], "records_s"),
            cpu_us_per_record=median(each["cpu_us_per_record"] for each in rounds),
            cpu_ratio=_ratio(rounds, found[False], "cpu_us_per_record"),
            aim=f"rate_ratio {AIM_RATE_RATIO}" if idempotence else "",
        )


def _ratio(rounds: list[dict[str, Any]], without: list[dict[str, Any]], name: str) -> float:
    return round(median(a[name] / b[name] for a, b in zip(rounds, without, strict=True)), 3)
