"""Restarts nodes that ended by themselves, like a supervisor, and reports those not ready in time.

A node that has ended is started again after a short while, and a node that was started must get
ready in time. A node whose lock is held belongs to a fault, and is left alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import trio

from jepsen_like.history.event import Type
from jepsen_like.nemesis.damage import is_refused
from jepsen_like.nemesis.directories import empty

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from jepsen_like.history.recorder import Recorder
    from jepsen_like.nemesis.fault import RunInThread
    from jepsen_like.nemesis.machines import Machines

LOOK_SECONDS = 0.25  # between checks of all nodes
# As systemd might: long enough that others notice the broken connections.
RESTART_AFTER_SECONDS = 1.0
# For recovery on a slow disk beside other faults; later is recorded as not ready.
READY_SECONDS = 60.0
ASK_SECONDS = 1.0  # for one check whether a node is ready


class Caretaker:
    """Attributes:
    restored: nodes whose directory was put back from a copy. If others refuse one of them, it
        is given an empty one; that any other node is refused would be a bug.
    emptied_at: when a node was last given an empty directory.
    """

    def __init__(
        self,
        machines: Machines,
        recorder: Recorder,
        locks: Mapping[int, trio.Lock],
        run_in_thread: RunInThread,
        kinds_under_way: Callable[[], list[str]],
    ) -> None:
        self._machines, self._recorder, self._locks = machines, recorder, locks
        self._in_thread, self._kinds_under_way = run_in_thread, kinds_under_way
        self._awaited: dict[int, float] = {}  # since when
        self._news = trio.Event()
        self.restored: set[int] = set()
        self.emptied_at = -math.inf

    def await_ready(self, nodes: Iterable[int]) -> None:
        """They were started, or may have been: from now on they must get ready in time."""
        self._awaited.update(dict.fromkeys(nodes, trio.current_time()))

    async def wait_ready(self, nodes: Iterable[int], seconds: float) -> None:
        """Until they are, but not for longer than that. `run` must be running."""
        wanted = list(nodes)
        with trio.move_on_after(seconds):
            while any(node in self._awaited for node in wanted):
                await self._wait_news()

    async def wait_nobody_awaited(self) -> None:
        """All are ready, or were said not to be."""
        while self._awaited:
            await self._wait_news()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for node in self._machines.node_ids:
                nursery.start_soon(self._look_after, node)

    async def _look_after(self, node: int) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            if self._locks[node].locked():
                continue
            if not self._machines.is_running(node):
                await self._restart(node)
            elif node in self._awaited:
                await self._ask(node)
            self._maybe_give_up(node)

    # -- starting ------------------------------------------------------------------------------

    async def _restart(self, node: int) -> None:
        await trio.sleep(RESTART_AFTER_SECONDS)
        try:
            self._locks[node].acquire_nowait()
        except trio.WouldBlock:
            return
        try:
            if not self._machines.is_running(node):
                await self._start(node)
        finally:
            self._locks[node].release()

    async def _start(self, node: int) -> None:
        told: dict[str, Any] = {"nodes": [node], "status": self._machines.has_ended(node)}
        try:
            told["emptied"] = await self._in_thread(lambda: self._empty_if_refused(node))
            if told["emptied"]:
                self.emptied_at = trio.current_time()
            await self._in_thread(lambda: self._machines.start(node))
        except AssertionError:
            raise
        except Exception as error:
            told["error"] = f"{type(error).__name__}: {error}"
        self._recorder.fault(Type.INFO, "restart", told)
        self._awaited.setdefault(node, trio.current_time())  # it may end again and again

    def _empty_if_refused(self, node: int) -> bool:
        directory = self._machines.data_directory(node)
        if node not in self.restored or not is_refused(directory):
            return False
        empty(directory)
        return True

    # -- getting ready -------------------------------------------------------------------------

    async def _ask(self, node: int) -> None:
        since = self._awaited[node]
        is_ready = await self._in_thread(lambda: self._machines.wait_ready(node, ASK_SECONDS))
        if is_ready and self._awaited.get(node) == since:  # else it was hit again meanwhile
            self._no_longer_awaited(node)

    def _maybe_give_up(self, node: int) -> None:
        if trio.current_time() >= self._awaited.get(node, math.inf) + READY_SECONDS:
            told = {"nodes": [node], "seconds": READY_SECONDS, "during": self._kinds_under_way()}
            self._recorder.fault(Type.INFO, "not-ready", told)
            self._no_longer_awaited(node)

    def _no_longer_awaited(self, node: int) -> None:
        del self._awaited[node]
        self._news.set()
        self._news = trio.Event()

    async def _wait_news(self) -> None:
        await self._news.wait()
