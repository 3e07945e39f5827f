"""The format `raftmq` for Spark: `spark.dataSource.register(RaftmqDataSource)`.

Owns which reader or writer is made of which options. Everything that can be told from options and
columns is told here, before any task starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from raftmq.errors import InvalidConfig
from spark_io.arrow_columns import check_columns
from spark_io.batch_reader import BatchReader
from spark_io.batch_writer import BatchWriter
from spark_io.schema import arrow_schema, ddl
from spark_io.sink_options import sink_options
from spark_io.source_options import source_options
from spark_io.stream_reader import StreamReader
from spark_io.stream_writer import StreamWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_io.sink_options import SinkOptions


class RaftmqDataSource(DataSource):
    """See docs/SPARK.md for options and guarantees."""

    @classmethod
    def name(cls) -> str:
        return "raftmq"

    def schema(self) -> str:
        return ddl(
            include_headers=self._is_on("includeheaders"), include_tags=self._is_on("includetags")
        )

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(source_options(self.options, is_stream=False), _arrow(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(source_options(self.options, is_stream=True), _arrow(schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise InvalidConfig(['mode "overwrite": a topic can only be added to; say "append"'])
        return BatchWriter(self._sink(schema, is_stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        if overwrite:
            raise InvalidConfig(
                ['output mode "complete": a topic can only be added to; say "append", or write '
                 "each microbatch with foreachBatch"]
            )  # fmt: skip
        return StreamWriter(self._sink(schema, is_stream=True))

    def _sink(self, schema: StructType, *, is_stream: bool) -> SinkOptions:
        options = sink_options(self.options, is_stream=is_stream)
        columns = [(field.name, field.dataType.simpleString()) for field in schema]
        check_columns(columns, has_topic=options.topic is not None)
        return options

    def _is_on(self, name: str) -> bool:
        return str(self.options.get(name, "")).strip().lower() == "true"


def _arrow(schema: StructType) -> pa.Schema:
    columns = [(field.name, field.dataType.simpleString(), field.nullable) for field in schema]
    return arrow_schema(columns)
