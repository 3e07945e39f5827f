"""Which partition a key belongs to. Pure: the same key, the same partition, in every process.

Owns the built-in hashes and the check of what a program's own function returns. Records without
a key are `dealing.py`'s.

* crc32: CRC-32 (IEEE 802.3) modulo the partitions, as Spark's `crc32` function computes it.
* murmur2: as Kafka's Java clients do; in Python, so far slower than crc32, which runs in C.
* consistent: jump hash (Lamping and Veach, 2014, arXiv:1406.2294): from n to n + 1 partitions one
  key in n + 1 moves, and only to the new one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol, TypeAlias
from zlib import crc32 as ieee_crc32

from crc32c import crc32c

from raftmq.client.producer.record import hashed_bytes
from raftmq.errors import InvalidRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from raftmq.wire.batch.arguments import GivenHeaders
    from raftmq.wire.batch.columns import Key, Value


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


# -- Dealing --------------------------------------------------------------------------------------
# Where records without a key go: one partition at a time, dealt like cards. Pure.
#
# Stays with a partition until its batch is closed, so that batches get full, and deals the next one
# from a shuffled deck of all: after each round all have had the same. A partition whose queue is
# much longer than the others' is passed over, as its leader is slow or gone; and so is one that
# nobody leads.


LONG_QUEUE_BYTES_MIN = 256 << 10  # a queue that is shorter is no sign of anything


class StickyPartitioner:
    """Of one topic.

    Args:
        queued_bytes: of a partition; math.inf where nobody leads.
    """

    def __init__(self, queued_bytes: Callable[[int], float], random: Random) -> None:
        self._queued_bytes, self._random = queued_bytes, random
        self._deck: list[int] = []
        self._count = 0
        self._current: int | None = None

    def current(self, partitions: int) -> int:
        """The partition that the next record goes to."""
        if partitions != self._count:
            self._count, self._deck, self._current = partitions, [], None
        if self._current is None:
            self._current = self._deal()
        return self._current

    def turn(self, partition: int) -> None:
        """A batch of that partition is closed: if it has the turn, it is somebody else's now."""
        if partition == self._current:
            self._current = None

    def _deal(self) -> int:
        """At most one deck is looked through: where all are slow, nobody is."""
        bound: float | None = None
        for _ in range(self._count):
            card = self._next_card()
            queued = self._queued_bytes(card)
            if queued > LONG_QUEUE_BYTES_MIN and bound is None:  # looks at all, so only now
                bound = self._bound()
            if bound is None or queued <= bound:
                return card
        return self._next_card()

    def _next_card(self) -> int:
        if not self._deck:
            self._deck = list(range(self._count))
            self._random.shuffle(self._deck)
        return self._deck.pop()

    def _bound(self) -> float:
        """Twice the median queue of those that are led, which a slow partition does not move."""
        queues = [self._queued_bytes(partition) for partition in range(self._count)]
        led = sorted([queue for queue in queues if queue < math.inf])
        if not led:
            return math.inf
        return max(2.0 * led[(len(led) - 1) // 2], LONG_QUEUE_BYTES_MIN)


# -- Rounds ---------------------------------------------------------------------------------------
# Where a named producer's records without a key go: from their number alone. Pure.
#
# A program that sends the same records again must find each of them where it was the first time,
# whatever was slow, full or without a leader then. So a thousand of them go to one partition, the
# next thousand to the next one; where the first ones go depends on name and generation, so that
# many producers with few records each do not meet in one partition.


RUN_RECORDS = 1000


class ReplayablePartitioner:
    """Of one topic, of which the number of partitions never changes here."""

    def __init__(self, name: str, generation: int) -> None:
        self._first = ieee_crc32(f"{name}/{generation}".encode())
        self._count = 0

    def take_one(self, partitions: int) -> int:
        """The partition of the next record."""
        found = (self._first + self._count // RUN_RECORDS) % partitions
        self._count += 1
        return found

    def take(self, count: int, partitions: int) -> list[tuple[int, int]]:
        """Those of the next ones: a partition, and how many records in a row go there."""
        runs: list[tuple[int, int]] = []
        end = self._count + count
        while self._count < end:
            run = self._count // RUN_RECORDS
            taken = min(end, (run + 1) * RUN_RECORDS) - self._count
            runs.append(((self._first + run) % partitions, taken))
            self._count += taken
        return runs
