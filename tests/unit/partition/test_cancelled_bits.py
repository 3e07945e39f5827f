"""The records of a batch that are cancelled, as bits and as deltas; a batch may have 65,536."""

from __future__ import annotations

from random import Random

from raftmq.partition.scheduling.columns import bits_of, deltas_of


def test_there_and_back() -> None:
    """A12.2."""
    random = Random(1)
    for count in (1, 7, 8, 9, 64, 1_000, 65_536):
        for part in (0, 1, count // 2, count):
            deltas = tuple(sorted(random.sample(range(count), part)))
            bits = bits_of(deltas, count)
            assert deltas_of(bits) == deltas
            assert bits == sum(1 << delta for delta in deltas[:100]) or part > 100
