"""What type checkers say of programs that connect and produce."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.client.typing.checker import check

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = """
import json
from datetime import UTC, datetime

import raftmq
from raftmq import OutcomeUnknown, TopicAlreadyExists, sync


async def produce() -> None:
    mq: raftmq.Client = await raftmq.connect(["a:1", "b:1"], client_id="me").open()
    async with mq.producer(acks="all", compression="zstd", partitioner="murmur2") as p:
        sent = await p.send("orders", "text", key="c-17", headers={"a": "1", "b": b"2"})
        topic, partition, offset, timestamp = sent
        await p.send("orders", b"x", key=7, tags=["new"], timestamp=datetime.now(UTC))
        delivery: raftmq.Delivery = p.send_nowait("orders", b"x", timestamp=1)
        print((await delivery).offset + offset)
        batches = await p.send_many("orders", (b"x" for _ in range(3)), progress=True, total=3)
        print(sum(batch.record_count + batch.count for batch in batches))
        await p.send_columns("orders", values=[b"a", "b"], timestamps=[datetime.now(UTC)] * 2)
    async with mq.producer(acks=2, preset="low_latency", value_serializer=json.dumps) as p:
        await p.send("orders", {"a": 1})
    mq.producer(delivery="at_least_once", partitioner=lambda topic, key, value, headers, n: 0)
    try:
        await mq.admin.create_topic("orders")
    except (TopicAlreadyExists, raftmq.Unreachable, raftmq.errors.Closed) as error:
        print(error.definite, OutcomeUnknown.definite)
    admin: raftmq.Admin = mq.admin
    await admin.list_topics()
    await mq.aclose()


def produce_blocking() -> None:
    mq: sync.Client = raftmq.sync.connect().open()
    with mq.producer(acks=1) as p:
        p.send("orders", "text", timeout=5, timestamp=datetime.now(UTC)).offset
    admin: sync.Admin = mq.admin
    admin.list_topics()
    mq.close()
"""
WRONG = """
import raftmq
import raftmq.testing
from raftmq import Konsumer  # wrong
from raftmq import sync
from raftmq.testing import Brokr  # wrong

raftmq.Produzer  # wrong


async def produce(mq: raftmq.Client, blocking: sync.Client, word: str) -> None:
    raftmq.connect(clientid="me")  # wrong
    sync.connect(clientid="me")  # wrong
    raftmq.connect(client_id=5)  # wrong
    mq.producer(acks="al")  # wrong
    mq.producer(acks=word)  # wrong
    mq.producer(compression="ztsd")  # wrong
    mq.producer(preset="fast")  # wrong
    mq.producer(delivery="exactly_once")  # wrong
    mq.producer(partitioner="crc")  # wrong
    mq.producer(linger=5)  # wrong
    blocking.producer(acks="al")  # wrong
    blocking.producer(linger=5)  # wrong
    async with mq.producer() as p:
        await p.send("orders", b"x", timestamp="now")  # wrong
        await p.send("orders", b"x", header={"a": b"1"})  # wrong
        await p.send("orders", b"x", partition="0")  # wrong
"""


def test_right_programs(tmp_path: Path) -> None:
    """All that the documents show, strictly: no complaint."""
    check(RIGHT, tmp_path)


def test_wrong_programs(tmp_path: Path) -> None:
    """Mistyped names, options and values."""
    check(WRONG, tmp_path)
