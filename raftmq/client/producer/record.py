"""One record as the program hands it in: checks, memory size, bytes of its key to hash. Pure.

A record is copied as far as the program could change it later, and checked before it can spoil a
batch with other records. Also the digest of the records that a named producer has sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from operator import length_hint
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
from crc32c import crc32c

from raftmq.client.moments import milliseconds_of
from raftmq.errors import InvalidRecord
from raftmq.wire.batch.arguments import (
    GivenHeaders,
    check_int64,
    check_key,
    check_record_headers,
    check_record_tags,
    check_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.client.moments import GivenTimestamp
    from raftmq.wire.batch.columns import Key, Value

Unchecked: TypeAlias = Any  # a key or value as a program hands it in
Serializer: TypeAlias = "Callable[[Any], Any]"  # returns a value, or a key, as without it
KeptHeaders: TypeAlias = "tuple[tuple[str, Value], ...]"
GivenTags: TypeAlias = "Sequence[str] | set[str] | frozenset[str] | None"

# Bytes of memory that a record costs beside its own: objects, list entries, and its `Delivery` or
# callback. Measured with tracemalloc: 94 without a key, 127 with one, 220 with a `Delivery` or
# callback.
RECORD_OVERHEAD_BYTES = 256
EXTRA_OVERHEAD_BYTES = 160  # of each header and tag
# What seconds since 1970 are from 2001 until 2286; as milliseconds, January to April of 1970. Lower
# and higher ones, as tests and replays have them, are taken as they are.
SECONDS_MIN, SECONDS_MAX = 10**9, 10**10


class Extras(NamedTuple):
    """Fields that few records have; immutable."""

    headers: KeptHeaders | None = None
    tags: tuple[str, ...] | None = None
    partition: int | None = None
    due_ms: int | None = None  # it is scheduled


NO_EXTRAS = Extras()


def checked_value(value: object) -> Value:
    """Raises InvalidRecord."""
    return value if type(value) is bytes else check_value(value, "value")


def checked_key(key: object) -> Key:
    """Bytes, text or an int, each of which stays what it is. Raises InvalidRecord."""
    return key if type(key) is bytes else check_key(key, "key")


def checked_extras(headers: GivenHeaders, tags: GivenTags, partition: object) -> Extras:
    """Raises InvalidRecord."""
    if headers:
        check_record_headers(headers)
    if tags:
        check_record_tags(tags)
    if partition is not None:
        partition = check_int64(partition, "partition")
    return Extras(kept_headers(headers), kept_tags(tags), partition)


def kept_headers(headers: GivenHeaders) -> KeptHeaders | None:
    """A copy of checked headers: the program may reuse its dict for the next record."""
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple([(name, _kept_value(value)) for name, value in pairs])


def kept_tags(tags: GivenTags) -> tuple[str, ...] | None:
    return tuple(tags) if tags else None


def checked_timestamp(timestamp: object, name: str = "timestamp") -> int:
    """Raises InvalidRecord."""
    given = timestamp if type(timestamp) is int else milliseconds_of(timestamp, name)
    checked = check_int64(given, name)
    if checked < 0:
        raise InvalidRecord(f"{name} = {checked}: expected milliseconds since 1970, 0 or more")
    return checked


def given_timestamp(timestamp: GivenTimestamp, name: str = "timestamp") -> int:
    """As `checked_timestamp`, for a single record, and refuses what is most likely in seconds.

    Not for columns: those are copied from data, which may be of the first months of 1970.

    Raises:
        InvalidRecord: such a number; a datetime is always taken.
    """
    if type(timestamp) is int and SECONDS_MAX <= timestamp < 1 << 63:
        return timestamp  # most are: no other check would refuse them
    if type(timestamp) is int and SECONDS_MIN <= timestamp < SECONDS_MAX:
        raise InvalidRecord(
            f"{name} = {timestamp}: seconds, most likely, as milliseconds of that number are in "
            "early 1970: give time.time_ns() // 1_000_000, or datetime.now(UTC)"
        )
    return checked_timestamp(timestamp, name)


def size_of(value: Value, key: Key, extras: Extras = NO_EXTRAS) -> int:
    """Bytes of memory, approximately; never less than the record takes in a batch."""
    size = RECORD_OVERHEAD_BYTES
    if value is not None:
        size += len(value)
    if key is not None:
        size += length_of(key)
    for name, header in extras.headers or ():
        size += EXTRA_OVERHEAD_BYTES + len(name.encode()) + len(header or b"")
    for tag in extras.tags or ():
        size += EXTRA_OVERHEAD_BYTES + len(tag.encode())
    return size


def length_of(key: Key) -> int:
    """Bytes of a key that is not None; an int is 64 bits."""
    if isinstance(key, str):
        return len(key) if key.isascii() else len(key.encode())
    return len(key) if isinstance(key, bytes) else 8


def _kept_value(value: object) -> Value:
    return value if type(value) is bytes else check_value(value, "a header's value")


def hashed_bytes(key: Key) -> bytes:
    """The bytes of a key for a partitioner: text in UTF-8, and an int as Kafka's LongSerializer
    writes it.
    """
    if type(key) is bytes:
        return key
    if isinstance(key, str):
        return key.encode()
    assert isinstance(key, int), "no key to hash"
    return key.to_bytes(8, "big", signed=True)


# -- Serializers ----------------------------------------------------------------------------------
# What a program's `value_serializer` and `key_serializer` make of what it hands in.
#
# None stays None, as a record without a value or key is one. A serializer's own error reaches the
# call that hands the record in, as it is.


class AsSent(NamedTuple):
    """In place of a value: it, and the key, are taken as they are."""

    value: Value
    key: Key


class Serializers(NamedTuple):
    """Of one producer; None: keys, or values, are taken as they are."""

    key: Serializer | None
    value: Serializer | None

    def record(self, value: object, key: object) -> tuple[Any, Any]:
        """The value and the key of one record."""
        if type(value) is AsSent:
            return value
        if self.value is not None and value is not None:
            value = self.value(value)
        if self.key is not None and key is not None:
            key = self.key(key)
        return value, key

    def values(self, column: Sequence[Any], first: int) -> Sequence[Any]:
        """`first`: how many records came before, for messages."""
        return _serialized("value", self.value, column, first)

    def keys(self, column: Sequence[Any] | None, first: int) -> Sequence[Any] | None:
        """As `values`."""
        return None if column is None else _serialized("key", self.key, column, first)


def _serialized(
    name: str, serializer: Serializer | None, column: Sequence[Any], first: int
) -> Sequence[Any]:
    if serializer is None:
        return column
    items = iter(column)
    try:
        return [None if item is None else serializer(item) for item in items]
    except Exception as error:  # the program must learn which row it was
        index = first + len(column) - length_hint(items) - 1
        error.add_note(
            f"raised by {name}_serializer, of record {index}; the {first} records that were handed "
            "in before are sent"
        )
        raise


# -- Digest ---------------------------------------------------------------------------------------
# Running digest of the keys and values that a named producer has sent to a partition.
#
# By it the fence of a later run finds that a program does not send the same records again (decision
# 0022). It covers neither headers nor tags, nor timestamps, which differ in each run where the
# program leaves them out. It does not depend on how records are cut into batches.
#
#      CRC-32C of: CRC-32C of the keys u32 | CRC-32C of the values u32 | record count u64
#
# Big endian; keys and values as msgpack items one after the other, nil where there is none. Without
# records it is 0. Nothing here runs once per record in Python.


_PARTS = Struct(">IIQ")  # CRC of keys, CRC of values, record count
_ENCODER = msgspec.msgpack.Encoder()


class RunningDigest:
    """A digest that grows with the records of one partition.

    Attributes:
        count: number of records so far.
    """

    __slots__ = ("_keys", "_values", "count")

    def __init__(self) -> None:
        self.count = self._keys = self._values = 0

    def add(self, keys: Sequence[Key], values: Sequence[Value]) -> None:
        """Add the records that follow: one key and one value of each."""
        assert len(keys) == len(values), "columns of different lengths"
        self.count += len(values)
        self._keys = crc32c(_items(keys), self._keys)
        self._values = crc32c(_items(values), self._values)

    def followed_by(self, keys: Sequence[Key], values: Sequence[Value]) -> RunningDigest:
        """A copy with these records added."""
        other = copy(self)
        other.add(keys, values)
        return other

    @property
    def value(self) -> int:
        if not self.count:  # what a fence reports of an empty partition
            return 0
        return int(crc32c(_PARTS.pack(self._keys, self._values, self.count)))


def _items(column: Sequence[Key]) -> memoryview:
    """The msgpack array without its header, which says how many items it has."""
    count = len(column)
    # msgpack's fixarray, array 16 and array 32.
    header_size = 1 if count < 16 else 3 if count < 1 << 16 else 5
    return memoryview(_ENCODER.encode(column))[header_size:]
