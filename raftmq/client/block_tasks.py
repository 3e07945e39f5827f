"""`BlockTasks`: the tasks of a client, producer or consumer between `__aenter__` and `__aexit__`.

Owns how they end: all with the block, in whichever task its end is called. A task group must be
left by the task that entered it; Python ends the block of an abandoned generator, and some plugins
end that of a fixture, in another one. Then the tasks end, too, and an error names the way out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import current_token

from raftmq.client.network.channel import one_error
from raftmq.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

ELSEWHERE = (
    "an `async with` block must end in the task in which it began, and this one, or one within it, "
    "has not: around an async generator use contextlib.aclosing(...); in fixtures, and wherever "
    "else another task ends it, call open() and aclose() in place of the block"
)


class BlockTasks:
    """One task of the block, which has all others."""

    def __init__(self, run: Callable[[], Awaitable[None]], *, is_shielded: bool = False) -> None:
        """Made in the event loop.

        Args:
            run: the task.
            is_shielded: it goes on until `close`, even if the block is cancelled from outside.
        """
        self._function = run
        self._loop, self._host = current_token(), anyio.get_current_task().id
        # Of their own: cancelling the group would cancel the task that entered it, wherever that
        # is now.
        self._scope = anyio.CancelScope(shield=is_shielded)
        self._has_begun, self._ended = False, anyio.Event()
        self._problem: Exception | None = None  # of the task
        self._group = anyio.create_task_group()  # holds that task, so its id is no other's

    async def open(self) -> None:
        await self._group.__aenter__()
        self._group.start_soon(self._run)

    async def close(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> bool | None:
        """Cancel them, and wait until they have ended.

        An error of the program's block is raised as it is, not through the task group, which would
        wrap it in an exception group.

        Raises:
            InvalidRequest: the block has not begun in this task, or one within it has not ended in
                this task. The tasks have ended, unless their event loop is another one.
        """
        self.check_loop()
        self._scope.cancel()
        if anyio.get_current_task().id != self._host:
            return await self._close_elsewhere(error)
        # A cancellation must go through the task group, which may own it.
        is_own = error is None or isinstance(error, (Exception, GeneratorExit))
        try:
            with one_error():
                if not is_own:
                    return await self._group.__aexit__(kind, error, traceback)
                await self._group.__aexit__(None, None, None)
        except RuntimeError as problem:
            # Of anyio or trio, which have no class for it; their tasks have ended.
            if "cancel scope" not in str(problem).lower():
                raise
            if error is None:
                raise InvalidRequest(ELSEWHERE) from problem
        return False

    def check_loop(self) -> None:
        """Raises InvalidRequest: in another event loop nothing would end the tasks."""
        if current_token() != self._loop:
            raise InvalidRequest(ELSEWHERE)

    async def _close_elsewhere(self, error: BaseException | None) -> bool:
        if self._has_begun:  # else it ends with its first step, or the loop never takes that
            with anyio.CancelScope(shield=True):
                await self._ended.wait()
        # The program's own error, or a cancellation, comes first.
        if error is None or isinstance(error, GeneratorExit):
            raise InvalidRequest(ELSEWHERE) from self._problem
        return False

    async def _run(self) -> None:
        self._has_begun = True
        try:
            with self._scope:
                await self._function()
        except Exception as problem:
            self._problem = problem
            raise
        finally:
            self._ended.set()
