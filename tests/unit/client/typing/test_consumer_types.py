"""What type checkers say of programs that consume and administer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.client.typing.checker import check, mypy_complaints

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = """
import asyncio
import json
import threading
from datetime import UTC, datetime

import raftmq
from raftmq.sync import connect


async def consume(mq: raftmq.Client) -> None:
    made = await mq.admin.create_topic("orders", partitions=6, if_not_exists=True)
    is_new: bool = made.is_new
    await mq.admin.delete_topic("orders", missing_ok=is_new)
    mq.consumer("orders", start="earliest", group="g", commit="manual", delivery="at_least_once")
    mq.consumer("orders", start=42, auto_offset_reset="latest")

    async def on_rebalance(change: raftmq.Rebalance) -> None:
        print(change.assigned, change.revoked, change.lost, change.generation)

    mq.consumer("orders", group="g", on_rebalance=on_rebalance)
    mq.consumer("orders", start=datetime.now(UTC))
    async with mq.consumer("orders", value_deserializer=json.loads) as c:
        async for record in c:
            text: str = record.text()
            size: int = record.size
            when: datetime | None = record.time
            last: int | None = c.last_consumed("orders", 0)
            print(text, size, when, last, record.json()["a"], record.key)
        async for batch in c.batches(max_records=5):
            print(batch.raw.values, batch.last_offset)
            await c.commit(batch)


async def work(mq: raftmq.Client, stop: asyncio.Event) -> None:
    async def bill(record: raftmq.ConsumerRecord[int, str]) -> None:
        assert record.value is not None
        print(record.value + 1, record.key)

    policy = raftmq.RetryPolicy(attempts=3, backoff=raftmq.Exponential(1), in_place=True)
    await mq.process(
        "orders", group="g", handler=bill, value_deserializer=int, key_deserializer=str,
        retry=policy, concurrency=8, stop=stop,
    )
    await mq.process("orders", group="g", handler=lambda record: record.text(), retry="in_place")


def work_blocking(stop: threading.Event) -> None:
    with connect() as mq:
        mq.process("orders", pattern="a.*", group="g", handler=print, stop=stop)


def consume_blocking() -> None:
    with connect() as mq:
        mq.admin.create_topic("orders", if_not_exists=True)
        consumer = mq.consumer("orders", start="latest", key_deserializer=bytes.decode)
        for record in consumer.records(timeout=5):
            print(record.text().upper())
"""
WRONG = """
import raftmq
from raftmq import sync


async def consume(mq: raftmq.Client, blocking: sync.Client, word: str) -> None:
    mq.consumer("orders", start="begining")  # wrong
    mq.consumer("orders", start=word)  # wrong
    mq.consumer("orders", group="g", commit="manuel")  # wrong
    mq.consumer("orders", auto_offset_reset="beginning")  # wrong
    mq.consumer("orders", group="g", delivery="at_most_twice")  # wrong
    mq.consumer("orders", value_deserializer="json")  # wrong
    mq.consumer("orders", strat="earliest")  # wrong
    await mq.process("orders", group="g", handler=print, retry="inplace")  # wrong
    await mq.process("orders", group="g", handler=5)  # wrong
    await mq.process("orders", group="g", handler=print, strat="earliest")  # wrong
    blocking.process("orders", group="g", handler=print, stop=True)  # wrong
    blocking.consumer("orders", start="begining")  # wrong
    blocking.consumer("orders", strat="earliest")  # wrong
    await mq.admin.create_topic("orders", partition=3)  # wrong
    blocking.admin.create_topic("orders", if_exists=True)  # wrong
    await mq.admin.offsets("orders", "erliest")  # wrong
    mq.consumer("orders", group="g", on_rebalance=print, comit="none")  # wrong
    raftmq.Rebalance().count  # wrong
    async for record in mq.consumer("orders"):
        print(record.count)  # wrong
        topic, partition, *rest = record  # wrong
        record.value = b"x"  # wrong
"""


TYPED = """
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_type

import raftmq
from raftmq import sync

Key = bytes | str | int | None


@dataclass(frozen=True)
class Order:
    amount: int

    @classmethod
    def of(cls, data: bytes) -> "Order":
        return cls(int(data))


class Options(dict[str, Any]):
    pass


def handle(record: raftmq.ConsumerRecord[Order]) -> None:
    assert_type(record.value, Order | None)
    assert_type(record.key, Key)


def log(record: raftmq.ConsumerRecord[object, object]) -> None:
    print(record.offset, record.value)


