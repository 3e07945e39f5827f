"""A thread with an event loop, and blocking calls into it from other threads.

Owns the thread's life and how a wait ends: with the result, the timeout, or Ctrl-C. A caller that
stops waiting cancels its call. `raftmq.testing` runs its brokers in such a thread, too.

Invariants: no call stays without an outcome once the loop has ended, for any reason; an error of a
call never ends the loop; an error that has ended the loop is raised by the next call or else at the
end of the block; a program that never leaves the block can still end.
"""

from __future__ import annotations

import atexit
import os
import time
from contextlib import suppress
from math import inf
from threading import Lock, Thread, current_thread
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, TypeVarTuple

import trio

from raftmq.client.blocks import not_open
from raftmq.client.network.channel import one_error
from raftmq.errors import Closed, InvalidConfig, InvalidRequest, RequestTimedOut
from raftmq.words import kind_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

WAIT_SECONDS_MAX = 1.0  # without looking for signals

S = TypeVar("S")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class TimeLimit:
    """The `timeout` of a call, over all of its waits."""

    def __init__(self, timeout: float) -> None:
        """`timeout`: in seconds, as the program has given it.

        Raises:
            TypeError: no number.
            InvalidConfig: a negative one.
        """
        # True is an int for Python, but never meant as a time.
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            kind = kind_of(timeout)
            raise TypeError(f"timeout = {timeout!r} is {kind}, expected seconds, or None")
        if not timeout >= 0:
            raise InvalidConfig([f"timeout = {timeout!r}: expected seconds, 0 or more, or None"])
        self._timeout, self._end = timeout, time.monotonic() + timeout

    def __str__(self) -> str:
        return f"{self._timeout:g} s"

    @property
    def seconds_left(self) -> float:
        return max(0, self._end - time.monotonic())

    @property
    def is_over(self) -> bool:
        return self.seconds_left <= 0


def limit_of(timeout: float | None) -> TimeLimit | None:
    """None: as long as it takes. Raises as TimeLimit."""
    return None if timeout is None else TimeLimit(timeout)


