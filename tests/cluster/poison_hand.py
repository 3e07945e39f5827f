"""A worker that dies of some records: `python -m tests.cluster.poison_hand WAY --bootstrap B
--diary FILE`.

WAY is `loop` (`mq.process` on trio or asyncio) or `blocking` (`raftmq.sync`). Each line of the
diary is one thing that a worker did: the process, what, and the value. It never outlives its
parent.
"""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

import anyio

import raftmq
from raftmq import sync
from tests.cluster.broker_process import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.consumer.record import ConsumerRecord

TOPIC, GROUP, POISON = "work", "hands", "poison"
ATTEMPTS = 4
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


class Diary:
    """What a worker writes, a line at once, after all other lines of all workers."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def begin(self, value: str) -> None:
        """What kills ends the process here, as a segmentation fault would."""
        if value.startswith(POISON):
            self._write("dies", value)
            os._exit(1)

    def end(self, value: str) -> None:
        self._write("done", value)

    def _write(self, what: str, value: str) -> None:
        os.write(self._file, f"{os.getpid()} {what} {value}\n".encode())


async def in_a_loop(bootstrap: str, diary: Diary) -> None:
    async def handle(record: ConsumerRecord) -> None:
        diary.begin(record.text())
        await anyio.sleep(WORK_SECONDS)
        diary.end(record.text())

    async with raftmq.connect(bootstrap) as mq:
        await mq.process(TOPIC, handler=handle, **OPTIONS)


def in_threads(bootstrap: str, diary: Diary) -> None:
    def handle(record: ConsumerRecord) -> None:
        diary.begin(record.text())
        time.sleep(WORK_SECONDS)
        diary.end(record.text())

    with sync.connect(bootstrap) as mq:
        mq.process(TOPIC, handler=handle, **OPTIONS)


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
