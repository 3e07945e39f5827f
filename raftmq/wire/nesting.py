"""Nesting limit of msgpack: refuses deeply nested bytes before msgspec recurses into them.

Owns NESTING_MAX and `Decoder`, which decodes everything that another process has sent or written
(decision 0029). msgspec skips unknown fields by recursion, and fails where the interpreter's stack
ends: after some hundred levels or a hundred thousand, by Python's version and the depth of the
caller. Then two readers of the same bytes would disagree. So the levels are counted first, without
recursion, and the same bytes are refused by all.

Decoders whose types leave nothing to skip do not need it: an array where bytes belong is refused
at the array.
"""

from __future__ import annotations

import re
from threading import Lock
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

# Levels of arrays and maps. The deepest message of today has 7, which leaves room for later
# versions; every Python's stack has room for 32.
NESTING_MAX = 32

_NIL_TO_TRUE = dict.fromkeys((0xC0, 0xC2, 0xC3), 1)  # one byte each: nil, false, true
_NUMBERS = {
    0xCA: 5,
    0xCB: 9,
    0xCC: 2,
    0xCD: 3,
    0xCE: 5,
    0xCF: 9,
    0xD0: 2,
    0xD1: 3,
    0xD2: 5,
    0xD3: 9,
}
# Fixext 1 to 16: kind, type, data.
_FIXED_EXTENSIONS = {0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}
# Bytes of an item that says by its first byte alone how long it is; 0 for all others.
_SIZES = [0] * 256
for _kind in (*range(0x80), *range(0xE0, 0x100)):
    _SIZES[_kind] = 1
for _kind in range(0xA0, 0xC0):
    _SIZES[_kind] = 1 + _kind - 0xA0
for _kind, _size in (_NIL_TO_TRUE | _NUMBERS | _FIXED_EXTENSIONS).items():
    _SIZES[_kind] = _size
# Runs of items of one byte are skipped at once: numbers and nil, and what is empty (a level too).
_FLAT = bytes(kind for kind in range(256) if _SIZES[kind] == 1)
_IS_SHORT = [kind in _FLAT + b"\x80\x90" for kind in range(256)]
_flat_run = re.compile(b"[" + re.escape(_FLAT) + b"]*").match
_short_run = re.compile(b"[" + re.escape(_FLAT + b"\x80\x90") + b"]*").match
_RUN_LEAST = 16  # items; for fewer a regular expression costs more than it saves
# Bytes, strings and extensions: how many bytes say the length, and how many more follow it.
_LONG = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0),
}  # fmt: skip
# Arrays and maps: how many bytes say the count, and how many items there are for each.
_LONG_NESTS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
# Likewise of those that say the count in their first byte, 0x80 to 0x9f.
_COUNTS = [0] * 0x80 + [2 * count for count in range(16)] + list(range(16))
_NOT_EMPTY = bytes([*range(0x81, 0x90), *range(0x91, 0xA0), *_LONG_NESTS])


# msgspec analyses a type when the first decoder for it is made, and a second thread that makes one
# meanwhile gets an unfinished analysis: decoding with it crashes the process.
_making = Lock()


def new_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """msgspec's decoder, made safely in any thread."""
    with _making:
        return msgspec.msgpack.Decoder(kind)


class Decoder(Generic[T]):
    """msgspec's decoder of `kind`, with the nesting limit in front."""

    def __init__(self, kind: Any) -> None:  # noqa: ANN401  # a type, or what stands for one
        self._decoder: msgspec.msgpack.Decoder[T] = new_decoder(kind)

    def decode(self, data: bytes | bytearray | memoryview) -> T:
        """
        Raises:
            ValueError: nested too deeply, or any error of msgspec, as these are ValueErrors.
        """
        check_nesting(data)
        return self._decoder.decode(data)


def check_nesting(data: bytes | bytearray | memoryview | msgspec.Raw) -> None:
    """Raises ValueError: more than NESTING_MAX levels. Other errors are left to the decoder."""
    if not isinstance(data, bytes):
        data = bytes(data)  # others have no `translate`
    # Fast path: with fewer bytes that may begin a level there cannot be more levels (0.2 us).
    if len(data) - len(data.translate(None, _NOT_EMPTY)) >= NESTING_MAX and _is_too_deep(data):
        raise ValueError(f"nested more than {NESTING_MAX} levels")


def _is_too_deep(data: bytes) -> bool:
    position = 0
    left = 1  # items of the innermost level that are still to come
    outer: list[int] = []  # of the levels around it
    sizes, counts, is_short = _SIZES, _COUNTS, _IS_SHORT
    try:
        while True:
            while left:
                kind = data[position]
                if left > _RUN_LEAST and is_short[kind] and is_short[data[position + 1]]:
                    # At the limit an empty array or map is one level too many: not skipped.
                    run = _short_run if len(outer) < NESTING_MAX else _flat_run
                    found = run(data, position, position + left)
                    if found is not None and (count := found.end() - position):
                        position, left = position + count, left - count
                        continue
                left -= 1
                if size := sizes[kind]:  # most items: their first byte says their length
                    position += size
                elif kind < 0xA0 or kind in _LONG_NESTS:
                    if len(outer) == NESTING_MAX:
                        return True
                    outer.append(left)
                    if kind < 0xA0:  # almost all; inline, as a call would double the cost
                        position, left = position + 1, counts[kind]
                    else:
                        position, left = _long_nest_at(data, position, kind)
                else:
                    position = _end_of_long(data, position, kind)
            left = outer.pop()
    except IndexError:  # the end of the bytes, or of the outermost level (`outer` is empty)
        return False


def _long_nest_at(data: bytes, position: int, kind: int) -> tuple[int, int]:
    """Where the items of an array or a map begin, and how many there are."""
    width, factor = _LONG_NESTS[kind]
    start = position + 1 + width
    return start, factor * int.from_bytes(data[position + 1 : start], "big")


def _end_of_long(data: bytes, position: int, kind: int) -> int:
    if kind not in _LONG:  # 0xC1, which msgpack never uses: the decoder will refuse it
        return len(data)
    width, more = _LONG[kind]
    start = position + 1 + width
    return start + more + int.from_bytes(data[position + 1 : start], "big")
