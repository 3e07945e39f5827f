"""A client that either version can be, as it uses nothing but public calls of the SDK.

    python -m tests.cluster.version_client send --bootstrap B
    python -m tests.cluster.version_client visit --bootstrap B --rows N
    python -m tests.cluster.version_client read --bootstrap B --topic T

`send` makes the topics, and sends a record after the other until something is said on stdin.
`visit` is one run of a named producer, with so many rows from the first one on, and one of a
group's only member. On stdout stands a JSON line for each record that was acknowledged or handed
out.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from itertools import count
from typing import Any

import trio

import raftmq
from tests.cluster.broker_process import die_with_parent

LETTERS, ROWS, GROUP, NAME = "letters", "rows", "archive", "etl"
PARTITIONS = 3
CONFIG = {"min.insync.replicas": 2}
ROW_KEYS = 7
PAUSE_SECONDS = 0.01
QUIET_SECONDS = 0.3


def tell(*fields: Any) -> None:
    line = json.dumps(fields).encode() + b"\n"
    assert os.write(sys.stdout.fileno(), line) == len(line)


def key_of(row: int) -> int | None:
    """Some are placed by their key, others by the producer."""
    return row % ROW_KEYS or None


async def send(mq: Any, _: Namespace) -> None:
    for topic in (LETTERS, ROWS):
        await mq.admin.create_topic(
            topic, partitions=PARTITIONS, replication_factor=3, config=CONFIG
        )
    is_told = trio.Event()
    async with mq.producer(acks="all") as producer, trio.open_nursery() as nursery:
        nursery.start_soon(_listen, is_told)
        for number in count():
            sent = await producer.send(LETTERS, b"%d" % number, partition=number % PARTITIONS)
            tell(LETTERS, sent.partition, sent.offset, number)
            await trio.sleep(PAUSE_SECONDS)
            if is_told.is_set():
                return


async def _listen(is_told: trio.Event) -> None:
    async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as told:
        await told.receive_some()
        is_told.set()


async def visit(mq: Any, order: Namespace) -> None:
    async with mq.producer(name=NAME, generation=1) as producer:
        for row in range(order.rows):
            await producer.enqueue(ROWS, b"%d" % row, key=key_of(row))
    tell("skipped", producer.statistics.skipped_records)
    async with mq.consumer(LETTERS, group=GROUP, start="earliest", commit="manual") as consumer:
        await _read(mq, consumer, LETTERS)
        await consumer.commit()


async def read(mq: Any, order: Namespace) -> None:
    async with mq.consumer(order.topic, start="earliest") as consumer:
        await _read(mq, consumer, order.topic)


async def _read(mq: Any, consumer: Any, topic: str) -> None:
    """Up to where the partitions ended when it began."""
    ends = await mq.admin.offsets(topic, "latest")
    batches = consumer.batches()
    while not _is_at(consumer, topic, ends):
        with trio.move_on_after(QUIET_SECONDS):
            batch = await anext(batches)
            for offset, value in zip(batch.offsets, batch.values, strict=True):
                tell(topic, batch.partition, offset, int(value))


def _is_at(consumer: Any, topic: str, ends: dict[int, int]) -> bool:
    assigned = {partition for _, partition in consumer.assignment}
    return assigned >= ends.keys() and all(
        (consumer.position(topic, partition) or 0) >= end for partition, end in ends.items()
    )


async def run(order: Namespace) -> None:
    async with raftmq.connect(order.bootstrap) as mq:
        await {"send": send, "visit": visit, "read": read}[order.work](mq, order)


def main() -> None:
    die_with_parent()
    parser = ArgumentParser()
    parser.add_argument("work")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--topic")
    trio.run(run, parser.parse_args())


if __name__ == "__main__":
    main()
