"""What type checkers say of programs that connect and produce."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.client.typing.checker import check, mypy_complaints

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


TYPED = """
import json
from dataclasses import dataclass
from typing import Any, assert_type

import raftmq
from raftmq import sync


@dataclass(frozen=True)
class Order:
    amount: int

    def to_json(self) -> str:
        return json.dumps(self.amount)


class Options(dict[str, Any]):
    pass


def log(error: raftmq.RaftmqError | None, metadata: raftmq.RecordMetadata | None) -> None:
    print(error, metadata)


async def as_it_is(mq: raftmq.Client, producer: raftmq.Producer) -> None:
    await producer.send("orders", None, key=None)
    await producer.send("orders", bytearray(b"x"), key=memoryview(b"k"))
    producer.send_nowait("orders", "x", key=7, on_delivery=log)
    await (await producer.enqueue("orders", b"x", key="c-17"))
    await producer.send_many("orders", [b"a", "b", None])
    rows: list[dict[str, Any]] = [{"id": 1, "name": "x"}]
    await producer.send_many("orders", rows, value=lambda row: str(row["name"]), key=len)
    await producer.send_columns("orders", values=["a", b"b", None], keys=[1, 2, "c"])
    async with mq.producer(linger_ms=5) as p:
        assert_type(p, raftmq.Producer)
        await as_it_is(mq, p)
    options = Options(acks="all")
    mq.producer(**options)


async def serialized(mq: raftmq.Client, orders: raftmq.Producer[Order]) -> None:
    await orders.send("orders", Order(1), key="a")
    async with mq.producer(value_serializer=Order.to_json) as p:
        assert_type(p, raftmq.Producer[Order, Any])
        orders = p
        await p.send("orders", Order(1), key=b"k")
        await p.send("orders", None)
        await p.send_many("orders", [Order(1)])
        await p.send_many("orders", [1, 2], value=Order)
        await p.send_columns("orders", values=[Order(1)], keys=["a"])
    orders = mq.producer(value_serializer=lambda order: order.to_json())
    async with mq.producer(value_serializer=lambda row: json.dumps(row).encode()) as of_rows:
        await of_rows.send("orders", {"a": 1}, key=7)
    async with mq.producer(value_serializer=json.dumps, key_serializer=str) as p2:
        await p2.send("orders", {"a": 1}, key=3.5)


async def shared(mq: raftmq.Client, given: list[raftmq.Receipt]) -> raftmq.Receipt:
    version = mq.shared_transaction("etl-7", lineage="a", is_ephemeral=True).version(17)
    assert_type(version, raftmq.SharedVersion)
    async with version.join(linger_ms=5) as member:
        assert_type(member, raftmq.Member)
        await member.send_columns("orders", values=["a", b"b", None], keys=[1, 2, "c"])
    async with version.join(value_serializer=Order.to_json) as of_orders:
        assert_type(of_orders, raftmq.Member[Order, Any])
        await of_orders.send("orders", Order(1), key="a")
    done: raftmq.CommittedVersion = await version.commit([*given, member.receipt], count=3)
    assert_type(done.count, int | None)
    return of_orders.receipt


def blocking(mq: sync.Client) -> None:
    with mq.shared_transaction("etl-7", lineage="a").version(17).join() as member:
        assert_type(member, sync.Member)
        member.enqueue("orders", "text", on_delivery=log, timeout=5).result()
    with mq.producer() as bytes_producer:
        assert_type(bytes_producer, sync.Producer)
        bytes_producer.send("orders", "text", key=7)
    with mq.producer(value_serializer=Order.to_json) as p:
        assert_type(p, sync.Producer[Order, Any])
        p.send("orders", Order(1))
        p.enqueue("orders", Order(1), on_delivery=log).result()
"""
WRONG_VALUES = """
from dataclasses import dataclass

import raftmq
from raftmq import sync


@dataclass(frozen=True)
class Order:
    amount: int

    def to_json(self) -> str:
        return str(self.amount)


def number(order: Order) -> int:
    return order.amount


async def shared(version: raftmq.SharedVersion) -> None:
    version.join(acks=1)  # wrong
    version.join(transaction_id="a")  # wrong
    async with version.join() as member:
        await member.send("orders", Order(1))  # wrong
    async with version.join(value_serializer=Order.to_json) as of_orders:
        await of_orders.send("orders", b"x")  # wrong
    await version.commit([1])  # wrong


async def produce(mq: raftmq.Client, blocking: sync.Client) -> None:
    async with mq.producer() as p:
        await p.send("orders", {"a": 1})  # wrong
        await p.send("orders", 1)  # wrong
        await p.send("orders", b"x", key=1.5)  # wrong
        p.send_nowait("orders", Order(1))  # wrong
        await p.send_columns("orders", values=[Order(1)])  # wrong
        await p.send_many("orders", [1, 2], value=Order)  # wrong
    async with mq.producer(value_serializer=Order.to_json) as orders:
        await orders.send("orders", b"x")  # wrong
        await orders.enqueue("orders", "text")  # wrong
    mq.producer(value_serializer=number)  # wrong
    keyed: raftmq.Producer[Order] = mq.producer(value_serializer=lambda order: order.to_json())
    await keyed.send("orders", Order(1), key=1.5)  # wrong
    numbers: raftmq.Producer[int] = mq.producer(value_serializer=Order.to_json)  # wrong
    blocking.producer().send("orders", Order(1))  # wrong
    blocking.producer(value_serializer=Order.to_json).send("orders", b"x")  # wrong
    blocking.producer(value_serializer=number)  # wrong
"""


def test_right_programs(tmp_path: Path) -> None:
    """All that the documents show, strictly: no complaint."""
    check(RIGHT, mypy_complaints(RIGHT, tmp_path))


def test_values_and_keys(tmp_path: Path) -> None:
    """Bytes, text and numbers without a serializer, otherwise what it takes; and None."""
    check(TYPED, mypy_complaints(TYPED, tmp_path))


def test_wrong_values(tmp_path: Path) -> None:
    """Objects without a serializer, bytes with one, and functions of another result."""
    check(WRONG_VALUES, mypy_complaints(WRONG_VALUES, tmp_path))


def test_wrong_programs(tmp_path: Path) -> None:
    """Mistyped names, options and values."""
    check(WRONG, mypy_complaints(WRONG, tmp_path))
