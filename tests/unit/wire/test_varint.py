"""Kafka's zigzag integers, against examples worked out by hand."""

from __future__ import annotations

import pytest

from raftmq.wire.batch.kafka_records import VARINT_BITS, VARLONG_BITS, read_varint, write_varint

EXAMPLES = {
    0: "00",
    -1: "01",
    1: "02",
    63: "7e",
    -64: "7f",
    64: "80 01",
    -65: "81 01",
    8191: "fe 7f",
    8192: "80 80 01",
    (1 << 31) - 1: "fe ff ff ff 0f",
    -(1 << 31): "ff ff ff ff 0f",
    (1 << 63) - 1: "fe ff ff ff ff ff ff ff ff 01",
    -(1 << 63): "ff ff ff ff ff ff ff ff ff 01",
}


@pytest.mark.parametrize(("number", "encoded"), EXAMPLES.items())
def test_examples(number: int, encoded: str) -> None:
    """Each number has the bytes that the encoding's definition gives it."""
    data = bytes.fromhex(encoded)
    assert write_varint(number) == data
    assert read_varint(b"\xff" + data + b"\xff", 1, VARLONG_BITS) == (number, 1 + len(data))


@pytest.mark.parametrize("number", [*range(-300, 300), 1 << 20, -(1 << 30)])
def test_round_trip(number: int) -> None:
    """What is written is read, whichever number of bytes it takes."""
    data = write_varint(number)
    assert read_varint(data, 0) == (number, len(data))


@pytest.mark.parametrize(
    ("data", "bits"),
    [
        (b"\xff" * 5 + b"\x01", VARINT_BITS),
        (b"\xff\xff\xff\xff\x10", VARINT_BITS),
        (b"\x80" * 5 + b"\x00", VARINT_BITS),
        (b"\xff" * 10 + b"\x01", VARLONG_BITS),
        (b"\xff" * 9 + b"\x02", VARLONG_BITS),
    ],
)
def test_a_number_that_is_too_long(data: bytes, bits: int) -> None:
    """More than 5 or 10 bytes, or bits beyond 32 or 64, are no number."""
    with pytest.raises(ValueError, match=f"more than {bits} bits"):
        read_varint(data, 0, bits)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff"])
def test_a_number_that_ends_early(data: bytes) -> None:
    """The data ends within the number."""
    with pytest.raises(IndexError):
        read_varint(data, 0)
