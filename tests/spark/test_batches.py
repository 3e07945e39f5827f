"""Batches of Spark, both ways. The format is found without being registered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.spark.frames import (
    BOOTSTRAP,
    expected,
    fill,
    numbers,
    read,
    records,
    values,
    write,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from raftmq import ConsumerRecord, sync
    from raftmq.testing.server import Server

pytestmark = pytest.mark.spark

EVERY_COLUMN = """
    cast(id as string) as key, concat('v', id) as value, cast(id % 3 as int) as partition,
    timestamp_millis(1700000000000 + id) as timestamp, array('a', concat('t', id)) as tags,
    array(named_struct('key', 'h', 'value', cast(concat('x', id) as binary))) as headers
"""


def _without_place(record: ConsumerRecord) -> tuple[object, ...]:
    """All but topic and offset."""
    where = record.partition, record.timestamp
    return *where, record.key, record.value, record.headers, record.tags


def offsets_of(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in frame.collect())


def test_what_is_written_is_read(spark: SparkSession, server: Server, topic: str) -> None:
    """Shows A14.1."""
    write(numbers(spark, 5000), server.bootstrap, topic)
    found = read(spark, server.bootstrap, topic)
    assert found.count() == 5000
    rows = found.selectExpr("cast(key as string) k", "cast(value as string) v", "offset").collect()
    assert {(row.k, row.v) for row in rows} == {(str(n), f"v{n}") for n in range(5000)}


def test_every_column_arrives(
    spark: SparkSession, server: Server, client: sync.Client, topic: str
) -> None:
    write(every_column(spark), server.bootstrap, topic)
    for record in records(client, topic):
        number = int(record.key)
        assert record.value == f"v{number}".encode()
        assert (record.partition, record.timestamp) == (number % 3, 1_700_000_000_000 + number)
        assert record.headers == (("h", f"x{number}".encode()),)
        assert record.tags == ("a", f"t{number}")


def every_column(spark: SparkSession) -> DataFrame:
    return spark.sql(f"select {EVERY_COLUMN} from range(9)")


def test_a_copy_is_alike(
    spark: SparkSession, server: Server, client: sync.Client, topic: str
) -> None:
    """Topic, offset and kind of timestamp need not be taken out of what was read."""
    client.admin.create_topic(f"{topic}-copy", partitions=3, replication_factor=3)
    write(every_column(spark), server.bootstrap, topic)
    with_all = {"includeHeaders": "true", "includeTags": "true"}
    write(read(spark, server.bootstrap, topic, **with_all), server.bootstrap, f"{topic}-copy")
    wanted = {_without_place(record) for record in records(client, topic)}
    assert len(wanted) == 9
    assert {_without_place(record) for record in records(client, f"{topic}-copy")} == wanted


def test_headers_and_tags_are_read(spark: SparkSession, server: Server, topic: str) -> None:
    write(every_column(spark), server.bootstrap, topic)
    options = {"includeHeaders": "true", "includeTags": "true"}
    row = (
        read(spark, server.bootstrap, topic, **options)
        .where("value = cast('v5' as binary)")
        .first()
    )
    assert row is not None
    assert [(each.key, bytes(each.value)) for each in row.headers] == [("h", b"x5")]
    assert row.tags == ["a", "t5"]
    assert (row.topic, row.partition, row.timestampType) == (topic, 2, 0)
    assert row.timestamp.timestamp() == 1_700_000_000.005


def test_rows_by_their_tags(spark: SparkSession, server: Server, topic: str) -> None:
    """The same as by a filter of all rows, where many tag sets share a chunk, too (A12.1)."""
    tagged = numbers(spark, 600).selectExpr(
        "key", "value", "if(key < 500, array(concat('t', key % 100), if(key % 3 = 0, 'eu', 'us')),"
        " array('us')) as tags",
    )  # fmt: skip
    write(tagged, server.bootstrap, topic)
    options = {"includeTags": "true", "minPartitions": "6"}
    frame = read(spark, server.bootstrap, topic, **options)
    for tags, condition in (
        ("eu & !t6", "array_contains(tags, 'eu') and not array_contains(tags, 't6')"),
        ("t7 | t80", "arrays_overlap(tags, array('t7', 't80'))"),
        ("none", "false"),
    ):
        found = read(spark, server.bootstrap, topic, **options, tags=tags)
        assert sorted(found.collect()) == sorted(frame.where(condition).collect())


def test_keys_may_be_null_and_values_too(
    spark: SparkSession, server: Server, client: sync.Client, topic: str
) -> None:
    frame = spark.sql("select if(id < 2, 'k', null) key, if(id = 1, null, 'v') value from range(4)")
    write(frame, server.bootstrap, topic)
    found = sorted((record.key or b"", record.value or b"") for record in records(client, topic))
    assert found == [(b"", b"v"), (b"", b"v"), (b"k", b""), (b"k", b"v")]
    assert read(spark, server.bootstrap, topic).where("key is null").count() == 2


def test_rows_name_their_topics(
    spark: SparkSession, server: Server, client: sync.Client, topic: str
) -> None:
    topics = [f"{topic}-{number}" for number in range(3)]
    for name in topics:
        client.admin.create_topic(name, partitions=2, replication_factor=3)
    frame = spark.sql(
        f"select concat('{topic}-', id % 3) topic, concat('v', id) value from range(90)"
    )
    frame.write.format("raftmq").option(BOOTSTRAP, server.bootstrap).mode("append").save()
    for number, name in enumerate(topics):
        assert sorted(values(client, name)) == expected(range(number, 90, 3))
    reader = spark.read.format("raftmq").option(BOOTSTRAP, server.bootstrap)
    found = reader.option("subscribePattern", f"{topic}-[01]").load()
    assert {row.topic: row["count"] for row in found.groupBy("topic").count().collect()} == {
        topics[0]: 30, topics[1]: 30
    }  # fmt: skip


def test_only_chosen_columns_are_read(spark: SparkSession, server: Server, topic: str) -> None:
    write(numbers(spark, 10), server.bootstrap, topic)
    reader = spark.read.format("raftmq").schema("value BINARY, offset LONG")
    found = reader.option(BOOTSTRAP, server.bootstrap).option("subscribe", topic).load()
    assert found.columns == ["value", "offset"]
    assert sorted(bytes(row.value) for row in found.collect()) == expected(range(10))


def test_offsets_bound_what_is_read(
    spark: SparkSession, server: Server, client: sync.Client, topic: str
) -> None:
    """Shows A14.2."""
    fill(client, topic, range(300))
    ends = client.admin.offsets(topic, "latest")
    start, end = {"0": 10, "1": -2, "2": 5}, {"0": 20, "1": -1, "2": 5}
    found = read(
        spark,
        server.bootstrap,
        topic,
        startingOffsets=json.dumps({topic: start}),
        endingOffsets=json.dumps({topic: end}),
    )
    wanted = [(0, offset) for offset in range(10, 20)]
    assert offsets_of(found) == wanted + [(1, offset) for offset in range(ends[1] or 0)]


def test_large_ranges_are_cut(
    spark: SparkSession, server: Server, client: sync.Client, topic: str
) -> None:
    fill(client, topic, range(300))
    for option, tasks in ({"minPartitions": "9"}, 9), ({"maxRecordsPerPartition": "40"}, 9):
        found = read(spark, server.bootstrap, topic, **option)
        rows = found.selectExpr("value", "spark_partition_id() as task").collect()
        assert abs(len({row.task for row in rows}) - tasks) <= 1
        assert sorted(bytes(row.value) for row in rows) == expected(range(300))


def test_times_bound_what_is_read(
    spark: SparkSession, server: Server, client: sync.Client, topic: str
) -> None:
    with client.producer() as producer:
        texts = [f"v{number}".encode() for number in range(30)]
        dealt = [number % 3 for number in range(30)]
        producer.enqueue_columns(topic, values=texts, timestamps=[*range(30)], partitions=dealt)
    bounds = {"startingTimestamp": "7", "endingTimestamp": "20"}
    found = read(spark, server.bootstrap, topic, **bounds)
    assert sorted(bytes(row.value) for row in found.collect()) == expected(range(7, 20))
    late = {"startingTimestamp": "30", "startingOffsetsByTimestampStrategy": "latest"}
    assert read(spark, server.bootstrap, topic, **late).count() == 0


def test_nothing_is_read_and_written(
    spark: SparkSession, server: Server, client: sync.Client, topic: str
) -> None:
    assert read(spark, server.bootstrap, topic).count() == 0
    write(numbers(spark, 0), server.bootstrap, topic)
    assert records(client, topic) == []
    assert read(spark, server.bootstrap, topic).count() == 0  # though fences stand there


def test_a_reader_that_is_left_early(
    spark: SparkSession, server: Server, client: sync.Client, topic: str
) -> None:
    fill(client, topic, range(2000))
    found = read(spark, server.bootstrap, topic)
    assert found.limit(1).count() == 1
    assert found.count() == 2000


def test_a_view_of_sql(
    spark: SparkSession, server: Server, client: sync.Client, topic: str
) -> None:
    options = {BOOTSTRAP: server.bootstrap, "subscribe": topic, "topic": topic}
    listed = ", ".join(f"'{name}' '{text}'" for name, text in options.items())
    spark.sql(f"create temporary view numbers using raftmq options ({listed})")
    try:
        spark.sql(
            "insert into numbers (value) select cast(concat('v', id) as binary) from range(20)"
        )
        count = spark.sql(
            "select count(*) c from numbers where value > cast('v' as binary)"
        ).first()
    finally:
        spark.catalog.dropTempView("numbers")
    assert count is not None
    assert count.c == 20
    assert sorted(values(client, topic)) == expected(range(20))


def test_a_table_of_sql_is_told_its_options_where_it_is_used(
    spark: SparkSession, server: Server, client: sync.Client, topic: str
) -> None:
    """Spark hands the options of CREATE TABLE to no source in Python."""
    options = {BOOTSTRAP: server.bootstrap, "subscribe": topic, "topic": topic}
    given = "with (" + ", ".join(f"'{name}' = '{text}'" for name, text in options.items()) + ")"
    spark.sql("create table numbers using raftmq")
    try:
        spark.sql(f"insert into numbers {given} (value) values (cast('v0' as binary))")
        found = spark.sql(f"select value from numbers {given}").collect()
    finally:
        spark.sql("drop table numbers")
    assert [bytes(row.value) for row in found] == [b"v0"] == values(client, topic)


def test_a_job_with_a_name_may_run_again(
    spark: SparkSession, server: Server, client: sync.Client, topic: str
) -> None:
    job = {"transactionalId": topic, "generation": "1"}
    for _ in range(2):
        write(numbers(spark, 100), server.bootstrap, topic, **job)
    assert sorted(values(client, topic)) == expected(range(100))
    write(numbers(spark, 100), server.bootstrap, topic, **{**job, "generation": "2"})
    assert len(values(client, topic)) == 200


def test_fewer_tasks_than_before(spark: SparkSession, server: Server, topic: str) -> None:
    """Of a job that is run again: what that may have doubled is told."""
    job = {"transactionalId": "load", "generation": "1"}
    rows = numbers(spark, 100)
    write(rows, server.bootstrap, topic, **job)
    write(rows, server.bootstrap, topic, **job)
    with pytest.raises(PySparkException, match="had more tasks: 'load/1', generation 1"):
        write(rows.coalesce(1), server.bootstrap, topic, **job)


def test_from_sql(spark: SparkSession, server: Server, client: sync.Client, topic: str) -> None:
    """A view is made with options, as the page has it, and read."""
    fill(client, topic, range(3))
    given = {"bootstrap": server.bootstrap, "subscribe": topic}
    options = ", ".join(f"{name} '{text}'" for name, text in given.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING raftmq OPTIONS ({options})")
    assert spark.sql("SELECT * FROM seen").count() == 3
    spark.sql("DROP VIEW seen")
