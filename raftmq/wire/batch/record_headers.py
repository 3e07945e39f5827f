"""Record headers in a columns batch: packed as one bin per record, parsed when touched.

Owns that encoding, [name, value, name, value ...], and its limit. Names are bin like values, in
UTF-8. In the mixed chunk the record's tags come first, as a list of str: [[tag ...], name, value
...]. A `HeaderColumn` notes where each bin of a chunk begins and parses one on access: objects for
all headers of a batch would be many times its bytes.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Annotated, cast

import msgspec

from raftmq.wire.batch.directory import problem_of_tags

if TYPE_CHECKING:
    from raftmq.wire.batch.directory import Tags
    from raftmq.wire.batch.header import Buffer, BytesOrigin

Headers = tuple[tuple[str, bytes | None], ...]
FlatHeaders = list[bytes | None]  # as they are written: name, value, name, value ...

HEADERS_MAX = 1024  # of one record, in either format: bounds the objects of one access
NO_HEADERS: Headers = ()

_NIL, _BIN8 = 0xC0, 0xC4
# Bin 8, 16 and 32.
_BIN_LENGTH_BYTES = {_BIN8: 1, 0xC5: 2, 0xC6: 4}
_ENCODER = msgspec.msgpack.Encoder()
# Names and values, and the tags in front.
_LENGTH_MAX = msgspec.Meta(max_length=2 * HEADERS_MAX + 1)
_DECODER = msgspec.msgpack.Decoder(Annotated[list[bytes | None], _LENGTH_MAX])
_MIXED_DECODER = msgspec.msgpack.Decoder(Annotated[list[list[str] | bytes | None], _LENGTH_MAX])


def pack_headers(flat: FlatHeaders) -> bytes | None:
    return _ENCODER.encode(flat) if flat else None


def pack_mixed_headers(tags: Tags, flat: FlatHeaders) -> bytes:
    return _ENCODER.encode([tags, *flat])


class HeaderColumn:
    """The header bins of one chunk, `packed` being the column behind its array header."""

    def __init__(self, packed: Buffer, count: int, origin: BytesOrigin, *, mixed: bool) -> None:
        self._packed = packed
        self._origin = origin
        self._mixed = mixed
        self._starts = self._find_starts(count)

    def _find_starts(self, count: int) -> array[int]:
        packed, position = self._packed, 0
        starts = array("I", bytes(array("I").itemsize * count))
        for index in range(count):
            starts[index] = position
            position = self._end_of(position) if position < len(packed) else -1
            if not 0 < position <= len(packed):
                raise self._origin.corrupt(f"headers column: record {index} is not a whole bin")
        if position != len(packed):
            raise self._origin.corrupt(f"headers column: {len(packed) - position} bytes too many")
        return starts

    def _end_of(self, position: int) -> int:
        """Where the bin or nil at `position` ends; 0 if there is something else."""
        kind = self._packed[position]
        if kind == _NIL:
            return position + 1
        if kind not in _BIN_LENGTH_BYTES:
            return 0
        if kind == _BIN8 and position + 1 < len(self._packed):  # nearly all: below 256 bytes
            return position + 2 + self._packed[position + 1]
        start = position + 1 + _BIN_LENGTH_BYTES[kind]
        return start + int.from_bytes(self._packed[position + 1 : start], "big")

    def headers_at(self, index: int) -> Headers:
        """The headers of the record at `index` of this chunk.

        Raises:
            CorruptRecord: the bin does not hold names and values.
        """
        packed = self._packed_at(index)
        if packed is None:
            return NO_HEADERS
        try:
            flat = _unpack_mixed(packed)[1] if self._mixed else _DECODER.decode(packed)
            return _pair_up(flat)
        except ValueError as error:  # msgspec's errors are ValueErrors
            raise self._origin.corrupt(f"headers of record {index}: {error}") from error

    def tags_at(self, index: int) -> Tags:
        """The tags of the record at `index` of this chunk, which is the mixed one.

        Raises:
            CorruptRecord: the bin does not begin with tags.
        """
        packed = self._packed_at(index)
        if packed is None:
            return ()
        try:
            return _unpack_mixed(packed)[0]
        except ValueError as error:
            raise self._origin.corrupt(f"tags of record {index}: {error}") from error

    def _packed_at(self, index: int) -> Buffer | None:
        start, packed = self._starts[index], self._packed
        kind = packed[start]
        if kind == _NIL:
            return None
        if kind == _BIN8:
            return packed[start + 2 : start + 2 + packed[start + 1]]
        return packed[start + 1 + _BIN_LENGTH_BYTES[kind] : self._end_of(start)]


def _unpack_mixed(packed: Buffer) -> tuple[Tags, FlatHeaders]:
    tags, *flat = _MIXED_DECODER.decode(packed) or [None]
    if not isinstance(tags, list):
        raise ValueError("no tags in front")
    problem = problem_of_tags(tuple(tags))
    if problem or list in map(type, flat):
        raise ValueError(problem or "a list where bytes belong")
    return tuple(tags), cast("FlatHeaders", flat)


def _pair_up(flat: FlatHeaders) -> Headers:
    names, values = flat[::2], flat[1::2]
    # One test for the valid case; `_problem_of` finds the reason.
    if len(names) != len(values) or len(names) > HEADERS_MAX or None in names:
        raise ValueError(_problem_of(names, values))
    texts = map(bytes.decode, cast("list[bytes]", names))
    return tuple(zip(texts, values))  # noqa: B905  # lengths are equal, and "strict" takes time


def _problem_of(names: list[bytes | None], values: list[bytes | None]) -> str:
    if len(names) != len(values):
        return "a name without a value"
    return "a value without a name" if None in names else f"{len(names)} headers"
