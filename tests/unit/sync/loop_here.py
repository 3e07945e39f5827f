"""A loop of `raftmq.sync` that is the test's own, with its clock; the program is a thread.

Time stands still while the program does something, and passes while it waits for a call: tests take
`autojump_clock`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, nullcontext
from random import Random
from threading import current_thread
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from raftmq.client.consumer.consumer import Consumer as AsyncConsumer
from raftmq.sync.consumer import Consumer
from raftmq.sync.loop import Loop
from tests.unit.client.group.grouped import MEMBER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from raftmq.sync.loop import LoopCall, TimeLimit
    from tests.unit.client.group.grouped import Grouped

T = TypeVar("T")
PATIENCE_SECONDS = 200.0


class LoopHere(Loop):
    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__("loop-here", nullcontext)
        self._thread = current_thread()  # which must not wait for itself
        self._token, self._nursery = trio.lowlevel.current_trio_token(), nursery
        self._awaited: set[LoopCall[Any]] = set()  # by the program
        self._settled = trio.Event()

    async def run(self, program: Callable[[], T]) -> T:
        """In a thread, to its end. What takes too long fails."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hold_time)
            nursery.start_soon(self._lose_patience)
            result = await trio.to_thread.run_sync(program)
            nursery.cancel_scope.cancel()
        return result

    async def _hold_time(self) -> None:
        while True:
            self._settled = trio.Event()
            awaited = tuple(self._awaited)
            if not awaited or any(call.is_done for call in awaited):
                await trio.lowlevel.checkpoint()
            else:
                await self._settled.wait()

    async def _lose_patience(self) -> None:
        await trio.sleep(PATIENCE_SECONDS)
        self._is_over = True
        for call in tuple(self._awaited):
            self.cancel(call)

    async def _perform(self, call: LoopCall[Any]) -> None:
        try:
            await super()._perform(call)
        finally:
            self._settled.set()

    # In the program's thread

    def wait(self, call: LoopCall[T], limit: TimeLimit | None = None) -> T:
        assert limit is None or limit.is_over, "in another time than the test's"
        self._awaited.add(call)
        try:
            return super().wait(call, limit)
        finally:
            self._awaited.discard(call)

    def sleep(self, seconds: float) -> None:
        self.call(trio.sleep, seconds)

    def ask(self, question: Callable[[], T]) -> T:
        """Of the world, which is in the loop."""

        async def ask() -> T:
            return question()

        return self.call(ask)


@asynccontextmanager
async def threaded(
    here: Grouped, name: str, **options: Any
) -> AsyncIterator[tuple[LoopHere, Consumer]]:
    """A member of the group whose program is a thread: see `LoopHere.run`."""
    async with threaded_alone(here, name, **MEMBER, **options) as both:
        yield both


@asynccontextmanager
async def threaded_alone(
    here: Grouped, name: str, **options: Any
) -> AsyncIterator[tuple[LoopHere, Consumer]]:
    """The same of no group."""
    async with here.connected(name) as cluster, trio.open_nursery() as nursery:
        loop = LoopHere(nursery)
        topics = () if "assign" in options else ("orders",)
        consumer = AsyncConsumer(cluster, topics, options, random=Random(name))
        yield loop, Consumer(loop, consumer, set())
        nursery.cancel_scope.cancel()
