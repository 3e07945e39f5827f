"""Three brokers, and a client in this process, that produces one record after the other: what each
of the four calls for one record, without what it calls in as much time at rest.

Owns the windows in which is counted: one at rest, then some at work, with cProfile in each process
or with strace at each. Processes go by node id, the client as `CLIENT`.
"""

from __future__ import annotations

import json
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import trio

from benchmarks.broker_parts.cluster import WAIT_SECONDS_MAX
from benchmarks.broker_parts.process import BrokerFailed
from benchmarks.call_parts.counted_broker import BEGIN, END, SUFFIX
from benchmarks.call_parts.function_calls import CallCounter, Counted, PerRecord
from benchmarks.call_parts.system_calls import tracing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from benchmarks.broker_parts.cluster import Brokers

    Window: TypeAlias = Callable[[], AbstractAsyncContextManager[dict[int, Counted]]]

CLIENT = 0
WARM_UP_RECORDS = 200  # connections, leaders, fetch sessions
QUIET_SECONDS = 6.0  # until logs of page_cache topics are flushed, which happens each 5 s
REST_SECONDS = 10.0  # twice that
SETTLE_SECONDS = 0.1  # until signals have arrived, and until all is done that a record began
LOOK_SECONDS = 0.02


class Counts(NamedTuple):
    """By process: calls of a record, of each round; and calls of all kinds in a second at rest."""

    rounds: dict[int, list[PerRecord]]
    at_rest: dict[int, float]


class Counting:
    """Of `records` that `produce` makes, one at a time, so many `rounds`."""

    def __init__(
        self,
        brokers: Brokers,
        produce: Callable[[], Awaitable[object]],
        *,
        records: int,
        rounds: int,
    ) -> None:
        self._brokers, self._produce = brokers, produce
        self._records, self._rounds = records, rounds

    async def functions(self) -> Counts:
        return await self._count(lambda: profiling(self._brokers))

    async def system_calls(self) -> Counts:
        """Raises TracerFailed."""
        running = self._brokers.running.values()
        ids = {process.node_id: process.process_id for process in running} | {CLIENT: os.getpid()}
        return await self._count(lambda: tracing(self._brokers.root, ids))

    async def _count(self, window: Window) -> Counts:
        await self._work(WARM_UP_RECORDS)
        await trio.sleep(QUIET_SECONDS)
        async with window() as idle:
            await trio.sleep(REST_SECONDS)
        rounds: dict[int, list[PerRecord]] = {who: [] for who in idle}
        for _ in range(self._rounds):
            async with window() as busy:
                await self._work(self._records)
            for who, counted in busy.items():
                rounds[who].append(counted.per_record(idle[who], self._records))
        at_rest = {who: sum(one.calls.values()) / one.seconds for who, one in idle.items()}
        return Counts(rounds, at_rest)

    async def _work(self, records: int) -> None:
        for _ in range(records):
            await self._produce()


@asynccontextmanager
async def profiling(brokers: Brokers) -> AsyncIterator[dict[int, Counted]]:
    """Yields what is filled in at its end."""
    counted = dict[int, Counted]()
    files = {node: brokers.root / f"broker-{node}{SUFFIX}" for node in brokers.running}
    for file in files.values():
        file.unlink(missing_ok=True)
    for process in brokers.running.values():
        os.kill(process.process_id, BEGIN)
    await trio.sleep(SETTLE_SECONDS)
    counter = CallCounter()
    counter.begin()
    yield counted
    await trio.sleep(SETTLE_SECONDS)
    counted[CLIENT] = counter.end()
    for process in brokers.running.values():
        os.kill(process.process_id, END)
    for node, file in files.items():
        seconds, calls = json.loads(await _wait_text(file))
        counted[node] = Counted(seconds, calls)


async def _wait_text(file: Path) -> str:
    path = trio.Path(file)
    with trio.move_on_after(WAIT_SECONDS_MAX):
        while not await path.exists():  # noqa: ASYNC110  # the other process has no event for it
            await trio.sleep(LOOK_SECONDS)
        return await path.read_text()
    raise BrokerFailed(f"{file.name} was not written in {WAIT_SECONDS_MAX:g} s")
