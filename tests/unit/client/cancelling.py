"""Cancels a program in the midst of what it waits for, at each possible step."""

from __future__ import annotations

import trio


class CancelAt(trio.abc.Instrument):
    """Cancels a scope after so many steps of all tasks, those of brokers and of connections too."""

    def __init__(self, steps: int, scope: trio.CancelScope) -> None:
        self._left, self._scope = steps, scope

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if not self._left:
            self._scope.cancel()
