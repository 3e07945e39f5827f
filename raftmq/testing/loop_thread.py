"""A thread with an event loop and one object in it, which other threads call and wait for.

Owns the thread, its end, and the way of an error from there to the thread that has to know of it.
Knows nothing of brokers. A calling thread blocks; Ctrl-C ends its wait, and leaving the block the
event loop.

Invariants: no call is left without a result once the loop has ended; an error that ended the loop
is raised by the next call or else at the end of the block, and never lost.
"""

from __future__ import annotations

import atexit
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import trio

from raftmq.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

T = TypeVar("T")
R = TypeVar("R")
Question: TypeAlias = "tuple[Callable[[Any], Awaitable[Any]], Future[Any]]"


class LoopThread(Generic[T]):
    """A context manager; its object can be called once `opening` has been entered in the loop."""

    def __init__(self, name: str, opening: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._name, self._opening = name, opening
        # Daemon: a program that never leaves the block must be able to exit.
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._scope, self._is_unwanted = trio.CancelScope(), False
        self._token: trio.lowlevel.TrioToken | None = None
        # Without a bound: each calling thread blocks on its own call, so threads bound it.
        self._send, self._questions = trio.open_memory_channel[Question](float("inf"))
        self._opened: Future[None] = Future()
        self._lock = Lock()  # guards the fields below, which both threads use
        self._unanswered: set[Future[Any]] = {self._opened}
        self._is_over, self._is_told = False, False
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        atexit.register(self._end)
        try:
            self._thread.start()
            self._wait(self._opened)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
        # A call has raised it already.
        if self._error is None or self._is_told:
            return
        if error is None:
            raise self._error
        error.add_note(f"{self._name} had failed: {self._error!r}")

    def ask(self, question: Callable[[T], Awaitable[R]]) -> R:
        """Call `question` in the loop with the object there; return or raise what it does.

        Raises:
            BaseException: the error that has ended the loop.
            Closed: the block was left.
        """
        answer: Future[R] = Future()
        with self._lock:
            if self._is_over:
                raise self._reason()
            self._unanswered.add(answer)
        assert self._token is not None, "asked before the block was entered"
        with suppress(trio.RunFinishedError):  # `_run` answers all calls that are left
            self._token.run_sync_soon(self._send.send_nowait, (question, answer))
        return self._wait(answer)

    def _wait(self, answer: Future[R]) -> R:
        try:
            return answer.result()
        finally:
            with self._lock:
                self._unanswered.discard(answer)

    def _reason(self) -> BaseException:
        """The error for calls that come too late."""
        self._is_told = True
        return self._error or Closed(f"{self._name} has been stopped: the block was left")

    def _end(self) -> None:
        """Cancel the loop, and wait for the thread. If that is interrupted, it ends by itself."""
        atexit.unregister(self._end)
        # In this order: the thread sets the token, then reads this flag. So one of both sees it.
        self._is_unwanted = True
        # None: the thread has not begun its loop, and will see `_is_unwanted` first.
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._scope.cancel)
        if self._thread.is_alive():
            self._thread.join()

    # In the thread

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            trio.run(self._main)
        except BaseException as failure:  # raised by the next call, or when the block is left
            error = _alone(failure)
        with self._lock:
            self._error, self._is_over = error, True
            left = [answer for answer in self._unanswered if not answer.done()]
            for answer in left:
                answer.set_exception(self._reason())

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        # `__enter__` was interrupted before the loop began.
        if self._is_unwanted:
            return
        with self._scope:
            async with self._opening() as subject, trio.open_nursery() as nursery:
                self._opened.set_result(None)
                async for question, answer in self._questions:
                    nursery.start_soon(_answer, subject, question, answer)


async def _answer(subject: T, question: Callable[[T], Awaitable[R]], answer: Future[R]) -> None:
    try:
        result = await question(subject)
    except Exception as error:  # the caller's, and no failure of the loop
        answer.set_exception(_alone(error))
    else:
        answer.set_result(result)


def _alone(error: BaseException) -> BaseException:
    """The only error of a group of one, as callers expect it plain."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
