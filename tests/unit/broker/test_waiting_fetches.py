"""Fetches are looked at when there is news, when their time is over, and never after their end."""

from __future__ import annotations

from contextlib import asynccontextmanager
from math import inf
from typing import TYPE_CHECKING

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from raftmq.broker.requests.fetch_sessions import (
    STALE_ALARMS_MIN,
    FetchPurgatory,
    FetchSession,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Fetch:
    """A request that waits, and the session that it belongs to."""

    def __init__(self, *, deadline: float = inf, error: Exception | None = None) -> None:
        self.is_ended, self.deadline = False, deadline
        self.looked_at: list[float] = []
        self.failures: list[Exception] = []
        self._error = error
        self.session = FetchSession(1, "a", is_follower=True, now=trio.current_time())
        self.session.turn = self

    def look(self, now: float) -> None:
        assert now == trio.current_time()
        self.looked_at.append(now)
        if self._error is not None:
            raise self._error

    def fail(self, error: Exception) -> None:
        self.failures.append(error)

    def wake(self) -> None:
        raise AssertionError("only sessions wake")

    def linger(self) -> None:
        raise AssertionError("only sessions wake")

    def on_superseded(self) -> None:
        self.is_ended = True


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
        began_at = trio.current_time()
        late, early, ended = (Fetch(deadline=began_at + seconds) for seconds in (5, 3, 4))
        waiting.set_alarm(late.session, late.deadline)
        await trio.sleep(1)
        waiting.set_alarm(early.session, early.deadline)
        waiting.set_alarm(ended.session, ended.deadline)
        ended.session.turn = None
        await trio.sleep(10)
        assert early.looked_at == [began_at + 3]
        assert late.looked_at == [began_at + 5]
        assert ended.looked_at == []


async def test_an_alarm_serves_the_next_request_of_its_session(autojump_clock: MockClock) -> None:
    """It rings too early for that one, and is set again at its deadline."""
    async with running() as waiting:
        began_at = trio.current_time()
        first, second = Fetch(deadline=began_at + 5), Fetch(deadline=began_at + 8)
        session = first.session
        waiting.set_alarm(session, first.deadline)
        await trio.sleep(3)
        session.turn = second
        waiting.set_alarm(session, second.deadline)
        assert len(waiting._alarms) == 1
        await trio.sleep(10)
        assert (first.looked_at, second.looked_at) == ([], [began_at + 8])


async def test_an_earlier_alarm_leaves_the_later_one(autojump_clock: MockClock) -> None:
    """A request that is to be answered in a moment does not set two alarms for the next one."""
    async with running() as waiting:
        began_at = trio.current_time()
        fetch = Fetch(deadline=began_at + 5)
        waiting.set_alarm(fetch.session, fetch.deadline)
        for hurried in range(20):
            fetch.deadline = trio.current_time() + 0.01
            waiting.set_alarm(fetch.session, fetch.deadline)
            assert len(waiting._alarms) == 2
            await trio.sleep(0.02)
            assert len(fetch.looked_at) == hurried + 1
        fetch.deadline = began_at + 7
        await trio.sleep(10)
        assert fetch.looked_at[20:] == [began_at + 7]


async def test_what_goes_wrong_is_told_to_that_fetch(autojump_clock: MockClock) -> None:
    """The others are looked at all the same."""
    async with running() as waiting:
        broken, other = Fetch(error=ZeroDivisionError()), Fetch()
        waiting.wake(broken)
        waiting.wake(other)
        await wait_all_tasks_blocked()
        assert [type(error) for error in broken.failures] == [ZeroDivisionError]
        assert len(other.looked_at) == 1


async def test_alarms_of_closed_sessions_are_forgotten(autojump_clock: MockClock) -> None:
    """A reader without a session sets one with each request, and most are answered before."""
    async with running() as waiting:
        stays = Fetch(deadline=trio.current_time() + 60)
        waiting.set_alarm(stays.session, stays.deadline)
        for _ in range(10 * STALE_ALARMS_MIN):
            session = Fetch().session
            waiting.set_alarm(session, trio.current_time() + 60)
            session.close()
        assert len(waiting._alarms) <= 2 * STALE_ALARMS_MIN + 1
        await trio.sleep(61)
        assert len(stays.looked_at) == 1
