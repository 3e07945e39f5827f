"""The event loop's thread, and blocking calls into it from other threads, with Ctrl-C and timeouts.

Owns the thread's life and how a wait ends: with the result, the timeout, or Ctrl-C. A caller that
stops waiting cancels its call.

Invariants: no call stays without an outcome once the loop has ended, for any reason; an error of a
call never ends the loop; a program that never leaves the block can still end.
"""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from threading import TIMEOUT_MAX, Lock, Thread, current_thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar, TypeVarTuple

import trio

from raftmq.errors import Closed, InvalidRequest, RequestTimedOut

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Self

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# How long the interpreter's exit waits for tasks of the loop's thread.
EXIT_SECONDS_MAX = 2.0


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
        except trio.Cancelled:  # the loop ends; trio must see it
            self.give_up()
            raise
        except BaseException as error:
            self._settle(error)
        # The scope was cancelled by the thread that waited: without an exception here.
        else:
            self.give_up()

    def give_up(self) -> None:
        """Settle it with Closed, unless it has an outcome."""
        if not self.is_done:
            self._settle(Closed("the client was closed before it was done"))

    def _settle(self, error: BaseException | None) -> None:
        self._error, self.is_done = error, True
        self._latch.release()

    def wait(self, seconds_max: float | None) -> bool:
        """Whether there is an outcome within that time; None: wait for ever."""
        if not self.is_done:
            seconds = -1 if seconds_max is None else min(max(seconds_max, 0), TIMEOUT_MAX)
            self._latch.acquire(timeout=seconds)
        return self.is_done

    def result(self) -> T:
        """Only where it is done. Raises the call's error."""
        assert self.is_done, "not done yet"
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # there is one


class Loop:
    """A context manager: the thread runs as long as its block."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None  # None: no call begins any more
        self._process_id = os.getpid()
        self._lock = Lock()  # guards the attributes below
        self._calls: set[LoopCall[Any]] = set()  # without an outcome yet
        self._is_over = False

    def __enter__(self) -> Self:
        self._process_id, self._is_over = os.getpid(), False
        opened: LoopCall[None] = LoopCall(trio.lowlevel.checkpoint, ())
        # Daemon: a program that never leaves the block must be able to end.
        self._thread = Thread(target=self._run, args=(opened,), name="raftmq-sync", daemon=True)
        atexit.register(self._end, EXIT_SECONDS_MAX)
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
        """Cancel all calls that still run."""
        self._end()

    def call(
        self,
        function: Callable[[*Ts], Awaitable[T]],
        *arguments: *Ts,
        timeout: float | None = None,
    ) -> T:
        """What `function` returns or raises, called in the loop.

        Args:
            timeout: seconds to wait; None: for ever.

        Raises:
            RequestTimedOut: it was not done in time, and is cancelled now. Indefinite.
            Closed: the connection is closed, or belongs to another process.
            InvalidRequest: this is the loop's own thread, which must not wait for itself.
        """
        call: LoopCall[T] = LoopCall(function, arguments)
        try:
            self.start(call)
            return self.wait(call, timeout=timeout)
        # Also Ctrl-C: a call that no thread waits for must not go on.
        except BaseException:
            self.cancel(call)
            raise

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
            if self._token is None or self._is_over:
                raise Closed("the client is not open: use it within its `with` block")
            self._calls.add(call)
        with suppress(trio.RunFinishedError):  # the end of the thread settles it
            self._token.run_sync_soon(self._begin, call)

    def wait(self, call: LoopCall[T], *, timeout: float | None = None) -> T:
        """Its outcome. A caller that is interrupted must `cancel` the call."""
        if not call.wait(timeout):  # the time is over
            self.cancel(call)
            raise RequestTimedOut(f"no result within {timeout:g} s")
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

    def _end(self, seconds_max: float | None = None) -> None:
        """Stop the thread, and wait for it. A fork has none."""
        atexit.unregister(self._end)
        if self.is_ours and self._thread is not None and self._thread.is_alive():
            self.call_soon(self._stop)
            self._thread.join(seconds_max)

    # -- in the thread ---------------------------------------------------------------------

    def _run(self, opened: LoopCall[None]) -> None:
        try:
            trio.run(self._serve, opened)
        finally:
            with self._lock:
                self._is_over = True
                left, self._calls = self._calls, set()
            for call in left:
                call.give_up()

    async def _serve(self, opened: LoopCall[None]) -> None:
        async with trio.open_nursery() as self._nursery:
            self._token = trio.lowlevel.current_trio_token()
            self._begin(opened)
            await trio.sleep_forever()

    def _begin(self, call: LoopCall[Any]) -> None:
        if self._nursery is not None:  # None: the loop is ending
            self._nursery.start_soon(self._perform, call)
        else:
            call.give_up()

    async def _perform(self, call: LoopCall[Any]) -> None:
        try:
            await call.run()
        finally:
            with self._lock:
                self._calls.discard(call)

    def _stop(self) -> None:
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            nursery.cancel_scope.cancel()
