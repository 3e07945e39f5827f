"""An asynchronous context manager entered and left from a program's thread, by one loop task.

Invariant: however a block ends, its task ends, too. If the block ends with an error of the program,
that error is raised, not one that closing meets in the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from raftmq.errors import ProducerFenced, TransactionAborted
from raftmq.sync.loop import LoopCall

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from raftmq.sync.loop import Loop


class _BodyFailedError(Exception):
    """In the loop, stands for the error of the program's thread."""


def _seen_in_loop(error: BaseException) -> Exception:
    """Transactions look at these two, as they know better why one was aborted."""
    if isinstance(error, (TransactionAborted, ProducerFenced)):
        return error.copied()
    return _BodyFailedError()


class Block:
    """`open`, and `close` once.

    Attributes:
        is_open: between the two.
    """

    def __init__(self, loop: Loop, manager: AbstractAsyncContextManager[Any]) -> None:
        self._loop, self._manager = loop, manager
        self._entered, self._left = trio.Event(), trio.Event()
        self._failure: Exception | None = None
        self.is_open = False
        self._life: LoopCall[None] = LoopCall(self._live, ())

    def open(self) -> None:
        """Enter it. Raises its errors."""
        try:
            self._loop.start(self._life)
            # Entering has failed: raise its error.
            if not self._loop.call(self._wait_entered):
                self._loop.wait(self._life)
        except BaseException:
            self._loop.cancel(self._life)
            raise
        self.is_open = True

    def close(self, error: BaseException | None) -> None:
        """Leave it.

        Args:
            error: with which the program's block has ended. If it is no Exception, as
                KeyboardInterrupt, the context manager is cancelled.
        """
        self.is_open = False
        is_abandoned = error is not None and not isinstance(error, Exception)
        if is_abandoned:
            self._loop.cancel(self._life)
        else:
            self._failure = None if error is None else _seen_in_loop(error)
            self._loop.call_soon(self._left.set)
        try:
            self._loop.wait(self._life)
        except BaseException as found:
            self._loop.cancel(self._life)  # Ctrl-C during the wait: do not leave it half closed
            if found is self._failure or (is_abandoned and isinstance(found, Exception)):
                return
            raise

    # In the loop

    async def _live(self) -> None:
        try:
            async with self._manager:
                self._entered.set()
                # The program's block is running; `close` ends this.
                await self._left.wait()
                if self._failure is not None:  # the context manager must see that the block failed
                    raise self._failure
        finally:
            self._entered.set()

    async def _wait_entered(self) -> bool:
        await self._entered.wait()
        return not self._life.is_done
