"""When each group is looked at: at its deadline, or later if that has moved.

Owns one alarm for each group in memory. Heartbeats move deadlines away all the time, and nobody
tells this clock of that: it looks too early then, and asks for the next time.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, NoReturn

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.broker.groups.slots import Hosted, OwnedSlot

LATE_SECONDS = 1.0  # whoever is woken later than that did not run, or hardly
REST_SECONDS_MAX = 3.0  # so that what members said meanwhile is read before they are judged


class GroupClock:
    """`look` ticks a group of a slot. Nothing is looked at before `run`."""

    def __init__(self, look: Callable[[OwnedSlot, Hosted], None]) -> None:
        self._look = look
        self._alarms: list[tuple[float, int, OwnedSlot, Hosted]] = []  # a heap
        self._numbers = count()
        self._sleep = trio.CancelScope()

    def set(self, slot: OwnedSlot, hosted: Hosted) -> None:
        """After whatever may have brought the deadline of the group nearer."""
        deadline = hosted.group.deadline
        # A group that was dropped from memory before its slot was lost is not abandoned with it,
        # and is ticked no more: its deadline would be due for ever, and this task never sleep.
        if deadline >= hosted.look_at or slot.pipeline.is_lost:
            return
        hosted.look_at = deadline
        heappush(self._alarms, (deadline, next(self._numbers), slot, hosted))
        if deadline < self._sleep.deadline:
            self._sleep.deadline = deadline

    async def run(self) -> NoReturn:
        while True:
            due = self._alarms[0][0] if self._alarms else math.inf
            with trio.CancelScope(deadline=due) as self._sleep:
                await trio.sleep_forever()
            late_seconds = trio.current_time() - self._sleep.deadline
            if late_seconds > LATE_SECONDS:
                await trio.sleep(min(late_seconds, REST_SECONDS_MAX))
            self._look_at_due(trio.current_time())

    def _look_at_due(self, now: float) -> None:
        due = []
        while self._alarms and self._alarms[0][0] <= now:
            due.append(heappop(self._alarms))
        for look_at, _, slot, hosted in due:
            if hosted.look_at != look_at:
                continue  # an earlier one took its place
            hosted.look_at = math.inf
            if hosted.group.deadline <= now:
                self._look(slot, hosted)
            self.set(slot, hosted)
