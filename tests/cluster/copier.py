"""The process that copies a topic exactly once, and is killed, stopped and replaced meanwhile.

    python -m tests.cluster.copier WAY --bootstrap B

WAY is `helper` (`raftmq.exactly_once`), `by-hand` (`tx.commit_offsets` and a named id that each
process of the same `--id` takes over), `blocking` (the same from plain code), or `rival` (by hand,
with the same id as all other rivals). Each value goes to the partition of its number. It never
outlives its parent, and ends only by signals or errors.
"""

from __future__ import annotations

import logging
import os
import time
from argparse import ArgumentParser, Namespace
from typing import Any

import anyio
import anyio.to_thread

import raftmq
from raftmq import sync
from raftmq.errors import (
    OutcomeUnknown,
    ProducerFenced,
    RaftmqError,
    TransactionAborted,
    Unreachable,
)
from tests.cluster.broker_process import die_with_parent

SOURCE, TARGET, GROUP = "source", "target", "copiers"
SESSION_MS = 6000
TIMEOUT_MS = 5000
MEMBER = {
    "group": GROUP,
    "start": "earliest",
    "delivery": "exactly_once",
    "session_timeout_ms": SESSION_MS,
    "heartbeat_interval_ms": SESSION_MS // 6,
}
RECORDS_MAX = 50
AGAIN_SECONDS = 0.1
RIVAL_SECONDS = 1.0


async def with_helper(order: Namespace) -> None:
    async def copy(batch: Any, tx: Any) -> None:
        for value in batch.values:
            await tx.enqueue(TARGET, value, partition=batch.partition)

    async with (
        raftmq.connect(order.bootstrap) as mq,
        mq.consumer(SOURCE, **MEMBER) as consumer,
    ):
        await raftmq.exactly_once(mq, consumer, copy, interval_ms=50, max_records=RECORDS_MAX)


async def by_hand(order: Namespace) -> None:
    """What is aborted is read again by a new consumer: from where the group has committed."""
    async with (
        raftmq.connect(order.bootstrap) as mq,
        mq.producer(transaction_id=order.id, transaction_timeout_ms=TIMEOUT_MS) as producer,
    ):
        while True:
            try:
                await copy_on(mq, producer)
            except ProducerFenced:
                raise
            except RaftmqError as error:
                logging.warning("again: %r", error)


async def as_rival(order: Namespace) -> None:
    """All rivals have one id: each opens it again when another one has fenced it."""
    order.id = "rival"
    while True:
        try:
            await by_hand(order)
        except ProducerFenced as error:
            logging.warning("fenced: %r", error)
            await anyio.sleep(RIVAL_SECONDS)
            await anyio.to_thread.run_sync(wait_for_a_broker, order.bootstrap)


async def copy_on(mq: Any, producer: Any) -> None:
    async with mq.consumer(SOURCE, **MEMBER) as consumer:
        async for batch in consumer.batches(max_records=RECORDS_MAX):
            tx = producer.transaction()
            try:
                async with tx:
                    rows = batch.values
                    await tx.send_many(TARGET, rows, partition=batch.partition)
                    tx.commit_offsets(batch)
            except OutcomeUnknown:
                await resolve(tx)


async def resolve(tx: Any) -> None:
    while True:
        try:
            outcome = await tx.resolve()
        except OutcomeUnknown as error:
            logging.warning("not known yet: %r", error)
            if tx.state != "unknown":  # nobody knows any more
                raise
            await anyio.sleep(AGAIN_SECONDS)
        else:
            if outcome == "aborted":
                raise TransactionAborted("it was not committed")
            return


def from_plain_code(order: Namespace) -> None:
    options = {"transaction_id": order.id, "transaction_timeout_ms": TIMEOUT_MS}
    with sync.connect(order.bootstrap) as mq, mq.producer(**options) as producer:
        while True:
            try:
                copy_plainly(mq, producer)
            except ProducerFenced:
                raise
            # Also a commit without an answer: the new consumer is another member, so the group
            # refuses the offsets of the old one from then on.
            except RaftmqError as error:
                logging.warning("again: %r", error)


def copy_plainly(mq: Any, producer: Any) -> None:
    with mq.consumer(SOURCE, **MEMBER) as consumer:
        for batch in consumer.batches(max_records=RECORDS_MAX):
            with producer.transaction() as tx:
                for value in batch.values:
                    tx.enqueue(TARGET, value, partition=batch.partition)
                tx.commit_offsets(batch)


def wait_for_a_broker(bootstrap: str) -> None:
    """All of them may be down when it is started."""
    while True:
        try:
            with sync.connect(bootstrap):
                return
        except Unreachable:
            time.sleep(AGAIN_SECONDS)


def main() -> None:
    die_with_parent()
    parser = ArgumentParser()
    parser.add_argument("way", choices=("helper", "by-hand", "blocking", "rival"))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--id")
    order = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    wait_for_a_broker(order.bootstrap)
    if order.way == "blocking":
        from_plain_code(order)
    else:
        run = {"helper": with_helper, "by-hand": by_hand, "rival": as_rival}[order.way]
        anyio.run(run, order, backend="trio" if os.getpid() % 2 else "asyncio")


if __name__ == "__main__":
    main()
