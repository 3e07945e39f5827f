"""What a named producer says of its records: the same for the same ones, however they are cut."""

from __future__ import annotations

import struct

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.client.producer.record import RunningDigest

Rows = list[tuple[bytes | int | None, bytes | None]]

KEYS = st.one_of(st.none(), st.binary(max_size=20), st.integers(-(1 << 63), (1 << 63) - 1))
ROWS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=20))), max_size=40)


def digest_of(rows: Rows, *cuts: int) -> int:
    digest = RunningDigest()
    for start, end in zip((0, *cuts), (*cuts, len(rows)), strict=True):
        digest.add([key for key, _ in rows[start:end]], [value for _, value in rows[start:end]])
    assert digest.count == len(rows)
    return digest.value


@given(ROWS, st.lists(st.integers(0, 40), max_size=5))
@settings(derandomize=True, max_examples=50)
def test_however_they_are_cut(rows: Rows, cuts: list[int]) -> None:
    """In one go, in portions, with empty portions."""
    inside = sorted(cut for cut in cuts if cut <= len(rows))
    assert digest_of(rows, *inside) == digest_of(rows)


@given(ROWS)
@settings(derandomize=True, max_examples=50)
def test_as_it_is_written_down(rows: Rows) -> None:
    """Item by item, with another implementation of the same words."""
    encode = msgspec.msgpack.encode
    keys = crc32c(b"".join([encode(key) for key, _ in rows]))
    values = crc32c(b"".join([encode(value) for _, value in rows]))
    expected = crc32c(struct.pack(">IIQ", keys, values, len(rows))) if rows else 0
    assert digest_of(rows) == expected


@pytest.mark.parametrize("count", [15, 16, 65_535, 65_536])
def test_long_columns(count: int) -> None:
    """Where the header of a column gets longer."""
    rows: Rows = [(None, b"x")] * count
    assert digest_of(rows) == digest_of(rows, 1, count // 2)


def test_what_makes_a_difference() -> None:
    """Order, kinds of keys, no value or an empty one, and what belongs to whom."""
    rows: list[Rows] = [
        [],
        [(None, None)],
        [(None, b"")],
        [(b"", None)],
        [(None, b"a"), (None, b"b")],
        [(None, b"b"), (None, b"a")],
        [(b"1", b"a"), (None, b"b")],
        [(None, b"a"), (b"1", b"b")],
        [(1, b"a"), (None, b"b")],
        [(None, b"a\xc4\x01b")],
    ]
    assert len({digest_of(each) for each in rows}) == len(rows)
    assert digest_of([]) == 0
