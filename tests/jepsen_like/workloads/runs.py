"""Short runs of a workload against brokers in this process, and what they need."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import trio

from jepsen_like.history.recorder import Recorder
from jepsen_like.workloads.bench import Bench, QueueSettings
from jepsen_like.workloads.keys import Keys
from jepsen_like.workloads.queue import QueueWorkload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from jepsen_like.history.event import Event
    from jepsen_like.workloads.workload import Workload

QUICK: dict[str, Any] = {
    "processes": 4,
    "rate": 200.0,
    "pulses_max": 2,
    "active_keys_max": 6,
    "values_per_key_max": 100,
    "topics_max": 8,
    "crash_seconds": 3.0,
    "request_timeout_ms": 500,
    "delivery_timeout_ms": 1_000,
    "final_seconds": 8.0,
}


def a_recorder() -> Recorder:
    return Recorder(time.monotonic)


def a_queue(bootstrap: str, recorder: Recorder, **options: Any) -> QueueWorkload:
    return QueueWorkload(bootstrap, recorder, Random(7), QueueSettings(**{**QUICK, **options}))


def a_bench(bootstrap: str, **options: Any) -> Bench:
    settings = QueueSettings(**{**QUICK, **options})
    return Bench(
        bootstrap=bootstrap,
        recorder=a_recorder(),
        random=Random(7),
        settings=settings,
        keys=Keys(Random(7), matrix=settings.acks),
    )


@asynccontextmanager
async def running(workload: Workload, *, seconds_max: float = 30) -> AsyncIterator[None]:
    """Clients, for as long as the block takes; prepared before."""
    await workload.prepare()
    stop = trio.Event()
    with trio.fail_after(seconds_max):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(workload.run, stop)
            yield
            stop.set()


async def wait_until(is_so: Callable[[], bool], *, seconds_max: float = 10) -> None:
    """What happens in other tasks and threads tells nobody."""
    with trio.fail_after(seconds_max):
        while not is_so():  # noqa: ASYNC110
            await trio.sleep(0.02)


def outcomes(events: list[Event]) -> Counter[tuple[str, str]]:
    return Counter((event.f, event.type.value) for event in events)


def has_more(recorder: Recorder, f: str, kind: str, count: int) -> Callable[[], bool]:
    """Whether there are so many events more than at the time of this call."""
    wanted = outcomes(recorder.events)[f, kind] + count
    return lambda: outcomes(recorder.events)[f, kind] >= wanted


async def wait_more(recorder: Recorder, f: str, kind: str, count: int) -> None:
    """So many events more than there are now."""
    await wait_until(has_more(recorder, f, kind, count))
