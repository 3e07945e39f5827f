"""Kafka's variable-length integers: zigzag, then seven bits a byte, lowest first.

Owns reading and writing one integer. A varint holds 32 bits in at most 5 bytes, a varlong 64 in
at most 10. Readers raise IndexError at the end of the data and ValueError for a number that is
too long: the caller knows what was being read and where.
"""

from __future__ import annotations

VARINT_BITS = 32
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


# Negative numbers find theirs from the end, as Python's negative indexes do.
_ONE_BYTE = [_write(value) for value in (*range(64), *range(-64, 0))]


def read_varint(data: bytes, position: int, bits: int = VARINT_BITS) -> tuple[int, int]:
    """The integer at `position` and the position after it."""
    byte = data[position]
    if byte < 0x80:
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
    if number >> bits:
        raise ValueError(f"a number of more than {bits} bits")
    return number >> 1 ^ -(number & 1), position
