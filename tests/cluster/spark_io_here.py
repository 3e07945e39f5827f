"""Readers and writers of Spark in this process, on a topic of real brokers: no session, no Java."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_io.planning import Split
from spark_io.source import RaftmqDataSource
from tests.unit.spark_io.tasks import struct, task

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from raftmq import sync
    from raftmq.testing.server import Server
    from spark_io.ranges import OffsetRange
    from spark_io.source import BatchReader, BatchWriter, StreamWriter
    from spark_io.stream_reader import StreamReader
    from spark_io.writing import Written

COLUMNS = ("value", "partition", "offset")
Row = tuple[bytes, int, int]


def source(server: Server, **options: str) -> RaftmqDataSource:
    """Spark hands over names in lower case."""
    given = {"kafka.bootstrap.servers": server.bootstrap, **options}
    return RaftmqDataSource({name.lower(): text for name, text in given.items()})


def batch_reader(server: Server, topic: str, **options: str) -> BatchReader:
    return source(server, subscribe=topic, **options).reader(struct(*COLUMNS))


def stream_reader(server: Server, topic: str, **options: str) -> StreamReader:
    given = {"subscribe": topic, "startingOffsets": "earliest", **options}
    return source(server, **given).streamReader(struct(*COLUMNS))


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    return [
        row
        for batch in batches
        for row in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True)
    ]


def rows_in(reader: BatchReader | StreamReader, asked: OffsetRange) -> list[Row]:
    return rows_of(reader.read(Split((asked,))))


def all_rows(reader: BatchReader) -> list[Row]:
    return [row for each in reader.partitions() for row in rows_of(reader.read(each))]


def ranges_of(found: Iterable[Any]) -> list[str]:
    """Of all tasks."""
    return [str(one) for each in found for one in each.ranges]


def fill(client: sync.Client, topic: str, *counts: int, partition: int = 0) -> None:
    """So many records a batch. Each says its number."""
    start = client.admin.offsets(topic, "latest", partitions=[partition])[partition] or 0
    with client.producer() as producer:
        for count in counts:
            values = [b"%d" % number for number in range(start, start + count)]
            producer.send_columns(topic, values=values, partitions=[partition] * count)
            start += count


def write(
    writer: BatchWriter | StreamWriter,
    *rows: pa.RecordBatch,
    partition: int = 0,
    batch: int | None = None,
    query: str = "q",
) -> Written:
    """By a task of Spark; `batch`: of the query, where it is one of a stream."""
    stream = {} if batch is None else {"query": query, "batch": str(batch)}
    with task(partition, **stream):
        return writer.write(iter(rows))
