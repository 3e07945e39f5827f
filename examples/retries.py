"""A work queue with back-off: `python examples/retries.py HOST:PORT`.

Two workers charge customers. The bank of some is down for a while, and one card is stolen. A job
that fails is moved to the topic of retries of the group and comes back after a pause, which grows:
so the queue itself is done long before the bank is back, and nothing waits for it. The job of the
stolen card has its attempts, and is set aside.

The order of a customer's jobs is given up by that: where it counts, retry in place (work_queue.py).
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import trio

import raftmq
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from raftmq import ConsumerRecord

TOPIC, GROUP, RETRIES = "charges", "charging", "__retry.charging"
PARTITIONS, WORKERS, JOBS = 4, 2, 200
DOWN_SECONDS = 2.0
RUN = b"%d/" % time.time_ns()  # jobs of other runs may be in the topic
RETRY = raftmq.RetryPolicy(attempts=5, backoff=raftmq.Exponential(0.5, factor=2, maximum=1))
AT_THE_BANK, STOLEN = 10, 77  # every so many are of the bank that is down; the card


class BankDownError(Exception):
    """Later it works."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Till:
    """What has become of the jobs of this run."""

    def __init__(self) -> None:
        self.tried: Counter[int] = Counter()
        self.charged: set[int] = set()
        self.came_back: set[int] = set()
        self.opens_at = 0.0
        self.begun, self.over = trio.Event(), trio.Event()

    async def charge(self, record: ConsumerRecord) -> None:
        """One job; an exception is a failed attempt."""
        value = record.value or b""
        if not value.startswith(RUN):
            return
        if not self.begun.is_set():
            self.opens_at = time.monotonic() + DOWN_SECONDS
            self.begun.set()
        job = int(value.removeprefix(RUN))
        self.tried[job] += 1
        if record.topic != TOPIC:  # `origin` still says where it stood first
            assert record.origin.topic == TOPIC
            self.came_back.add(job)
        await trio.sleep(0.002)
        if job == STOLEN:
            raise PermissionError("the card is stolen")
        if job % AT_THE_BANK == 0 and time.monotonic() < self.opens_at:
            raise BankDownError("the bank does not answer")
        self.charged.add(job)  # at least once: charging twice must do no harm
        if len(self.charged) == JOBS - 1:
            self.over.set()


async def work(mq: raftmq.Client, till: Till) -> None:
    """Until it is cancelled. In a process of its own this is all that a worker is."""
    await mq.process(TOPIC, group=GROUP, handler=till.charge, retry=RETRY, concurrency=4)


async def lag_of(mq: raftmq.Client, topic: str) -> int:
    lags = await mq.admin.group_lag(GROUP)
    return sum(lag.lag or 0 for lag in lags if lag.topic == topic)


async def main(bootstrap: str) -> None:
    async with raftmq.connect(bootstrap) as mq:
        await mq.admin.create_topic(TOPIC, partitions=PARTITIONS, if_not_exists=True)
        async with mq.producer() as producer:
            await producer.send_many(
                TOPIC, range(JOBS), value=lambda job: RUN + b"%d" % job, key=lambda job: job % 40
            )
        till = Till()
        async with trio.open_nursery() as workers:
            for _ in range(WORKERS):
                workers.start_soon(work, mq, till)
            await till.begun.wait()
            while await lag_of(mq, TOPIC):  # noqa: ASYNC110  # another program would look, too
                await trio.sleep(0.05)
            waiting = JOBS - len(till.charged)
            say(f"the queue is empty, {waiting} jobs wait for their next attempt")
            await till.over.wait()
            say(f"the bank is back: {len(till.charged)} of {JOBS} jobs are done")
            attempts = await stolen_card(mq)
            workers.cancel_scope.cancel()
    say(f"{len(till.came_back)} jobs came back from {RETRIES}")
    say(f"the stolen card was tried {attempts} times and is set aside")


async def stolen_card(mq: raftmq.Client) -> int:
    """Wait for its dead letter. How often it was tried, as that says."""
    async with mq.consumer(f"__dead.{GROUP}", start="earliest") as letters:
        async for letter in letters:
            if (letter.value or b"") == RUN + b"%d" % STOLEN:
                break
    assert letter.origin.topic == TOPIC
    return int(dict(letter.headers)["raftmq.attempts"] or 0)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)  # WARNING: with each attempt that fails
    try:
        trio.run(main, sys.argv[1] if sys.argv[1:] else "127.0.0.1:9292")
    except RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
