"""A topic into Spark, and the same rows from files."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from benchmarks.spark_parts.around import PARTITIONS, SLOTS, activate, seconds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.report import Report
    from benchmarks.spark_parts.around import Bench

AIM = 0.6  # of the same rows from Parquet
PAIR = "key BINARY, value BINARY"
Times = dict[str, float]


def bench_source(report: Report, bench: Bench, size: int, number: int, rounds: int) -> None:
    activate(bench.spark)
    path = str(bench.folder / f"source-{size}")
    with bench.topic(SLOTS) as few, bench.topic(PARTITIONS) as many:
        with bench.rows(size, number) as frame:
            frame.write.option("compression", "none").parquet(path)
            for topic in (few, many):
                writer = frame.write.format("raftmq").mode("append").option("topic", topic)
                writer.option("kafka.bootstrap.servers", bench.bootstrap).save()
        works = {
            "parquet": lambda: _into_nothing(bench.spark.read.parquet(path)),
            f"made up, {SLOTS} tasks": lambda: _into_nothing(_made_up(bench, size, number, SLOTS)),
            f"source, {SLOTS} partitions": lambda: _into_nothing(_topic(bench, few, PAIR)),
            "... all columns": lambda: _into_nothing(_topic(bench, few, None)),
            f"made up, {PARTITIONS} tasks": lambda: _into_nothing(
                _made_up(bench, size, number, PARTITIONS)
            ),
            f"source, {PARTITIONS} partitions": lambda: _into_nothing(_topic(bench, many, PAIR)),
            "... a task for each": lambda: _into_nothing(_topic(bench, many, PAIR, 1)),
            "... a task for each core": lambda: _into_nothing(
                # Rather less, so that keys need not be spread evenly.
                _topic(bench, many, PAIR, number * 9 // (10 * SLOTS))
            ),
        }
        found = [{name: work() for name, work in works.items()} for _ in range(rounds + 1)][1:]
    _tell(report, size, number, found)


def _tell(report: Report, size: int, number: int, found: list[Times]) -> None:
    for name in found[0]:
        seconds = median(each[name] for each in found)
        ratio = median(each["parquet"] / each[name] for each in found)
        report.row(
            size=size,
            what=name,
            rows_s=round(number / seconds),
            MB_s=round(number * (size + 8) / seconds / 1e6, 1),
            of_parquet=round(ratio, 2),
            aim=AIM if name.startswith("source") else "",
        )


def _topic(
    bench: Bench, topic: str, schema: str | None, task_records_min: int | None = None
) -> DataFrame:
    reader = bench.spark.read.format("raftmq").option("subscribe", topic)
    if task_records_min is not None:
        reader = reader.option("minRecordsPerPartition", task_records_min)
    reader = reader.option("kafka.bootstrap.servers", bench.bootstrap)
    return (reader if schema is None else reader.schema(schema)).load()


def _made_up(bench: Bench, size: int, number: int, tasks: int) -> DataFrame:
    reader = bench.spark.read.format("made_up").option("tasks", tasks)
    return reader.option("size", size).option("number", number).load()


def _into_nothing(frame: DataFrame) -> float:
    return seconds_of(lambda: frame.write.format("noop").mode("overwrite").save())
