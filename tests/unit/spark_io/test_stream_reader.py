"""The reader of a stream before it has asked anybody.

Its offsets, out of real brokers, are in tests/cluster/test_spark_io_streams.py.
"""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from spark_io.options.source import source_options
from spark_io.schema import arrow_schema
from spark_io.stream_reader import StreamReader
from tests.unit.spark_io.tasks import sent_away

NOBODY = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}


def new_reader(**given: str) -> StreamReader:
    return StreamReader(source_options({**NOBODY, **given}, is_stream=True), arrow_schema())


def test_it_travels() -> None:
    reader = new_reader(maxOffsetsPerTrigger="7")
    arrived = sent_away(reader)
    assert arrived._options == reader._options
    assert arrived._schema == reader._schema
    arrived.stop()
    reader.stop()


def test_how_much_a_microbatch_takes() -> None:
    assert isinstance(new_reader().getDefaultReadLimit(), ReadAllAvailable)
    limit = new_reader(maxOffsetsPerTrigger="7").getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    assert limit.max_rows == 7
    limit = new_reader(minOffsetsPerTrigger="5").getDefaultReadLimit()
    assert isinstance(limit, ReadMinRows)
    assert limit.min_rows == 5


def test_spark_may_end_it_at_what_is_there() -> None:
    """Without this class a query with the trigger availableNow would be one microbatch."""
    assert isinstance(new_reader(), SupportsTriggerAvailableNow)


def test_nothing_is_known_of_the_end_before_anybody_was_asked() -> None:
    assert new_reader().reportLatestOffset() is None


def test_a_commit_asks_nobody() -> None:
    new_reader().commit({"t": {"0": 5}})
