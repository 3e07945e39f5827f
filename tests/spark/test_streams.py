"""Streams of Spark, both ways: what a query reads, and where it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from spark_io.lag import LagListener
from tests.spark.copying import Copy, wait_for_end
from tests.spark.faults import wait_until
from tests.spark.frames import expected, fill, stream, values, write_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from raftmq import sync
    from raftmq.testing.server import Server
    from spark_io.lag import QueryLag

pytestmark = pytest.mark.spark


@pytest.fixture
def copy(server: Server, client: sync.Client, topic: str, tmp_path: Path) -> Copy:
    client.admin.create_topic(f"{topic}-copy", partitions=2, replication_factor=3)
    return Copy(server.bootstrap, topic, f"{topic}-copy", str(tmp_path))


def test_a_query_goes_on_where_it_stopped(
    spark: SparkSession, copy: Copy, client: sync.Client
) -> None:
    """Shows A14.1."""
    fill(client, copy.source, range(100))
    counts = copy.run(spark, maxOffsetsPerTrigger="30")
    assert sum(counts) == 100
    assert len(counts) >= 4
    assert max(counts) <= 30
    assert copy.run(spark) in ([], [0])
    fill(client, copy.source, range(100, 150))
    assert sum(copy.run(spark)) == 50
    assert sorted(values(client, copy.target)) == expected(range(150))


def test_a_query_for_some_tags(spark: SparkSession, copy: Copy, client: sync.Client) -> None:
    """It goes over what is left out in microbatches of so many offsets, some of them without a
    row, and does not read it again with other tags (A12.1)."""
    send_tagged(client, copy.source, ["us"] * 60 + ["eu"] * 10 + ["us"] * 30)
    counts = copy.run(spark, maxOffsetsPerTrigger="10", tags="eu & !test")
    assert sum(counts) == 10
    assert sorted(values(client, copy.target)) == sorted(f"eu{n}".encode() for n in range(60, 70))
    send_tagged(client, copy.source, ["us", "eu", "test"])
    assert sum(copy.run(spark, tags="us | test")) == 2
    assert len(values(client, copy.target)) == 12


def send_tagged(client: sync.Client, topic: str, tags: list[str]) -> None:
    """One record a batch; its value says the tag and its number."""
    with client.producer() as producer:
        for number, tag in enumerate(tags):
            producer.send(topic, f"{tag}{number}", tags=[tag], partition=number % 3)


def test_where_a_query_begins(spark: SparkSession, copy: Copy, client: sync.Client) -> None:
    """Shows A14.2."""
    fill(client, copy.source, range(60))
    ends = client.admin.offsets(copy.source, "latest")
    start = {"0": -2, "1": -1, "2": 3}
    count = sum(copy.run(spark, startingOffsets=json.dumps({copy.source: start})))
    assert count == (ends[0] or 0) + (ends[2] or 0) - 3


def test_a_query_begins_at_the_end_by_itself(
    spark: SparkSession, copy: Copy, client: sync.Client
) -> None:
    """And goes on from there, though there was nothing to read."""
    fill(client, copy.source, range(60))
    assert sum(copy.run(spark, startingOffsets="latest")) == 0
    fill(client, copy.source, range(60, 70))
    copy.run(spark, startingOffsets="latest")
    assert sorted(values(client, copy.target)) == expected(range(60, 70))


def test_partitions_that_are_added_are_read_from_their_beginning(
    spark: SparkSession, server: Server, client: sync.Client, topic: str, tmp_path: Path
) -> None:
    fill(client, topic, range(10))
    found = stream(spark, server.bootstrap, topic).selectExpr("cast(value as string) value")
    writer = found.writeStream.format("memory").queryName("added")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        assert spark.table("added").count() == 10
        client.admin.create_partitions(topic, 5)
        with client.producer() as producer:
            for partition in range(5):
                producer.enqueue(topic, b"later", partition=partition)
        query.processAllAvailable()
        assert spark.table("added").where("value = 'later'").count() == 5
    finally:
        query.stop()
        wait_for_end(query)


def test_data_that_is_lost_ends_a_query(
    spark: SparkSession, copy: Copy, client: sync.Client
) -> None:
    fill(client, copy.source, range(30))
    copy.run(spark)
    fill(client, copy.source, range(30, 60))
    end = client.admin.offsets(copy.source, "latest")[0] or 0
    client.admin.delete_records(copy.source, {0: end - 1})
    with pytest.raises(StreamingQueryException) as caught:
        copy.run(spark)
    assert f"{copy.source}-0 has lost the offsets" in str(caught.value)
    assert 'Read what is left with .option("failOnDataLoss", "false")' in str(caught.value)


def test_data_that_is_lost_is_passed_over_if_asked(
    spark: SparkSession, copy: Copy, client: sync.Client
) -> None:
    fill(client, copy.source, range(30))
    before = client.admin.offsets(copy.source, "latest")[0] or 0
    copy.run(spark)
    fill(client, copy.source, range(30, 60))
    end = client.admin.offsets(copy.source, "latest")[0] or 0
    client.admin.delete_records(copy.source, {0: end - 1})
    copy.run(spark, failOnDataLoss="false")
    assert len(values(client, copy.target)) == 60 - (end - 1 - before)


def test_more_records_are_waited_for_unless_a_query_runs_once(
    spark: SparkSession, server: Server, client: sync.Client, topic: str, tmp_path: Path
) -> None:
    client.admin.create_topic(f"{topic}-copy", partitions=1, replication_factor=3)
    fill(client, topic, range(30))
    found = stream(spark, server.bootstrap, topic, minOffsetsPerTrigger="30")
    writer = write_stream(found.select("key", "value"), server.bootstrap, f"{topic}-copy", tmp_path)
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        wait_until(lambda: len(values(client, f"{topic}-copy")) == 30)
        fill(client, topic, range(30, 40))
        wait_until(lambda: query.status["message"] == "Waiting for data to arrive")
    finally:
        query.stop()
        wait_for_end(query)
    assert len(values(client, f"{topic}-copy")) == 30
    wait_for_end(writer.trigger(once=True).start())
    assert sorted(values(client, f"{topic}-copy")) == expected(range(40))


def test_lag_is_seen(spark: SparkSession, copy: Copy, client: sync.Client) -> None:
    descriptors = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    assert descriptors < 1000, "py4j hangs where its own is beyond 1023"
    fill(client, copy.source, range(100))
    ends = client.admin.offsets(copy.source, "latest")
    seen: list[QueryLag] = []
    listener = LagListener(seen.append)
    spark.streams.addListener(listener)
    try:
        query = copy.start(spark, maxOffsetsPerTrigger="60")
        wait_for_end(query)
        wait_until(lambda: len(seen) >= 2 and not listener.lags)  # events come a little later
    finally:
        spark.streams.removeListener(listener)
    assert (seen[0].query_id, seen[0].query_name, seen[0].batch_id) == (query.id, None, 0)
    assert 40 <= seen[0].total <= 42  # shares are rounded down
    assert set(seen[0].partitions) == {(copy.source, partition) for partition in ends}
    assert seen[-1].total == 0
