"""`spark.read.format("raftmq")`: ranges of offsets, fixed when the query is planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from spark_io.lookup import Lookup
from spark_io.planning import Split, check_order, plan, within_logs
from spark_io.positions import At, resolve
from spark_io.reading import read_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from spark_io.source_options import SourceOptions


class BatchReader(DataSourceReader):
    """
    Args:
        schema: the columns that are wanted.
    """

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        with Lookup(self._options) as lookup:
            keys = lookup.keys()
            start = resolve(self._options.starting, keys, lookup)
            end = resolve(self._options.ending, keys, lookup)
            if isinstance(self._options.ending, At):
                end = within_logs(self._options, lookup, end)
            check_order(start, end)
            return plan(self._options, lookup, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Split):  # Spark's own, where nothing was planned
            return iter(())
        return read_range(self._options, partition.range, self._schema)
