"""The fast paths: whole columns there and back: `python examples/columns.py HOST:PORT`.

Nothing happens for a single record: columns go into batches, and batches come back as columns.
"""

from __future__ import annotations

import sys
import time

import trio

import raftmq
from raftmq.errors import RaftmqError

TOPIC = "columns"
COUNT = 200_000


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


async def main(bootstrap: str) -> None:
    keys = [b"sensor-%d" % (number % 100) for number in range(COUNT)]
    values = [b'{"reading": %d}' % number for number in range(COUNT)]
    async with raftmq.connect(bootstrap) as mq:
        await mq.admin.create_topic(TOPIC, partitions=6, if_not_exists=True)
        ends = await mq.admin.offsets(TOPIC, "latest")
        begin = time.perf_counter()
        async with mq.producer(preset="high_throughput") as producer:
            sent = await producer.send_columns(TOPIC, values=values, keys=keys)
        seconds = time.perf_counter() - begin
        say(f"sent {COUNT} records in {len(sent)} runs: {COUNT / seconds:,.0f} a second")
        await read(mq, {partition: offset or 0 for partition, offset in ends.items()})


async def read(mq: raftmq.Client, starts: dict[int, int]) -> None:
    """From where the topic ended before."""
    left, total = COUNT, 0
    begin = time.perf_counter()
    async with mq.consumer(assign=[(TOPIC, partition) for partition in starts]) as consumer:
        for partition, offset in starts.items():
            consumer.seek(TOPIC, partition, offset=offset)
        async for batch in consumer.batches(max_records=10_000):
            # One column; the others are not decoded. A record may have no value.
            total += sum(map(len, filter(None, batch.values)))
            left -= len(batch)
            if not left:
                break
    seconds = time.perf_counter() - begin
    say(f"read {COUNT} records, {total} bytes: {COUNT / seconds:,.0f} a second")


if __name__ == "__main__":
    try:
        trio.run(main, sys.argv[1] if sys.argv[1:] else "127.0.0.1:9292")
    except RaftmqError as error:
        sys.exit(f"{type(error).__name__}: {error}")
