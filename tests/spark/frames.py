"""Frames out of topics and into them, and what a plain consumer finds there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

    from raftmq import ConsumerRecord, sync
    from spark_io.options.source import Isolation

BOOTSTRAP = "kafka.bootstrap.servers"
LOOK_SECONDS = 0.05  # at the end of a log no record may stand
READ_SECONDS_MAX = 120.0  # longer means stuck


def read(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("raftmq").option(BOOTSTRAP, bootstrap)
    return reader.option("subscribe", topic).options(**options).load()


def write(frame: DataFrame, bootstrap: str, topic: str, **options: str) -> None:
    writer = frame.write.format("raftmq").option(BOOTSTRAP, bootstrap)
    writer.option("topic", topic).options(**options).mode("append").save()


def stream(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    """From the beginning, unless `options` say otherwise."""
    reader = spark.readStream.format("raftmq").option(BOOTSTRAP, bootstrap)
    chosen = {"startingOffsets": "earliest", **options}
    return reader.option("subscribe", topic).options(**chosen).load()


def write_stream(
    frame: DataFrame,
    bootstrap: str,
    topic: str,
    checkpoint: Path,
    *,
    sink: str = "raftmq",
    **options: str,
) -> DataStreamWriter:
    """All that there is, in as many microbatches as its source makes of it."""
    writer = frame.writeStream.format(sink).option(BOOTSTRAP, bootstrap).option("topic", topic)
    writer = writer.option("checkpointLocation", str(checkpoint)).options(**options)
    return writer.trigger(availableNow=True)


def numbers(spark: SparkSession, count: int, *, start: int = 0) -> DataFrame:
    """Keys "0", "1", ... and values "v0", "v1", ..., in two partitions of Spark."""
    return spark.range(start, start + count).selectExpr(
        "cast(id as string) as key", "cast(concat('v', id) as binary) as value"
    )


def records(
    client: sync.Client, *topics: str, isolation_level: Isolation = "read_committed"
) -> list[ConsumerRecord]:
    """All that stands there for such a reader; each partition in order."""
    deadline = time.monotonic() + READ_SECONDS_MAX
    with client.consumer(*topics, start="earliest", isolation_level=isolation_level) as consumer:
        ends = consumer.end_offsets()
        found: list[ConsumerRecord] = []
        while missing := _missing(consumer, ends):
            batch = next(consumer.batches(timeout=LOOK_SECONDS), None)
            found += batch or ()
            assert time.monotonic() < deadline, (
                f"not read in {READ_SECONDS_MAX:g} s: {missing}; open:"
                f" {[client.admin.open_transactions(topic) for topic in topics]}"
            )
        return found


def _missing(consumer: sync.Consumer, ends: Mapping[tuple[str, int], int]) -> dict[str, str]:
    """By partition: the position, and the end that it has not reached."""
    positions = {key: consumer.position(*key) or 0 for key in ends}
    return {
        f"{topic}-{partition}": f"{positions[topic, partition]} of {end}"
        for (topic, partition), end in ends.items()
        if positions[topic, partition] < end
    }


def values(
    client: sync.Client, *topics: str, isolation_level: Isolation = "read_committed"
) -> list[bytes]:
    return [record.value for record in records(client, *topics, isolation_level=isolation_level)]


def fill(client: sync.Client, topic: str, numbers: range) -> None:
    """One record for each number, dealt to the partitions by its key."""
    with client.producer() as producer:
        producer.enqueue_columns(
            topic,
            keys=[str(number).encode() for number in numbers],
            values=[f"v{number}".encode() for number in numbers],
        )


def expected(numbers: range) -> list[bytes]:
    return sorted(f"v{number}".encode() for number in numbers)
