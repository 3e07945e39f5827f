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

DELIVERIES = ("at_least_once", "idempotent", "exactly_once")
# What each is compared with, and which part of its rate is the aim.
AIMS = {"idempotent": ("at_least_once", 0.9), "exactly_once": ("idempotent", 0.95)}
FEW = 10  # rows whose time is that of a job without any
WORKER = b"pyspark.daemon"  # of Spark, which its workers are forks of


class Cost(NamedTuple):
    """Attributes:
    cpu_seconds: of all of Spark's Python workers.
    """

    seconds: float
    cpu_seconds: float


def bench_deliveries(report: Report, bench: Bench, size: int, number: int, rounds: int) -> None:
    activate(bench.spark)
    for rows in (FEW, number):
        with bench.rows(size, rows) as frame:
            _round(bench, frame, 0)  # starts workers, and is not counted
            found = [_round(bench, frame, turn) for turn in range(1, rounds + 1)]
        for delivery in DELIVERIES:
            _tell(report, size, rows, delivery, found)


def _tell(
    report: Report, size: int, number: int, delivery: str, found: list[dict[str, Cost]]
) -> None:
    seconds, cpu_seconds = (
        median(getattr(each[delivery], name) for each in found) for name in Cost._fields
    )
    other, aim = AIMS.get(delivery, (delivery, ""))
    ratio = median(each[other].seconds / each[delivery].seconds for each in found)
    report.row(
        size=size,
        rows=number,
        delivery=delivery,
        s=round(seconds, 3),
        rows_s=round(number / seconds),
        cpu_s=round(cpu_seconds, 2),
        compared_with=other,
        ratio=round(ratio, 2),
        aim=aim if number > FEW else "",
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
