"""Dealing: records without a key are spread evenly, past those who are slow or not led."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.client.producer.accumulator import Accumulator
from raftmq.client.producer.options import ProducerOptions
from raftmq.client.producer.partitioners import LONG_QUEUE_BYTES_MIN, StickyPartitioner
from raftmq.client.producer.record import RECORD_OVERHEAD_BYTES


def dealt(dealer: StickyPartitioner, count: int, turns: int) -> list[int]:
    """To whom, turn by turn."""
    found = []
    for _ in range(turns):
        partition = dealer.current(count)
        assert dealer.current(count) == partition
        found.append(partition)
        dealer.turn(partition)
    return found


@given(st.integers(1, 40), st.integers(0, 1000))
def test_after_each_round_all_have_had_the_same(count: int, seed: int) -> None:
    """A deck holds each partition once, and the next one another order."""
    found = dealt(StickyPartitioner(lambda _partition: 0, Random(seed)), count, 5 * count)
    for start in range(0, len(found), count):
        assert sorted(found[start : start + count]) == list(range(count))


@pytest.mark.parametrize("slow", [{2}, {0, 5}, {1, 2, 3}])
@pytest.mark.parametrize("queued", [math.inf, 10 * LONG_QUEUE_BYTES_MIN])
def test_slow_ones_are_passed_over(slow: set[int], queued: float) -> None:
    """A long queue, or nobody who leads: the others get the records, evenly."""
    dealer = StickyPartitioner(lambda partition: queued if partition in slow else 0, Random(1))
    found = dealt(dealer, 8, 800)
    assert not slow & set(found)
    assert max(map(found.count, found)) - min(map(found.count, set(found))) <= 2 * len(found) / 8


def test_most_have_no_leader() -> None:
    """Five of eight: the three others get everything."""
    dealer = StickyPartitioner(lambda partition: 0 if partition < 3 else math.inf, Random(1))
    assert set(dealt(dealer, 8, 100)) == {0, 1, 2}


@pytest.mark.parametrize("queued", [math.inf, 10 * LONG_QUEUE_BYTES_MIN])
def test_all_are_slow(queued: float) -> None:
    """Then nobody is."""
    assert set(dealt(StickyPartitioner(lambda _partition: queued, Random(1)), 8, 16)) == set(
        range(8)
    )


def test_short_queues_are_no_sign() -> None:
    """Differences below a few batches are chance."""
    dealer = StickyPartitioner(
        lambda partition: LONG_QUEUE_BYTES_MIN if partition == 3 else 0, Random(1)
    )
    assert dealt(dealer, 8, 80).count(3) == 10


def test_growth_while_one_has_the_turn() -> None:
    """The new partitions get their share from the next record on; it may shrink, too."""
    dealer = StickyPartitioner(lambda _partition: 0, Random(1))
    dealer.current(2)
    assert sorted(dealt(dealer, 6, 6)) == list(range(6))
    dealer.current(6)
    assert sorted(dealt(dealer, 3, 3)) == [0, 1, 2]


def test_only_who_has_the_turn_loses_it() -> None:
    """A batch with keys that closes elsewhere changes nothing."""
    dealer = StickyPartitioner(lambda _partition: 0, Random(1))
    current = dealer.current(8)
    dealer.turn((current + 1) % 8)
    assert dealer.current(8) == current


@settings(max_examples=2, deadline=None)
@given(st.integers(0, 1 << 32), st.integers(20, 60))
def test_balance_through_the_accumulator(seed: int, value_bytes: int) -> None:
    """10^5 small records without a key over 8 partitions: within 5 % of each other (A4.4)."""
    options = ProducerOptions(batch_size=4 << 10)
    accumulator = Accumulator(options, Random(seed), lambda *_: True, lambda: None)
    topic = accumulator.topic("t")
    topic.count = 8
    value, counts = bytes(value_bytes), [0] * 8
    size = RECORD_OVERHEAD_BYTES + len(value)
    for number in range(100_000):
        batch, _ = accumulator.add(topic, value, None, 0, size, lambda: 0.0)
        counts[batch.partition] += 1
        if number % 5000 == 0:  # queues are emptied in time
            for queue in topic.queues.values():
                while len(queue):
                    queue.on_answer(queue.take(1 << 30, 0.0, is_hurried=True))
                    topic.dealer.turn(queue.partition)
    mean = sum(counts) / 8
    assert all(abs(count - mean) < 0.05 * mean for count in counts)
