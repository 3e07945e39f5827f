"""An asynchronous context manager as one of this thread: one task of the loop enters and leaves it.

Invariant: however a block ends, its task does, too. Whoever leaves with an error of the program
gets that one back, and not what it meets on its way through the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from raftmq.sync.loop import LoopCall

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from raftmq.sync.loop import Loop


class _BodyFailedError(Exception):
    """Stands in the loop for the error of the program's thread."""


class Block:
    """`open`, and `close` once."""

    def __init__(self, loop: Loop, manager: AbstractAsyncContextManager[Any]) -> None:
        self._loop, self._manager = loop, manager
        self._entered, self._left = trio.Event(), trio.Event()
        self._failure: _BodyFailedError | None = None
        self._life: LoopCall[None] = LoopCall(self._live, ())

    def open(self) -> None:
        """Raises what entering it raises."""
        try:
            self._loop.start(self._life)
            if not self._loop.call(self._wait_entered):
                self._loop.wait(self._life)
        except BaseException:
            self._loop.cancel(self._life)
            raise

    def close(self, error: BaseException | None) -> None:
        """Leave it.

        Args:
            error: with which the body has ended. If it is none that a program would handle, as
                KeyboardInterrupt, the block is cancelled.
        """
        is_abandoned = error is not None and not isinstance(error, Exception)
        if is_abandoned:
            self._loop.cancel(self._life)
        else:
            self._failure = _BodyFailedError() if error is not None else None
            self._loop.call_soon(self._left.set)
        try:
            self._loop.wait(self._life)
        except BaseException as found:
            self._loop.cancel(self._life)  # if it was the wait that has ended
            if found is self._failure or (is_abandoned and isinstance(found, Exception)):
                return
            raise

    # In the loop

    async def _live(self) -> None:
        try:
            async with self._manager:
                self._entered.set()
                await self._left.wait()
                if self._failure is not None:
                    raise self._failure
        finally:
            self._entered.set()

    async def _wait_entered(self) -> bool:
        await self._entered.wait()
        return not self._life.is_done
