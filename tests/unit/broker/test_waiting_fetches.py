"""Fetches are looked at when there is news, when their time is over, and never after their end."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from raftmq.broker.requests.fetch_sessions import STALE_ALARMS_MIN, FetchPurgatory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Fetch:
    def __init__(self, *, error: Exception | None = None) -> None:
        self.is_ended = False
        self.looked_at: list[float] = []
        self.failures: list[Exception] = []
        self._error = error

    def look(self, now: float) -> None:
        assert now == trio.current_time()
        self.looked_at.append(now)
        if self._error is not None:
            raise self._error

    def fail(self, error: Exception) -> None:
        self.failures.append(error)


@asynccontextmanager
async def running() -> AsyncIterator[FetchPurgatory]:
    waiting = FetchPurgatory()
    async with trio.open_nursery() as nursery:
        await nursery.start(waiting.run)
        yield waiting
        nursery.cancel_scope.cancel()


async def test_news_wake_a_fetch_once(autojump_clock: MockClock) -> None:
    """However much of it comes at a time, and whoever looks first."""
    async with running() as waiting:
        fetch, other, began_at = Fetch(), Fetch(), trio.current_time()
        waiting.wake(fetch)
        waiting.wake(fetch)
        assert fetch.looked_at == []
        await wait_all_tasks_blocked()
        assert fetch.looked_at == [began_at]
        waiting.wake(other)
        waiting.look()
        assert other.looked_at == [began_at]
        await wait_all_tasks_blocked()
        assert (len(fetch.looked_at), len(other.looked_at)) == (1, 1)
        waiting.wake(fetch)
        await wait_all_tasks_blocked()
        assert len(fetch.looked_at) == 2


async def test_the_clock_wakes_in_order(autojump_clock: MockClock) -> None:
    """Each at its time, also those that come while another one is waited for."""
    async with running() as waiting:
        late, early, ended = Fetch(), Fetch(), Fetch()
        began_at = trio.current_time()
        waiting.wake_at(late, began_at + 5)
        await trio.sleep(1)
        waiting.wake_at(early, began_at + 3)
        waiting.wake_at(ended, began_at + 4)
        ended.is_ended = True
        await trio.sleep(10)
        assert early.looked_at == [began_at + 3]
        assert late.looked_at == [began_at + 5]
        assert ended.looked_at == []


async def test_what_goes_wrong_is_told_to_that_fetch(autojump_clock: MockClock) -> None:
    """The others are looked at all the same."""
    async with running() as waiting:
        broken, other = Fetch(error=ZeroDivisionError()), Fetch()
        waiting.wake(broken)
        waiting.wake(other)
        await wait_all_tasks_blocked()
        assert [type(error) for error in broken.failures] == [ZeroDivisionError]
        assert len(other.looked_at) == 1


async def test_alarms_of_ended_fetches_are_forgotten(autojump_clock: MockClock) -> None:
    """Each fetch sets one, and nearly all are answered before."""
    async with running() as waiting:
        stays = Fetch()
        waiting.wake_at(stays, trio.current_time() + 60)
        for _ in range(10 * STALE_ALARMS_MIN):
            fetch = Fetch()
            waiting.wake_at(fetch, trio.current_time() + 60)
            fetch.is_ended = True
        assert len(waiting._alarms) <= 2 * STALE_ALARMS_MIN + 1
        await trio.sleep(61)
        assert len(stays.looked_at) == 1
