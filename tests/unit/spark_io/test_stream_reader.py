"""The reader of a stream before it has asked anybody.

Its offsets, out of real brokers, are in tests/cluster/test_spark_io_streams.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

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

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.streaming.datasource import ReadLimit

    from spark_io.lookup import Lookup
    from spark_io.offsets import Key

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


class Logs:
    """A cluster with one topic, as far as a stream asks for it, and what it was asked."""

    def __init__(self, **ends: int) -> None:
        self.ends = {("t", int(name[1:])): end for name, end in ends.items()}
        self.asked: list[str] = []

    def keys(self, known: Iterable[Key] = ()) -> list[Key]:
        self.asked.append("topics")
        return sorted(self.ends)

    existing = keys

    def earliest(self, keys: Iterable[Key]) -> dict[Key, int]:
        self.asked.append("earliest")
        return dict.fromkeys(keys, 0)

    def latest(self, keys: Iterable[Key]) -> dict[Key, int]:
        self.asked.append("latest")
        return {key: self.ends[key] for key in keys}

    def take_asked(self) -> list[str]:
        asked, self.asked = self.asked, []
        return asked


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(100)])
def test_a_microbatch_asks_for_each_thing_once(limit: ReadLimit) -> None:
    """And one that is run again, out of the checkpoint, for what it needs."""
    logs, reader = Logs(p0=9, p1=4), new_reader()
    reader._lookup = cast("Lookup", logs)
    start = {"t": {"0": 5}}
    end = reader.latestOffset(start, limit)
    [planned] = reader.partitions(start, end)
    assert [str(each) for each in planned.ranges] == ["t-0[5:9]", "t-1[0:4]"]
    assert logs.take_asked() == ["topics", "latest", "earliest"]
    assert reader.latestOffset(end, limit) == end
    assert logs.take_asked() == ["topics", "latest"]
    again = new_reader()
    again._lookup = reader._lookup
    assert again.partitions(start, end) == [planned]
    assert logs.take_asked() == ["topics", "earliest"]


def test_a_microbatch_without_records_is_planned_too() -> None:
    """Spark runs one for aggregations whose windows have ended."""
    reader = new_reader()
    reader._lookup = cast("Lookup", Logs(p0=9))
    end = reader.latestOffset({"t": {"0": 9}}, ReadAllAvailable())
    assert reader.partitions({"t": {"0": 9}}, end) == []


def test_a_commit_asks_nobody() -> None:
    new_reader().commit({"t": {"0": 5}})
