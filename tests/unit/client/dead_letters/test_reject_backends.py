"""`reject` on both event loops and from a thread, against a real broker over TCP (A12.5)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import raftmq
from raftmq import sync
from raftmq.client.dead_letters.letters import dead_letter_topic, read_letter
from raftmq.errors import Closed, RequestTimedOut
from tests.unit.client.backends import on_trio_and_asyncio

if TYPE_CHECKING:
    from raftmq.testing.server import Server

MEMBER: dict[str, Any] = {"start": "earliest", "heartbeat_interval_ms": 100}


async def fill(mq: raftmq.Client, topic: str, *values: str) -> None:
    await mq.admin.create_topic(topic, replication_factor=1)
    async with mq.producer() as producer:
        await producer.send_many(topic, values)


async def letters(mq: raftmq.Client, group: str, count: int) -> list[bytes | None]:
    async with mq.consumer(dead_letter_topic(group), start="earliest") as consumer:
        return [(await anext(consumer)).value for _ in range(count)]


@on_trio_and_asyncio
async def test_in_a_block(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Several tasks reject at once; the end of the block closes the producer with the rest."""
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await fill(mq, raftmq_topic, *map(str, range(10)))
        async with mq.consumer(raftmq_topic, group=f"g of {raftmq_topic}", **MEMBER) as consumer:
            records = [await anext(consumer) for _ in range(10)]
            async with anyio.create_task_group() as tasks:
                for record in records:
                    tasks.start_soon(consumer.reject, record, "no")
        with pytest.raises(Closed):
            await consumer.reject(records[0])
        found = await letters(mq, f"g of {raftmq_topic}", 10)
        assert sorted(int(value or b"") for value in found) == [*range(10)]
        offsets = await mq.admin.group_offsets(f"g of {raftmq_topic}")
        assert offsets[raftmq_topic, 0].offset == 10


@on_trio_and_asyncio
async def test_open_and_aclose(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Without blocks, and in tasks that end before the consumer does."""
    mq = await raftmq.connect(raftmq_broker.bootstrap).open()
    await fill(mq, raftmq_topic, "a", "b")
    consumer = await mq.consumer(raftmq_topic, group=raftmq_topic, **MEMBER).open()

    async def reject_one() -> None:
        await consumer.reject(await anext(consumer))

    for _ in range(2):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reject_one)
    await consumer.aclose()
    assert await letters(mq, raftmq_topic, 2) == [b"a", b"b"]
    await mq.aclose()


@on_trio_and_asyncio
async def test_a_block_that_is_cancelled(raftmq_broker: Server, raftmq_topic: str) -> None:
    """In the midst of it: it ends, and the next member sets the record aside."""
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await fill(mq, raftmq_topic, "a")
        with anyio.CancelScope() as scope:
            async with mq.consumer(raftmq_topic, group=raftmq_topic, **MEMBER) as consumer:
                record = await anext(consumer)
                scope.cancel()
                await consumer.reject(record)
        assert scope.cancelled_caught
        async with mq.consumer(raftmq_topic, group=raftmq_topic, **MEMBER) as consumer:
            with suppress(StopAsyncIteration):
                await consumer.reject(await anext(consumer), ValueError("no"))
        assert await letters(mq, raftmq_topic, 1) == [b"a"]


@on_trio_and_asyncio
async def test_in_on_rebalance(raftmq_broker: Server, raftmq_topic: str) -> None:
    """While the consumer closes, as `commit` may."""
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await fill(mq, raftmq_topic, "a")
        held: list[raftmq.ConsumerRecord] = []

        async def on_rebalance(rebalance: raftmq.Rebalance) -> None:
            if rebalance.revoked and held:
                await consumer.reject(held.pop(), "given up")

        options = MEMBER | {"on_rebalance": on_rebalance}
        async with mq.consumer(raftmq_topic, group=raftmq_topic, **options) as consumer:
            held.append(await anext(consumer))
        assert held == []
        assert await letters(mq, raftmq_topic, 1) == [b"a"]


def test_from_a_thread(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Also within a transaction, and with a limit of time."""
    with sync.connect(raftmq_broker.bootstrap) as mq:
        mq.admin.create_topic(raftmq_topic, replication_factor=1)
        with mq.producer() as producer:
            producer.send_many(raftmq_topic, ["a", "b", "c"])
        with mq.consumer(raftmq_topic, group=raftmq_topic, **MEMBER) as consumer:
            records = consumer.records(timeout=10)
            found = consumer.reject(next(records), KeyError("id"), attempts=5, timeout=10)
            assert (found.topic, found.offset) == (f"__dead.{raftmq_topic}", 0)
            consumer.commit()
            with pytest.raises(RequestTimedOut):
                consumer.reject(next(records), timeout=0.0)
        options = {"delivery": "exactly_once", **MEMBER}
        with (
            mq.consumer(raftmq_topic, group=raftmq_topic, **options) as consumer,
            mq.producer(transactions=True) as producer,
            producer.transaction(wait_visible=True) as tx,
        ):
            record = next(consumer.records(timeout=10))
            tx.reject(record, "again")
            tx.commit_offsets(consumer)
        with mq.consumer(f"__dead.{raftmq_topic}", start="earliest") as consumer:
            read = list(consumer.records(timeout=1))
        first = read_letter(read[0].headers)
        assert (first.attempts, first.error, first.group) == (5, "KeyError: 'id'", raftmq_topic)
        assert read[-1].value == record.value
