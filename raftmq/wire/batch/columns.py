"""Columns of one chunk: offsets, timestamps, keys, values, headers; each decoded when touched.

Owns the layout of a chunk and the decoding of single columns (decision 0008). Columns hold bin, nil
or int, that of keys also str, and nothing else, so hostile bytes cannot become nested objects; each
one must announce exactly the chunk's record count before it is decoded. Integers are decoded first
and kept as machine integers. Together that keeps a batch below twice its bytes + 128 bytes a
record; text keys beyond ASCII may take four times theirs, as Python keeps text.

     five u32 byte lengths | offset deltas | timestamp deltas | keys | values | headers

Each column is a msgpack array; length 0 stands for nil. Nil means: offsets contiguous from 0,
every timestamp the base timestamp, no keys, no values, no headers.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, islice, pairwise
from operator import lt
from struct import Struct
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    overload,
)

import msgspec
from crc32c import crc32c

from raftmq.wire.batch.compression import decompress
from raftmq.wire.batch.record_headers import NO_HEADERS, HeaderColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raftmq.model import Compression
    from raftmq.wire.batch.directory import ChunkEntry, Tags
    from raftmq.wire.batch.header import Buffer, BytesOrigin
    from raftmq.wire.batch.record_headers import Headers


Key = bytes | str | int | None
Value = bytes | None
PackedColumn: TypeAlias = Literal["keys", "values"]
Item = TypeVar("Item")

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
INT32_MAX = (1 << 31) - 1
LENGTHS = Struct(">5I")  # of the five columns

Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]
_ENCODER = msgspec.msgpack.Encoder()
_INTEGERS = msgspec.msgpack.Decoder(list[int])
_KEYS = msgspec.msgpack.Decoder(list[bytes | Int64 | None])
_TEXT_KEYS = msgspec.msgpack.Decoder(list[str | Int64 | None])
# For a column with text and bytes: msgspec has no decoder of both.
_ENCODED_KEYS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_KEY, _TEXT_KEY = (msgspec.msgpack.Decoder(kind | Int64 | None) for kind in (bytes, str))
_STR_MARKERS = frozenset((*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB))  # fixstr, str 8, 16, 32
_VALUES = msgspec.msgpack.Decoder(list[bytes | None])


class Columns(NamedTuple):
    """The columns of one chunk in wire order; None: absent, of length 0 on the wire."""

    offset_deltas: Sequence[int] | None
    timestamp_deltas: Sequence[int] | None
    keys: Sequence[Key] | None
    values: Sequence[Value] | None
    headers: Sequence[bytes | None] | None


def encode_chunk(columns: Columns) -> list[bytes]:
    """The pieces of a chunk, before compression."""
    encoded = [b"" if column is None else _ENCODER.encode(column) for column in columns]
    return [LENGTHS.pack(*map(len, encoded)), *encoded]


class OpenedChunk(NamedTuple):
    """An open chunk: machine integers, and columns that are not decoded yet."""

    offset_deltas: range | array[int]  # strictly increasing; a range if contiguous from 0
    timestamp_deltas: array[int] | None
    keys: Buffer
    values: Buffer
    headers: HeaderColumn | None


class Chunk:
    """One chunk as stored, and its columns once they are touched.

    `keys` and `values` decode anew each time; `RecordBatch` caches them.
    """

    def __init__(
        self, entry: ChunkEntry, stored: memoryview, codec: Compression, origin: BytesOrigin
    ) -> None:
        self.entry = entry
        self.stored = stored
        self._codec = codec
        self._origin = origin

    @cached_property
    def opened(self) -> OpenedChunk:
        offsets, timestamps, keys, values, headers = self._split(self._uncompressed())
        return OpenedChunk(
            self._offset_deltas(offsets),
            self._timestamp_deltas(timestamps),
            keys,
            values,
            self._header_column(headers) if headers else None,
        )

    def keys(self) -> Sequence[Key]:
        """Each as it was handed in: bytes, text, an integer, or None."""
        packed = self.opened.keys
        if not packed:
            return (None,) * self.entry.record_count
        start = self._check_count("keys", packed)
        # Nearly all columns are of one kind, which the first item shows.
        decoder = _TEXT_KEYS if packed[start : start + 1][0] in _STR_MARKERS else _KEYS
        try:
            return decoder.decode(packed)
        except ValueError:  # of several kinds, or damaged
            return self._mixed_keys(packed)

    def _mixed_keys(self, packed: Buffer) -> list[Key]:
        try:
            keys: list[Any] = _ENCODED_KEYS.decode(packed)
            for index, encoded in enumerate(keys):  # in place: both would cost too much memory
                is_text = memoryview(encoded)[0] in _STR_MARKERS
                keys[index] = (_TEXT_KEY if is_text else _KEY).decode(encoded)
            return keys
        # Arrays within arrays are skipped by recursion.
        except (ValueError, RecursionError) as error:
            raise self._origin.corrupt(f"keys column: {error}") from error

    def values(self) -> Sequence[Value]:
        column = self._decode(_VALUES, "values", self.opened.values)
        return column or (None,) * self.entry.record_count

    def packed(self, column: PackedColumn) -> Buffer | None:
        """The items as they were sent, msgpack one behind the other, of which nothing but their
        count is checked; empty for nil. None: they do not stand there in one piece.
        """
        packed = self.opened.keys if column == "keys" else self.opened.values
        return packed[self._check_count(column, packed) :] if packed else packed

    def headers_at(self, index: int) -> Headers:
        column = self.opened.headers
        return NO_HEADERS if column is None else column.headers_at(index)

    def tags_at(self, index: int) -> Tags:
        if self.entry.tags is not None:  # all records of the chunk have the same ones
            return self.entry.tags
        column = self.opened.headers
        return () if column is None else column.tags_at(index)

    def _uncompressed(self) -> Buffer:
        # Although the batch's CRC was right: a reader of single chunks sees only this one (0009).
        computed = crc32c(self.stored)
        if computed != self.entry.crc:
            raise self._origin.corrupt(
                f"CRC-32C of the chunk is {computed:#010x}, directory says {self.entry.crc:#010x}"
            )
        length = self.entry.uncompressed_length
        return decompress(self._codec, self.stored, self._origin, length=length, length_max=length)

    def _split(self, chunk: Buffer) -> list[Buffer]:
        """The bytes of the five columns."""
        if len(chunk) < LENGTHS.size:
            raise self._origin.corrupt(f"chunk of {len(chunk)} bytes")
        ends = list(accumulate(LENGTHS.unpack_from(chunk), initial=LENGTHS.size))
        if ends[-1] != len(chunk):  # no byte may be left over: one written form
            raise self._origin.corrupt(f"columns claim {ends[-1]} of {len(chunk)} bytes")
        view = memoryview(chunk)
        return [view[start:end] for start, end in pairwise(ends)]

    def _offset_deltas(self, packed: Buffer) -> range | array[int]:
        count = self.entry.record_count
        column = self._decode(_INTEGERS, "offsets", packed)
        if not column:  # nil: contiguous from 0
            return range(count)
        if column[0] < 0 or column[-1] > INT32_MAX or not is_increasing(column):
            raise self._origin.corrupt("offsets column: not strictly increasing from 0")
        return range(count) if column[-1] == count - 1 else array("I", column)

    def _timestamp_deltas(self, packed: Buffer) -> array[int] | None:
        """Machine integers: of 4 bytes if none is negative or large, else of 8."""
        column = self._decode(_INTEGERS, "timestamps", packed)
        try:
            return array("I", column) if column else None  # three times as fast as "i"
        except OverflowError:  # negative deltas, or a batch that spans more than 49 days
            pass
        try:
            return array("q", column)
        except OverflowError as error:  # an integer of more than 64 bits
            raise self._origin.corrupt(f"timestamps column: {error}") from error

    def _header_column(self, packed: Buffer) -> HeaderColumn:
        count = self.entry.record_count
        start = self._check_count("headers", packed)
        mixed = self.entry.tags is None
        return HeaderColumn(packed[start:], count, self._origin, mixed=mixed)

    def _decode(
        self, decoder: msgspec.msgpack.Decoder[list[Item]], name: str, packed: Buffer
    ) -> list[Item]:
        """The column, or an empty list for nil."""
        if not packed:
            return []
        self._check_count(name, packed)
        try:
            return decoder.decode(packed)
        except ValueError as error:  # msgspec's errors are ValueErrors
            raise self._origin.corrupt(f"{name} column: {error}") from error

    def _check_count(self, name: str, packed: Buffer) -> int:
        """Length of the array header that announces exactly this chunk's records, and no other."""
        expected = _array_header(self.entry.record_count)
        # Before decoding, so that a false count costs no memory.
        if packed[: len(expected)] != expected:
            raise self._origin.corrupt(
                f"{name} column: not an array of {self.entry.record_count} items"
            )
        return len(expected)


