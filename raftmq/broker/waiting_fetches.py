"""Fetches that wait for news: looked at again once there is some, or when their time is over.

Owns the waking, for all of them together: no fetch has a task or a timer of its own, but for one
that has to wait for a disk. Whatever news comes while other tasks have their turn is told at once.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, NoReturn, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

STALE_ALARMS_MIN = 100  # not worth a look at all of them


class Waiting(Protocol):
    """Attributes:
    is_ended: it has been answered.
    """

    is_ended: bool

    def look(self) -> None:
        """There may be something to tell now. Must not wait."""

    def fail(self, error: Exception) -> None:
        """This came of looking."""


class WaitingFetches:
    """Nothing is woken before `run`."""

    def __init__(self) -> None:
        self._woken: dict[Waiting, None] = {}
        self._alarms: list[tuple[float, int, Waiting]] = []  # a heap
        self._numbers = count()
        self._is_batch = False
        self._alive_max = STALE_ALARMS_MIN
        self._asleep = trio.lowlevel.ParkingLot()
        self._alarm = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    def wake(self, fetch: Waiting) -> None:
        """Have it look soon."""
        if not self._woken and not self._is_batch:
            self._asleep.unpark_all()
        self._woken[fetch] = None

    def wake_at(self, fetch: Waiting, time: float) -> None:
        """Have it look then, at the latest."""
        heappush(self._alarms, (time, next(self._numbers), fetch))
        if len(self._alarms) > 2 * self._alive_max:
            self._forget_ended()
        if time < self._alarm.deadline:
            self._alarm.deadline = time

    def _forget_ended(self) -> None:
        """Most are answered long before their time is over."""
        self._alarms = [alarm for alarm in self._alarms if not alarm[2].is_ended]
        heapify(self._alarms)
        self._alive_max = max(STALE_ALARMS_MIN, len(self._alarms))

    def on_batch(self, begins: bool) -> None:  # as the server calls it
        """Whatever news a batch of requests brings is told at its end."""
        self._is_batch = begins
        if not begins:
            self.look()

    def look(self) -> None:
        """Now, wherever there is news: nothing more is coming in a moment."""
        woken, self._woken = self._woken, {}
        for fetch in woken:
            if not fetch.is_ended:
                _look(fetch)

    def start_soon(self, work: Callable[[], Awaitable[None]]) -> None:
        """What has to wait for a disk."""
        assert self._nursery is not None, "only while it runs"
        self._nursery.start_soon(work)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._watch_clock)
                task_status.started()
                await self._watch_news()
        finally:
            self._nursery = None

    async def _watch_news(self) -> NoReturn:
        while True:
            if not self._woken:
                await self._asleep.park()
            self.look()

    async def _watch_clock(self) -> NoReturn:
        while True:
            with trio.CancelScope() as self._alarm:
                self._alarm.deadline = self._alarms[0][0] if self._alarms else math.inf
                await trio.sleep_forever()
            now = trio.current_time()
            while self._alarms and (self._alarms[0][0] <= now or self._alarms[0][2].is_ended):
                fetch = heappop(self._alarms)[2]
                if not fetch.is_ended:
                    self.wake(fetch)


def _look(fetch: Waiting) -> None:
    try:
        fetch.look()
    except Exception as error:  # of this fetch alone; whoever answers it knows what to make of it
        fetch.fail(error)
