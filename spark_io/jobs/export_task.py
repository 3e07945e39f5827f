"""One Spark task of an export: read a range of offsets, and write it as one Parquet file.

A task that runs again finds its complete file, or begins anew. Spark pickles the function by this
module's name, and the command imports it only when it runs: `--help` needs no pyarrow.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from spark_io.jobs.export_folder import PartitionFolder
from spark_io.reading import read_ranges
from spark_io.schema import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spark_io.options.source import SourceOptions
    from spark_io.ranges import OffsetRange

SCHEMA = arrow_schema(include_headers=True, include_tags=True)
GROUP_BYTES = 64 << 20  # of one row group, before compression: a task holds this much in memory


class Exported(NamedTuple):
    """`record_count`: may be less than the size of the range: some offsets have no record."""

    range: OffsetRange
    record_count: int


def export_range(root: str, options: SourceOptions, asked: OffsetRange) -> Exported:
    """Write the file of one range, unless it exists.

    Raises:
        RaftmqError: see `read_ranges`.
        JobError, OSError: see `PartitionFolder.new_file`.
    """
    folder = PartitionFolder(Path(root), asked.topic, asked.partition)
    if folder.file_of(asked).exists():  # an earlier attempt of this task has published it
        return Exported(asked, pq.read_metadata(folder.file_of(asked)).num_rows)
    with folder.new_file(asked) as file:
        return Exported(asked, write_parquet(file, read_ranges(options, [asked], SCHEMA)))


def write_parquet(file: IO[bytes], batches: Iterable[pa.RecordBatch]) -> int:
    """Returns the number of rows."""
    count = 0
    with pq.ParquetWriter(file, SCHEMA, compression="zstd") as writer:
        for group in _groups(batches):
            writer.write_table(pa.Table.from_batches(group, SCHEMA))
            count += sum(batch.num_rows for batch in group)
    return count


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Row groups of about `GROUP_BYTES`."""
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
