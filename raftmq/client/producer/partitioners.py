"""Which partition a key belongs to. Pure: the same key, the same partition, in every process.

Owns the built-in hashes and the check of what a program's own function returns. Records without
a key are `dealing.py`'s.

* crc32: CRC-32 (IEEE 802.3) modulo the partitions, as Spark's `crc32` function computes it.
* murmur2: as Kafka's Java clients do; in Python, so far slower than crc32, which runs in C.
* consistent: jump hash (Lamping and Veach, 2014, arXiv:1406.2294): from n to n + 1 partitions one
  key in n + 1 moves, and only to the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias
from zlib import crc32 as ieee_crc32

from crc32c import crc32c

from raftmq.client.producer.record import hashed_bytes
from raftmq.errors import InvalidRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.wire.arguments import GivenHeaders
    from raftmq.wire.columns import Key, Value

Hash: TypeAlias = "Callable[[bytes, int], int]"  # (key, number of partitions) -> partition

_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1
_MURMUR_SEED, _MURMUR_FACTOR = 0x9747B28C, 0x5BD1E995
_JUMP_FACTOR = 2_862_933_555_777_941_757


class UserPartitioner(Protocol):
    """A program's own: any function with these parameters, given by position."""

    def __call__(
        self, topic: str, key: Key, value: Value, headers: GivenHeaders, partitions: int, /
    ) -> int: ...


def crc32(key: bytes, partitions: int) -> int:
    return ieee_crc32(key) % partitions


def murmur2(key: bytes, partitions: int) -> int:
    return (murmur2_hash(key) & 0x7FFFFFFF) % partitions


def murmur2_hash(data: bytes) -> int:
    """MurmurHash2 of 32 bits with Kafka's seed."""
    mixed = _MURMUR_SEED ^ len(data)
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _MURMUR_FACTOR & _U32
        word = (word ^ word >> 24) * _MURMUR_FACTOR & _U32
        mixed = mixed * _MURMUR_FACTOR & _U32 ^ word
    if rest := data[whole:]:
        mixed = (mixed ^ int.from_bytes(rest, "little")) * _MURMUR_FACTOR & _U32
    mixed = (mixed ^ mixed >> 13) * _MURMUR_FACTOR & _U32
    return mixed ^ mixed >> 15


def consistent(key: bytes, partitions: int) -> int:
    state = ieee_crc32(key) << 32 | crc32c(key)
    bucket, jump = -1, 0
    while jump < partitions:
        bucket = jump
        state = (state * _JUMP_FACTOR + 1) & _U64
        jump = int((bucket + 1) * ((1 << 31) / ((state >> 33) + 1)))
    return bucket


HASHES: dict[str, Hash] = {"crc32": crc32, "murmur2": murmur2, "consistent": consistent}


def partitions_of(keys: Sequence[Key], hash_key: Hash, partitions: int) -> list[int]:
    """Of many keys, none of them None."""
    try:
        if hash_key is crc32:  # a call less for each
            return [ieee_crc32(key) % partitions for key in keys]  # type: ignore[arg-type]
    except TypeError:  # an int among them
        pass
    return [hash_key(hashed_bytes(key), partitions) for key in keys]


def checked_partition(found: object, partitions: int, topic: str) -> int:
    """What a program has chosen.

    Raises:
        InvalidRecord: it is none of the topic's.
    """
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < partitions:
        return found
    raise InvalidRecord(
        f"partition {found!r}: topic {topic!r} has the partitions 0 to {partitions - 1}"
    )
