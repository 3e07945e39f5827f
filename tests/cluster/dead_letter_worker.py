"""A worker of a group that sets records aside, and is killed and started again.

    python -m tests.cluster.dead_letter_worker reject --bootstrap B --topic T
    python -m tests.cluster.dead_letter_worker once --bootstrap B --topic T
    python -m tests.cluster.dead_letter_worker blocking --bootstrap B --topic T
    python -m tests.cluster.dead_letter_worker retry --bootstrap B --topic T
    python -m tests.cluster.dead_letter_worker retry_blocking --bootstrap B --topic T

The group is named like the topic. `reject` sets aside what it reads one by one, tells each on
stdout, and commits when it has read a line from stdin. `once` and `blocking` send what they read to
a topic of results, exactly once, and set aside each value that ends with 7. `retry` and
`retry_blocking` do so, too, and move what fails to the topic of retries: values that end with 7
each time, those with 3 until they come back. It never outlives its parent.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

import trio

import raftmq
from raftmq import sync
from tests.cluster.broker_process import die_with_parent

if TYPE_CHECKING:
    from raftmq import ConsumedBatch, Transaction

MEMBER: dict[str, Any] = {
    "start": "earliest",
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 500,
    "group_instance_id": "worker",  # back after a kill, it has its partitions at once
}


def results_of(topic: str) -> str:
    return f"{topic}-results"


def reject(order: Namespace) -> None:
    with (
        sync.connect(order.bootstrap) as mq,
        mq.consumer(order.topic, group=order.topic, commit="manual", **MEMBER) as consumer,
    ):
        for record in consumer.records():
            consumer.reject(record, ValueError("no"))
            tell(record.text())
            sys.stdin.readline()
            consumer.commit(record)


def once(order: Namespace) -> None:
    async def transform(batch: ConsumedBatch, tx: Transaction) -> None:
        for value in batch.values:
            await tx.enqueue(results_of(order.topic), value)
            if (value or b"").endswith(b"7"):
                raise ValueError("seven")

    async def main() -> None:
        async with (
            raftmq.connect(order.bootstrap) as mq,
            mq.consumer(
                order.topic, group=order.topic, delivery="exactly_once", **MEMBER
            ) as consumer,
        ):
            tell("open")
            await raftmq.exactly_once(
                mq, consumer, transform, max_records=50, attempts=2, on_poison="dead_letter"
            )

    trio.run(main)


RETRY = raftmq.RetryPolicy(attempts=3, backoff=raftmq.Exponential(0.3, factor=2))


def check(value: bytes | None, *, is_back: bool) -> None:
    last = (value or b"")[-1:]
    if last == b"7" or (last == b"3" and not is_back):
        raise ValueError(last.decode())


def retry(order: Namespace) -> None:
    async def transform(batch: ConsumedBatch, tx: Transaction) -> None:
        for value in batch.values:
            await tx.enqueue(results_of(order.topic), value)
            check(value, is_back=batch.topic != order.topic)

    async def main() -> None:
        options = {"delivery": "exactly_once", "retry": RETRY, **MEMBER}
        async with (
            raftmq.connect(order.bootstrap) as mq,
            mq.consumer(order.topic, group=order.topic, **options) as consumer,
        ):
            tell("open")
            await raftmq.exactly_once(mq, consumer, transform, max_records=50, on_poison="retry")

    trio.run(main)


def retry_blocking(order: Namespace) -> None:
    def transform(batch: ConsumedBatch, tx: sync.Transaction) -> None:
        for value in batch.values:
            tx.enqueue(results_of(order.topic), value)
            check(value, is_back=batch.topic != order.topic)

    options = {"delivery": "exactly_once", "retry": RETRY, **MEMBER}
    with (
        sync.connect(order.bootstrap) as mq,
        mq.consumer(order.topic, group=order.topic, **options) as consumer,
    ):
        tell("open")
        sync.exactly_once(mq, consumer, transform, max_records=50, on_poison="retry")


def blocking(order: Namespace) -> None:
    def transform(batch: ConsumedBatch, tx: sync.Transaction) -> None:
        for value in batch.values:
            tx.enqueue(results_of(order.topic), value)
            if (value or b"").endswith(b"7"):
                raise ValueError("seven")

    options = {"delivery": "exactly_once", **MEMBER}
    with (
        sync.connect(order.bootstrap) as mq,
        mq.consumer(order.topic, group=order.topic, **options) as consumer,
    ):
        tell("open")
        sync.exactly_once(
            mq, consumer, transform, max_records=50, attempts=2, on_poison="dead_letter"
        )


def tell(words: str) -> None:
    os.write(sys.stdout.fileno(), words.encode() + b"\n")


def main() -> None:
    die_with_parent()
    parser = ArgumentParser()
    works = {"reject": reject, "once": once, "blocking": blocking}
    works |= {"retry": retry, "retry_blocking": retry_blocking}
    parser.add_argument("work", choices=works)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    order = parser.parse_args()
    works[order.work](order)


if __name__ == "__main__":
    main()
