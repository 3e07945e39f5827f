"""Graceful shutdown of a command on Ctrl-C or SIGTERM: cancel its waits, set a deadline.

Owns both signals while it listens. The first one cancels the waits that the command has marked, and
leaves a few seconds for commits and leaving the group; from then on signals have their default
effect, so that a second one ends the command at once.
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

# For the last commit and leaving the group; with the brokers down neither ends.
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
        """Until the first signal; returning restores the default handlers."""
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
        """Around a wait that a signal cancels: a `return` as its last line says that it was not."""
        with anyio.CancelScope() as scope:
            self._waits.add(scope)
            # The signal came before this wait began.
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
