"""Dealing: records without a key are spread evenly, past those who are slow or not led."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from raftmq.client.producer.partitioners import (
    LONG_QUEUE_BYTES_MIN,
    MISSED_BYTES_MAX,
    StickyPartitioner,
)
from raftmq.errors import DeliveryTimedOut
from raftmq.wire.batch.header import iter_batches
from raftmq.wire.bodies import ABSENT
from tests.unit.client.logs import Appended, Partition
from tests.unit.client.producer.sending_model import Model
from tests.unit.client.producer.shell import open_producer
from tests.unit.client.world import World

if TYPE_CHECKING:
    from trio.testing import MockClock


def dealt(dealer: StickyPartitioner, count: int, turns: int, size: int = 1000) -> list[int]:
    """The partitions, turn by turn, with batches of one size."""
    found = []
    for _ in range(turns):
        partition = dealer.current(count)
        assert dealer.current(count) == partition
        found.append(partition)
        dealer.turn(partition, size)
    return found


@given(st.integers(1, 40), st.integers(0, 1000))
def test_after_each_round_all_have_had_the_same(count: int, seed: int) -> None:
    """Batches of one size: no partition gets a second one before all have one."""
    found = dealt(StickyPartitioner(lambda _partition: 0, Random(seed)), count, 5 * count)
    for start in range(0, len(found), count):
        assert sorted(found[start : start + count]) == list(range(count))


@given(st.integers(1, 12), st.lists(st.integers(256, 1 << 20), max_size=200), st.integers(0, 1000))
def test_batches_of_any_size_even_out(count: int, sizes: list[int], seed: int) -> None:
    """Batches leave full, or after they lingered: all have had the same bytes to within a batch."""
    dealer = StickyPartitioner(lambda _partition: 0, Random(seed))
    had = [0] * count
    for size in sizes:
        partition = dealer.current(count)
        had[partition] += size
        dealer.turn(partition, size)
        assert max(had) - min(had) <= max(sizes)


@pytest.mark.parametrize("missed_bytes", [1 << 20, 10 * MISSED_BYTES_MAX])
def test_what_was_missed(missed_bytes: int) -> None:
    """A partition has no leader for a while: then it gets what it missed, up to a bound."""
    queued, size = [0.0] * 4, 64 << 10
    dealer = StickyPartitioner(lambda partition: queued[partition], Random(1))
    dealt(dealer, 4, 40, size)
    queued[2] = math.inf
    assert 2 not in dealt(dealer, 4, 3 * missed_bytes // size, size)
    queued[2] = 0.0
    in_a_row = min(missed_bytes, MISSED_BYTES_MAX) // size
    assert set(dealt(dealer, 4, in_a_row, size)) == {2}
    rest = dealt(dealer, 4, 400, size)
    assert max(map(rest.count, range(4))) - min(map(rest.count, range(4))) <= 2


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
    dealer.turn((current + 1) % 8, 1000)
    assert dealer.current(8) == current


def test_whose_leader_is_lost_while_its_batch_is_open() -> None:
    """A record a second, and the partition that has the turn loses its leader: the records that
    wait there by then are late, and those after them go to the others (A4.4)."""
    model = Model(3, linger_ms=0, delivery_timeout_ms=20_000, request_timeout_ms=10_000)
    model.learn()
    model.step()
    model.topic.know(3)
    model.topic.dealer = StickyPartitioner(
        lambda each: math.inf if model.leaders[each] == ABSENT else 0, Random(1)
    )
    model.topic._deal = model.topic.dealer.current
    model.leaders[model.topic.dealer.current(3)] = ABSENT
    model.learn()
    for _ in range(60):
        model.hand_in(None)
        for _ in range(3):
            if model.step().unknown_topics:
                model.learn()
            for request in list(model.requests):
                model.draw_answer(request, 0.0)
        model.now += 1.0
    late = [number for number, each in model.outcomes.items() if isinstance(each, DeliveryTimedOut)]
    assert (late, len(model.outcomes)) == ([0], 60)


class CountedPartition(Partition):
    """A log without its bytes. `count`: of the records in it."""

    count = 0

    def append(self, data: bytes | memoryview) -> Appended:
        base_offset = self.count
        self.count += sum(header.record_count for _, header in iter_batches(data))
        return Appended(base_offset)


@pytest.mark.parametrize(("count", "median_bytes"), [(30_000, 90), (1_000_000, 40)])
async def test_balance(autojump_clock: MockClock, count: int, median_bytes: int) -> None:
    """10^6 records of many sizes without a key, handed in by `enqueue` in bursts, over 8 partitions
    of three brokers: the counts differ from their mean by less than 5 % (A4.4).
    """
    random, world = Random(1), World(3)
    topic = world.add_topic("many", *[1 + number % 3 for number in range(8)])
    topic.partitions = [CountedPartition(each.leader) for each in topic.partitions]
    async with open_producer(world) as (_, producer):
        for _ in range(count):
            value = bytes(int(random.lognormvariate(math.log(median_bytes), 0.7)))
            await producer.enqueue("many", value)
            if random.random() < 0.0005:  # pauses, in which batches leave before they are full
                await trio.sleep(random.random() / 50)
        await producer.flush()
    counts = [each.count for each in topic.partitions if isinstance(each, CountedPartition)]
    assert sum(counts) == count
    bound = 0.05 if count == 1_000_000 else 0.15  # a batch is more of fewer records
    assert all(abs(each - count / 8) < bound * count / 8 for each in counts), counts
