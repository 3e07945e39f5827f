"""A task queue, as with Celery or RabbitMQ: `python examples/work_queue.py HOST:PORT`.

Three workers share the jobs of a topic. A job that fails is tried again, one that always fails is
set aside; the jobs of one customer are done in their order. One worker is switched off in the
middle of its jobs, and the others do them.

    Celery                               here
    @app.task def charge(...)            the handler, a function of a record
    charge.delay(...)                    producer.send, with the key that decides about order
    worker --concurrency=4               mq.process(..., concurrency=4)
    autoretry_for, retry_backoff         retry=RetryPolicy(...)
    a dead letter exchange               the group's topic of dead letters
    acks_late                            always: committed after the work
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import trio

import raftmq
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from raftmq import ConsumerRecord

TOPIC, GROUP = "queue", "queue-workers"
PARTITIONS, WORKERS, JOBS, CUSTOMERS = 4, 3, 400, 20
RUN = b"%d/" % time.time_ns()  # jobs of other runs may be in the topic
RETRY = raftmq.RetryPolicy(attempts=3, backoff=raftmq.Exponential(0.05), in_place=True)
UNLUCKY, HOPELESS = 7, 8  # the job that fails once, and the one that fails each time


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


class Office:
    """What has become of the jobs of this run."""

    def __init__(self) -> None:
        self.begun: Counter[int] = Counter()
        self.done: defaultdict[int, list[int]] = defaultdict(list)  # by customer
        self.done_by: Counter[str] = Counter()
        self.is_enough = trio.Event()  # for the worker that is switched off
        self.over = trio.Event()

    async def do(self, worker: str, record: ConsumerRecord) -> None:
        """One job; an exception is a failed attempt."""
        value = record.value or b""
        if not value.startswith(RUN):
            return
        job = int(value.removeprefix(RUN))
        self.begun[job] += 1
        await trio.sleep(0.005)
        if job == HOPELESS or (job == UNLUCKY and self.begun[job] == 1):
            raise ValueError(f"job {job} cannot be done")
        jobs = self.done[job % CUSTOMERS]
        if job not in jobs:  # at least once: what is done again must do no harm
            jobs.append(job)
        self.done_by[worker] += 1
        if self.done_by["worker 0"] == 20:
            self.is_enough.set()
        if sum(map(len, self.done.values())) == JOBS - 1:
            self.over.set()


async def work(mq: raftmq.Client, office: Office, name: str) -> None:
    """Until it is cancelled. In a process of its own this is all that a worker is."""

    async def handle(record: ConsumerRecord) -> None:
        await office.do(name, record)

    await mq.process(TOPIC, group=GROUP, handler=handle, retry=RETRY, concurrency=4)


async def main(bootstrap: str) -> None:
    office = Office()
    async with raftmq.connect(bootstrap) as mq:
        await mq.admin.create_topic(TOPIC, partitions=PARTITIONS, if_not_exists=True)
        async with trio.open_nursery() as workers:
            first = trio.CancelScope()

            async def work_for_a_while() -> None:
                with first:
                    await work(mq, office, "worker 0")

            workers.start_soon(work_for_a_while)
            for number in range(1, WORKERS):
                workers.start_soon(work, mq, office, f"worker {number}")
            async with mq.producer() as producer:
                await producer.send_many(
                    TOPIC,
                    range(JOBS),
                    value=lambda job: RUN + b"%d" % job,
                    key=lambda job: job % CUSTOMERS,
                )
            await office.is_enough.wait()
            first.cancel()
            say("worker 0 is switched off in the middle of its jobs")
            await office.over.wait()
            workers.cancel_scope.cancel()
    report(office)


def report(office: Office) -> None:
    for name, count in sorted(office.done_by.items()):
        say(f"{name} did {count} jobs")
    in_order = sum(jobs == sorted(jobs) for jobs in office.done.values())
    say(f"{sum(map(len, office.done.values()))} of {JOBS} jobs are done")
    say(f"the jobs of {in_order} of {CUSTOMERS} customers were done in their order")
    say(f"job {HOPELESS} was tried {office.begun[HOPELESS]} times and is set aside")


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)  # WARNING: with each attempt that fails
    try:
        trio.run(main, sys.argv[1] if sys.argv[1:] else "127.0.0.1:9292")
    except RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
