"""A program with transactions that is killed, or ended, and started again.

    python -m tests.cluster.transaction_program hold --bootstrap B --topic T
    python -m tests.cluster.transaction_program join --bootstrap B --topic T
    python -m tests.cluster.transaction_program load --bootstrap B --topic T --versions N

`hold` sends in a transaction that it never ends. `join` sends as a member of version 1 of a shared
one that is named like the topic, and never ends. `load` commits versions 0 to N - 1 of one id, a
record each, and tells of each on stdout whether it was done before. It never outlives its parent.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace

from raftmq import sync
from tests.cluster.broker_process import die_with_parent

HELD, LOADER = "held", "loader"
HELD_TIMEOUT_MS = 2000


def hold(order: Namespace, mq: sync.Client) -> None:
    topic: str = order.topic
    options = {"transaction_id": HELD, "transaction_timeout_ms": HELD_TIMEOUT_MS}
    with mq.producer(**options) as producer, producer.transaction() as tx:
        tx.send(topic, b"never", partition=0)
        tell("sent")
        time.sleep(3600)


def join(order: Namespace, mq: sync.Client) -> None:
    topic: str = order.topic
    with mq.shared_transaction(topic, lineage="").version(1).join() as member:
        member.send(topic, b"half of a task")
        tell("sent")
        time.sleep(3600)


def load(order: Namespace, mq: sync.Client) -> None:
    topic: str = order.topic
    with mq.producer(transaction_id=LOADER) as producer:
        for version in range(order.versions):
            with producer.transaction(version=version) as tx:
                is_done = tx.is_done
                tx.send(topic, b"%d" % version, partition=0)
            tell(f"{version} {is_done}")


def tell(words: str) -> None:
    os.write(sys.stdout.fileno(), words.encode() + b"\n")


def main() -> None:
    die_with_parent()
    parser = ArgumentParser()
    parser.add_argument("work", choices=("hold", "join", "load"))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--versions", type=int)
    order = parser.parse_args()
    with sync.connect(order.bootstrap) as mq:
        {"hold": hold, "join": join, "load": load}[order.work](order, mq)


if __name__ == "__main__":
    main()
