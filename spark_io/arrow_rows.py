"""Consumed records as Arrow: one `RecordBatch` with the source's columns for each `ConsumedBatch`.

Owns the builder of each column of `schema.py`. Only columns that are asked for are decoded. Nothing
runs once per record in Python, except what raftmq decodes record by record (headers, and tags of
mixed batches) and a batch in which some keys are bytes and others integers. Keys and values of one
length in a batch are never objects: their bytes are copied as a whole.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from contextlib import contextmanager
from itertools import accumulate, chain
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import pyarrow as pa

from raftmq.model import NO_TIMESTAMP
from spark_io.schema import COLUMNS, HEADER

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from raftmq.client.consumer.batch import ConsumedBatch

Item = TypeVar("Item")

_TYPES = {column.name: column.arrow_type for column in COLUMNS}
_OFFSET_MAX = (1 << 31) - 1  # of Arrow's binary type
# By the first byte of a msgpack item: how many bytes stand before its own. Bin 8, 16 and 32.
_HEADS = {0xC4: 2, 0xC5: 3, 0xC6: 5}
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
    if (copied := _copied(rows, "keys")) is not None:
        return copied
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
    if (copied := _copied(rows, "values")) is not None:
        return copied
    return pa.array(rows.of(rows.batch.values), pa.binary())


def _copied(rows: _Rows, column: Literal["keys", "values"]) -> pa.Array | None:
    """A column out of its bytes as they were sent; None: items of a batch differ in length, or some
    are no bytes. Decoding and converting such a column costs five times as much.
    """
    items = []
    for part in rows.batch._parts:
        packed = part.batch.packed(column)
        found = _one_length(packed, part.batch.header.record_count) if packed else None
        if found is None:
            return None
        items.append(found[part.start : part.stop])
    count = len(rows.batch)
    lengths = {each.shape[1] for each in items}
    if len(lengths) > 1 or count * max(lengths) > _OFFSET_MAX:
        return None
    data = np.concatenate(items)
    ends = np.arange(count + 1, dtype=np.int32) * data.shape[1]
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)[rows.first : rows.stop]


def _one_length(packed: bytes | bytearray | memoryview, count: int) -> NDArray[np.uint8] | None:
    """Bytes of msgpack, one item a row, if all have the same length, and so the same head."""
    width, rest = divmod(len(packed), count)
    head = _HEADS.get(packed[0])
    if rest or head is None or int.from_bytes(packed[1:head]) != width - head:
        return None
    # Each head stands where the one before says: then these are the items, and no others.
    view = memoryview(packed)
    if any(bytes(view[at::width]) != bytes(view[at : at + 1]) * count for at in range(head)):
        return None
    return np.frombuffer(packed, np.uint8).reshape(count, width)[:, head:]


def _topic(rows: _Rows) -> pa.Array:
    return pa.repeat(pa.scalar(rows.batch.topic, _TYPES["topic"]), rows.length)


def _partition(rows: _Rows) -> pa.Array:
    return pa.repeat(pa.scalar(rows.batch.partition, _TYPES["partition"]), rows.length)


def _offset(rows: _Rows) -> pa.Array:
    return pa.array(_numbers(rows, "offsets"))


def _timestamp(rows: _Rows) -> pa.Array:
    ms = _numbers(rows, "timestamps")
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


def _numbers(rows: _Rows, name: Literal["offsets", "timestamps"]) -> NDArray[np.int64]:
    parts = rows.batch._parts
    columns = [_integers(getattr(part.batch, name))[part.start : part.stop] for part in parts]
    return np.concatenate(columns)[rows.first : rows.stop]


@runtime_checkable
class _Shifted(Protocol):
    """A column of a batch as it is kept: machine integers, and what to add to each."""

    base: int
    deltas: array[int]


def _integers(column: Sequence[int]) -> NDArray[np.int64]:
    # Without a Python loop.
    if isinstance(column, range):
        return np.arange(column.start, column.stop)
    if isinstance(column, _Shifted):
        return np.asarray(column.deltas, np.int64) + column.base
    return np.asarray(column, np.int64)


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
