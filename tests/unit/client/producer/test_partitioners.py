"""Partitioners: the published figures of others, and what a hash ring promises."""

from __future__ import annotations

import zlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.producer.partitioners import (
    checked_partition,
    consistent,
    crc32,
    murmur2,
    murmur2_hash,
    partitions_of,
)
from raftmq.client.producer.record import hashed_bytes
from raftmq.errors import InvalidRecord

KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", KAFKA)
def test_murmur2_is_kafkas(key: bytes) -> None:
    """The vectors of Kafka's own tests, as signed 32 bits."""
    assert murmur2_hash(key) == KAFKA[key] % (1 << 32)
    assert murmur2(key, 7) == (KAFKA[key] & 0x7FFFFFFF) % 7


@given(st.binary(), st.integers(1, 1000))
def test_crc32_is_zlibs(key: bytes, partitions: int) -> None:
    """Thus Spark's: CRC-32 of the bytes, unsigned, modulo the partitions (A4.2)."""
    assert crc32(key, partitions) == zlib.crc32(key) % partitions
    assert crc32(b"123456789", 1 << 32) == 0xCBF43926  # the check value of the standard


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_an_int_key_is_eight_bytes(key: int) -> None:
    """As Kafka's LongSerializer writes it, most significant byte first, two's complement."""
    assert hashed_bytes(key) == (key % (1 << 64)).to_bytes(8, "big")


@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_consistent_moves_few(count: int) -> None:
    """From n to n + 1 partitions one key in n + 1 moves, and only to the new one (A4.2)."""
    random = Random(count)
    keys = [random.randbytes(12) for _ in range(4000)]
    before = [consistent(key, count) for key in keys]
    after = [consistent(key, count + 1) for key in keys]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {count}
    assert len(moved) / len(keys) == pytest.approx(1 / (count + 1), rel=0.2)
    shares = [before.count(each) * count / len(keys) for each in range(count)]
    assert all(share == pytest.approx(1, rel=0.45) for share in shares)


@given(
    st.lists(st.one_of(st.binary(), st.integers(-5, 5), st.text()), max_size=20),
    st.integers(1, 20),
)
def test_many_keys_go_where_each_goes(keys: list[bytes | str | int], partitions: int) -> None:
    """One call for a column, whatever is in it; text goes where its UTF-8 bytes go (A4.2)."""
    encoded = [key.encode() if isinstance(key, str) else key for key in keys]
    for each in (crc32, murmur2, consistent):
        one_by_one = [each(hashed_bytes(key), partitions) for key in keys]
        assert partitions_of(keys, each, partitions) == one_by_one
        assert partitions_of(encoded, each, partitions) == one_by_one
        assert all(0 <= found < partitions for found in one_by_one)


@pytest.mark.parametrize("found", [-1, 3, 1.0, "1", None, True])
def test_a_partition_that_there_is_not(found: object) -> None:
    """The error names it, and which there are."""
    with pytest.raises(InvalidRecord, match="topic 'orders' has the partitions 0 to 2"):
        checked_partition(found, 3, "orders")
    assert checked_partition(2, 3, "orders") == 2
