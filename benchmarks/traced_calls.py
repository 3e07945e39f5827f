"""What one `send` and one `commit` run through in raftmq: files, calls, moves from file to file.

Stands alone, so that it can count for any version of the code: `PYTHONPATH=DIR python -P
benchmarks/traced_calls.py`. Uses what programs use and nothing below it. Prints JSON.

The broker runs in this process, in a thread of its own: client and broker are counted together.
What the broker does meanwhile for other reasons is counted, too, and is more on a busy machine,
where all takes longer: beside the median stands the least, in which there is little of it.

* A call is a function of raftmq that begins; one that goes on after it has waited is none, and
  neither is a comprehension, as versions of Python differ there.
* A move is a call by code in another file of raftmq, also through a library in between.
"""

from __future__ import annotations

import dis
import json
import sys
import threading
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

import raftmq
from raftmq import testing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from types import CodeType, FrameType

HOME = str(Path(raftmq.__file__).parent)
WARM_UPS = 20
ROUNDS = 101
PAUSE_SECONDS = 0.05  # what a broker has left to do after its answer is no part of the next round
TOPIC = "traced"


class Count(NamedTuple):
    """Of one round, or of one column of all rounds."""

    files: float
    calls: float
    moves: float


Figures = dict[str, Count]


class Profiler:
    """Notes, in every thread, which file calls which; only while `counting`."""

    def __init__(self) -> None:
        self._is_on = False
        self._calls: list[tuple[str, str | None]] = []

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if self._is_on and event == "call" and is_ours(code) and frame.f_lasti == first(code):
            self._calls.append((code.co_filename, caller_of(frame)))

    @contextmanager
    def counting(self, into: list[Count]) -> Iterator[None]:
        self._calls.clear()
        self._is_on = True
        yield
        self._is_on = False
        calls = [*self._calls]
        moves = sum(caller not in (None, file) for file, caller in calls)
        into.append(Count(len({file for file, _ in calls}), len(calls), moves))


@cache
def is_ours(code: CodeType) -> bool:
    is_comprehension = code.co_name in {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
    return code.co_filename.startswith(HOME) and not is_comprehension


@cache
def first(code: CodeType) -> int:
    """Where a function stands when it begins; where it goes on stands another RESUME."""
    return next(step.offset for step in dis.get_instructions(code) if step.opname == "RESUME")


def caller_of(frame: FrameType) -> str | None:
    """The nearest file of raftmq that waits for this frame; None if an event loop calls it."""
    above = frame.f_back
    while above and not above.f_code.co_filename.startswith(HOME):
        above = above.f_back
    return above.f_code.co_filename if above else None


async def trace(bootstrap: str, profiler: Profiler) -> dict[str, Figures]:
    async with (
        raftmq.connect(bootstrap) as client,
        client.producer(acks="all") as producer,
    ):
        await client.admin.create_topic(TOPIC, partitions=1)

        async def send() -> object:
            return await producer.send(TOPIC, b"value")

        sends = await rounds(profiler, send)
        async with client.consumer(
            TOPIC, group="traced", commit="manual", start="earliest"
        ) as consumer:

            async def read() -> None:
                await send()
                await anext(consumer)

            commits = await rounds(profiler, consumer.commit, before=read)
    return {'await producer.send(..., acks="all")': sends, "await consumer.commit()": commits}


async def rounds(
    profiler: Profiler,
    operation: Callable[[], Awaitable[object]],
    before: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint,
) -> Figures:
    """Of many, after some that find whom to ask."""
    counts: list[Count] = []
    for number in range(WARM_UPS + ROUNDS):
        await before()
        await trio.sleep(PAUSE_SECONDS)
        with profiler.counting(counts if number >= WARM_UPS else []):
            await operation()
    columns = [*zip(*counts, strict=True)]
    return {"median": Count(*map(median, columns)), "least": Count(*map(min, columns))}


def main() -> None:
    profiler = Profiler()
    threading.setprofile(profiler)  # the broker's threads begin after this
    with testing.broker() as server:
        sys.setprofile(profiler)
        counts = trio.run(trace, server.bootstrap, profiler)
        sys.setprofile(None)
    threading.setprofile(None)
    print(json.dumps(counts))  # noqa: T201


if __name__ == "__main__":
    main()
