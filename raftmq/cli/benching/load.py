"""The records of a bench: of one size, half compressible, with as many keys as were asked for.

They are made beforehand and sent over and over, so that making them costs nothing.
"""

from __future__ import annotations

from itertools import chain, islice, repeat
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.cli.data.produce_run import Row

POOL_RECORDS = 4096  # distinct ones
POOL_BYTES_MAX = 16 << 20
LETTERS = b"0123456789abcdef"  # half a byte's worth of surprise in each
SEED = 1


class Amount(NamedTuple):
    """How much is to be done: so many records, or as many as go in so long."""

    records: int | None
    seconds: float


class Load:
    def __init__(self, size: int, keys: int) -> None:
        random = Random(SEED)
        count = max(1, min(POOL_RECORDS, POOL_BYTES_MAX // max(size, 1)))
        names = [b"key-%d" % number for number in range(keys)]
        self.pool: list[Row] = [
            (random.choice(names) if names else None, _value(random, size)) for _ in range(count)
        ]

    def rows(self, amount: Amount) -> Iterator[Row]:
        """Looks at the clock once in a while."""
        if amount.records is not None:
            return islice(chain.from_iterable(repeat(self.pool)), amount.records)
        return chain.from_iterable(self._until(monotonic() + amount.seconds))

    def _until(self, end: float) -> Iterator[list[Row]]:
        step = max(1, len(self.pool) // 8)
        while True:
            for start in range(0, len(self.pool), step):
                if monotonic() >= end:
                    return
                yield self.pool[start : start + step]

    @property
    def record_bytes(self) -> float:
        """Of key and value, on average."""
        return sum(len(key or b"") + len(value or b"") for key, value in self.pool) / len(self.pool)


def _value(random: Random, size: int) -> bytes:
    return bytes(random.choices(LETTERS, k=size))
