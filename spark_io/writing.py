"""The rows of one task of Spark, sent: what the writers of batches and streams have in common.

Invariant: `write_rows` returns once every row stands with all replicas in sync, or raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import WriterCommitMessage

from spark_io.arrow_columns import TopicColumns, columns_of
from spark_io.connecting import connected
from spark_io.holding import held_if_fenced

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from raftmq import sync
    from spark_io.names import Name
    from spark_io.sink_options import SinkOptions

# Spark runs a task that failed at once again, four times by itself: together that is two minutes,
# which outlasts most restarts and does not hide a wrong address for long.
CONNECT_SECONDS = 30.0


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver.

    Attributes:
        name: under which it wrote; None: under none.
        record_count: rows that it was given.
        skipped_count: of these, those that stood there from an earlier attempt.
        topics: that it wrote to.
    """

    name: Name | None
    record_count: int
    skipped_count: int
    topics: tuple[str, ...] = ()


def write_rows(
    options: SinkOptions, name: Name | None, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Raises RaftmqError, which names topic, partition and cause."""
    named: dict[str, Any] = {} if name is None else name._asdict()
    arguments: dict[str, Any] = {**options.producer, **named}
    topics: dict[str, None] = {}
    with connection(options) as client, client.producer(acks="all", **arguments) as producer:
        parts = _parts(options, batches)
        # A generation that is over is told at once.
        count = _send(producer, islice(parts, 1), topics)
        with held_if_fenced():
            count += _send(producer, parts, topics)
            producer.flush()
    return Written(name, count, producer.statistics.skipped_records, tuple(topics))


def connection(options: SinkOptions) -> AbstractContextManager[sync.Client]:
    return connected(options.bootstrap, options.client_id, CONNECT_SECONDS)


def _parts(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Iterator[TopicColumns]:
    """The first one has no rows: whoever hands it in waits for the fences of its topic."""
    first = options.topic
    if first is not None:  # a task without rows may have had some the first time
        yield TopicColumns(first, {"values": []})
    for batch in batches:
        for part in columns_of(batch, topic=options.topic):
            if first is None:
                first = part.topic
                yield TopicColumns(first, {"values": []})
            yield part


def _send(producer: sync.Producer, parts: Iterable[TopicColumns], topics: dict[str, None]) -> int:
    """How many rows. Adds to `topics`."""
    count = 0
    for topic, columns in parts:
        topics[topic] = None
        producer.enqueue_columns(topic, **columns)  # type: ignore[arg-type]
        count += len(columns["values"])
    return count


def counted(messages: Sequence[WriterCommitMessage | None]) -> tuple[int, int]:
    """Rows of all tasks, and how many of them stood there before."""
    written = [message for message in messages if isinstance(message, Written)]
    return sum(each.record_count for each in written), sum(each.skipped_count for each in written)
