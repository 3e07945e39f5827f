"""A worker that is killed: `python -m tests.cluster.work_hand WAY --bootstrap B --diary FILE`.

WAY is `loop` (`mq.process` on trio or asyncio) or `blocking` (`raftmq.sync`). With `--moving` it
moves what fails to the topic of retries. Each line of the diary is one thing that a worker did: the
process, what, and the number. It never outlives its parent.
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
MOVING = raftmq.RetryPolicy(attempts=ATTEMPTS, backoff=raftmq.Exponential(2, factor=1.5))
OPTIONS: dict[str, Any] = {
    "group": GROUP,
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

    def end(self, record: ConsumerRecord[int]) -> None:
        """Raises, if it is the record's fate."""
        number = record.value
        assert number is not None
        how, is_back = fate(number), record.topic != TOPIC
        assert record.origin.topic == TOPIC
        if how == DEAD:
            raise KeyError(number)
        if how == DONE_LATER and self._tried[number] == 1 and not is_back:
            raise OSError("not now")
        self._write("done", number)

    def _write(self, what: str, number: int) -> None:
        os.write(self._file, b"%d %s %d\n" % (os.getpid(), what.encode(), number))


async def in_a_loop(bootstrap: str, diary: Diary, options: dict[str, Any]) -> None:
    async def handle(record: ConsumerRecord[int]) -> None:
        assert record.value is not None
        diary.begin(record.value)
        await anyio.sleep(WORK_SECONDS)
        diary.end(record)

    async with raftmq.connect(bootstrap) as mq:
        await mq.process(TOPIC, handler=handle, value_deserializer=decode, **options)


def in_threads(bootstrap: str, diary: Diary, options: dict[str, Any]) -> None:
    def handle(record: ConsumerRecord[int]) -> None:
        assert record.value is not None
        diary.begin(record.value)
        time.sleep(WORK_SECONDS)
        diary.end(record)

    with sync.connect(bootstrap) as mq:
        mq.process(TOPIC, handler=handle, value_deserializer=decode, **options)


def main() -> None:
    die_with_parent()
    parser = ArgumentParser()
    parser.add_argument("way", choices=("loop", "blocking"))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--diary", required=True)
    parser.add_argument("--moving", action="store_true")
    order = parser.parse_args()
    diary = Diary(order.diary)
    options = {**OPTIONS, "retry": MOVING if order.moving else POLICY}
    if order.way == "blocking":
        in_threads(order.bootstrap, diary, options)
    else:
        run: Callable[[str, Diary, dict[str, Any]], Any] = in_a_loop
        backend = "trio" if os.getpid() % 2 else "asyncio"
        anyio.run(run, order.bootstrap, diary, options, backend=backend)


if __name__ == "__main__":
    main()
