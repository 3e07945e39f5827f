"""The rows of one task of Spark, sent: what the writers of batches and streams have in common.

Invariant: `write_rows` returns once every row stands with all replicas in sync, or raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import WriterCommitMessage

from raftmq import sync
from spark_io.arrow_columns import TopicColumns, columns_of
from spark_io.holding import held_if_fenced

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from spark_io.names import Name
    from spark_io.sink_options import SinkOptions


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver.

    Attributes:
        name: under which it wrote; None: under none.
        record_count: rows that it was given.
        skipped_count: of these, those that stood there from an earlier attempt.
    """

    name: Name | None
    record_count: int
    skipped_count: int


def write_rows(
    options: SinkOptions, name: Name | None, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Raises RaftmqError, which names topic, partition and cause."""
    named: dict[str, Any] = {} if name is None else name._asdict()
    arguments: dict[str, Any] = {**options.producer, **named}
    client_id = options.client_id
    with (
        sync.connect(list(options.bootstrap), client_id=client_id) as client,
        client.producer(acks="all", **arguments) as producer,
    ):
        parts = _parts(options, batches)
        count = _send(producer, islice(parts, 1))  # a generation that is over is told at once
        with held_if_fenced():
            count += _send(producer, parts)
            producer.flush()
    return Written(name, count, producer.statistics.skipped_records)


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


def _send(producer: sync.Producer, parts: Iterable[TopicColumns]) -> int:
    """How many rows."""
    count = 0
    for topic, columns in parts:
        producer.enqueue_columns(topic, **columns)  # type: ignore[arg-type]
        count += len(columns["values"])
    return count


def counted(messages: Sequence[WriterCommitMessage | None]) -> tuple[int, int]:
    """Rows of all tasks, and how many of them stood there before."""
    written = [message for message in messages if isinstance(message, Written)]
    return sum(each.record_count for each in written), sum(each.skipped_count for each in written)
