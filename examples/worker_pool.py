"""A pool of worker processes that share jobs: `python examples/worker_pool.py HOST:PORT`.

The processes are members of one group. Each commits a job when it is done, so that a job whose
worker dies is done by another one. SIGTERM lets a worker finish the job in hand. A job that fails
three times goes to a topic of its own, with the reason: it must not hold up the jobs behind it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING

from raftmq.errors import GroupIdNotFound, RaftmqError
from raftmq.sync import connect

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from raftmq import sync

TOPIC, FAILED, GROUP = "sums", "sums.failed", "calculators"
WORKERS, PARTITIONS, JOBS, ATTEMPTS = 3, 6, 60, 3
SECONDS_MAX = 60.0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# -- A worker: one process of the pool -------------------------------------------------------------


def work(bootstrap: str) -> None:
    """Job after job until SIGTERM."""
    stopping = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the pool decides
    count = 0
    with (
        connect(bootstrap) as mq,
        mq.producer() as producer,
        mq.consumer(TOPIC, group=GROUP, start="earliest", commit="manual") as jobs,
    ):
        while not stopping.is_set():
            # Waits half a second for a job, and then looks whether it is to stop.
            for job in jobs.records(timeout=0.5):
                finish(job.value or b"", job.offset, producer)
                jobs.commit(job)
                count += 1
                if stopping.is_set():
                    break
    say(f"worker {os.getpid()} ends in order after {count} jobs")


def finish(job: bytes, offset: int, producer: sync.Producer) -> None:
    """Done, or set aside with the reason: after either the job counts as finished."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            calculate(job)
            return
        except ValueError as error:
            reason = f"attempt {attempt}: {error}"
    headers = {"reason": reason, "offset": str(offset)}
    producer.send(FAILED, job, headers=headers)


def calculate(job: bytes) -> int:
    return sum(int(part) for part in job.split(b"+"))


# -- The pool --------------------------------------------------------------------------------------


def main(bootstrap: str) -> None:
    started = datetime.now(UTC)
    with connect(bootstrap) as mq:
        mq.admin.create_topic(TOPIC, partitions=PARTITIONS, if_not_exists=True)
        mq.admin.create_topic(FAILED, partitions=1, if_not_exists=True)
        with mq.producer() as producer:
            jobs = [b"%d+%d" % (number, number + 1) for number in range(JOBS - 1)]
            # Without keys a batch of them would go to one partition, and so to one worker.
            producer.send_many(TOPIC, [*jobs, b"one+two"], key=lambda job: job)
        pool = start(bootstrap)
        try:
            wait_until_done(mq)
        finally:
            stop(pool)
        for record in mq.consumer(FAILED, start=started).records(timeout=1):
            say(f"set aside: {record.text()}, {dict(record.headers)['reason']!r}")


def start(bootstrap: str) -> list[BaseProcess]:
    # Not by fork: a client belongs to the process that opened it.
    spawned = multiprocessing.get_context("spawn")
    pool: list[BaseProcess] = [
        spawned.Process(target=work, args=(bootstrap,)) for _ in range(WORKERS)
    ]
    for process in pool:
        process.start()
    return pool


def wait_until_done(mq: sync.Client) -> None:
    """Until the group has committed the last job of each partition."""
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        if is_done(mq):
            say(f"all {JOBS} jobs are done")
            return
        time.sleep(0.2)
    say("not all jobs are done: the next run goes on with them")


def is_done(mq: sync.Client) -> bool:
    try:
        lags = [partition.lag for partition in mq.admin.group_lag(GROUP)]
        return lags == [0] * PARTITIONS
    except GroupIdNotFound:  # no worker has joined yet
        return False


def stop(pool: list[BaseProcess]) -> None:
    for process in pool:
        process.terminate()  # SIGTERM; one that is still starting has nothing in hand
    for process in pool:
        process.join()


if __name__ == "__main__":
    try:
        main(sys.argv[1] if sys.argv[1:] else "127.0.0.1:9292")
    except RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
