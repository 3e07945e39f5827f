"""The consumer lag of streaming queries: a listener, `spark.streams.addListener(LagListener())`.

For a source in Python Spark reports the query's offsets and the topics' ends, and neither lag nor a
readable name: this computes both from the two. Invariant: it holds the newest microbatch of each
query, and forgets a query that has ended.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from raftmq.errors import InvalidConfig
from spark_io.offsets import Key, flat, from_json_dict

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

logger = logging.getLogger("spark_io.lag")


@dataclass(frozen=True)
class QueryLag:
    """The lag after one microbatch.

    Attributes:
        query_id: stays the same over restarts.
        query_name: None: it has none.
        batch_id: of the microbatch.
        partitions: offsets between the query's position and the log's end when the microbatch
            began, by topic and partition; some of them may hold no record.
    """

    query_id: str
    query_name: str | None
    batch_id: int
    partitions: dict[Key, int]

    @property
    def total(self) -> int:
        return sum(self.partitions.values())

    @property
    def topics(self) -> list[str]:
        """What is read, which Spark's description of a source in Python does not say."""
        return sorted({topic for topic, _ in self.partitions})

    @property
    def metrics(self) -> dict[str, float]:
        """Over all partitions, with the names that Spark's source for Kafka gives them in a query's
        progress; 0 where there are none.
        """
        behind = list(self.partitions.values()) or [0]
        return {
            "avgOffsetsBehindLatest": sum(behind) / len(behind),
            "maxOffsetsBehindLatest": max(behind),
            "minOffsetsBehindLatest": min(behind),
        }


class LagListener(StreamingQueryListener):
    """Computes a `QueryLag` for each microbatch, and logs it.

    Args:
        on_lag: called with each new one, in a thread of Spark's, which it must not block.

    Attributes:
        lags: the newest of each running query, by its id.
    """

    def __init__(self, on_lag: Callable[[QueryLag], None] | None = None) -> None:
        self._on_lag = on_lag
        self.lags: dict[str, QueryLag] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """No offsets are known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        lag = lag_of(event.progress)
        self.lags[lag.query_id] = lag
        average, most, least = lag.metrics.values()
        logger.info(
            "lag: query=%s name=%s topics=%s batch=%d records=%d average=%.1f max=%d min=%d",
            lag.query_id, lag.query_name or "-", ",".join(lag.topics) or "-", lag.batch_id,
            lag.total, average, most, least,
        )  # fmt: skip
        if self._on_lag is not None:
            self._on_lag(lag)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Without a microbatch the last lag still holds."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.lags.pop(str(event.id), None)


def lag_of(progress: StreamingQueryProgress) -> QueryLag:
    """Sources of other formats, whose offsets are not those of topics, count for nothing."""
    partitions: dict[Key, int] = {}
    for source in progress.sources:
        for key, behind in _behind(source.endOffset, source.latestOffset).items():
            # Two sources may read the same partition: the slower one counts.
            partitions[key] = max(behind, partitions.get(key, 0))
    name = progress.name or None
    return QueryLag(str(progress.id), name, progress.batchId, partitions)


def _behind(end: str | None, latest: str | None) -> dict[Key, int]:
    try:
        reached, ends = (flat(from_json_dict(json.loads(text or ""))) for text in (end, latest))
    except (ValueError, InvalidConfig):  # another format's offsets, or none yet
        return {}
    return {key: max(0, ends[key] - reached.get(key, 0)) for key in ends}
