"""Many questions at a time, and what each came to."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from raftmq.client.administration.questions import CONCURRENT_MAX, settle
from raftmq.errors import RaftmqError, Unreachable

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_outcomes_keep_their_order(autojump_clock: MockClock) -> None:
    """The last ones are ready first, and an error is an outcome like any other."""

    async def ask(number: int) -> int:
        await anyio.sleep(1 - number / 10)
        if number == 2:
            raise Unreachable("two")
        return number

    found = await settle([partial(ask, number) for number in range(5)])
    assert [str(each) for each in found] == ["0", "1", "two", "3", "4"]
    assert isinstance(found[2], RaftmqError)


async def test_so_many_and_no_more(autojump_clock: MockClock) -> None:
    """A topic of thousands of partitions does not become thousands of tasks."""
    running = most = 0

    async def ask() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(1)
        running -= 1

    await settle([ask] * 100)
    assert (most, running) == (CONCURRENT_MAX, 0)


async def test_a_bug_comes_out_alone(autojump_clock: MockClock) -> None:
    """Not in a group, and the others are not waited for."""

    async def fail() -> None:
        raise ZeroDivisionError

    begin = anyio.current_time()
    with pytest.raises(ZeroDivisionError):
        await settle([partial(anyio.sleep, 100), fail])
    assert anyio.current_time() == begin
    assert await settle([]) == []
