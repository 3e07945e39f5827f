"""Room: first come, first served, whatever is taken, given back and cancelled."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from raftmq.client.producer.accumulator import BufferPool

if TYPE_CHECKING:
    from trio.testing import MockClock


@pytest.mark.parametrize("seed", range(20))
async def test_anything_in_any_order(autojump_clock: MockClock, seed: int) -> None:
    """It is never over its bound but by one that is larger alone; in the end all is given back."""
    random, pool = Random(seed), BufferPool(100)
    entered: list[int] = []

    async def visit(number: int) -> None:
        size = random.choice((1, 10, 40, 90, 150))
        with trio.move_on_after(random.choice((0.0, 0.5, 2.0, 1000.0))):
            await pool.take(size)
            entered.append(number)
            assert pool.used_bytes <= 100 or pool.used_bytes == size
            try:
                await trio.sleep(random.random())
            finally:
                pool.give_back_now(size)

    async with trio.open_nursery() as tasks:
        for number in range(50):
            tasks.start_soon(visit, number)
            if random.random() < 0.5:
                await trio.sleep(random.random() / 2)
    assert pool.used_bytes == 0
    assert not pool.is_wanted
    assert len(entered) > 10


async def test_nobody_overtakes(autojump_clock: MockClock) -> None:
    """What is small waits behind what is large, also if it would fit now."""
    pool = BufferPool(100)
    await pool.take(60)
    order = []

    async def wait(size: int) -> None:
        await pool.take(size)
        order.append(size)

    async with trio.open_nursery() as tasks:
        for size in (70, 5):
            tasks.start_soon(wait, size)
            await trio.testing.wait_all_tasks_blocked()
        assert not pool.take_now(5)
        assert pool.is_wanted
        pool.give_back_now(60)
    assert sorted(order) == [5, 70]


async def test_one_who_leaves_the_line_lets_others_in(autojump_clock: MockClock) -> None:
    """The large one gives up; the small one behind it fits."""
    pool = BufferPool(100)
    await pool.take(60)
    async with trio.open_nursery() as tasks:
        with trio.move_on_after(1) as scope:
            tasks.start_soon(_wait_and_give_back, pool, 5)
            await pool.take(70)
    assert scope.cancelled_caught
    assert pool.used_bytes == 60


async def _wait_and_give_back(pool: BufferPool, size: int) -> None:
    await trio.sleep(0.5)
    await pool.take(size)
    pool.give_back_now(size)


async def test_closing(autojump_clock: MockClock) -> None:
    """Whoever waits or comes later is let in, and gives back what it was counted with."""
    pool = BufferPool(100)
    await pool.take(100)
    async with trio.open_nursery() as tasks:
        tasks.start_soon(_wait_and_give_back, pool, 50)
        await trio.sleep(1)
        pool.close()
    await pool.take(70)
    assert pool.used_bytes == 170
    pool.give_back(170)
    with pytest.raises(AssertionError):
        pool.give_back(1)
