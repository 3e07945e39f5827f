"""Urgent jobs first, and the others not never: `python examples/priorities.py HOST:PORT`.

A partition is read in its order, so a topic has no priorities. Two topics have: a worker reads both
and takes turns by weight. While both have jobs, urgent ones get four turns of five; whichever has
none leaves its turns to the other.

    RabbitMQ                             here
    x-max-priority                       a topic for each priority
    priority of a message                the topic that it is sent to
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

import raftmq
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq import ConsumerRecord

WEIGHTS = {"jobs.urgent": 4, "jobs.normal": 1}  # topics, and their shares
GROUP, AT_ONCE = "priority-workers", 2
NORMAL, URGENT = 200, 80
RUN = f"{time.time_ns()}/"  # jobs of other runs may be in the topics


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


class Turns:
    """So many at once; who waits gets the next turn by weight (stride scheduling)."""

    def __init__(self, weights: dict[str, int], at_once: int) -> None:
        self._weights, self._free = weights, at_once
        self._passed = dict.fromkeys(weights, 0.0)  # turns taken, divided by the weight
        self._waiting: dict[str, deque[trio.Event]] = {name: deque() for name in weights}
        self.wanted_by_all = Counter[str]()  # who got the turns that all waited for

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[None]:
        if self._free:
            self._free -= 1
        else:
            await self._wait(name)
        try:
            yield
        finally:
            self._hand_on()

    async def _wait(self, name: str) -> None:
        waiting = self._waiting[name]
        if not waiting:  # what it did not use while it had nothing to do is gone
            others = [self._passed[one] for one, line in self._waiting.items() if line]
            self._passed[name] = max(self._passed[name], min(others, default=0.0))
        mine = trio.Event()
        waiting.append(mine)
        try:
            await mine.wait()
        except BaseException:
            if mine.is_set():
                self._hand_on()
            else:
                waiting.remove(mine)
            raise

    def _hand_on(self) -> None:
        lines = [name for name, line in self._waiting.items() if line]
        if not lines:
            self._free += 1
            return
        name = min(lines, key=self._passed.__getitem__)
        if len(lines) == len(self._waiting):
            self.wanted_by_all[name] += 1
        self._passed[name] += 1 / self._weights[name]
        self._waiting[name].popleft().set()


async def main(bootstrap: str) -> None:
    turns, done, over = Turns(WEIGHTS, AT_ONCE), Counter[str](), trio.Event()
    assigned = {topic: trio.Event() for topic in WEIGHTS}

    async def handle(topic: str, record: ConsumerRecord) -> None:
        if not record.text().startswith(RUN):
            return
        # A group may get its partitions before the other one, and would be alone until then.
        assigned[topic].set()
        for each in assigned.values():
            await each.wait()
        async with turns.turn(topic):
            await trio.sleep(0.002)
        done[topic] += 1
        if done.total() == NORMAL + URGENT:
            over.set()

    async with raftmq.connect(bootstrap) as mq:
        for topic in WEIGHTS:
            await mq.admin.create_topic(topic, partitions=2, if_not_exists=True)
        async with mq.producer() as producer:
            for topic, count in (("jobs.normal", NORMAL), ("jobs.urgent", URGENT)):
                jobs = [f"{RUN}{number}" for number in range(count)]
                await producer.send_many(topic, jobs, key=lambda job: job)
        async with trio.open_nursery() as workers:
            for topic in WEIGHTS:
                # More at a time than turns, so that somebody of either topic waits for a turn.
                work = partial(
                    mq.process,
                    topic,
                    group=f"{GROUP}.{topic}",
                    handler=partial(handle, topic),
                    concurrency=4 * AT_ONCE,
                    stop=over,
                )
                workers.start_soon(work)
    say(f"{done.total()} jobs are done, urgent ones were sent last")
    wanted, urgent = turns.wanted_by_all.total(), turns.wanted_by_all["jobs.urgent"]
    say(f"both waited for {wanted} turns, urgent jobs had {urgent / wanted:.0%} of them")
    say(f"the other {done.total() - wanted} turns went to those who had jobs")


if __name__ == "__main__":
    try:
        trio.run(main, sys.argv[1] if sys.argv[1:] else "127.0.0.1:9292")
    except RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
