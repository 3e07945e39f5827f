"""The format `raftmq`: what is made of options and columns, and refused before a task starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import types
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_raftmq import DefaultSource
from raftmq.errors import InvalidConfig
from spark_io.schema import COLUMNS, arrow_schema
from spark_io.source import BatchReader, BatchWriter, RaftmqDataSource, StreamWriter
from spark_io.stream_reader import RefusedReader, StreamReader
from tests.unit.spark_io.tasks import sent_away, struct

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
# Rows name their topics: a topic of an option would be looked for.
SINK = {"kafka.bootstrap.servers": "127.0.0.1:1"}
ALL = struct(*(column.name for column in COLUMNS))
ROWS = struct("key", "value", "topic")


def problems_of(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidConfig) as caught:
        call()
    return str(caught.value)


def test_its_name() -> None:
    """Spark finds it by itself, as `pyspark_raftmq` can be imported."""
    assert RaftmqDataSource.name() == "raftmq"
    assert DefaultSource is RaftmqDataSource


def test_the_columns_of_the_source() -> None:
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert columns_of(RaftmqDataSource(SOURCE)) == names
    given = {**SOURCE, "includeheaders": "TRUE", "includetags": " true "}
    assert columns_of(RaftmqDataSource(given)) == [*names, "headers", "tags"]


def columns_of(source: RaftmqDataSource) -> list[str]:
    return [column.split()[0] for column in source.schema().split(", ")]


def test_spark_types_arrive_as_they_were_told() -> None:
    """`ddl`, Spark's own types and those of Arrow are three spellings of the same."""
    reader = RaftmqDataSource(SOURCE).reader(ALL)
    wanted = arrow_schema(include_headers=True, include_tags=True)
    assert reader._schema.types == wanted.types
    assert reader._schema.names == wanted.names


def test_readers_and_writers() -> None:
    assert isinstance(RaftmqDataSource(SOURCE).reader(schema=ALL), BatchReader)
    assert isinstance(RaftmqDataSource(SOURCE).streamReader(schema=ALL), StreamReader)
    assert isinstance(RaftmqDataSource(SINK).writer(schema=ROWS, overwrite=False), BatchWriter)
    writer = RaftmqDataSource(SINK).streamWriter(schema=ROWS, overwrite=False)
    assert isinstance(writer, StreamWriter)


def test_options_that_make_no_difference_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not with each microbatch."""
    for _ in range(2):
        source = RaftmqDataSource({**SINK, "kafka.max.block.ms": "60000"})
        source.streamWriter(schema=ROWS, overwrite=False)
    assert caplog.messages == [
        "option kafka.max.block.ms is passed over: the client has no such setting, and does the "
        "same without it"
    ]


def test_the_source_itself_travels() -> None:
    arrived = sent_away(RaftmqDataSource(SOURCE))
    assert isinstance(arrived.reader(ALL), BatchReader)


def test_overwrite_is_refused() -> None:
    source = RaftmqDataSource(SINK)
    told = problems_of(lambda: source.writer(schema=ROWS, overwrite=True))
    assert 'mode "overwrite": a topic can only be added to; say "append"' in told
    told = problems_of(lambda: source.streamWriter(schema=ROWS, overwrite=True))
    assert 'output mode "complete": a topic can only be added to; say "append"' in told
    assert "foreachBatch" in told


def test_bad_options_are_told_while_planning() -> None:
    none: dict[str, str] = {}
    assert "bootstrap" in problems_of(lambda: RaftmqDataSource(none).reader(ALL))
    unsafe = {**SINK, "kafka.acks": "1"}
    told = problems_of(lambda: RaftmqDataSource(unsafe).writer(ROWS, overwrite=False))
    assert "kafka.acks" in told
    told = problems_of(lambda: RaftmqDataSource(unsafe).streamWriter(ROWS, overwrite=False))
    assert "kafka.acks" in told


def test_bad_options_of_a_stream_are_told_when_it_begins() -> None:
    """Spark would hide an error of `streamReader` itself behind one of its own."""
    none: dict[str, str] = {}
    refused = RaftmqDataSource(none).streamReader(ALL)
    assert isinstance(refused, RefusedReader)
    assert "bootstrap" in problems_of(refused.initialOffset)
    assert "bootstrap" in problems_of(lambda: refused.latestOffset({}, ReadAllAvailable()))


def test_options_of_the_other_kind_of_query() -> None:
    limited = {**SOURCE, "maxoffsetspertrigger": "5"}
    RaftmqDataSource(limited).streamReader(ALL)
    assert "maxOffsetsPerTrigger" in problems_of(lambda: RaftmqDataSource(limited).reader(ALL))
    refused = RaftmqDataSource({**SOURCE, "endingoffsets": "latest"}).streamReader(ALL)
    assert "endingOffsets" in problems_of(refused.initialOffset)
    numbered = {**SINK, "transactionalid": "etl", "generation": "5"}
    RaftmqDataSource(numbered).writer(ROWS, overwrite=False)
    told = problems_of(lambda: RaftmqDataSource(numbered).streamWriter(ROWS, overwrite=False))
    assert "generation" in told


def test_bad_columns_are_told_while_planning() -> None:
    numbers = types.StructType([types.StructField("value", types.LongType())])
    told = problems_of(lambda: RaftmqDataSource(SINK).writer(numbers, overwrite=False))
    assert "column value is bigint, expected binary or string: cast it" in told
    told = problems_of(lambda: RaftmqDataSource(SOURCE).reader(numbers))
    assert "column value is binary, and cannot be read as bigint" in told


def test_a_topic_for_the_rows() -> None:
    """An option, or a column."""
    source = RaftmqDataSource({"kafka.bootstrap.servers": "127.0.0.1:1"})
    source.writer(struct("value", "topic"), overwrite=False)
    told = problems_of(lambda: source.writer(struct("value"), overwrite=False))
    assert "no topic: set the option topic, or add a column topic" in told
