"""A task that dies and is started again: `python examples/rerun_safely.py HOST:PORT`.

It has a name, and the number of the file that it loads. Whichever process sends the rows of that
file, and however often, each of them stands in the topic once.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import trio

import raftmq
from raftmq.errors import ProducerFenced, RaftmqError, ReplayMismatch

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC, TASK, PARTITIONS = "rerun", "load-rerun", 3
FILE = time.time_ns()  # its number: in a higher generation all rows are new
ROWS = [b"%d/%d" % (FILE, number) for number in range(1000)]


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def dying(rows: list[bytes]) -> Iterator[bytes]:
    """Somewhere in the middle."""
    yield from rows[:450]
    raise InterruptedError


async def main(bootstrap: str) -> None:
    async with raftmq.connect(bootstrap) as mq:
        await mq.admin.create_topic(TOPIC, partitions=PARTITIONS, if_not_exists=True)
        try:
            async with mq.producer(name=TASK, generation=FILE) as producer:
                for row in dying(ROWS):
                    await producer.enqueue(TOPIC, row, key=row)
        except InterruptedError:
            say(f"it dies after {producer.statistics.records} of {len(ROWS)} rows")
        await run_again(mq)
        await read(mq)


async def run_again(mq: raftmq.Client) -> None:
    """While the first run turns out not to be dead at all; and once more, with another row."""
    async with mq.producer(name=TASK, generation=FILE) as first:
        await first.send(TOPIC, ROWS[0], key=ROWS[0])
        async with mq.producer(name=TASK, generation=FILE) as second:
            await second.send_columns(TOPIC, values=ROWS, keys=ROWS)
            done = second.statistics
            say(f"the second run: {done.skipped_records} skipped, {done.records} sent")
        try:
            await first.send_columns(TOPIC, values=ROWS[1:], keys=ROWS[1:])
        except ProducerFenced as error:
            say(f"ProducerFenced: {error}")
    try:
        async with mq.producer(name=TASK, generation=FILE) as third:
            await third.send_columns(TOPIC, values=[b"another row", *ROWS[1:]], keys=ROWS)
    except ReplayMismatch as error:
        say(f"ReplayMismatch: {error}")


async def read(mq: raftmq.Client) -> None:
    """What stands there of this file, up to a last record in each partition."""
    end = b"%d/end" % FILE
    async with mq.producer() as producer:
        for partition in range(PARTITIONS):
            await producer.send(TOPIC, end, partition=partition)
    found: Counter[bytes] = Counter()
    async with mq.consumer(TOPIC, start="earliest") as consumer:
        async for record in consumer:
            found[bytes(record.value or b"")] += 1
            if found[end] == PARTITIONS:
                break
    is_once = all(found[row] == 1 for row in ROWS)
    say(f"{len(ROWS)} rows, {'each of them once' if is_once else 'not each of them once'}")


if __name__ == "__main__":
    try:
        trio.run(main, sys.argv[1] if sys.argv[1:] else "127.0.0.1:9292")
    except RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
