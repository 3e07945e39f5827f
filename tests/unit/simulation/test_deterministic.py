"""The scheduler of simulations: the private names of trio that it needs are there, and work."""

from __future__ import annotations

from functools import partial
from random import Random
from threading import Thread, get_ident

import pytest
import trio
from trio._core import _run

from tests.simulation.deterministic import run, run_inline
from tests.simulation.disk_faults import PowerCut


async def race(order: list[int]) -> None:
    async def step(number: int) -> None:
        await trio.lowlevel.checkpoint()
        order.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(step, number)


def order_of(seed: str) -> list[int]:
    order: list[int] = []
    run(seed, partial(race, order))
    return order


def test_a_seed_is_an_order_of_tasks() -> None:
    """Twenty tasks that become runnable at once run in the seed's order."""
    assert order_of("a") == order_of("a") != order_of("b")


def test_a_loop_in_another_thread_changes_no_order() -> None:
    """Brokers that other tests have started go on while a simulation runs."""

    async def race_beside_another(order: list[int]) -> None:
        another = Thread(target=trio.run, args=(race, []))
        another.start()
        another.join()
        await race(order)

    order: list[int] = []
    run("a", partial(race_beside_another, order))
    assert order == order_of("a")


class Watched(Random):
    """Attributes:
    drawers: who has drawn: other tests' loops may, too.
    """

    drawers: set[int]

    def random(self) -> float:
        self.drawers.add(get_ident())
        return super().random()


def test_loops_in_other_threads_draw_as_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed is that of one thread: elsewhere nobody gets the numbers of a simulation."""
    others = Watched()
    others.drawers = set()
    monkeypatch.setattr(_run, "_r", others)
    drawn: list[int] = []

    def draw() -> None:
        _run._r.random()
        drawn.append(get_ident())

    async def draw_elsewhere() -> None:
        another = Thread(target=draw)
        another.start()
        another.join()

    run("a", draw_elsewhere)
    assert set(drawn) <= others.drawers
    assert get_ident() not in others.drawers


def test_trio_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests keep the scheduler that they came with; brokers that they have started may draw
    from it meanwhile, in threads of their own."""
    others = Watched()
    others.drawers = set()
    monkeypatch.setattr(_run, "_r", others)
    before = _run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r
    order_of("a")
    assert before == (_run._ALLOW_DETERMINISTIC_SCHEDULING, _run._r)
    assert get_ident() not in others.drawers


def test_time_is_virtual() -> None:
    """An hour passes as soon as nobody has anything else to do."""

    async def sleep() -> float:
        before = trio.current_time()
        await trio.sleep(3600)
        return trio.current_time() - before

    assert run("a", sleep) == 3600


def test_waiting_for_ever_ends() -> None:
    """A simulated hang is an error like any other, although timers keep the clock running."""

    async def tick() -> None:
        for _ in range(100_000):
            await trio.sleep(5)

    async def hang() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick)
            await trio.Event().wait()

    with pytest.raises(trio.TooSlowError):
        run("a", hang)


@pytest.mark.parametrize("first", [ValueError("wrong"), PowerCut()])
def test_the_error_that_matters_comes_out_of_the_group(first: BaseException) -> None:
    """A PowerCut is the way out of a simulation; an error beside it is what went wrong."""

    async def fail(error: BaseException) -> None:
        raise error

    async def fail_twice() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, first)
            nursery.start_soon(fail, PowerCut())

    with pytest.raises(type(first)):
        run("a", fail_twice)


async def test_what_runs_inline_gives_way_before_and_after() -> None:
    """As a worker thread does: the loop is free while it starts and while it ends."""
    order: list[str] = []

    async def other() -> None:
        for name in ("before", "after"):
            order.append(name)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await run_inline(lambda: order.append("function"))
    assert sorted(order) == ["after", "before", "function"]
