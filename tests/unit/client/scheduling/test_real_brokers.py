"""Scheduled records with real brokers in the test's process, by every face of the SDK (A12.2)."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

import anyio
import pytest

import raftmq
from raftmq.errors import CannotCancel, InvalidConfig, InvalidRecord, InvalidTimestamp
from tests.unit.client.backends import on_trio_and_asyncio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq.client.client import Client
    from raftmq.client.consumer.record import ConsumerRecord
    from raftmq.testing import Server

SOON = 0.3


@asynccontextmanager
async def connected(broker: Server, topic: str) -> AsyncIterator[Client]:
    async with raftmq.connect(broker.bootstrap) as mq:
        await mq.admin.create_topic(topic)
        yield mq


def check_delivered(record: ConsumerRecord, made_before: float) -> None:
    """Not early; by the same clock here."""
    assert record.due is not None
    assert record.scheduled_at is not None
    assert made_before - 1 <= record.scheduled_at <= record.timestamp
    assert record.due <= record.timestamp
    assert record.due % 100 == 0


@on_trio_and_asyncio
async def test_a_delay(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Others overtake it; it comes once, behind its due time, also where its session is new."""
    async with connected(raftmq_broker, raftmq_topic) as mq, mq.producer() as producer:
        started = time.time() * 1000
        await producer.send(raftmq_topic, b"later", key=b"k", delay=SOON, headers={"h": b"1"})
        await producer.send(
            raftmq_topic, b"level", key=b"k", deliver_at=datetime.now(UTC) + timedelta(seconds=0.5)
        )
        await producer.send(raftmq_topic, b"over", key=b"k", deliver_at=int(started) - 1000)
        await producer.send(raftmq_topic, b"now", key=b"k")
        async with mq.consumer(raftmq_topic, start="earliest") as consumer:
            found = [await anext(consumer) for _ in range(4)]
        assert {record.value for record in found[:2]} == {b"now", b"over"}
        assert [record.value for record in found[2:]] == [b"later", b"level"]
        for record in found:
            if record.value == b"now":
                assert (record.due, record.scheduled_at) == (None, None)
            else:
                check_delivered(record, started)
        assert found[2].headers == (("h", b"1"),)
        async with mq.consumer(raftmq_topic, start="earliest", tags="*") as consumer:
            again = [(await anext(consumer)).value for _ in range(4)]
            assert again == [record.value for record in found]
            with anyio.move_on_after(0.5):
                pytest.fail(f"twice: {await anext(consumer)}")


@on_trio_and_asyncio
async def test_a_group_and_a_filter_pass_over_what_waits(
    raftmq_broker: Server, raftmq_topic: str
) -> None:
    """Positions are committed behind it; the next member gets the delivery and nothing else."""
    async with connected(raftmq_broker, raftmq_topic) as mq, mq.producer() as producer:
        await producer.send(raftmq_topic, b"a", partition=0)
        sent = await producer.send(raftmq_topic, b"b", partition=0, delay=1, tags=["eu"])
        await producer.send(raftmq_topic, b"c", partition=0, delay=1, tags=["us"])
        reading = {"group": raftmq_topic, "start": "earliest", "tags": "!us"}
        async with mq.consumer(raftmq_topic, **reading) as consumer:
            assert (await anext(consumer)).value == b"a"
            await consumer.commit()
        async with mq.consumer(raftmq_topic, **reading) as consumer:
            record = await anext(consumer)
            assert (record.value, record.tags) == (b"b", ("eu",))
            assert record.offset > sent.offset
            with anyio.move_on_after(0.5):
                pytest.fail(f"and more: {await anext(consumer)}")


