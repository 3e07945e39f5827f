"""What one task of an export does: read a range, and write it as one file of Parquet.

A task that runs again finds its file there, or begins anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from spark_io.jobs.exporting.folder import PartitionFolder
from spark_io.reading import read_range
from spark_io.schema import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spark_io.ranges import OffsetRange
    from spark_io.source_options import SourceOptions

SCHEMA = arrow_schema(include_headers=True, include_tags=True)
GROUP_BYTES = 64 << 20  # of one row group, before compression: this much stands in memory


class Exported(NamedTuple):
    """`record_count`: may be less than the size of the range: some offsets have no record."""

    range: OffsetRange
    record_count: int


def export_range(root: str, options: SourceOptions, asked: OffsetRange) -> Exported:
    """
    Raises:
        RaftmqError: see `read_range`.
        JobError, OSError: see `PartitionFolder.new_file`.
    """
    folder = PartitionFolder(Path(root), asked.topic, asked.partition)
    if folder.file_of(asked).exists():
        return Exported(asked, pq.read_metadata(folder.file_of(asked)).num_rows)
    with folder.new_file(asked) as file:
        return Exported(asked, write_parquet(file, read_range(options, asked, SCHEMA)))


def write_parquet(file: IO[bytes], batches: Iterable[pa.RecordBatch]) -> int:
    """Returns how many rows there were."""
    count = 0
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for group in _groups(batches):
            writer.write_table(pa.Table.from_batches(group, SCHEMA))
            count += sum(batch.num_rows for batch in group)
    return count


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Of about `GROUP_BYTES`."""
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += batch.nbytes
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
