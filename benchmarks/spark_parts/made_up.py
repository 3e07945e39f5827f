"""A source that makes its rows up: the limit of what goes from Python to Spark.

Each task hands out the same Arrow batch again and again, with the columns that a topic gives.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from spark_io.reading import RECORDS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])


class MadeUpSource(DataSource):
    """Options: `number` of rows in all, `size` of values in bytes, `tasks`."""

    @classmethod
    def name(cls) -> str:
        return "made_up"

    def schema(self) -> str:
        return "key BINARY, value BINARY"

    def reader(self, schema: StructType) -> MadeUpReader:
        return MadeUpReader(*(int(self.options[name]) for name in ("number", "size", "tasks")))


class MadeUpReader(DataSourceReader):
    def __init__(self, number: int, size: int, tasks: int) -> None:
        self._number, self._size, self._tasks = number, size, tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        columns = [[b"x" * size] * RECORDS_MAX for size in (8, self._size)]
        batch = pa.RecordBatch.from_arrays([pa.array(each) for each in columns], schema=SCHEMA)
        whole, rest = divmod(self._number // self._tasks, RECORDS_MAX)
        return chain(repeat(batch, whole), [batch[:rest]])
