"""The producer against a real broker over real sockets, on trio and on asyncio.

Everything that a program may call, as the documentation writes it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from raftmq.client.client import connect
from raftmq.errors import (
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    OutcomeUnknown,
    RaftmqError,
    UnknownTopicOrPartition,
)
from raftmq.testing import broker
from tests.unit.client.backends import on_trio_and_asyncio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from raftmq.testing.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One for all: each test makes its own topic."""
    with broker() as started:
        yield started


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "".join(each if each.isalnum() else "-" for each in request.node.name)


async def read(mq: Any, topic: str, count: int) -> list[Any]:
    """The first records of a topic."""
    found: list[Any] = []
    async with mq.consumer(topic, start="earliest") as consumer:
        async for record in consumer:
            found.append(record)
            if len(found) == count:
                break
    return found


@on_trio_and_asyncio
async def test_every_call(server: Server, topic: str) -> None:
    """One record by each of the ways there are (A4.7)."""
    async with connect(server.bootstrap) as mq:
        await mq.admin.create_topic(topic, partitions=1)
        told: list[Any] = []
        async with mq.producer(acks="all", linger_ms=5, compression="zstd") as producer:
            meta = await producer.send(
                topic, b"hello", key=b"c-17", headers={"trace": b"1"}, tags=["refund"]
            )
            assert (meta.topic, meta.partition, meta.offset) == (topic, 0, 0)
            assert meta.timestamp > 1_600_000_000_000
            delivery = producer.send_nowait(
                topic, b"1", on_delivery=lambda *given: told.append(given)
            )
            assert (await delivery).offset == 1
            assert (await (await producer.enqueue(topic, b"2"))).offset == 2
            [result] = await producer.send_many(topic, [b"3", b"4"], key=lambda row: row)
            assert (result.base_offset, result.end_offset) == (3, 5)
            [result] = await producer.send_columns(topic, values=[b"5"], timestamps=[7])
            await producer.flush()
        assert [error for error, _ in told] == [None]
        records = await read(mq, topic, 6)
        assert [record.value for record in records] == [b"hello", *[b"%d" % n for n in range(1, 6)]]
        assert (records[0].key, dict(records[0].headers)) == (b"c-17", {"trace": b"1"})
        assert (list(records[0].tags), records[5].timestamp) == (["refund"], 7)


@on_trio_and_asyncio
async def test_many_records(server: Server, topic: str) -> None:
    """Twenty thousand over eight partitions, from a list and from an async generator: all once.

    A4.10.
    """

    async def rows() -> AsyncIterator[bytes]:
        for number in range(10_000, 20_000):
            yield b"%d" % number

    async with connect(server.bootstrap) as mq:
        await mq.admin.create_topic(topic, partitions=8)
        async with mq.producer(preset="high_throughput") as producer:
            first = [b"%d" % number for number in range(10_000)]
            results = await producer.send_many(topic, first, key=lambda row: row)
            results += await producer.send_many(topic, rows(), progress=True)
        assert sum(result.record_count for result in results) == 20_000
        records = await read(mq, topic, 20_000)
        assert {int(record.value) for record in records} == set(range(20_000))


@pytest.mark.parametrize("acks", [0, 1, "all"])
@on_trio_and_asyncio
async def test_acks(server: Server, topic: str, acks: Any) -> None:
    """Each of them arrives, in order (A5.1)."""
    async with connect(server.bootstrap) as mq:
        await mq.admin.create_topic(topic, partitions=1)
        async with mq.producer() as producer:
            await producer.send(topic, b"0")  # it is led now: with acks=0 nobody would say so
        async with mq.producer(acks=acks) as producer:
            for number in range(1, 100):
                await producer.enqueue(topic, b"%d" % number)
            meta = await producer.send(topic, b"100")
            assert meta.offset == (-1 if acks == 0 else 100)
        records = await read(mq, topic, 101)
        assert [int(record.value) for record in records] == list(range(101))


@on_trio_and_asyncio
async def test_errors_are_no_groups(server: Server, topic: str) -> None:
    """What goes wrong comes out as itself, of calls and of blocks."""
    async with connect(server.bootstrap) as mq:
        await mq.admin.create_topic(topic, partitions=1)
        with pytest.raises(InvalidRecord, match="value is a float, expected bytes"):
            async with mq.producer() as producer:
                await producer.send(topic, 1.5)  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("raftmq.client.producer.sender.MISSING_SECONDS", 0.5)
            with pytest.raises(UnknownTopicOrPartition, match="make it first"):
                async with mq.producer() as producer:
                    producer.send_nowait("nope", b"x")
        with suppress(KeyError):
            async with mq.producer() as producer:
                await producer.send(topic, b"x")
                raise KeyError


@on_trio_and_asyncio
async def test_a_block_that_is_cancelled(server: Server, topic: str) -> None:
    """It ends at once, whatever is under way; the client goes on."""
    async with connect(server.bootstrap) as mq:
        await mq.admin.create_topic(topic, partitions=1)
        with anyio.move_on_after(0.2) as scope:
            async with mq.producer(linger_ms=60_000) as producer:
                producer.send_nowait(topic, b"lingers")
                producer.send_nowait("nope", b"waits")
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        with anyio.move_on_after(0.05):
            async with mq.producer() as producer:
                while True:
                    await producer.send(topic, b"y" * 10_000)
        async with mq.producer() as producer:
            await producer.send(topic, b"works")


