"""What is wrong is told in the program that asked for it, with the way out, before a task runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from tests.spark.copying import wait_for_end
from tests.spark.frames import BOOTSTRAP, read, stream, write, write_stream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from raftmq.testing.server import Server

pytestmark = pytest.mark.spark

NOWHERE = "127.0.0.1:1"
ROWS = "select 'k' key, 'v' value, 't' topic"

NOWHERE_TO_BE_FOUND = (
    "UnknownTopicOrPartition: there is no topic 'nowhere': make it first, raftmq topic create "
    "nowhere, or name another one"
)
# All that is wrong is told at once; and each failure costs Spark a process.
UNWRITTEN = {
    "options": (
        ROWS,
        {
            "kafka.acks": "1",
            "compresion.type": "gzip",
            "kafka.key.serializer": "x",
            "delivery": "at_most_once",
            "transactionalId": "job",
        },
        [
            "kafka.acks = '1': expected all or -1: the sink is done with a row once every replica",
            "there is no option compresion.type; did you mean kafka.compression.type?",
            "encode and decode them in the DataFrame",
            "delivery = 'at_most_once': expected idempotent or at_least_once or exactly_once",
            "transactionalId = 'job' without generation",
        ],
    ),
    "columns": (
        "select 'k' as key, 1 as x, id as partition, 2 as headers from range(1)",
        {},
        [
            "there is no column value among key, x, partition, headers: it is what is sent",
            "no topic: set the option topic, or add a column topic",
            "not sent, so drop or rename: x; columns are value, key, topic",
            "column partition is bigint, expected int: cast it",
            "column headers is int, expected array<struct<key:string,value:binary>>: cast it",
        ],
    ),
    "text": ("select 1 value", {"topic": "t"}, ["column value is int, expected binary or string"]),
}


@pytest.mark.parametrize("case", UNWRITTEN)
def test_what_cannot_be_written(spark: SparkSession, case: str) -> None:
    rows, options, told = UNWRITTEN[case]
    writer = spark.sql(rows).write.format("raftmq").option(BOOTSTRAP, NOWHERE).options(**options)
    with pytest.raises(PySparkException) as caught:
        writer.mode("append").save()
    assert [each for each in told if each not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("overwrite", 'mode "overwrite": a topic can only be added to; say "append"'),
        ("error", 'Please use either the "Append" or'),  # Spark says so itself
    ],
)
def test_topics_are_only_added_to(spark: SparkSession, mode: str, told: str) -> None:
    writer = spark.sql(ROWS).write.format("raftmq").option(BOOTSTRAP, NOWHERE)
    with pytest.raises(PySparkException) as caught:
        writer.mode(mode).save()
    assert told in str(caught.value)


def test_what_cannot_be_read(spark: SparkSession) -> None:
    options = {"startingOffsets": "latest", "maxOffsetsPerTrigger": "5", "group.id": "g"}
    reader = spark.read.format("raftmq").option(BOOTSTRAP, NOWHERE).options(**options)
    with pytest.raises(PySparkException) as caught:
        reader.load().count()
    told = [
        "nothing to read: name topics with subscribe, or assign or subscribePattern",
        "startingOffsets: a batch cannot begin at latest",
        "maxOffsetsPerTrigger: it is for streams; leave it out",
        "the source is no member of a group; for a label say kafka.group.id",
    ]
    assert [each for each in told if each not in str(caught.value)] == []


def test_columns_that_there_are_not(spark: SparkSession) -> None:
    reader = spark.read.format("raftmq").schema("value STRING, size INT").option(BOOTSTRAP, NOWHERE)
    with pytest.raises(PySparkException) as caught:
        reader.option("subscribe", "t").load().count()
    assert "column value is binary, and cannot be read as string" in str(caught.value)
    assert "there is no column 'size': choose among key binary" in str(caught.value)


def test_a_topic_that_there_is_not(spark: SparkSession, server: Server) -> None:
    with pytest.raises(PySparkException) as caught:
        read(spark, server.bootstrap, "nowhere").count()
    assert one_line_of(caught.value) == NOWHERE_TO_BE_FOUND


def test_a_write_to_a_topic_that_there_is_not(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    """It is refused while it is planned: no task begins, in a batch and in a stream."""
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    with pytest.raises(PySparkException) as caught:
        write(spark.sql(ROWS).drop("topic"), server.bootstrap, "nowhere")
    assert one_line_of(caught.value) == NOWHERE_TO_BE_FOUND
    fill_one(spark, server, topic)
    begun = set(tracker.getJobIdsForGroup())
    rows = stream(spark, server.bootstrap, topic).select("value")
    with pytest.raises(StreamingQueryException) as failed:
        wait_for_end(write_stream(rows, server.bootstrap, "nowhere", tmp_path).start())
    assert one_line_of(failed.value) == NOWHERE_TO_BE_FOUND
    assert set(tracker.getJobIdsForGroup()) - begun == set()
    assert len(begun - before) == 1  # that of `fill_one`


def fill_one(spark: SparkSession, server: Server, topic: str) -> None:
    write(spark.sql("select 'v' value"), server.bootstrap, topic)


def one_line_of(error: PySparkException) -> str:
    """What the driver is told of an error, which comes without a traceback of Python."""
    assert "Traceback" not in str(error)
    [line] = [line for line in str(error).splitlines() if "raftmq.errors." in line]
    return line.partition("raftmq.errors.")[2]


def test_a_row_without_topic(spark: SparkSession, server: Server) -> None:
    rows = spark.sql("select cast(null as string) topic, 'v' value")
    writer = rows.write.format("raftmq").option(BOOTSTRAP, server.bootstrap)
    with pytest.raises(PySparkException) as caught:
        writer.mode("append").save()
    assert "column topic is null in 1 of 1 rows: give each row a topic" in str(caught.value)


def test_output_modes(spark: SparkSession, server: Server, topic: str, tmp_path: Path) -> None:
    found = stream(spark, server.bootstrap, topic)
    writer = write_stream(found, server.bootstrap, topic, tmp_path / "1")
    with pytest.raises(PySparkException, match="Update mode"):
        wait_for_end(writer.outputMode("update").start())
    counts = found.groupBy("value").count().selectExpr("value")
    writer = write_stream(counts, server.bootstrap, topic, tmp_path / "2")
    with pytest.raises(PySparkException) as caught:
        wait_for_end(writer.outputMode("complete").start())
    assert 'output mode "complete": a topic can only be added to' in str(caught.value)


def test_a_stream_has_no_end(
    spark: SparkSession, server: Server, topic: str, tmp_path: Path
) -> None:
    found = stream(spark, server.bootstrap, topic, endingOffsets="latest")
    with pytest.raises(StreamingQueryException) as caught:
        wait_for_end(write_stream(found, server.bootstrap, topic, tmp_path).start())
    assert "endingOffsets: a stream has no end; read a batch" in one_line_of(caught.value)
