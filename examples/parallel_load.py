"""Many processes write one load, which counts once: `python examples/parallel_load.py HOST:PORT`.

The parts of a load are tasks of a pool. Each attempt of a task joins one shared transaction, and
hands back a receipt; the driver commits those of the attempts that it has chosen. Here one worker
fails halfway, and one part is written twice at a time, as by an engine that starts a copy of what
is slow: readers get each row once. Then the driver is as if it had died before it could note that
the load is done, and does all of it again: nothing is added.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from multiprocessing import get_context
from typing import TYPE_CHECKING

from raftmq.errors import RaftmqError
from raftmq.sync import connect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq import Receipt, sync

TOPIC = "meters"
ID, LINEAGE = "load-meters", "examples"
WORKERS, PARTS, ROWS = 4, 8, 1000
FAILING, DOUBLED = 3, 5  # parts of the load


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# -- A task, in a process of the pool --------------------------------------------------------------


def write(bootstrap: str, number: int, part: int, attempt: int) -> Receipt:
    """One attempt to write a part. An error leaves no receipt, and so nothing that counts."""
    rows = [f"load {number} part {part} row {row}" for row in range(ROWS)]
    with connect(bootstrap) as mq, version_of(mq, number).join() as member:
        member.send_many(TOPIC, rows[: ROWS // 2])
        if part == FAILING and attempt == 1 and not member.is_done:
            raise ValueError("a worker has failed")
        member.send_many(TOPIC, rows[ROWS // 2 :])
    return member.receipt


def version_of(mq: sync.Client, number: int) -> sync.SharedVersion:
    return mq.shared_transaction(ID, lineage=LINEAGE).version(number)


# -- The driver ------------------------------------------------------------------------------------


def main(bootstrap: str) -> None:
    started = datetime.now(UTC)
    # That of a file, a day or a microbatch; here it has to rise with each run of this program.
    number = int(time.time())
    with connect(bootstrap) as mq:
        mq.admin.create_topic(TOPIC, partitions=4, if_not_exists=True)
        for _ in range(2):
            outcome = version_of(mq, number).commit(load(bootstrap, number), wait_visible=True)
            how = "was committed before" if outcome.is_repeated else "is committed"
            say(f"load {number} {how}: {outcome.count} rows")
        count(mq, number, started)


def load(bootstrap: str, number: int) -> Iterable[Receipt]:
    """The receipts of one attempt for each part."""
    found: dict[int, Receipt] = {}
    # Not by fork: a client belongs to the process that opened it.
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        tasks = {pool.submit(write, bootstrap, number, part, 1): part for part in range(PARTS)}
        tasks[pool.submit(write, bootstrap, number, DOUBLED, 2)] = DOUBLED
        while tasks:
            task = next(as_completed(tasks))
            part = tasks.pop(task)
            try:
                found.setdefault(part, task.result())  # of two copies the first
            except (ValueError, RaftmqError) as error:
                say(f"part {part} is written again: {error}")
                tasks[pool.submit(write, bootstrap, number, part, 2)] = part
    return found.values()


def count(mq: sync.Client, number: int, started: datetime) -> None:
    """What readers get, and what stands in the log beside it."""
    rows = list[bytes]()
    for isolation_level in ("read_committed", "read_uncommitted"):
        with mq.consumer(TOPIC, start=started, isolation_level=isolation_level) as consumer:
            values = [record.value or b"" for record in consumer.records(timeout=1)]
        rows = rows or [value for value in values if value.startswith(b"load %d " % number)]
    is_once = len(set(rows)) == len(rows) == PARTS * ROWS
    say(f"{len(rows)} rows, {'each of them once' if is_once else 'which is wrong'}")
    say(f"{len(values) - len(rows)} rows in the log are of attempts that do not count")


if __name__ == "__main__":
    try:
        main(sys.argv[1] if sys.argv[1:] else "127.0.0.1:9292")
    except RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
