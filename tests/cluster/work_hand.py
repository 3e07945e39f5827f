"""A worker that is killed: `python -m tests.cluster.work_hand WAY --bootstrap B --diary FILE`.

WAY is `loop` (`mq.process` on trio or asyncio) or `blocking` (`raftmq.sync`). Each line of the
diary is one thing that a worker did: the process, what, and the number. It never outlives its
parent.
"""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio

import raftmq
from raftmq import sync
from tests.cluster.broker_process import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.consumer.record import ConsumerRecord

TOPIC, GROUP, KEYS = "work", "hands", 12
ATTEMPTS = 3
DONE_LATER, DEAD, UNDECODABLE = range(3)  # one of ten fails in one of these ways
POLICY = raftmq.RetryPolicy(
    attempts=ATTEMPTS, backoff=raftmq.Exponential(0.05, maximum=1), in_place=True
)
OPTIONS: dict[str, Any] = {
    "group": GROUP,
    "retry": POLICY,
    "concurrency": 4,
    "max_in_hand": 100,
    "session_timeout_ms": 6000,
    "heartbeat_interval_ms": 500,
}
WORK_SECONDS = 0.01


def fate(number: int) -> int | None:
    """How a record fails; None: it does not."""
    return (number // 10) % 3 if number % 10 == 0 else None


def decode(value: bytes) -> int:
    if fate(int(value)) == UNDECODABLE:
        raise ValueError("not a number")
    return int(value)


class Diary:
    """What a worker writes, a line at once, after all other lines of all workers."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._tried: Counter[int] = Counter()

    def begin(self, number: int) -> None:
        self._write("begin", number)
        self._tried[number] += 1

    def end(self, number: int) -> None:
        """Raises, if it is the record's fate."""
        how = fate(number)
        if how == DEAD:
            raise KeyError(number)
        if how == DONE_LATER and self._tried[number] == 1:
            raise OSError("not now")
        self._write("done", number)

    def _write(self, what: str, number: int) -> None:
        os.write(self._file, b"%d %s %d\n" % (os.getpid(), what.encode(), number))


async def in_a_loop(bootstrap: str, diary: Diary) -> None:
    async def handle(record: ConsumerRecord[int]) -> None:
        assert record.value is not None
        diary.begin(record.value)
        await anyio.sleep(WORK_SECONDS)
        diary.end(record.value)

    async with raftmq.connect(bootstrap) as mq:
        await mq.process(TOPIC, handler=handle, value_deserializer=decode, **OPTIONS)


def in_threads(bootstrap: str, diary: Diary) -> None:
    def handle(record: ConsumerRecord[int]) -> None:
        assert record.value is not None
        diary.begin(record.value)
        time.sleep(WORK_SECONDS)
        diary.end(record.value)

    with sync.connect(bootstrap) as mq:
        mq.process(TOPIC, handler=handle, value_deserializer=decode, **OPTIONS)


def main() -> None:
    die_with_parent()
    parser = ArgumentParser()
    parser.add_argument("way", choices=("loop", "blocking"))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--diary", required=True)
    order = parser.parse_args()
    diary = Diary(order.diary)
    if order.way == "blocking":
        in_threads(order.bootstrap, diary)
    else:
        run: Callable[[str, Diary], Any] = in_a_loop
        anyio.run(run, order.bootstrap, diary, backend="trio" if os.getpid() % 2 else "asyncio")


if __name__ == "__main__":
    main()
