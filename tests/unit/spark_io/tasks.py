"""What Spark does around a data source, done by a test: schemas, tasks, and ways between processes.

No session and no Java: pyspark's classes alone.
"""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import types

from spark_io.names import BATCH_ID, QUERY_ID
from spark_io.schema import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

_HEADER = types.StructType(
    [
        types.StructField("key", types.StringType()),
        types.StructField("value", types.BinaryType()),
    ]
)
_TYPES: dict[str, types.DataType] = {
    "key": types.BinaryType(),
    "value": types.BinaryType(),
    "topic": types.StringType(),
    "partition": types.IntegerType(),
    "offset": types.LongType(),
    "timestamp": types.TimestampType(),
    "timestampType": types.IntegerType(),
    "headers": types.ArrayType(_HEADER),
    "tags": types.ArrayType(types.StringType()),
}
_ARROW = {column.name: column.arrow_type for column in COLUMNS}


def struct(*names: str) -> types.StructType:
    """Columns of source and sink, as Spark describes them."""
    return types.StructType([types.StructField(name, _TYPES[name]) for name in names])


def frame(**columns: list[Any]) -> pa.RecordBatch:
    """Rows as Spark hands them to a task that writes."""
    return pa.record_batch({name: pa.array(rows, _ARROW[name]) for name, rows in columns.items()})


@contextmanager
def task(partition: int = 0, **properties: str) -> Iterator[None]:
    """This process is a task of Spark, as long as the block runs.

    Args:
        properties: `query` and `batch`, which Spark sets for tasks of a stream.
    """
    names = {"query": QUERY_ID, "batch": BATCH_ID}
    TaskContext(  # there is one in a process
        partitionId=partition,
        attemptNumber=0,
        localProperties={names[name]: text for name, text in properties.items()},
    )
    try:
        yield
    finally:
        TaskContext._setTaskContext(None)


def sent_away(thing: T) -> T:
    """As another process gets it."""
    arrived: T = pickle.loads(cloudpickle.dumps(thing))
    return arrived
