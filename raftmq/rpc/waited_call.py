"""A request that one task of trio waits for.

Owns the waking: an answer reschedules the task itself, without an event in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.rpc.calls import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.errors import RaftmqError
    from raftmq.rpc.reply import Answer
    from raftmq.wire.bodies import Request


class WaitedCall(Call):
    """`wait` after it was entered."""

    __slots__ = ("_task",)

    def __init__(self, number: int, request: type[Request], *, timeout: float) -> None:
        super().__init__(number, request, timeout=timeout, now=trio.current_time())
        self._task: trio.lowlevel.Task | None = None

    def settle(self, outcome: Answer | RaftmqError) -> None:
        super().settle(outcome)
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def wait(self, forget: Callable[[Call], None]) -> None:
        """Until it is settled; `forget` is called where the wait is cancelled. One task only."""

        def give_up(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._task = None
            forget(self)
            return trio.lowlevel.Abort.SUCCEEDED

        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(give_up)