async def as_sent(mq: raftmq.Client, consumer: raftmq.Consumer) -> None:
    record = await anext(consumer)
    assert_type(record, raftmq.ConsumerRecord)
    assert_type(record.value, bytes | None)
    assert_type(record.key, Key)
    assert_type(record.text(), str)
    log(record)
    async with mq.consumer("orders", group="g", value_deserializer=None) as c:
        assert_type(c, raftmq.Consumer)
        await as_sent(mq, c)
        async for record in c:
            with c.processing(record):
                await c.commit(record)
        async for batch in c.batches():
            assert_type(batch.values, Sequence[bytes | None])
            assert_type(batch.keys, Sequence[Key])
            assert_type([record.value for record in batch], list[bytes | None])
    assert_type(await mq.consumer("orders").open(), raftmq.Consumer)
    options = Options(group="g")
    mq.consumer("orders", **options)


async def deserialized(mq: raftmq.Client) -> None:
    async with mq.consumer("orders", value_deserializer=Order.of) as c:
        async for record in c:
            handle(record)
            log(record)
            await c.commit(record)
        async for batch in c.batches():
            assert_type(batch.values, Sequence[Order | None])
            assert_type(batch.raw.values, Sequence[bytes | None])
            for record in batch:
                handle(record)
    both = mq.consumer("orders", value_deserializer=Order.of, key_deserializer=bytes.decode)
    assert_type(both, raftmq.Consumer[Order, str])
    read: raftmq.Consumer[Order] = both
    keys = mq.consumer("orders", key_deserializer=bytes.decode)
    assert_type(keys, raftmq.Consumer[bytes, str])
    mq.consumer("orders", value_deserializer=lambda data: Order(len(data)))
    found = (await anext(mq.consumer("orders", value_deserializer=json.loads))).value
    if found is not None:
        print(found["amount"], read)


def blocking(mq: sync.Client, other: sync.Consumer[Order]) -> None:
    for record in other:
        handle(record)
    consumer = mq.consumer("orders", value_deserializer=Order.of)
    assert_type(consumer, sync.Consumer[Order])
    with consumer as c:
        for record in c.records(timeout=1):
            handle(record)
            c.commit(record)
        for batch in c.batches(timeout=1):
            assert_type(batch.values, Sequence[Order | None])
    assert_type(next(mq.consumer("orders").records()).value, bytes | None)
"""
WRONG_VALUES = """
import raftmq
from raftmq import sync


def number(data: bytes) -> int:
    return int(data)


def of_text(data: str) -> int:
    return int(data)


def shout(record: raftmq.ConsumerRecord[str]) -> None: ...


async def consume(mq: raftmq.Client, blocking: sync.Client) -> None:
    record = await anext(mq.consumer("orders"))
    record.value.nonsense  # wrong
    record.key.nonsense  # wrong
    record.value.decode()  # wrong
    shout(record)  # wrong
    numbers = mq.consumer("orders", value_deserializer=number)
    (await anext(numbers)).value.nonsense  # wrong
    (await anext(numbers)).value + 1  # wrong
    shout(await anext(numbers))  # wrong
    strings: raftmq.Consumer[str] = numbers  # wrong
    mq.consumer("orders", value_deserializer=of_text)  # wrong
    async for batch in mq.consumer("orders").batches():
        batch.values[0].nonsense  # wrong
        sum(map(len, batch.values))  # wrong
    next(blocking.consumer("orders").records()).value.nonsense  # wrong
    blocking.consumer("orders", value_deserializer=of_text)  # wrong
    for one in blocking.consumer("orders", value_deserializer=number):
        shout(one)  # wrong
"""


def test_right_programs(tmp_path: Path) -> None:
    """All that the documents show, strictly: no complaint."""
    check(RIGHT, mypy_complaints(RIGHT, tmp_path))


def test_values_and_keys(tmp_path: Path) -> None:
    """Bytes without a deserializer, otherwise what it makes; None, as a record may have none."""
    check(TYPED, mypy_complaints(TYPED, tmp_path))


def test_wrong_values(tmp_path: Path) -> None:
    """What a value has not, a value that may be None, and functions of another type."""
    check(WRONG_VALUES, mypy_complaints(WRONG_VALUES, tmp_path))


def test_wrong_programs(tmp_path: Path) -> None:
    """Mistyped options and values, and what a record has not."""
    check(WRONG, mypy_complaints(WRONG, tmp_path))
