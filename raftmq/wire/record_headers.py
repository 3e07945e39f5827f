"""The headers of one record of a columns batch, packed as one bin: [name, value, name, value ...].

Owns that encoding and its limit. Names are bin as values are, in UTF-8. In the mixed chunk the
record's tags come first, as a list of str: [[tag ...], name, value ...].

A `HeaderColumn` knows where each bin of a chunk begins and parses one when it is touched:
objects for all headers of a batch would be many times its bytes.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

import msgspec

from raftmq.wire.directory import Tags, problem_of_tags

if TYPE_CHECKING:
    from raftmq.wire.header import Buffer
    from raftmq.wire.origin import Origin

Headers = tuple[tuple[str, bytes | None], ...]

HEADERS_MAX = 1024  # of one record, in either record format
NO_HEADERS: Headers = ()

_NIL = 0xC0
_BIN_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_ENCODER = msgspec.msgpack.Encoder()
_LENGTH_MAX = msgspec.Meta(max_length=2 * HEADERS_MAX + 1)
_DECODER = msgspec.msgpack.Decoder(Annotated[list[bytes | None], _LENGTH_MAX])
_MIXED_DECODER = msgspec.msgpack.Decoder(Annotated[list[list[str] | bytes | None], _LENGTH_MAX])


class RecordExtras(NamedTuple):
    """What a header bin holds; `tags` is None outside of the mixed chunk."""

    tags: Tags | None
    headers: Headers


def pack_headers(headers: Headers) -> bytes | None:
    return _ENCODER.encode(_flatten(headers)) if headers else None


def pack_mixed_headers(tags: Tags, headers: Headers) -> bytes:
    return _ENCODER.encode([tags, *_flatten(headers)])


def _flatten(headers: Headers) -> list[bytes | None]:
    flat: list[bytes | None] = []
    for name, value in headers:
        flat += name.encode(), value
    return flat


class HeaderColumn:
    """The header bins of one chunk, `packed` being the column behind its array header."""

    def __init__(self, packed: Buffer, count: int, origin: Origin, *, mixed: bool) -> None:
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
        """Where the bin or nil at `position` ends; 0 where there is something else."""
        kind = self._packed[position]
        if kind == _NIL:
            return position + 1
        if kind not in _BIN_LENGTH_BYTES:
            return 0
        start = position + 1 + _BIN_LENGTH_BYTES[kind]
        return start + int.from_bytes(self._packed[position + 1 : start], "big")

    def parse(self, index: int) -> RecordExtras:
        """Tags and headers of the record at `index` of this chunk.

        Raises:
            CorruptRecord: the bin does not hold what it should.
        """
        start = self._starts[index]
        kind = self._packed[start]
        if kind == _NIL:
            return RecordExtras(() if self._mixed else None, NO_HEADERS)
        packed = self._packed[start + 1 + _BIN_LENGTH_BYTES[kind] : self._end_of(start)]
        try:
            return _unpack(packed, mixed=self._mixed)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise self._origin.corrupt(f"headers of record {index}: {error}") from error


def _unpack(packed: Buffer, *, mixed: bool) -> RecordExtras:
    if not mixed:
        return RecordExtras(None, _pair_up(_DECODER.decode(packed)))
    tags, *flat = _MIXED_DECODER.decode(packed) or [None]
    if not isinstance(tags, list):
        raise ValueError("no tags in front")
    problem = problem_of_tags(tuple(tags))
    if problem or list in map(type, flat):
        raise ValueError(problem or "a list where bytes belong")
    return RecordExtras(tuple(tags), _pair_up(cast("list[bytes | None]", flat)))


def _pair_up(flat: list[bytes | None]) -> Headers:
    names, values = flat[::2], flat[1::2]
    if len(names) != len(values):
        raise ValueError("a name without a value")
    if len(names) > HEADERS_MAX:
        raise ValueError(f"{len(names)} headers, allowed {HEADERS_MAX}")
    if None in names:
        raise ValueError("a value without a name")
    texts = [name.decode() for name in names if name is not None]
    return tuple(zip(texts, values, strict=True))
