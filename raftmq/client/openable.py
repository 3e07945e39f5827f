"""`open()` and `aclose()` beside `async with`: for fixtures, lifespans, and classes of programs.

Owns the task that enters and leaves the `async with` in place of the callers. They may be in
different tasks, which must not share a task group; so neither a cancellation nor an error of the
background reaches them by itself.

Invariant: an error of the background is raised once, by `open` or `aclose`, and is the cause of
`Closed` that calls raise in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast

import anyio
from anyio.lowlevel import current_token

from raftmq.client.blocks import AsyncBlock, not_open, warn_unclosed
from raftmq.client.network.channel import one_error
from raftmq.errors import Closed, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager


class Openable(AsyncBlock):
    """What can be opened by `async with`, or by `open()` and `aclose()`."""

    _is_open: bool
    _background: _Background | None = None

    async def open(self) -> Self:
        """Open it as `async with` does, until `aclose()`; another task may call that.

        Cancelling this closes what it has opened so far.

        Returns:
            The same object.

        Raises:
            Closed: it was opened before.
            RaftmqError: what entering the block would raise.
        """
        # Before the first wait: two tasks may call this at the same time.
        if self._background is not None:
            raise Closed("it is opened once, and was opened before: make another one")
        background = self._background = _Background(cast("AbstractAsyncContextManager[Any]", self))
        await background.open()
        return self

    async def aclose(self) -> None:
        """Close what `open()` has opened, as the end of the block does; in any task.

        Does nothing if it is closed already, or was never opened. Cancelling this closes it at
        once: records that were not sent yet are given up. A member of a group commits what is done,
        but not the record or batch that was handed out last, unless `commit()` was called for it:
        the task that reads may still be at work on it.

        Raises:
            InvalidRequest: `async with` has opened it, and its end closes it; or another event loop
                runs than the one in which it was opened.
            RaftmqError: what the end of the block would raise, and errors that closed it before.
        """
        if self._background is not None:
            await self._background.close()
        elif self._is_open:
            raise InvalidRequest(
                "the end of its `async with` block closes it: leave out aclose(), or use open() "
                "and aclose() without a block"
            )

    # A default, as the name may be gone when the interpreter ends.
    def __del__(self, warn: Callable[..., None] = warn_unclosed) -> None:
        if self._background is not None and self._background.is_unclosed:
            warn(self, self._undelivered())

    def _undelivered(self) -> int:
        """Number of records that it was given, and has not delivered."""
        return 0

    def _state(self, *, was_opened: bool) -> str:
        return "open" if self._is_open else "closed" if was_opened else "not open"

    def _why_closed(self, what: str, *, was_opened: bool) -> Closed:
        """For calls that need it open.

        Args:
            what: it is, with its article.
        """
        background = self._background
        error = None if background is None else background.error
        if error is not None:
            closed = Closed(f"{what} has been closed by an error: {error!r}")
            closed.__cause__ = error
            return closed
        if background is not None and background.is_ended and background.is_unclosed:
            return Closed(
                f"{what} has been closed, as the event loop of its open() has ended: open it, use "
                "it and call aclose() within one asyncio.run(...) or trio.run(...)"
            )
        return not_open(what, was_opened=was_opened)


class _Background:
    """The task in which the block runs.

    Attributes:
        error: with which it has ended.
    """

    def __init__(self, manager: AbstractAsyncContextManager[Any]) -> None:
        self.error: Exception | None = None
        self._manager = manager
        self._loop = current_token()
        self._scope = anyio.CancelScope()
        self._entered, self._left, self._ended = anyio.Event(), anyio.Event(), anyio.Event()
        self._is_raised = self._is_closed = False
        self._task: object = None  # asyncio keeps only a weak reference to a running task

    @property
    def is_ended(self) -> bool:
        return self._ended.is_set()

    @property
    def is_unclosed(self) -> bool:
        """`open` has succeeded, and neither `close` was called nor has an error been raised."""
        is_over = self._is_closed or self._is_raised or self._scope.cancel_called
        return self._entered.is_set() and not is_over

    async def open(self) -> None:
        self._task = _start(self._run)
        # Ends when the block is entered, or has failed; its own timeouts bound it.
        await self._wait(self._entered)
        if self._ended.is_set() or self._left.is_set():  # or another task has closed it meanwhile
            await self._wait(self._ended)
            self._raise_error()
            raise Closed("it was closed while it was being opened")

    async def close(self) -> None:
        if not self._ended.is_set():
            if current_token() != self._loop:  # its events would never wake this task
                raise InvalidRequest(
                    "it was opened in another event loop: call aclose() in the loop of open(), as "
                    "in fixtures of one scope"
                )
            self._left.set()
            # Ends when all is delivered, at the latest by delivery_timeout_ms.
            await self._wait(self._ended)
        self._is_closed = True
        self._raise_error()

    async def _wait(self, event: anyio.Event) -> None:
        try:
            await event.wait()
        # Cancelled: once the caller has returned, nothing may be opened or sent any more.
        except BaseException:
            self._scope.cancel()
            with anyio.CancelScope(shield=True):
                await self._ended.wait()
            raise

    def _raise_error(self) -> None:
        if self.error is not None and not self._is_raised:
            self._is_raised = True
            raise self.error

    async def _run(self) -> None:
        """An error belongs to the callers: in the loop it would end the whole program."""
        try:
            with self._scope, one_error():
                async with self._manager:
                    self._entered.set()
                    # Until `close`, or until the tasks of the block fail.
                    await self._left.wait()
        except Exception as error:
            self.error = error
        finally:
            self._entered.set()
            self._ended.set()


def _start(function: Callable[[], Awaitable[None]]) -> object:
    """A task that no task group waits for; the loop cancels it when its main task has ended."""
    from asyncio import AbstractEventLoop  # slow to import, and under trio there may be none

    loop = current_token().native_token
    if isinstance(loop, AbstractEventLoop):
        return loop.create_task(function())  # type: ignore[arg-type]  # an `async def`
    from trio.lowlevel import spawn_system_task  # the loop that runs now, so it is installed

    return spawn_system_task(function)
