"""One question to several: who is asked when, which answer counts, and what is left behind."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.client.routing.cluster import ask_in_turn
from raftmq.errors import Unreachable

if TYPE_CHECKING:
    from trio.testing import MockClock


class Asked:
    """Attributes:
    begun, ended: which questions, with the time.
    """

    def __init__(self) -> None:
        self.begun: list[tuple[int, float]] = []
        self.ended: list[tuple[int, float]] = []

    async def ask(self, number: int, seconds: float, *, fails: bool = False) -> int:
        begin = trio.current_time()
        self.begun.append((number, begin))
        try:
            await trio.sleep_until(begin + seconds)
        finally:
            self.ended.append((number, trio.current_time()))
        if fails:
            raise Unreachable(f"number {number}")
        return number


async def asked_in_turn(
    asked: Asked, *seconds: float, failing: frozenset[int] = frozenset(), enough: int = 0
) -> tuple[list[int], list[str]]:
    """Question n takes the n-th number of seconds; answers from `enough` on are enough."""
    asks = [
        partial(asked.ask, number, each, fails=number in failing)
        for number, each in enumerate(seconds)
    ]
    answers, problems = await ask_in_turn(
        asks, lambda number: number >= enough, patience_seconds=0.5
    )
    return answers, [str(problem) for problem in problems]


async def test_a_prompt_answer_is_all(autojump_clock: MockClock) -> None:
    """Nobody else is asked."""
    asked = Asked()
    assert await asked_in_turn(asked, 0.25, 0.0) == ([0], [])
    assert trio.current_time() == pytest.approx(0.25)
    assert len(asked.begun) == 1


async def test_who_is_slow_is_not_waited_for(autojump_clock: MockClock) -> None:
    """The first never answers: half a second later the second does, and the first is given up."""
    asked = Asked()
    assert await asked_in_turn(asked, inf, 0.25, 0.0) == ([1], [])
    assert asked.begun == [(0, 0.0), (1, 0.5)]
    assert sorted(asked.ended) == [(0, 0.75), (1, 0.75)]


async def test_who_is_slow_may_be_first_nevertheless(autojump_clock: MockClock) -> None:
    """The second is slower still."""
    asked = Asked()
    assert await asked_in_turn(asked, 0.75, 10.0) == ([0], [])
    assert sorted(asked.ended) == [(0, 0.75), (1, 0.75)]


async def test_after_a_failure_the_next_is_asked_at_once(autojump_clock: MockClock) -> None:
    """Two refuse, the third answers; what went wrong is told."""
    asked = Asked()
    found = await asked_in_turn(asked, 0.0, 0.0, 0.25, failing=frozenset({0, 1}))
    assert found == ([2], ["number 0", "number 1"])
    assert trio.current_time() == pytest.approx(0.25)


async def test_an_answer_that_is_not_enough_is_kept(autojump_clock: MockClock) -> None:
    """The next one is asked at once; what came before goes along."""
    asked = Asked()
    assert await asked_in_turn(asked, 0.25, 0.25, 0.0, enough=1) == ([0, 1], [])
    assert asked.begun == [(0, 0.0), (1, 0.25)]


async def test_nothing_is_enough(autojump_clock: MockClock) -> None:
    """All are waited for, and all of them have answered or failed when it is over."""
    asked = Asked()
    found = await asked_in_turn(asked, 3.0, 0.0, 1.0, failing=frozenset({2}), enough=9)
    assert found == ([1, 0], ["number 2"])
    assert trio.current_time() == pytest.approx(3.0)


async def test_nobody_to_ask(autojump_clock: MockClock) -> None:
    """No answers, no problems."""
    assert await asked_in_turn(Asked()) == ([], [])


async def test_a_caller_who_gives_up_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    """Cancelled while two are being asked: both end with it."""
    asked = Asked()
    with trio.move_on_after(0.75):
        await asked_in_turn(asked, inf, inf, inf)
    assert sorted(asked.ended) == [(0, 0.75), (1, 0.75)]
