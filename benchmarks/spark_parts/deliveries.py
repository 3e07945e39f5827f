"""The same rows into topics with each delivery: what it costs to have none of them twice."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from benchmarks.broker_parts.process import usage_of
from benchmarks.spark_parts.around import SLOTS, activate, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from benchmarks.report import Report
    from benchmarks.spark_parts.around import Bench

DELIVERIES = ("at_least_once", "idempotent", "exactly_once")
# What each is compared with, and which part of its rate is the aim.
AIMS = {"idempotent": ("at_least_once", 0.9), "exactly_once": ("idempotent", 0.95)}
MICROBATCHES, FEW = 8, 10  # of a stream, and rows of each: its time is that of a microbatch
WORKER = b"pyspark.daemon"  # of Spark, which its workers are forks of

T = TypeVar("T")


class Cost(NamedTuple):
    """Attributes:
    cpu_seconds: of all of Spark's Python workers.
    """

    seconds: float
    cpu_seconds: float


def bench_deliveries(report: Report, bench: Bench, size: int, number: int, rounds: int) -> None:
    activate(bench.spark)
    with bench.rows(size, number) as frame:
        found = _rounds(lambda delivery: _written(bench, frame, delivery), rounds)
    for delivery in DELIVERIES:
        seconds, cpu_seconds = (
            median(getattr(each[delivery], name) for each in found) for name in Cost._fields
        )
        other, aim = AIMS.get(delivery, (delivery, ""))
        ratio = median(each[other].seconds / each[delivery].seconds for each in found)
        report.row(
            size=size,
            delivery=delivery,
            rows_s=round(number / seconds),
            cpu_s=round(cpu_seconds, 2),
            compared_with=other,
            ratio=round(ratio, 2),
            aim=aim,
        )
    with bench.topic(SLOTS) as source:
        _fill(bench, source, size)
        medians = _rounds(lambda delivery: _microbatch_ms(bench, source, delivery), rounds)
    for delivery in DELIVERIES:
        told = round(median(each[delivery] for each in medians))
        report.row(size=size, delivery=delivery, rows=FEW, microbatch_ms=told)


def _rounds(measure: Callable[[str], T], rounds: int) -> list[dict[str, T]]:
    """Of each delivery, in turns; the first round starts workers, and is not counted."""
    found = []
    for turn in range(rounds + 1):
        start = turn % len(DELIVERIES)
        order = (*DELIVERIES[start:], *DELIVERIES[:start])
        found.append({delivery: measure(delivery) for delivery in order})
    return found[1:]


def _written(bench: Bench, frame: DataFrame, delivery: str) -> Cost:
    with bench.topic() as topic:
        writer = frame.write.format("raftmq").mode("append").option("topic", topic)
        writer = writer.option("kafka.bootstrap.servers", bench.bootstrap)
        before = _cpu_of_workers()
        seconds = seconds_of(writer.option("delivery", delivery).save)
        return Cost(seconds, _cpu_of_workers() - before)


def _fill(bench: Bench, source: str, size: int) -> None:
    numbers = range(MICROBATCHES * FEW)
    with bench.client.producer() as producer:
        producer.enqueue_columns(
            source,
            values=[b"x" * size for _ in numbers],
            partitions=[number % SLOTS for number in numbers],
        )


def _microbatch_ms(bench: Bench, source: str, delivery: str) -> float:
    """The median of one stream, but for its first one."""
    with bench.topic() as topic, TemporaryDirectory(dir=bench.folder) as checkpoint:
        reader = bench.spark.readStream.format("raftmq").option("bootstrap", bench.bootstrap)
        reader = reader.option("subscribe", source).option("startingOffsets", "earliest")
        rows = reader.option("maxOffsetsPerTrigger", FEW).load().select("key", "value")
        writer = rows.writeStream.format("raftmq").option("bootstrap", bench.bootstrap)
        writer = writer.option("topic", topic).option("delivery", delivery)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
    done = [each.durationMs["triggerExecution"] for each in query.recentProgress]
    return median(done[1:])


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