class LoopCall(Generic[T]):
    """A call that runs in the loop, or will; one thread at a time waits for it.

    Why not a Future: if Ctrl-C hits a thread while it holds the Future's condition, the loop would
    wait for that for ever. A plain lock is acquired and released in one step each.

    Attributes:
        is_done: there is an outcome.
    """

    def __init__(self, function: Callable[..., Awaitable[T]], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments
        self.scope = trio.CancelScope()
        self.is_done = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._latch = Lock()  # released when it is done
        self._latch.acquire()

    async def run(self) -> None:
        """Errors belong to the thread that waits, not to the loop."""
        try:
            with self.scope:
                self._result = await self._function(*self._arguments)
                self._settle(None)
        except trio.Cancelled:  # the loop ends, and will say why; trio must see it
            raise
        except BaseException as error:
            self._settle(error)
        # The scope was cancelled by the thread that waited: without an exception here.
        else:
            self.give_up(Closed("it was cancelled"))

    def give_up(self, error: BaseException) -> None:
        """Settle it with `error`, unless it has an outcome."""
        if not self.is_done:
            self._settle(error)

    def _settle(self, error: BaseException | None) -> None:
        self._error, self.is_done = error, True
        self._latch.release()

    def wait(self, seconds_max: float | None) -> bool:
        """Whether there is an outcome within that time; None: wait for ever."""
        end = inf if seconds_max is None else time.monotonic() + seconds_max
        while not self.is_done:
            # In slices: a signal that comes just before a thread begins to wait does not end its
            # wait, and Ctrl-C would wait for the answer.
            seconds = min(end - time.monotonic(), WAIT_SECONDS_MAX)
            if seconds <= 0 or self._latch.acquire(timeout=seconds):
                break
        return self.is_done

    def result(self) -> T:
        """Only where it is done. Raises the call's error."""
        assert self.is_done, "not done yet"
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # there is one


class LoopThread(Generic[S]):
    """A context manager: the thread runs as long as its block, with one object open in its loop."""

    def __init__(
        self,
        name: str,
        opening: Callable[[], AbstractAsyncContextManager[S]],
        *,
        owner: str = "",
        exit_seconds_max: float | None = None,
    ) -> None:
        """`opening` is entered in the loop, and makes the object for `ask`; if it fails later, the
        loop ends.

        Args:
            name: of the thread.
            owner: what messages call it; empty: the name.
            exit_seconds_max: how long the interpreter's exit waits for tasks of the thread; None:
                until they have ended.
        """
        self._name, self._opening, self._owner = name, opening, owner or name
        self._exit_seconds_max = exit_seconds_max
        self._thread: Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None  # None: no call begins any more
        self._scope, self._is_unwanted = trio.CancelScope(), False
        self._subject: S
        self._process_id = os.getpid()
        self._lock = Lock()  # guards the attributes below
        self._calls: set[LoopCall[Any]] = set()  # without an outcome yet
        self._is_over = self._is_told = False
        self._error: BaseException | None = None  # that has ended the loop

    def __enter__(self) -> Self:
        self._process_id = os.getpid()
        opened: LoopCall[None] = LoopCall(trio.lowlevel.checkpoint, ())
        # Daemon: a program that never leaves the block must be able to end.
        self._thread = Thread(target=self._run, args=(opened,), name=self._name, daemon=True)
        atexit.register(self._end, self._exit_seconds_max)
        try:
            self._calls.add(opened)
            self._thread.start()
            self.wait(opened)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cancel all calls that still run. Raises the error that has ended the loop before, unless
        a call has raised it.
        """
        self._end()
        if self._error is None or self._is_told:
            return
        if error is None:
            raise self._error
        error.add_note(f"{self._owner} had failed: {self._error!r}")

    def ask(self, question: Callable[[S], Awaitable[T]]) -> T:
        """`call` with the loop's object. An error comes alone, not in a group of one."""

        async def answer() -> T:
            with one_error():
                return await question(self._subject)

        return self.call(answer)

    def call(
        self,
        function: Callable[[*Ts], Awaitable[T]],
        *arguments: *Ts,
        timeout: float | TimeLimit | None = None,
    ) -> T:
        """What `function` returns or raises, called in the loop.

        Args:
            timeout: seconds to wait; None: for ever.

        Raises:
            TypeError, InvalidConfig: a `timeout` that is none.
            RequestTimedOut: it was not done in time, and is cancelled now. Indefinite.
            Closed: the block was not entered or was left, or belongs to another process.
            InvalidRequest: this is the loop's own thread, which must not wait for itself.
        """
        call: LoopCall[T] = LoopCall(function, arguments)
        limit = timeout if isinstance(timeout, TimeLimit) else limit_of(timeout)
        try:
            self.start(call)
            return self.wait(call, limit)
        # Also Ctrl-C: a call that no thread waits for must not go on.
        except BaseException:
            self.cancel(call)
            raise

    def evaluate(self, function: Callable[[], T]) -> T:
        """The same of a function that does not wait. What it makes belongs to the loop: in a
        notebook the program's thread runs a loop of its own.
        """

        async def in_loop() -> T:
            return function()

        return self.call(in_loop)

    def start(self, call: LoopCall[T]) -> None:
        """Start it in the loop. Raises as `call` does."""
        self.check_process()
        # It would wait for itself for ever.
        if current_thread() is self._thread:
            raise InvalidRequest(
                "a call that waits, from the thread of the loop that it waits for: functions that "
                "were given to the client must not make one"
            )
        with self._lock:
            # Under the lock: the ending thread settles every call that was added before.
            if self._is_over:
                raise self._reason()
            if self._token is None:
                raise not_open(self._owner, was_opened=False)
            self._calls.add(call)
        with suppress(trio.RunFinishedError):  # the end of the thread settles it
            self._token.run_sync_soon(self._begin, call)

    def wait(self, call: LoopCall[T], limit: TimeLimit | None = None) -> T:
        """Its outcome. A caller that is interrupted must `cancel` the call."""
        if not call.wait(None if limit is None else limit.seconds_left):  # the time is over
            self.cancel(call)
            raise RequestTimedOut(f"no result within {limit}")
        return call.result()

    def cancel(self, call: LoopCall[Any]) -> None:
        """Cancel it soon; no thread waits for it any more."""
        if not call.is_done:
            self.call_soon(call.scope.cancel)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Run `function` in the loop soon, once however often it is queued. From any thread; does
        not wait.

        `function` must not fail.
        """
        if self._token is not None and self.is_ours:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(function, idempotent=True)

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that has opened it, and not a fork of it."""
        return os.getpid() == self._process_id

    def check_process(self) -> None:
        """Raises Closed in a fork."""
        if not self.is_ours:
            raise Closed(
                f"this connection belongs to process {self._process_id}, this is a fork of it, "
                f"process {os.getpid()}: connect anew after the fork"
            )

    def _reason(self) -> BaseException:
        """The error of calls that are left, or come, when the loop has ended."""
        self._is_told = True
        return self._error or Closed(f"{self._owner} has been closed: the block was left")

    def _end(self, seconds_max: float | None = None) -> None:
        """Stop the thread, and wait for it. A fork has none."""
        atexit.unregister(self._end)
        # In this order: the thread sets the token, then reads this flag. So one of both sees it.
        self._is_unwanted = True
        if self.is_ours and self._thread is not None and self._thread.is_alive():
            self.call_soon(self._stop)
            self._thread.join(seconds_max)

    # -- in the thread ---------------------------------------------------------------------

    def _run(self, opened: LoopCall[None]) -> None:
        error: BaseException | None = None
        try:
            with one_error():
                trio.run(self._serve, opened)
        except BaseException as failure:  # raised by the next call, or when the block is left
            error = failure
        with self._lock:
            self._error, self._is_over = error, True
            left, self._calls = self._calls, set()
        for call in left:
            call.give_up(self._reason())

    async def _serve(self, opened: LoopCall[None]) -> None:
        self._token = trio.lowlevel.current_trio_token()
        # `__enter__` was interrupted before the loop began.
        if self._is_unwanted:
            return
        with self._scope:
            async with self._opening() as self._subject, trio.open_nursery() as nursery:
                self._nursery = nursery
                self._begin(opened)
                try:
                    # Until `_stop`, or until what was opened fails.
                    await trio.sleep_forever()
                finally:
                    self._nursery = None

    def _begin(self, call: LoopCall[Any]) -> None:
        if self._nursery is not None:  # None: the loop is ending, and `_run` settles the call
            self._nursery.start_soon(self._perform, call)

    async def _perform(self, call: LoopCall[Any]) -> None:
        await call.run()
        # Not where the loop ends: `_run` settles the calls that are left.
        with self._lock:
            self._calls.discard(call)

    def _stop(self) -> None:
        self._nursery = None
        self._scope.cancel()


Loop: TypeAlias = LoopThread[None]
