"""Which partition a record goes to: by its key's hash, sticky without a key, or replayable. Pure.

The same key goes to the same partition in every process. Owns the built-in hashes, the check of a
program's own partitioner, `StickyPartitioner` (Kafka: the built-in partitioner of KIP-480 and
KIP-794) and `ReplayablePartitioner` for named producers.

* crc32: CRC-32 (IEEE 802.3) modulo the partitions, as Spark's `crc32` function computes it.
* murmur2: as Kafka's Java clients do; in Python, so far slower than crc32, which runs in C.
* consistent: jump hash (Lamping and Veach, 2014, arXiv:1406.2294): from n to n + 1 partitions one
  key in n + 1 moves, and only to the new one.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
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

# Masks: Python's integers do not wrap as C's do.
_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1
# Kafka's seed and MurmurHash2's multiplier: other values would not match Java clients.
_MURMUR_SEED, _MURMUR_FACTOR = 0x9747B28C, 0x5BD1E995
_JUMP_FACTOR = 2_862_933_555_777_941_757  # the 64-bit LCG of the jump hash paper


class UserPartitioner(Protocol):
    """A program's own partitioner: any function with these parameters, given by position."""

    def __call__(
        self, topic: str, key: Key, value: Value, headers: GivenHeaders, partitions: int, /
    ) -> int: ...


def crc32(key: bytes, partitions: int) -> int:
    return ieee_crc32(key) % partitions


def murmur2(key: bytes, partitions: int) -> int:
    # Kafka's `toPositive`: its hash is a signed int.
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


# By the name of the option `partitioner`.
HASHES: dict[str, Hash] = {"crc32": crc32, "murmur2": murmur2, "consistent": consistent}


def partitions_of(keys: Sequence[Key], hash_key: Hash, partitions: int) -> list[int]:
    """The partitions of many keys, none of them None."""
    try:
        if hash_key is crc32:  # one call less for each key
            return [ieee_crc32(key) % partitions for key in keys]  # type: ignore[arg-type]
    except TypeError:  # an int among them needs hashed_bytes
        pass
    return [hash_key(hashed_bytes(key), partitions) for key in keys]


def checked_partition(found: object, partitions: int, topic: str) -> int:
    """What a program's partitioner, or the program itself, has chosen.

    Raises:
        InvalidRecord: the topic has no such partition.
    """
    # True would count as partition 1.
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < partitions:
        return found
    raise InvalidRecord(
        f"partition {found!r}: topic {topic!r} has the partitions 0 to {partitions - 1}"
    )


# -- Sticky partitioner --------------------------------------------------------------------------
# Where records without a key go: to one partition until its batch is closed. Pure.
#
# So batches get full. They differ in size, as one leaves when it is full or has lingered. So the
# next partition is the one that has had the fewest bytes: all have had the same, to within a batch.
# A partition is passed over while its queue is much longer than the others', as its leader is slow
# or unreachable, and while it has no leader; afterwards it gets what it has missed.


# 4 default batches: a shorter queue is normal, not the sign of a slow leader
LONG_QUEUE_BYTES_MIN = 256 << 10
# What a partition that was passed over can get more than the others afterwards. Without a bound,
# all records would go to a leader that has just come back.
MISSED_BYTES_MAX = 4 << 20


class StickyPartitioner:
    """Of one topic.

    Args:
        queued_bytes: bytes that wait for a partition; math.inf where it has no leader.
    """

    def __init__(self, queued_bytes: Callable[[int], float], random: Random) -> None:
        self._queued_bytes, self._random = queued_bytes, random
        # A heap of all partitions but the current one: bytes that it has had, a random number for
        # the order of equals, and the partition.
        self._line: list[tuple[int, float, int]] = []
        self._count = self._most = 0
        self._current: int | None = None
        self._had = 0  # bytes of the current partition, before its turn

    def current(self, partitions: int) -> int:
        """The partition that the next record goes to."""
        # The topic has grown: new partitions take part at once.
        if partitions != self._count:
            self._count, self._most, self._current = partitions, 0, None
            self._line = sorted((0, self._random.random(), each) for each in range(partitions))
        if self._current is None:  # its batch was closed
            self._current = self._deal()
        return self._current

    def turn(self, partition: int, size: int) -> None:
        """A batch of that partition was closed: if it is the current one, choose another next
        time.

        Args:
            size: of the batch, in bytes.
        """
        if partition == self._current:
            had = self._had + size
            self._most = max(self._most, had)
            heappush(self._line, (had, self._random.random(), partition))
            self._current = None

    def _deal(self) -> int:
        """The partition that has had the fewest bytes and is not slow; if all are, that one."""
        bound: float | None = None
        slow: list[tuple[int, float, int]] = []
        while self._line:
            queued = self._queued_bytes(self._line[0][2])
            if queued > LONG_QUEUE_BYTES_MIN and bound is None:  # a sum over all
                bound = self._bound()
            # No long queue so far, or this one is not much longer than the others.
            if bound is None or queued <= bound:
                break
            slow.append(heappop(self._line))
        had, _, found = heappop(self._line) if self._line else slow.pop(0)
        for one in slow:
            heappush(self._line, one)
        self._had = max(had, self._most - MISSED_BYTES_MAX)
        return found

    def _bound(self) -> float:
        """Twice the median queue of the partitions with a leader; a slow one does not move the
        median.
        """
        queues = [self._queued_bytes(partition) for partition in range(self._count)]
        led = sorted([queue for queue in queues if queue < math.inf])
        if not led:  # no partition has a leader: none is slower
            return math.inf
        return max(2.0 * led[(len(led) - 1) // 2], LONG_QUEUE_BYTES_MIN)


# -- Replayable partitioner ----------------------------------------------------------------------
# Where a named producer's records without a key go: by their position in the program's order. Pure.
#
# A program that sends the same records again must find each of them in the same partition, even if
# that partition was slow, full or without a leader the first time. So 1000 of them go to one
# partition, the next 1000 to the next one. The first partition depends on name and generation, so
# that many producers with few records do not all write to the same one.


# Enough to fill batches; part of what a replay relies on, so it must never change
RUN_RECORDS = 1000


class ReplayablePartitioner:
    """Of one topic, whose number of partitions is fixed for the generation (decision 0022)."""

    def __init__(self, name: str, generation: int) -> None:
        self._first = ieee_crc32(f"{name}/{generation}".encode())
        self._count = 0

    def take_one(self, partitions: int) -> int:
        """The partition of the next record."""
        found = (self._first + self._count // RUN_RECORDS) % partitions
        self._count += 1
        return found

    def take(self, count: int, partitions: int) -> list[tuple[int, int]]:
        """Partitions of the next `count` records: each with the number of records in a row that go
        there.
        """
        runs: list[tuple[int, int]] = []
        end = self._count + count
        while self._count < end:
            run = self._count // RUN_RECORDS
            taken = min(end, (run + 1) * RUN_RECORDS) - self._count
            runs.append(((self._first + run) % partitions, taken))
            self._count += taken
        return runs
