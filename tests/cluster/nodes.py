"""Processes of a cluster on this machine: who runs, who is paused, who may end.

Owns the processes and the waiting. Everything that waits has a deadline, and fails at once, with
what was said on stderr, if a node ends that should not. A context manager: nothing runs any more
when it is over. What the processes are, subclasses know.
"""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from threading import Condition
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeVar

from tests.cluster.node_process import NodeFailed, NodeProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

PATIENCE_SECONDS = 60.0  # for anything that must happen; a busy machine is slow
_LOOK_SECONDS = 0.02

P = TypeVar("P", bound=NodeProcess)


class Ending(NamedTuple):
    """How a process ended by itself."""

    status: int
    stderr: str


class Nodes(Generic[P]):
    """Attributes:
    running: node ids of the processes, the paused ones included.
    """

    def __init__(self) -> None:
        self._closing = ExitStack()
        self._processes: dict[int, P] = {}
        self._paused: set[int] = set()
        self._may_end: set[int] = set()
        self._news = Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._closing:
            self.kill(self.running)

    @property
    def running(self) -> list[int]:
        return sorted(self._processes)

    def pid(self, node_id: int) -> int:
        """Of the process, or of the strace above it."""
        return self._processes[node_id].pid

    def stderr(self, node_id: int) -> str:
        """What it has said so far, the end of it."""
        return self._processes[node_id].stderr()

    def expect_end(self, nodes: Iterable[int]) -> None:
        """Of processes that are to end by themselves, sooner or later."""
        self._may_end.update(nodes)

    def kill(self, nodes: Collection[int]) -> None:
        """kill -9 to all of them, then wait until nothing of them is left."""
        for node_id in nodes:
            self._processes[node_id].signal(signal.SIGKILL)
        for node_id in nodes:
            self._processes.pop(node_id).bury()
        self._paused -= set(nodes)
        self._may_end -= set(nodes)

    def pause(self, nodes: Iterable[int]) -> None:
        for node_id in nodes:
            self._processes[node_id].signal(signal.SIGSTOP)
            self._paused.add(node_id)

    def resume(self, nodes: Iterable[int]) -> None:
        for node_id in nodes:
            self._paused.discard(node_id)
            self._processes[node_id].signal(signal.SIGCONT)

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        """Until `is_so`; nobody may end meanwhile who is not expected to."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            self._check_alive()
            if time.monotonic() > deadline:
                raise NodeFailed(f"waited {PATIENCE_SECONDS:g} s for {what}: {self._state()}")
            with self._news:
                self._news.wait(_LOOK_SECONDS)

    def wait_end(self, node_id: int) -> Ending:
        """Until it has ended by itself."""
        process = self._processes[node_id]
        self.expect_end([node_id])
        self.wait(f"the end of node {node_id}", lambda: process.has_ended)
        status = process.wait_end()
        self.kill([node_id])
        return Ending(status, process.stderr())

    def _on_news(self) -> None:
        with self._news:
            self._news.notify_all()

    def _check_alive(self) -> None:
        for node_id, process in self._processes.items():
            if process.has_ended and node_id not in self._may_end:
                raise NodeFailed(f"node {node_id} has ended: {process.stderr()}")

    def _state(self) -> str:
        said = [
            f"-- node {node_id}: {p.stderr()[-1500:]}" for node_id, p in self._processes.items()
        ]
        return "\n".join([f"running {self.running}, paused {sorted(self._paused)}", *said])
