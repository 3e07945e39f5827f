"""Consumed records as Arrow: one `RecordBatch` with the source's columns for each `ConsumedBatch`.

Owns the builder of each column of `schema.py`. Only columns that are asked for are decoded. Nothing
runs once per record in Python, except what raftmq decodes record by record (headers, and tags of
mixed batches) and a batch in which some keys are bytes and others integers.
"""

from __future__ import annotations

import gc
from array import array
from bisect import bisect_left
from contextlib import contextmanager
from itertools import accumulate, chain
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from raftmq.model import NO_TIMESTAMP
from spark_io.schema import COLUMNS, HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from raftmq.client.consumer.batch import ConsumedBatch

Item = TypeVar("Item")

_TYPES = {column.name: column.arrow_type for column in COLUMNS}
_MS_MAX = (1 << 63) // 1000 - 1  # Spark's timestamps are microseconds in 64 bits


def to_record_batch(
    batch: ConsumedBatch, schema: pa.Schema, *, start: int, end: int
) -> pa.RecordBatch | None:
    """The records with offsets from `start` to `end`, exclusive; None: there are none.

    Integer keys become eight bytes, big-endian, and text keys UTF-8. A timestamp that is missing,
    or that Spark cannot hold, is null.

    Args:
        schema: of `arrow_schema`.

    Raises:
        CorruptRecord, UnsupportedCompression: a column of it cannot be decoded.
    """
    rows = _Rows(batch, *_range_of(batch, start, end))
    if rows.length <= 0:
        return None
    with garbage_kept():
        columns = [_BUILDERS[name](rows) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@contextmanager
def garbage_kept() -> Iterator[None]:
    """No garbage collection within: thousands of new tuples would trigger it in vain."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _range_of(batch: ConsumedBatch, start: int, end: int) -> tuple[int, int]:
    """Indexes of the first record and of the one behind the last."""
    if start <= batch.base_offset and batch.end_offset <= end:
        return 0, len(batch)  # all but the first and last batch of a range: offsets stay undecoded
    return bisect_left(batch.offsets, start), bisect_left(batch.offsets, end)


class _Rows(NamedTuple):
    """Records `first` to `stop`, exclusive, of a batch."""

    batch: ConsumedBatch
    first: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.first

    def of(self, column: Sequence[Item]) -> Sequence[Item]:
        return column if self.length == len(column) else column[self.first : self.stop]


def _key(rows: _Rows) -> pa.Array:
    keys = rows.of(rows.batch.keys)
    try:
        return pa.array(keys, pa.binary())  # text becomes UTF-8
    except (pa.ArrowTypeError, pa.ArrowInvalid):  # integers among them
        return _of_integers(keys)


def _of_integers(keys: Sequence[bytes | str | int | None]) -> pa.Array:
    """Eight bytes, big-endian: as integer keys are hashed, and as Kafka serializes them.

    So the copy of a topic has its records in the same partitions.
    """
    try:
        numbers = pa.array(keys, pa.int64())
    except (pa.ArrowTypeError, pa.ArrowInvalid):  # integers mixed with others
        packed = [key.to_bytes(8, signed=True) if isinstance(key, int) else key for key in keys]
        return pa.array(packed, pa.binary())
    data = np.asarray(numbers.fill_null(0)).astype(">i8").tobytes()
    buffers = [numbers.buffers()[0], pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(8), len(keys), buffers).cast(pa.binary())


def _value(rows: _Rows) -> pa.Array:
    return pa.array(rows.of(rows.batch.values), pa.binary())


def _topic(rows: _Rows) -> pa.Array:
    return pa.repeat(pa.scalar(rows.batch.topic, _TYPES["topic"]), rows.length)


def _partition(rows: _Rows) -> pa.Array:
    return pa.repeat(pa.scalar(rows.batch.partition, _TYPES["partition"]), rows.length)


def _offset(rows: _Rows) -> pa.Array:
    return pa.array(_numbers(rows.of(rows.batch.offsets)))


def _timestamp(rows: _Rows) -> pa.Array:
    ms = _numbers(rows.of(rows.batch.timestamps))
    is_null = (ms == NO_TIMESTAMP) | (ms > _MS_MAX) | (ms < -_MS_MAX)
    mask = is_null if is_null.any() else None
    return pa.array(ms * 1000, mask=mask).cast(_TYPES["timestamp"])


def _timestamp_type(rows: _Rows) -> pa.Array:
    parts = rows.batch._parts  # only batch headers say whether producer or broker set timestamps
    types = [part.batch.header.timestamp_type for part in parts]
    counts = [part.stop - part.start for part in parts]
    return pa.array(np.repeat(np.array(types, np.int32), counts)[rows.first : rows.stop])


def _headers(rows: _Rows) -> pa.Array:
    headers = list(rows.of(rows.batch.headers))
    pairs = list(chain.from_iterable(headers))
    names = pa.array(list(map(itemgetter(0), pairs)), pa.string())
    values = pa.array(list(map(itemgetter(1), pairs)), pa.binary())
    flat = pa.StructArray.from_arrays([names, values], fields=list(HEADER))
    return _lists("headers", headers, flat)


def _tags(rows: _Rows) -> pa.Array:
    tags = list(rows.of(rows.batch.tags))
    return _lists("tags", tags, pa.array(list(chain.from_iterable(tags)), pa.string()))


def _lists(name: str, items: Sequence[Sequence[object]], flat: pa.Array) -> pa.Array:
    """Cut the flat array into lists as long as those of `items`."""
    ends = pa.array(list(accumulate(map(len, items), initial=0)), pa.int32())
    return pa.ListArray.from_arrays(ends, flat, type=_TYPES[name])


def _numbers(column: Sequence[int]) -> NDArray[np.int64]:
    # Offsets without gaps come as a range, deltas as an array: both convert without a Python loop.
    if isinstance(column, range):
        return np.arange(column.start, column.stop)
    if isinstance(column, array):
        return np.asarray(column, np.int64)
    return np.array(list(column), np.int64)  # via a list: numpy converts one twice as fast


_BUILDERS: dict[str, Callable[[_Rows], pa.Array]] = {
    "key": _key,
    "value": _value,
    "topic": _topic,
    "partition": _partition,
    "offset": _offset,
    "timestamp": _timestamp,
    "timestampType": _timestamp_type,
    "headers": _headers,
    "tags": _tags,
}
