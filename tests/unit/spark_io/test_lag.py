"""Lag out of what Spark tells of a microbatch. With real queries: tests/spark/test_streams.py."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)

from spark_io.lag import LagListener, QueryLag, lag_of

QUERY, RUN = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


def progress_of(*sources: tuple[Any, Any], name: str | None = None) -> StreamingQueryProgress:
    """Each source: where it has come to, and where it ends."""
    rates = {"inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0, "numInputRows": 0}
    listed = [
        {"description": "", "startOffset": {}, "endOffset": end, "latestOffset": latest, **rates}
        for end, latest in sources
    ]
    return StreamingQueryProgress.fromJson(
        {
            "id": QUERY, "runId": RUN, "name": name, "timestamp": "", "batchId": 7,
            "batchDuration": 1, "stateOperators": [], "sources": listed,
            "sink": {"description": "", "numOutputRows": 0},
        }
    )  # fmt: skip


def test_each_partition_counts() -> None:
    lag = lag_of(progress_of(({"a": {"0": 5, "1": 7}}, {"a": {"0": 8, "1": 7}}), name="copy"))
    assert lag == QueryLag(QUERY, "copy", 7, {("a", 0): 3, ("a", 1): 0})
    assert lag.total == 3
    assert lag.metrics == {
        "avgOffsetsBehindLatest": 1.5,
        "maxOffsetsBehindLatest": 3,
        "minOffsetsBehindLatest": 0,
    }


def test_several_sources_are_one_query() -> None:
    lag = lag_of(
        progress_of(({"a": {"0": 5}}, {"a": {"0": 8}}), ({"b": {"0": 1}}, {"b": {"0": 2}}))
    )
    assert lag.partitions == {("a", 0): 3, ("b", 0): 1}
    assert lag.topics == ["a", "b"]


@pytest.mark.parametrize(("end", "latest"), [(5, 9), ({"a": {"0": 5}}, None), ("", "0@1")])
def test_what_is_no_topic_does_not_count(end: Any, latest: Any) -> None:
    lag = lag_of(progress_of((end, latest)))
    assert (lag.partitions, lag.topics) == ({}, [])
    assert set(lag.metrics.values()) == {0}


def test_a_log_that_ends_earlier_has_no_lag() -> None:
    assert lag_of(progress_of(({"a": {"0": 9}}, {"a": {"0": 4}}))).total == 0


def test_a_listener_knows_the_queries_that_run(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[QueryLag] = []
    listener = LagListener(seen.append)
    progress = progress_of(({"a": {"0": 5, "1": 1}}, {"a": {"0": 8, "1": 1}}))
    with caplog.at_level(logging.INFO, "spark_io.lag"):
        listener.onQueryProgress(QueryProgressEvent(progress))
    assert caplog.messages == [
        f"lag: query={QUERY} name=- topics=a batch=7 records=3 average=1.5 max=3 min=0"
    ]
    assert list(listener.lags.values()) == seen
    assert [lag.total for lag in seen] == [3]
    listener.onQueryTerminated(QueryTerminatedEvent(UUID(QUERY), UUID(RUN), None, None))
    assert listener.lags == {}
