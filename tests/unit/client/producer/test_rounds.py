"""Where records without a key of a named producer go: always to the same place."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.client.producer.partitioners import RUN_RECORDS, ReplayablePartitioner


@given(st.lists(st.integers(0, 3000), max_size=8), st.integers(1, 7))
@settings(derandomize=True, max_examples=50)
def test_one_by_one_or_many_at_once(counts: list[int], partitions: int) -> None:
    """It depends on the number of a record alone."""
    single, many = ReplayablePartitioner("a", 1), ReplayablePartitioner("a", 1)
    for count in counts:
        taken = [partition for partition, n in many.take(count, partitions) for _ in range(n)]
        assert taken == [single.take_one(partitions) for _ in range(count)]


@pytest.mark.parametrize("partitions", [1, 3, 8])
def test_all_get_the_same(partitions: int) -> None:
    """After each round."""
    found: Counter[int] = Counter()
    for partition, count in ReplayablePartitioner("a", 1).take(
        2 * partitions * RUN_RECORDS, partitions
    ):
        found[partition] += count
    assert found == dict.fromkeys(range(partitions), 2 * RUN_RECORDS)


def test_where_the_first_ones_go() -> None:
    """Many names with few records each, and the generations of one, do not meet in one place."""
    names = Counter(ReplayablePartitioner(f"task-{number}", 0).take_one(8) for number in range(400))
    generations = Counter(
        ReplayablePartitioner("task", number).take_one(8) for number in range(400)
    )
    for found in (names, generations):
        assert set(found) == set(range(8))
        assert max(found.values()) < 100
