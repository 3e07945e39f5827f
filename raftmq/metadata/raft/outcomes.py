"""What becomes of each proposal, for the task that waits for it, and how long that may take.

Owns the waiting and its bound. One task looks at the clock for all of them: a cancel scope for
each proposal would cost as much as the rest of its way through the leader.

Invariant: an outcome is settled once, by the driver's task or by the clock; later news is ignored.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import trio

from raftmq.metadata.raft.proposals import Fate

if TYPE_CHECKING:
    from typing import NoReturn

SETTLED_MAX = 1024  # outcomes that nobody needs any more and that are kept in spite of it


class Outcome:
    """Attributes:
    seconds: how long it may take, from now on.
    fate: None as long as nothing is known, in time, of the proposal.
    result: see `Fate`.
    """

    __slots__ = ("_task", "deadline", "fate", "result", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds, self.deadline = seconds, trio.current_time() + seconds
        self.fate: Fate | None = None
        self.result: object = None
        self._task: trio.lowlevel.Task | None = None

    def __lt__(self, other: Outcome) -> bool:
        return self.deadline < other.deadline

    def settle(self, fate: Fate, result: object) -> None:
        if self.fate is not None:
            return
        self.fate, self.result = fate, result
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def wait(self) -> None:
        """Until it is settled. One task only."""
        assert self.fate is None, "settled before anybody could wait"
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._give_up)

    def _give_up(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Outcomes:
    """Those that somebody waits for, by deadline; `run` settles whatever comes too late."""

    def __init__(self) -> None:
        self._heap: list[Outcome] = []
        self._size_max = SETTLED_MAX
        self._earlier = trio.Event()  # than what `run` waits for

    def add(self, seconds: float) -> Outcome:
        outcome = Outcome(seconds)
        if len(self._heap) >= self._size_max:
            self._forget_settled()
        heappush(self._heap, outcome)
        if self._heap[0] is outcome:
            self._earlier.set()
        return outcome

    def _forget_settled(self) -> None:
        self._heap = [outcome for outcome in self._heap if outcome.fate is None]
        heapify(self._heap)
        self._size_max = 2 * len(self._heap) + SETTLED_MAX

    async def run(self) -> NoReturn:
        while True:
            with trio.move_on_at(self._heap[0].deadline if self._heap else float("inf")):
                await self._earlier.wait()
            self._earlier = trio.Event()
            self._settle_late()

    def _settle_late(self) -> None:
        now = trio.current_time()
        while self._heap and (self._heap[0].fate is not None or self._heap[0].deadline <= now):
            late = heappop(self._heap)
            late.settle(Fate.UNKNOWN, f"no answer within {late.seconds:g} s")