@on_trio_and_asyncio
async def test_many_tasks_share_a_producer(server: Server, topic: str) -> None:
    """A small buffer, fifty tasks, each with its own key: each finds its records in order.

    A17.1.
    """
    async with connect(server.bootstrap) as mq:
        await mq.admin.create_topic(topic, partitions=4)
        async with mq.producer(
            linger_ms=1, buffer_memory=64 << 10, max_request_size=10_000, batch_size=2_000
        ) as producer:

            async def work(task: int) -> None:
                for number in range(20):
                    await producer.enqueue(topic, b"%d" % number + b"." * 1000, key=task)

            async with anyio.create_task_group() as tasks:
                for task in range(50):
                    tasks.start_soon(work, task)
        found: dict[Any, list[int]] = {}
        for record in await read(mq, topic, 1000):
            found.setdefault(record.key, []).append(int(record.value.rstrip(b".")))
        assert len(found) == 50
        assert all(numbers == list(range(20)) for numbers in found.values())


@on_trio_and_asyncio
async def test_a_broker_that_is_killed(topic: str) -> None:
    """And started again: what was handed in meanwhile arrives, what is told is true."""
    with broker() as started:
        async with connect(started.bootstrap) as mq:
            await mq.admin.create_topic(topic, partitions=1)
            async with mq.producer(delivery_timeout_ms=25_000) as producer:
                await producer.send(topic, b"0")
                await anyio.to_thread.run_sync(started.kill_node, 1)
                deliveries = [producer.send_nowait(topic, b"%d" % each) for each in range(1, 9)]
                await anyio.to_thread.run_sync(started.start_node, 1)
                for delivery in deliveries:
                    try:
                        await delivery
                    except OutcomeUnknown as error:
                        raise AssertionError("25 s are enough") from error
            values = [int(record.value) for record in await read(mq, topic, 9)]
            assert list(dict.fromkeys(values)) == list(range(9))


@on_trio_and_asyncio
async def test_at_most_once_and_gone(server: Server, topic: str) -> None:
    """A program that sends with acks=0 and ends: what it sent has left before it does."""
    async with connect(server.bootstrap) as mq:
        await mq.admin.create_topic(topic, partitions=1)
        async with mq.producer() as producer:
            await producer.send(topic, b"first")  # it is led now: else nobody would say so
        async with mq.producer(acks=0) as producer:
            for number in range(20_000):
                await producer.enqueue(topic, b"%d" % number + b"." * 100)
    async with connect(server.bootstrap) as mq:
        records = await read(mq, topic, 20_001)
        assert [int(record.value.rstrip(b".")) for record in records[1:]] == list(range(20_000))


@on_trio_and_asyncio
@pytest.mark.parametrize(
    "options", [{}, {"idempotence": False}, {"name": "loader", "generation": 1}], ids=str
)
async def test_what_is_taken_one_by_one_is_taken_together(
    server: Server, topic: str, options: dict[str, Any]
) -> None:
    """A batch over the topic's limit leaves in pieces; a record that is at fault fails alone."""
    async with connect(server.bootstrap) as mq:
        config = {"max.message.bytes": 20_000}
        await mq.admin.create_topic(topic, partitions=1, config=config)
        out: list[RaftmqError | None] = []
        async with mq.producer(**options) as producer:
            for number in range(1000):
                producer.send_nowait(
                    topic, b"%04d" % number + b"x" * 496, on_delivery=lambda e, _: out.append(e)
                )
            await producer.flush()
            results = await producer.send_many(topic, [b"y" * 500] * 500)
        assert out == [None] * 1000
        assert sum(result.record_count for result in results) == 500
        records = await read(mq, topic, 1500)
        first = records[0].offset  # behind the fence of a name
        assert [record.offset for record in records] == list(range(first, first + 1500))
        assert [int(record.value[:4]) for record in records[:1000]] == list(range(1000))


@on_trio_and_asyncio
async def test_one_wrong_record_fails_alone(server: Server, topic: str) -> None:
    """Of a hundred, one is two hours ahead, and one too large."""
    async with connect(server.bootstrap) as mq:
        config = {"max.message.bytes": 20_000}
        await mq.admin.create_topic(topic, partitions=1, config=config)
        out: dict[int, RaftmqError | None] = {}
        now = int(time.time() * 1000)
        async with mq.producer() as producer:
            for number in range(100):
                producer.send_nowait(
                    topic,
                    b"y" * (30_000 if number == 70 else 10),
                    timestamp=now + (7_200_000 if number == 50 else 0),
                    on_delivery=lambda e, _, number=number: out.__setitem__(number, e),
                )
            await producer.flush()
        failed = {number: error for number, error in out.items() if error is not None}
        assert {number: type(error) for number, error in failed.items()} == {
            50: InvalidTimestamp,
            70: MessageTooLarge,
        }
        assert len(out) == 100
        assert len(await read(mq, topic, 98)) == 98
