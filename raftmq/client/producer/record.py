"""One record as the program hands it in: checks, memory size, bytes of its key to hash. Pure.

A record is copied as far as the program could change it later, and checked before it can spoil a
batch with other records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.errors import InvalidRecord
from raftmq.wire.batch.arguments import (
    GivenHeaders,
    check_headers,
    check_int64,
    check_key,
    check_tags,
    check_value,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.wire.batch.columns import Key, Value

GivenKey: TypeAlias = "bytes | bytearray | memoryview | str | int | None"
GivenValue: TypeAlias = "bytes | bytearray | memoryview | None"
KeptHeaders: TypeAlias = "tuple[tuple[str, Value], ...]"
GivenTags: TypeAlias = "Sequence[str] | set[str] | frozenset[str] | None"

# Bytes of memory that a record costs beside its own: objects, list entries, and its `Delivery` or
# callback. Measured with tracemalloc: 94 without a key, 127 with one, 220 with a `Delivery` or
# callback.
RECORD_OVERHEAD_BYTES = 256
EXTRA_OVERHEAD_BYTES = 160  # of each header and tag


class Extras(NamedTuple):
    """Fields that few records have; immutable."""

    headers: KeptHeaders | None = None
    tags: tuple[str, ...] | None = None
    partition: int | None = None


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
        check_headers([headers])
    if tags:
        check_tags([tags])
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
    checked = check_int64(timestamp, name)
    if checked < 0:
        raise InvalidRecord(f"{name} = {checked}: expected milliseconds since 1970, 0 or more")
    return checked


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


def _kept_value(value: Value) -> Value:
    return value if value is None or type(value) is bytes else bytes(value)


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
