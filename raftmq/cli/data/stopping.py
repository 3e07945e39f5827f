"""Ctrl-C and SIGTERM for a command that has something to put in order before it ends.

Owns both signals while it listens. At the first one waits are broken off, and what is left to do
has a few seconds; from then on signals have their ordinary effect, so that a second one ends the
command at once.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from raftmq.cli.terminal.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyio.abc import TaskStatus

ORDER_SECONDS_MAX = 5.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """Attributes:
    whole: a scope for everything that has to be over soon after a signal.
    signal: the first one; None: there was none yet.
    """

    def __init__(self) -> None:
        self.whole = anyio.CancelScope()
        self.signal: signal.Signals | None = None
        self._waits: set[anyio.CancelScope] = set()

    @property
    def is_wanted(self) -> bool:
        return self.signal is not None

    async def listen(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Until the first signal."""
        with anyio.open_signal_receiver(*SIGNALS) as signals:
            task_status.started()
            async for number in signals:
                return self.on_signal(number)

    def on_signal(self, number: signal.Signals) -> None:
        self.signal = number
        self.whole.deadline = anyio.current_time() + ORDER_SECONDS_MAX
        for scope in self._waits:
            scope.cancel()

    @contextmanager
    def breaking_off(self) -> Iterator[None]:
        """Around a wait; what comes behind its last line was reached."""
        with anyio.CancelScope() as scope:
            self._waits.add(scope)
            if self.is_wanted:
                scope.cancel()
            try:
                yield
            finally:
                self._waits.discard(scope)

    def end(self) -> None:
        """Raises KeyboardInterrupt, CommandError: if there was a signal."""
        if self.signal is signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is not None:
            raise CommandError(f"ended by {self.signal.name}", ExitCode.TERMINATED)
