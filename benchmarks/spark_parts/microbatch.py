"""How long a microbatch of few rows takes, and a trigger that finds nothing new."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING
from uuid import uuid4

from benchmarks.spark_parts.around import activate, seconds_of
from spark_io.options.source import source_options
from spark_io.schema import arrow_schema
from spark_io.stream_reader import StreamReader

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from benchmarks.report import Report
    from benchmarks.spark_parts.around import Bench

ROWS = 10
BATCHES_OF_ROUND, BATCHES_LEFT_OUT = 10, 3  # the first ones start workers
LOOK_SECONDS, PAUSE_SECONDS, WAIT_SECONDS_MAX = 0.005, 0.2, 120.0
# What Spark tells of each: the source is asked where it ends, tasks are planned and read.
PARTS = ("latestOffset", "addBatch", "triggerExecution")


def bench_microbatch(report: Report, bench: Bench, size: int, _number: int, rounds: int) -> None:
    activate(bench.spark)
    count = BATCHES_OF_ROUND * rounds + BATCHES_LEFT_OUT
    for what, options in (
        ("a task for each partition", {"minRecordsPerPartition": "1"}),
        ("source", {}),
    ):
        with bench.topic() as topic:
            seconds, found = _copied(bench, topic, size, count, options)
        taken = {part: median(each.durationMs.get(part, 0) for each in found) for part in PARTS}
        report.row(what=what, rows=ROWS, from_send_ms=round(median(seconds) * 1000), **taken)
    with bench.topic() as topic:
        report.row(what="nothing new, without Spark", latestOffset=_idle_ms(bench, topic, count))


def _copied(
    bench: Bench, topic: str, size: int, count: int, options: dict[str, str]
) -> tuple[list[float], list[StreamingQueryProgress]]:
    """Seconds from sending rows until a query into nothing has processed them."""
    given = {"bootstrap": bench.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    frame = bench.spark.readStream.format("raftmq").options(**given, **options).load()
    checkpoint = str(bench.folder / f"checkpoint-{uuid4()}")
    writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    seconds = []
    try:
        with bench.client.producer() as producer:
            for number in range(count):
                keys = [b"%d" % each for each in range(ROWS)]
                began = time.perf_counter()
                producer.send_columns(topic, values=[b"x" * size] * ROWS, keys=keys)
                _wait(query, (number + 1) * ROWS)
                seconds.append(time.perf_counter() - began)
                time.sleep(PAUSE_SECONDS)
        found = [each for each in query.recentProgress if each.numInputRows]
    finally:
        query.stop()
    return seconds[BATCHES_LEFT_OUT:], found[BATCHES_LEFT_OUT:]


def _wait(query: StreamingQuery, rows: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while sum(each.numInputRows for each in query.recentProgress) < rows:
        if (error := query.exception()) is not None:
            raise error
        assert time.monotonic() < deadline, "no progress"
        time.sleep(LOOK_SECONDS)


def _idle_ms(bench: Bench, topic: str, count: int) -> float:
    options = source_options({"bootstrap": bench.bootstrap, "subscribe": topic}, is_stream=True)
    reader = StreamReader(options, arrow_schema())
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    taken = [seconds_of(lambda: reader.latestOffset(start, limit)) for _ in range(count)]
    reader.stop()
    return round(median(taken) * 1000, 1)
