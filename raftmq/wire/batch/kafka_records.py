"""Kafka's record encoding (magic 2): varints and lengths, one record after the other.

Owns the format byte for byte, so that batches of Kafka clients can be read, and written for them.
Reading walks over all records once; headers stay bytes until they are touched.
Source: https://kafka.apache.org/documentation/#record

     length varint | attributes i8 | timestamp delta varlong | offset delta varint
     | key length varint, key | value length varint, value | header count varint, headers
     header: name length varint, name | value length varint, value      (length -1: null)
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from raftmq.errors import InvalidRecord
from raftmq.wire.batch.columns import Computed
from raftmq.wire.batch.record_headers import HEADERS_MAX, NO_HEADERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raftmq.wire.batch.arguments import CheckedRecords
    from raftmq.wire.batch.columns import Key, Value
    from raftmq.wire.batch.directory import Tags
    from raftmq.wire.batch.header import BatchHeader, BytesOrigin
    from raftmq.wire.batch.record_headers import FlatHeaders, Headers


# -- Varint ---------------------------------------------------------------------------------------
# Kafka's variable-length integers: zigzag, then seven bits a byte, lowest first.
#
# Owns reading and writing one integer. A varint holds 32 bits in at most 5 bytes, a varlong 64 in
# at most 10. Readers raise IndexError at the end of the data and ValueError for a number that is
# too long: the caller adds what was read, and where.


# Offset deltas, lengths and counts.
VARINT_BITS = 32
# Timestamp deltas.
VARLONG_BITS = 64


def write_varint(value: int) -> bytes:
    """Encode any integer; the caller keeps it within 32 or 64 bits, signed."""
    if -64 <= value < 64:
        return _ONE_BYTE[value]
    return _write(value)


def _write(value: int) -> bytes:
    rest = value << 1 if value >= 0 else ((-value) << 1) - 1
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


# Indexed by the value itself: negative ones count from the end, as Python's indexes do.
_ONE_BYTE = [_write(value) for value in (*range(64), *range(-64, 0))]  # most fields: encoded once


def read_varint(data: bytes, position: int, bits: int = VARINT_BITS) -> tuple[int, int]:
    """The integer at `position` and the position after it."""
    byte = data[position]
    if byte < 0x80:  # the common case: one byte, for -64 to 63
        return byte >> 1 ^ -(byte & 1), position + 1
    return _read_long(data, position, bits)


def _read_long(data: bytes, position: int, bits: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            raise ValueError(f"a number of more than {bits} bits")
    if number >> bits:  # the last byte has more bits than are left
        raise ValueError(f"a number of more than {bits} bits")
    return number >> 1 ^ -(number & 1), position


# -- Kafka records --------------------------------------------------------------------------------


_NULL = write_varint(-1)
_NO_ATTRIBUTES = b"\0"
_NO_HEADERS = write_varint(0)
RECORD_BYTES_MIN = 7  # one for each of its fields
_KEY_INTEGER_BYTES = 8  # as Kafka's LongSerializer writes them


def encode_records(records: CheckedRecords) -> bytes:
    """The records section of a batch, before compression.

    Raises:
        InvalidRecord: the records have tags, which this format has no place for.
    """
    if records.tags is not None:
        raise InvalidRecord("Kafka's record format cannot hold tags: use record format columns")
    none = (None,) * records.record_count
    rows = zip(
        records.timestamp_deltas or (0,) * records.record_count,
        records.offset_deltas or range(records.record_count),
        records.keys or none,
        records.values or none,
        records.headers or none,
        strict=True,
    )
    return b"".join([encode_record(*row) for row in rows])


def encode_record(
    timestamp_delta: int, offset_delta: int, key: Key, value: Value, headers: FlatHeaders | None
) -> bytes:
    # Columns have keys of three kinds, Kafka has bytes only.
    if isinstance(key, int):
        key = key.to_bytes(_KEY_INTEGER_BYTES, "big", signed=True)
    elif isinstance(key, str):
        key = key.encode()
    body = b"".join(
        (
            _NO_ATTRIBUTES,
            write_varint(timestamp_delta),
            write_varint(offset_delta),
            _NULL if key is None else write_varint(len(key)) + key,
            _NULL if value is None else write_varint(len(value)) + value,
            _encode_headers(headers) if headers else _NO_HEADERS,
        )
    )
    return write_varint(len(body)) + body


def _encode_headers(flat: FlatHeaders) -> bytes:
    pieces = [write_varint(len(flat) // 2)]
    for field in flat:
        pieces += (_NULL,) if field is None else (write_varint(len(field)), field)
    return b"".join(pieces)


class KafkaContents:
    """All records of a batch but their headers, read in one walk when this object is made.

    Raises:
        CorruptRecord: the bytes are not exactly `header.record_count` records.
    """

    def __init__(self, data: bytes, header: BatchHeader, origin: BytesOrigin) -> None:
        count = header.record_count
        if count * RECORD_BYTES_MIN > len(data):  # a false count must not cost memory
            raise origin.corrupt(f"{count} records in {len(data)} bytes")
        self._data = data
        self._origin = origin
        self._last_offset_delta = header.last_offset_delta
        self._keys: list[Key] = [None] * count
        self._values: list[Value] = [None] * count
        self._offset_deltas = array("i", bytes(4 * count))
        self.timestamp_deltas = array("q", bytes(8 * count))
        self._header_starts = array("I", bytes(4 * count))
        self._header_ends = array("I", bytes(4 * count))
        self._walk(count)

    def _walk(self, count: int) -> None:
        position, previous = 0, -1
        for index in range(count):
            try:
                position = self._read_record(index, position)
            except IndexError:  # a varint at the end of the data
                raise self._origin.corrupt(f"records end within record {index}") from None
            except ValueError as error:  # a number or a length out of bounds
                raise self._origin.corrupt(f"record {index}: {error}") from error
            delta = self._offset_deltas[index]
            # Offsets rise, within what the header says.
            if not previous < delta <= self._last_offset_delta:
                raise self._origin.corrupt(f"record {index}: offset delta {delta}")
            previous = delta
        if position != len(self._data):  # bytes that no reader would see
            raise self._origin.corrupt(f"{len(self._data) - position} bytes after the last record")

    def _read_record(self, index: int, position: int) -> int:
        """Read the record at `position`; returns the position after it."""
        data = self._data
        length, position = read_varint(data, position)
        end = position + length
        # Before reading its fields, which end there at the latest.
        if not position < end <= len(data):
            raise ValueError(f"claims {length} bytes, {len(data) - position} follow")
        position += len(_NO_ATTRIBUTES)  # Kafka defines none
        self.timestamp_deltas[index], position = read_varint(data, position, VARLONG_BITS)
        self._offset_deltas[index], position = read_varint(data, position)
        self._keys[index], position = read_bytes(data, position, end)
        self._values[index], position = read_bytes(data, position, end)
        if position >= end:
            raise ValueError("its fields reach beyond it")
        self._header_starts[index], self._header_ends[index] = position, end
        return end

    @property
    def offset_deltas(self) -> range | array[int]:
        """A range where they are contiguous: increasing and within 0 to count - 1."""
        count = len(self._offset_deltas)
        return range(count) if self._offset_deltas[-1] == count - 1 else self._offset_deltas

    def keys(self) -> Sequence[Key]:
        return self._keys

    def values(self) -> Sequence[Value]:
        return self._values

    def headers(self) -> Sequence[Headers]:
        return Computed(len(self._header_starts), self._headers_of)

    def tags(self) -> Sequence[Tags]:
        return ((),) * len(self._header_starts)

    def _headers_of(self, index: int) -> Headers:
        start, end = self._header_starts[index], self._header_ends[index]
        # The one byte says "no headers": nothing to parse.
        if end - start == 1 and self._data[start] == 0:
            return NO_HEADERS
        try:
            return _read_headers(self._data[start:end])
        except IndexError:
            raise self._origin.corrupt(f"headers of record {index} end early") from None
        except ValueError as error:
            raise self._origin.corrupt(f"headers of record {index}: {error}") from error


def read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    """The field at `position`, which must not reach beyond `end`, and the position after it."""
    length, position = read_varint(data, position)
    if length == -1:
        return None, position
    following = position + length
    if length < 0 or following > end:
        raise ValueError(f"a field claims {length} bytes, {end - position} follow")
    return data[position:following], following


def _read_headers(data: bytes) -> Headers:
    count, position = read_varint(data, 0)
    if not 0 <= count <= HEADERS_MAX:
        raise ValueError(f"{count} headers, allowed {HEADERS_MAX}")
    headers = []
    for _ in range(count):
        name, position = read_bytes(data, position, len(data))
        if name is None:
            raise ValueError("a header without a name")
        value, position = read_bytes(data, position, len(data))
        headers.append((name.decode(), value))
    if position != len(data):
        raise ValueError(f"{len(data) - position} bytes too many")
    return tuple(headers)