@on_trio_and_asyncio
async def test_lists_and_cancels(raftmq_broker: Server, raftmq_topic: str) -> None:
    """By handles; a cancelled record never comes, the others of its batch do (A12.3)."""
    async with (
        connected(raftmq_broker, raftmq_topic) as mq,
        mq.producer(linger_ms=20) as producer,
    ):
        at = datetime.now(UTC) + timedelta(seconds=1)
        sent = [
            await producer.enqueue(raftmq_topic, value, key=b"k", deliver_at=at)
            for value in (b"a", b"b", b"c")
        ]
        handles = [(await one).schedule_handle for one in sent]
        far = await producer.send(raftmq_topic, b"d", key=b"k", delay=3600, tags=["x"])
        listed = await mq.admin.scheduled(raftmq_topic)
        assert [one.handle for one in listed.records] == [*handles, far.schedule_handle]
        assert (listed.batch_count, listed.is_complete) == (2, True)
        last = listed.records[-1]
        assert (last.key, last.tags, last.value_size) == (b"k", ("x",), 1)
        assert handles[1] is not None
        assert far.schedule_handle is not None
        assert await mq.admin.cancel_scheduled(handles[1]) == {}
        assert await mq.admin.cancel_scheduled([far.schedule_handle]) == {}
        with pytest.raises(CannotCancel) as caught:
            await mq.admin.cancel_scheduled(handles[1])
        assert caught.value.reason == "cancelled"
        async with mq.consumer(raftmq_topic, start="earliest") as consumer:
            assert [(await anext(consumer)).value for _ in range(2)] == [b"a", b"c"]
        assert (await mq.admin.scheduled(raftmq_topic)).batch_count == 0
        assert handles[0] is not None
        failed = await mq.admin.cancel_scheduled([handles[0]])
        assert isinstance(failed[handles[0]], CannotCancel)
        assert failed[handles[0]].reason == "delivered"


@on_trio_and_asyncio
async def test_in_a_transaction(raftmq_broker: Server, raftmq_topic: str) -> None:
    """It counts with the commit, and not at all after an abort (A11.3)."""
    async with (
        connected(raftmq_broker, raftmq_topic) as mq,
        mq.producer(transactions=True) as producer,
    ):
        async with producer.transaction() as tx:
            await tx.send(raftmq_topic, b"never", key=b"k", delay=0)
            await tx.abort()
        async with producer.transaction() as tx:
            await tx.send(raftmq_topic, b"late", key=b"k", delay=0)
            [waiting] = (await mq.admin.scheduled(raftmq_topic)).records[-1:]
            assert waiting.is_undecided
            await anyio.sleep(0.3)
        async with mq.consumer(raftmq_topic, start="earliest") as consumer:
            assert (await anext(consumer)).value == b"late"


@on_trio_and_asyncio
async def test_levels_and_limits(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Of the topic; beyond delay.max.ms and in Kafka's format the broker refuses, others go on."""
    async with connected(raftmq_broker, raftmq_topic) as mq, mq.producer() as producer:
        config = {"delay.levels": "1ms 1h", "delay.max.ms": 60_000}
        await mq.admin.alter_config(raftmq_topic, config)
        with pytest.raises(InvalidConfig, match="is no duration"):
            await mq.admin.alter_config(raftmq_topic, {"delay.levels": "soon"})
        await producer.send(raftmq_topic, b"a", delay_level=1)
        with pytest.raises(InvalidRecord, match="has levels 1 to 2: 1ms 1h"):
            await producer.send(raftmq_topic, b"b", delay_level=3)
        good = await producer.enqueue(raftmq_topic, b"c", partition=0)
        bad = await producer.enqueue(raftmq_topic, b"d", partition=0, delay_level=2)
        fine = await producer.enqueue(raftmq_topic, b"e", partition=0, delay=1)
        with pytest.raises(InvalidTimestamp, match=r"over delay\.max\.ms"):
            await bad
        assert (await good).offset < (await fine).offset
        kafka = f"{raftmq_topic}-kafka"
        await mq.admin.create_topic(kafka, config={"record.format": "kafka"})
        with pytest.raises(InvalidRecord, match="columns"):
            await producer.send(kafka, b"f", delay=1)


def test_blocking(raftmq_broker: Server, raftmq_topic: str) -> None:
    """`raftmq.sync`, from a plain thread."""
    with raftmq.sync.connect(raftmq_broker.bootstrap) as mq:
        started = time.time() * 1000
        mq.admin.create_topic(raftmq_topic)
        with mq.producer() as producer:
            sent = producer.send(raftmq_topic, b"a", delay=SOON)
            level = producer.enqueue(raftmq_topic, b"b", delay_level=18).result()
            producer.send_nowait(raftmq_topic, b"c", delay=timedelta(milliseconds=600))
        assert sent.schedule_handle is not None
        assert level.schedule_handle is not None
        assert len(mq.admin.scheduled(raftmq_topic).records) >= 2
        assert mq.admin.cancel_scheduled(level.schedule_handle) == {}
        with mq.consumer(raftmq_topic, start="earliest") as consumer:
            found = list(islice(consumer, 2))
        assert [record.value for record in found] == [b"a", b"c"]
        for record in found:
            check_delivered(record, started)
