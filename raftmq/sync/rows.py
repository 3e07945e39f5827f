"""Rows that may come slowly: taken in the program's thread, used in the loop's.

Owns the way of a portion from one to the other. A generator, or a file, that waits would otherwise
stop everything that runs in the loop, and Ctrl-C would have nobody to tell.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from raftmq.errors import RequestTimedOut
from raftmq.sync.loop import Call

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Iterable

    from raftmq.sync.loop import Loop

T = TypeVar("T")
PORTION_RECORDS_MAX = 4096
PORTION_SECONDS_MAX = 0.02  # a row that came slowly does not wait for many others
PORTIONS_MAX = 2  # that wait to be used


def may_wait(rows: object) -> bool:
    """Whether to get at a row may take time: not if they are all there."""
    is_there = isinstance(rows, (Sequence, deque, dict, set, frozenset))
    return not is_there and not hasattr(rows, "__aiter__")


class Rows:
    """In the loop, an asynchronous iterator that has portions at hand."""

    def __init__(self, loop: Loop, rows: Iterable[Any]) -> None:
        self._loop, self._rows = loop, iter(rows)
        self._send, self._receive = trio.open_memory_channel[list[Any]](PORTIONS_MAX)
        self._portion: list[Any] = []

    def feed(
        self, use: Callable[[AsyncIterable[Any]], Awaitable[T]], *, timeout: float | None
    ) -> T:
        """What `use` returns or raises, which is called in the loop with these.

        Raises:
            RequestTimedOut: after `timeout`; looked at whenever rows have come.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        call: Call[T] = Call(self._used_by, (use,))
        try:
            self._loop.start(call)
            while not call.is_done and (portion := self._take()):
                if deadline is not None and time.monotonic() >= deadline:
                    raise RequestTimedOut(f"not all rows have come within {timeout:g} s")
                self._loop.call(self._put, portion)
            self._loop.call_soon(self._send.close)
            return self._loop.wait(
                call, timeout=None if deadline is None else deadline - time.monotonic()
            )
        except BaseException:
            self._loop.cancel(call)
            raise

    def _take(self) -> list[Any]:
        portion: list[Any] = []
        end = time.monotonic() + PORTION_SECONDS_MAX
        for row in self._rows:
            portion.append(row)
            if len(portion) >= PORTION_RECORDS_MAX or time.monotonic() >= end:
                break
        return portion

    # In the loop

    async def _used_by(self, use: Callable[[AsyncIterable[Any]], Awaitable[T]]) -> T:
        with self._receive:  # whoever feeds need not go on
            return await use(self)

    async def _put(self, portion: list[Any]) -> None:
        with suppress(trio.BrokenResourceError):  # the call has ended, and says why
            await self._send.send(portion)

    def __aiter__(self) -> Rows:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401  # whatever they are
        for row in await self.next_portion(1):
            return row
        raise StopAsyncIteration

    async def next_portion(self, count: int) -> list[Any]:
        """At most so many; none at the end."""
        if not self._portion:
            with suppress(trio.EndOfChannel):
                self._portion = await self._receive.receive()
        portion, self._portion = self._portion[:count], self._portion[count:]
        return portion
