"""Rows into a topic, and the same elsewhere."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from benchmarks.spark_parts.around import activate, seconds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from benchmarks.report import Report
    from benchmarks.spark_parts.around import Bench

AIM = 0.8  # of the slower of limit and SDK
Times = dict[str, float]


def bench_sink(report: Report, bench: Bench, size: int, number: int, rounds: int) -> None:
    activate(bench.spark)
    with bench.rows(size, number) as frame:
        rows = [(bytes(row.key), bytes(row.value)) for row in frame.collect()]
        _round(bench, frame, rows, 0)  # starts workers, and is not counted
        found = [_round(bench, frame, rows, turn) for turn in range(1, rounds + 1)]
    _tell(report, size, number, found)


def _round(bench: Bench, frame: DataFrame, rows: list[tuple[bytes, bytes]], turn: int) -> Times:
    works = {
        "discard": lambda: _discard(frame),
        "send_many": lambda: _send_many(bench, rows),
        "sink": lambda: _sink(bench, frame),
        "parquet": lambda: _parquet(bench, frame, turn),
    }
    names = list(works)
    start = turn % len(names)
    return {name: works[name]() for name in (*names[start:], *names[:start])}


def _discard(frame: DataFrame) -> float:
    return seconds_of(lambda: frame.write.format("discard").mode("append").save())


def _sink(bench: Bench, frame: DataFrame) -> float:
    with bench.topic() as topic:
        writer = frame.write.format("raftmq").mode("append").option("topic", topic)
        writer = writer.option("kafka.bootstrap.servers", bench.bootstrap)
        return seconds_of(writer.save)


def _send_many(bench: Bench, rows: list[tuple[bytes, bytes]]) -> float:
    with bench.topic() as topic, bench.client.producer() as producer:
        producer.send(topic, b"first")
        return seconds_of(
            lambda: producer.send_many(
                topic, rows, key=lambda row: row[0], value=lambda row: row[1]
            )
        )


def _parquet(bench: Bench, frame: DataFrame, turn: int) -> float:
    path = str(bench.folder / f"parquet-{turn}")
    writer = frame.write.option("compression", "none").mode("overwrite")
    return seconds_of(lambda: writer.parquet(path))


def _tell(report: Report, size: int, number: int, found: list[Times]) -> None:
    aimed = [max(each["discard"], each["send_many"]) / each["sink"] for each in found]
    for name in found[0]:
        seconds = median(each[name] for each in found)
        report.row(
            size=size,
            what=name,
            rows_s=round(number / seconds),
            MB_s=round(number * (size + 8) / seconds / 1e6, 1),
            of_slower=round(median(aimed), 2) if name == "sink" else "",
            aim=AIM if name == "sink" else "",
        )
