"""A queue of work: each job goes to one worker: `python examples/work_queue.py HOST:PORT`.

Five workers share the four partitions of a topic as one group, so one of them stays in reserve. One
gives up in the middle of a job; the reserve takes over its partition, and begins with that job.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

import trio

import raftmq
from raftmq.errors import RaftmqError

TOPIC, GROUP = "queue", "queue-workers"
PARTITIONS, WORKERS, JOBS = 4, 5, 400
RUN = b"%d/" % time.time_ns()  # jobs of other runs may be in the topic


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


class Office:
    """Which jobs were begun how often, and how many each worker has done."""

    def __init__(self) -> None:
        self.begun: Counter[bytes] = Counter()
        self.done_by: Counter[str] = Counter()
        self.is_quitting = True  # the first one that has done ten jobs
        self.over = trio.Event()


async def work(mq: raftmq.Client, office: Office, name: str) -> None:
    """Job after job. What is done is committed before the next one is handed out."""
    try:
        async with mq.consumer(TOPIC, group=GROUP, start="earliest", commit="record") as consumer:
            async for job in consumer:
                await do(office, name, job.value or b"")
    except InterruptedError:
        say(f"{name} gives up in the middle of a job")


async def do(office: Office, name: str, job: bytes) -> None:
    if not job.startswith(RUN):
        return
    office.begun[job] += 1
    if office.done_by[name] == 10 and office.is_quitting:
        office.is_quitting = False
        raise InterruptedError
    await trio.sleep(0.002)
    office.done_by[name] += 1
    if office.done_by.total() >= JOBS:
        office.over.set()


async def main(bootstrap: str) -> None:
    office = Office()
    async with raftmq.connect(bootstrap) as mq:
        await mq.admin.create_topic(TOPIC, partitions=PARTITIONS, if_not_exists=True)
        async with mq.producer() as producer:
            jobs = [RUN + b"%d" % number for number in range(JOBS)]
            await producer.send_many(TOPIC, jobs, key=lambda job: job)
        async with trio.open_nursery() as nursery:
            for number in range(WORKERS):
                nursery.start_soon(work, mq, office, f"worker {number}")
            await office.over.wait()
            nursery.cancel_scope.cancel()
    for name, count in sorted(office.done_by.items()):
        say(f"{name} did {count} jobs")
    again = sum(count > 1 for count in office.begun.values())
    say(f"{len(office.begun)} of {JOBS} jobs are done, {again} of them at the second attempt")


if __name__ == "__main__":
    try:
        trio.run(main, sys.argv[1] if sys.argv[1:] else "127.0.0.1:9292")
    except RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
