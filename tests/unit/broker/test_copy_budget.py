"""The rate of copies: what all lanes get together, and in which order.

A10.2.
"""

from __future__ import annotations

import math
from random import Random

import pytest

from raftmq.broker.replication.copy_budget import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    CHUNK_SECONDS,
    RATE_MIN,
    CopyBudget,
)

MB = 1_000_000


def test_a_chunk_is_a_tenth_of_a_second() -> None:
    """Not so little that batches are copied one by one, nor so much that others wait for it."""
    assert CopyBudget(MB).chunk_bytes == MB // 10
    assert CopyBudget(1).chunk_bytes == CHUNK_BYTES_MIN
    assert CopyBudget(50 * MB).chunk_bytes == CopyBudget(0).chunk_bytes == CHUNK_BYTES_MAX


def test_without_a_limit_it_is_always_ones_turn() -> None:
    """However much was fetched."""
    budget = CopyBudget(0)
    for _ in range(3):
        assert budget.take_turn(5.0) <= 5.0
        budget.settle(100 * MB)


def test_turns_come_at_the_rate() -> None:
    """Two at once after a pause, however long it was, and then ten a second."""
    budget = CopyBudget(MB)
    for now in (0.0, 1000.0):
        turns = [budget.take_turn(now) for _ in range(5)]
        assert turns == pytest.approx([now - 0.1, now, now + 0.1, now + 0.2, now + 0.3])
        for _ in turns:
            budget.settle(MB // 10)


def test_what_an_answer_has_beyond_its_chunk_is_made_up_for() -> None:
    """A first batch comes whole, whatever its size."""
    budget = CopyBudget(MB)
    assert budget.take_turn(0.0) <= 0
    budget.settle(MB)
    assert budget.take_turn(0.0) == pytest.approx(0.9)


def test_what_was_not_used_is_given_back() -> None:
    """A request that failed, or an answer that was small."""
    budget = CopyBudget(MB)
    for _ in range(100):
        assert budget.take_turn(0.0) <= 0
        budget.settle(0)


@pytest.mark.parametrize("seed", range(50))
def test_lanes_share_the_rate(seed: int) -> None:
    """Each asks again when its answer is there, as a fetcher does; answers are of any size and take
    their time. In no window they get more than the rate, and each has its share of the turns."""
    random = Random(seed)
    rate, lanes = random.choice((10_000, MB, 20 * MB)), random.randint(1, 4)
    budget, seconds = CopyBudget(rate), 400 * CopyBudget(rate).chunk_bytes / rate
    chunk = budget.chunk_bytes
    asks_at = [0.0] * lanes  # when each lane asks for a turn
    got: list[tuple[float, int, int]] = []
    now = 0.0
    while now < seconds:
        now = min(asks_at)
        lane = asks_at.index(now)
        leaves_at = max(budget.take_turn(now), now)
        # It is settled before it asks again; earlier than others know, which changes no sum.
        length = random.choice((chunk, chunk, random.randint(0, chunk), 2 * chunk))
        budget.settle(length)
        got.append((leaves_at, lane, length))
        asks_at[lane] = leaves_at + random.uniform(0, chunk / rate / 2)
    got.sort()
    for begin, (since, _, _) in enumerate(got[:200]):
        total = 0
        for until, _, length in got[begin:]:
            total += length
            # An answer in each lane may have brought twice its chunk.
            assert total <= rate * (until - since) + (2 + lanes) * chunk + 1
    turns = [sum(1 for _, lane, _ in got if lane == one) for one in range(lanes)]
    assert max(turns) - min(turns) <= math.ceil(0.3 * max(turns))


@pytest.mark.parametrize("seed", range(50))
def test_a_lane_waits_for_what_was_fetched(seed: int) -> None:
    """And for a chunk of each lane that has its turn, whatever becomes of these turns: nothing is
    fetched, or much, at once or late."""
    random = Random(seed)
    rate, lanes = random.choice((RATE_MIN, MB, 50 * MB)), random.randint(1, 6)
    budget = CopyBudget(rate)
    lengths = [random.choice((0, 200, budget.chunk_bytes, 8 * budget.chunk_bytes)) for _ in "123"]
    asking: list[tuple[float, int]] = [(random.random(), lane) for lane in range(lanes)]
    settling: list[tuple[float, int, int]] = []
    owed, then = 0.0, 0.0  # seconds that were fetched in advance, at that time
    for _ in range(2000):
        is_asking = not settling or (asking and min(asking)[0] <= min(settling)[0])
        now = min(asking)[0] if is_asking else min(settling)[0]
        owed, then = max(0.0, owed - (now - then)), now
        if is_asking:
            _, lane = asking.pop(asking.index(min(asking)))
            at = budget.take_turn(now)
            assert at - now <= owed + lanes * CHUNK_SECONDS + 1e-6
            answered = max(at, now) + random.choice((0.001, 0.05, 2.0))
            settling.append((answered, lane, random.choice(lengths)))
        else:
            _, lane, length = settling.pop(settling.index(min(settling)))
            budget.settle(length)
            owed += length / rate
            asking.append((now + random.choice((0.0, 0.01, 3.0)), lane))
