"""`retry` on both event loops and from a thread, against a real broker over TCP (A12.4)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import raftmq
from raftmq import sync
from raftmq.client.dead_letters.letters import dead_letter_topic, read_letter, retry_topic
from raftmq.errors import RequestTimedOut
from tests.unit.client.backends import on_trio_and_asyncio
from tests.unit.client.dead_letters.test_reject_backends import MEMBER, fill

if TYPE_CHECKING:
    from raftmq.testing.server import Server

POLICY = raftmq.RetryPolicy(attempts=3, backoff=raftmq.Exponential(0.1))


@on_trio_and_asyncio
async def test_in_a_block(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Several tasks retry at once, and what comes back goes on until it is a dead letter."""
    group = f"g of {raftmq_topic}"
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await fill(mq, raftmq_topic, *map(str, range(5)))
        async with mq.consumer(raftmq_topic, group=group, retry=POLICY, **MEMBER) as consumer:
            for _ in range(3):
                records = [await anext(consumer) for _ in range(5)]
                assert sorted(record.text() for record in records) == [*map(str, range(5))]
                assert {record.origin.topic for record in records} == {raftmq_topic}
                async with anyio.create_task_group() as tasks:
                    for record in records:
                        tasks.start_soon(consumer.retry, record, "no")
        async with mq.consumer(dead_letter_topic(group), start="earliest") as consumer:
            letters = [await anext(consumer) for _ in range(5)]
        assert {read_letter(letter.headers).attempts for letter in letters} == {3}
        offsets = await mq.admin.group_offsets(group)
        assert offsets[raftmq_topic, 0].offset == 5
        assert offsets[retry_topic(group), 0].offset >= 20  # twice there, and twice back


@on_trio_and_asyncio
async def test_processed(raftmq_broker: Server, raftmq_topic: str) -> None:
    stop, seen = anyio.Event(), list[str]()

    async def handle(record: raftmq.ConsumerRecord) -> None:
        seen.append(record.topic)
        if len(seen) < 3:
            raise ValueError("no")
        stop.set()

    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await fill(mq, raftmq_topic, "a")
        await mq.process(
            raftmq_topic, handler=handle, group=raftmq_topic, retry=POLICY, stop=stop, **MEMBER
        )
    assert seen == [raftmq_topic, *[f"__retry.{raftmq_topic}"] * 2]


def test_from_a_thread(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Also within a transaction, and with a limit of time."""
    retries = f"__retry.{raftmq_topic}"
    with sync.connect(raftmq_broker.bootstrap) as mq:
        mq.admin.create_topic(raftmq_topic, replication_factor=1)
        with mq.producer() as producer:
            producer.send_many(raftmq_topic, ["a", "b"])
        options: dict[str, Any] = {"group": raftmq_topic, "retry": POLICY, **MEMBER}
        with mq.consumer(raftmq_topic, **options) as consumer:
            records = consumer.records(timeout=10)
            found = consumer.retry(next(records), KeyError("id"), timeout=10)
            assert (found.topic, found.offset) == (retries, 0)
            consumer.commit()
            with pytest.raises(RequestTimedOut):
                consumer.retry(next(records), timeout=0.0)
        with (
            mq.consumer(raftmq_topic, delivery="exactly_once", **options) as consumer,
            mq.producer(transactions=True) as producer,
        ):
            for record in consumer.records(timeout=10):
                with producer.transaction() as tx:
                    found = tx.retry(record, "again")
                    tx.commit_offsets(consumer)
                if record.text() == "a" and found.topic != retries:
                    break
        with mq.consumer(f"__dead.{raftmq_topic}", start="earliest") as consumer:
            [letter] = [one for one in consumer.records(timeout=1) if one.text() == "a"]
        assert (letter.origin.topic, letter.origin.offset) == (raftmq_topic, 0)
        assert read_letter(letter.headers).attempts == 3


def test_processed_in_threads(raftmq_broker: Server, raftmq_topic: str) -> None:
    stop, seen = threading.Event(), list[str]()

    def handle(record: raftmq.ConsumerRecord) -> None:
        seen.append(record.topic)
        if len(seen) < 3:
            raise ValueError("no")
        stop.set()

    with sync.connect(raftmq_broker.bootstrap) as mq:
        mq.admin.create_topic(raftmq_topic, replication_factor=1)
        with mq.producer() as producer:
            producer.send(raftmq_topic, "a")
        mq.process(
            raftmq_topic, handler=handle, group=raftmq_topic, retry=POLICY, stop=stop, **MEMBER
        )
    assert seen == [raftmq_topic, *[f"__retry.{raftmq_topic}"] * 2]
