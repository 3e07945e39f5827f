"""The same rows into topics with each delivery: what it costs to have none of them twice."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.broker_parts.process import usage_of
from benchmarks.spark_parts.around import activate, seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from benchmarks.report import Report
    from benchmarks.spark_parts.around import Bench

DELIVERIES = ("at_least_once", "idempotent")
AIMS = {"idempotent": 0.9}  # of the rate of `at_least_once`
WORKER = b"pyspark.daemon"  # of Spark, which its workers are forks of


class Cost(NamedTuple):
    """Attributes:
    cpu_seconds: of all of Spark's Python workers.
    """

    seconds: float
    cpu_seconds: float


def bench_deliveries(report: Report, bench: Bench, size: int, number: int, rounds: int) -> None:
    activate(bench.spark)
    with bench.rows(size, number) as frame:
        _round(bench, frame, 0)  # starts workers, and is not counted
        found = [_round(bench, frame, turn) for turn in range(1, rounds + 1)]
    for delivery in DELIVERIES:
        costs = [each[delivery] for each in found]
        ratio = median(each["at_least_once"].seconds / each[delivery].seconds for each in found)
        seconds = median(cost.seconds for cost in costs)
        report.row(
            size=size,
            delivery=delivery,
            rows_s=round(number / seconds),
            cpu_s=round(median(cost.cpu_seconds for cost in costs), 2),
            of_at_least_once=round(ratio, 2),
            aim=AIMS.get(delivery, ""),
        )


def _round(bench: Bench, frame: DataFrame, turn: int) -> dict[str, Cost]:
    start = turn % len(DELIVERIES)
    order = (*DELIVERIES[start:], *DELIVERIES[:start])
    return {delivery: _written(bench, frame, delivery) for delivery in order}


def _written(bench: Bench, frame: DataFrame, delivery: str) -> Cost:
    with bench.topic() as topic:
        writer = frame.write.format("raftmq").mode("append").option("topic", topic)
        writer = writer.option("kafka.bootstrap.servers", bench.bootstrap)
        before = _cpu_of_workers()
        seconds = seconds_of(writer.option("delivery", delivery).save)
        return Cost(seconds, _cpu_of_workers() - before)


def _cpu_of_workers() -> float:
    """Seconds; workers stay for the next task."""
    return sum(usage_of(process).cpu_seconds for process in _workers(os.getpid()))


def _workers(ancestor: int) -> list[int]:
    parents = dict(_parents())
    return [each for each in parents if _is_worker(each) and ancestor in _line(each, parents)]


def _parents() -> Iterator[tuple[int, int]]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            status = (process / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # ended since it was listed
            continue
        yield int(process.name), int(status.rpartition(")")[2].split()[1])


def _line(process: int, parents: dict[int, int]) -> Iterator[int]:
    while process in parents:
        process = parents[process]
        yield process


def _is_worker(process: int) -> bool:
    try:
        return WORKER in (Path("/proc") / str(process) / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
