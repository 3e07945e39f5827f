"""Processes that hold members, as the one who starts, asks and kills them sees them.

Owns the processes and their pipes. A process that ends by itself ends the benchmark; none outlives
it (`worker.py`).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import trio

from benchmarks.broker_parts.process import usage_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from benchmarks.broker_parts.process import Usage
    from raftmq.model import Address

ANSWER_SECONDS_MAX = 120.0


class WorkerFailed(Exception):
    """A process has ended that should not, or does not answer."""


class Worker:
    """`on_event` is told what it says unasked."""

    def __init__(self, process: trio.Process, on_event: Callable[[dict[str, Any]], None]) -> None:
        self._process, self._on_event = process, on_event
        self._numbers = count(1)
        self._answers: dict[int, trio.MemorySendChannel[dict[str, Any]]] = {}
        self._sending = trio.Lock()
        self._may_end = False

    async def read(self) -> None:
        """What it says, until it ends."""
        assert self._process.stdout
        rest = b""
        async for data in self._process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
        if not self._may_end:
            raise WorkerFailed("a process with members has ended; stderr says why")

    def _take(self, said: dict[str, Any]) -> None:
        if "id" in said:
            self._answers.pop(said.pop("id")).send_nowait(said)
        else:
            self._on_event(said)

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._answers[number], answer = trio.open_memory_channel[dict[str, Any]](1)
        assert self._process.stdin
        line = json.dumps({"id": number, "do": do, **arguments}) + "\n"
        async with self._sending:
            await self._process.stdin.send_all(line.encode())
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            return await answer.receive()
        raise WorkerFailed(f"{do}: no answer in {ANSWER_SECONDS_MAX:g} s")

    def usage(self) -> Usage:
        return usage_of(self._process.pid)

    async def kill(self) -> float:
        """kill -9; when that was."""
        self._may_end, at = True, time.monotonic()
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        return at


class Workers:
    """Attributes:
    running: in the order of their start.
    """

    def __init__(self, addresses: Sequence[Address], nursery: trio.Nursery) -> None:
        self._addresses, self._nursery = [str(address) for address in addresses], nursery
        self.running: list[Worker] = []

    async def start(self, on_event: Callable[[dict[str, Any]], None] = lambda _: None) -> Worker:
        """One more, which is connected."""
        command = [sys.executable, "-m", "benchmarks.group_parts.worker", *self._addresses]
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # as brokers: kernels may share the cores out by session
        )
        worker = Worker(process, on_event)
        self._nursery.start_soon(worker.read)
        self.running.append(worker)
        await worker.ask("hello")
        return worker

    async def kill(self, worker: Worker) -> float:
        self.running.remove(worker)
        return await worker.kill()

    async def kill_all(self) -> None:
        for worker in list(self.running):
            await self.kill(worker)


@asynccontextmanager
async def open_workers(addresses: Sequence[Address]) -> AsyncIterator[Workers]:
    """None of which runs yet."""
    async with trio.open_nursery() as nursery:
        workers = Workers(addresses, nursery)
        try:
            yield workers
        finally:
            with trio.CancelScope(shield=True):
                await workers.kill_all()
            nursery.cancel_scope.cancel()