def is_increasing(numbers: Sequence[int]) -> bool:
    return all(map(lt, numbers, islice(numbers, 1, None)))


def _array_header(count: int) -> bytes:
    """The shortest msgpack header: the only form that is accepted (decision 0009)."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd\x00\x01\x00\x00"


# -- Sequences ------------------------------------------------------------------------------------
# Read-only columns that compute an item on access, instead of holding all of them.
#
# They keep a decoded batch small: what a program sees as a column of Python objects is an array of
# machine integers, or raw bytes, until an item is read. Nothing is cached.


class Computed(Sequence[Item]):
    """`count` items; item i is `compute(i)`, computed at each access."""

    def __init__(self, count: int, compute: Callable[[int], Item]) -> None:
        self._indexes = range(count)
        self._compute = compute

    def __len__(self) -> int:
        return len(self._indexes)

    def __iter__(self) -> Iterator[Item]:
        return map(self._compute, self._indexes)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self._compute(each) for each in self._indexes[index]]
        return self._compute(self._indexes[index])


class Shifted(Sequence[int]):
    """Absolute numbers, held as their small differences from `base`."""

    def __init__(self, base: int, deltas: array[int]) -> None:
        self.base, self.deltas = base, deltas

    def __len__(self) -> int:
        return len(self.deltas)

    def __iter__(self) -> Iterator[int]:
        base = self.base
        return (base + delta for delta in self.deltas)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self.base + delta for delta in self.deltas[index]]
        return self.base + self.deltas[index]
