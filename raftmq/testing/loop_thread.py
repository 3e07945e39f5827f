"""A thread with a loop in it, and something that lives there: asked from other threads.

Owns the thread, its end, and how an error gets from there to whoever has to know of it. Knows
nothing of brokers. Whoever asks blocks; Ctrl-C ends the wait, and leaving the block the thread.

Invariants: no question is left without an answer once the loop has ended; an error that ended it is
raised by the next question or else at the end of the block, and never lost.
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
    """A context manager; its value can be asked once `opening` has been entered in the loop."""

    def __init__(self, name: str, opening: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._name, self._opening = name, opening
        # A program that never leaves the block must be able to end.
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._scope, self._is_unwanted = trio.CancelScope(), False
        self._token: trio.lowlevel.TrioToken | None = None
        self._send, self._questions = trio.open_memory_channel[Question](float("inf"))
        self._opened: Future[None] = Future()
        self._lock = Lock()  # for what follows
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
        if self._error is None or self._is_told:
            return
        if error is None:
            raise self._error
        error.add_note(f"{self._name} had failed: {self._error!r}")

    def ask(self, question: Callable[[T], Awaitable[R]]) -> R:
        """What `question` returns or raises, called in the loop with what lives there.

        Raises:
            BaseException: what has ended the loop.
            Closed: the block was left.
        """
        answer: Future[R] = Future()
        with self._lock:
            if self._is_over:
                raise self._reason()
            self._unanswered.add(answer)
        assert self._token is not None, "asked before the block was entered"
        with suppress(trio.RunFinishedError):  # the end of the thread answers
            self._token.run_sync_soon(self._send.send_nowait, (question, answer))
        return self._wait(answer)

    def _wait(self, answer: Future[R]) -> R:
        try:
            return answer.result()
        finally:
            with self._lock:
                self._unanswered.discard(answer)

    def _reason(self) -> BaseException:
        """For questions that come too late."""
        self._is_told = True
        return self._error or Closed(f"{self._name} has been stopped: the block was left")

    def _end(self) -> None:
        """Returns when the thread has. If that is interrupted, it ends by itself."""
        atexit.unregister(self._end)
        self._is_unwanted = True  # before the look at the token, which the thread sets first
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
        except BaseException as failure:  # it goes to whoever asks, or leaves the block
            error = _alone(failure)
        with self._lock:
            self._error, self._is_over = error, True
            left = [answer for answer in self._unanswered if not answer.done()]
            for answer in left:
                answer.set_exception(self._reason())

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
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
    except Exception as error:  # it is the asker's
        answer.set_exception(_alone(error))
    else:
        answer.set_result(result)


def _alone(error: BaseException) -> BaseException:
    """What a group of one stands for."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
