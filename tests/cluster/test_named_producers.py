"""Producers with names against three brokers: tasks that die, are repeated, and overlap.

After each story the topic is read to its end: every row stands there once, in the order of its key.

A11.3.
"""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

import raftmq
from raftmq import sync, testing
from raftmq.errors import InvalidRecord, ProducerFenced, ReplayMismatch
from tests.unit.client.backends import on_trio_and_asyncio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster

NAME: dict[str, Any] = {"name": "etl/3", "generation": 17}
PARTITIONS = 4
ROWS = [b"%d" % number for number in range(5000)]
KEYS = [number % 97 for number in range(5000)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with testing.cluster(3) as server:
        yield server


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "".join(each if each.isalnum() else "-" for each in request.node.name)


async def create(mq: raftmq.Client, topic: str, **config: Any) -> None:
    settings = {"min.insync.replicas": 2, **config}
    await mq.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3, config=settings)


async def read(mq: raftmq.Client, topic: str) -> list[Any]:
    """All records, up to a last one in each partition that is sent now."""
    async with mq.producer() as producer:
        for partition in range(PARTITIONS):
            await producer.send(topic, None, partition=partition)
    records: list[Any] = []
    ends = 0
    async with mq.consumer(topic, start="earliest") as consumer:
        async for record in consumer:
            ends += record.value is None
            records += [record] if record.value is not None else []
            if ends == PARTITIONS:
                return records
    raise AssertionError("it has ended by itself")


def check(records: list[Any], rows: list[bytes], keys: list[Any]) -> None:
    """Each row once, and those of a key in order."""
    assert Counter(bytes(record.value) for record in records) == Counter(rows)
    for key in set(keys) - {None}:
        found = [bytes(record.value) for record in records if record.key == key]
        assert found == [row for row, each in zip(rows, keys, strict=True) if each == key]


@on_trio_and_asyncio
async def test_every_call(server: Server, topic: str) -> None:
    """What one call has sent another one skips, with keys and without."""
    keys: list[Any] = [key if key % 3 else None for key in KEYS[:2000]]
    rows = ROWS[:2000]
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic)
        async with mq.producer(**NAME) as producer:
            for row, key in zip(rows[:700], keys[:700], strict=True):
                await producer.enqueue(topic, row, key=key)
            assert (await producer.send(topic, rows[700], key=keys[700])).offset > 0
        async with mq.producer(**NAME, preset="low_latency") as producer:
            await producer.send_columns(topic, values=rows[:1500], keys=keys[:1500])
            statistics = producer.statistics
            assert (statistics.skipped_records, statistics.records) == (701, 799)
        for _ in range(2):
            async with mq.producer(**NAME, compression="gzip") as producer:
                results = await producer.send_many(
                    topic, range(2000), value=rows.__getitem__, key=keys.__getitem__
                )
                assert sum(result.record_count for result in results) == 2000
        assert all(result.is_skipped for result in results)
        assert producer.statistics.records == 0
        records = await read(mq, topic)
        check(records, rows, keys)


async def test_runs_that_die(server: Server, topic: str) -> None:
    """Five are cancelled at some moment; the sixth one is left alone."""
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic)
        for number in range(6):
            seconds = 0.1 + 0.1 * number if number < 5 else 60
            with anyio.move_on_after(seconds):
                async with (
                    aclosing(slow_numbers()) as numbers,
                    mq.producer(**NAME, batch_size=500) as producer,
                ):
                    await producer.send_many(
                        topic, numbers, value=ROWS.__getitem__, key=KEYS.__getitem__
                    )
        check(await read(mq, topic), ROWS, KEYS)


async def slow_numbers() -> AsyncGenerator[int, None]:
    """So that there is a middle to die in."""
    for number in range(len(ROWS)):
        if number % 100 == 0:
            await anyio.sleep(0.01)
        yield number


async def test_whoever_wrote_before(server: Server, topic: str) -> None:
    """Over another connection: refused from now on, with all that it sends."""
    async with raftmq.connect(server.bootstrap) as mq, raftmq.connect(server.bootstrap) as other:
        await create(mq, topic)
        async with mq.producer(**NAME) as old:
            await old.send_columns(topic, values=ROWS[:3000], keys=KEYS[:3000])
            async with other.producer(**NAME) as new:
                await new.send_columns(topic, values=ROWS[:4000], keys=KEYS[:4000])
                for _ in range(2):
                    with pytest.raises(ProducerFenced):
                        await old.send_columns(topic, values=ROWS[3000:], keys=KEYS[3000:])
                await new.send_columns(topic, values=ROWS[4000:], keys=KEYS[4000:])
        check(await read(mq, topic), ROWS, KEYS)


async def test_generations(server: Server, topic: str) -> None:
    """A higher one begins anew, and a lower one has nothing to say any more."""
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic)
        for generation in (5, 6):
            async with mq.producer(name="etl", generation=generation) as producer:
                await producer.send_columns(topic, values=ROWS[:100], keys=KEYS[:100])
        with pytest.raises(ProducerFenced, match=r"generation 5 .* 6 has begun"):
            async with mq.producer(name="etl", generation=5) as producer:
                await producer.send_columns(topic, values=ROWS[:100], keys=KEYS[:100])
        found = Counter(bytes(record.value) for record in await read(mq, topic))
        assert found == Counter(ROWS[:100] * 2)


async def test_other_rows(server: Server, topic: str) -> None:
    """One has changed, one is missing, two have changed places, or fewer: nothing is appended."""
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic)
        async with mq.producer(**NAME) as producer:
            await producer.send_columns(topic, values=ROWS[:1000], keys=KEYS[:1000])
        changed = [*ROWS[:500], b"x", *ROWS[501:1000]]
        missing = ROWS[1:1000]
        swapped = [ROWS[97], *ROWS[1:97], ROWS[0], *ROWS[98:1000]]
        for rows in (changed, missing, swapped, ROWS[:999]):
            with pytest.raises(ReplayMismatch):
                async with mq.producer(**NAME) as producer:
                    await producer.send_columns(topic, values=rows, keys=KEYS[: len(rows)])
        async with mq.producer(**NAME) as producer:
            await producer.send_columns(topic, values=ROWS, keys=KEYS)
        check(await read(mq, topic), ROWS, KEYS)


async def test_arrow_columns(server: Server, topic: str) -> None:
    """As they come out of a table, in other portions each time; then compressed."""
    pyarrow = pytest.importorskip("pyarrow")
    values, keys = pyarrow.array(ROWS, pyarrow.binary()), pyarrow.array(KEYS)
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic)
        async with mq.producer(**NAME) as producer:
            await producer.send_columns(topic, values=values[:2345], keys=keys[:2345])
        async with mq.producer(**NAME, preset="high_throughput", compression="zstd") as producer:
            for start in range(0, 5000, 1250):
                part = slice(start, start + 1250)
                await producer.send_columns(topic, values=values[part], keys=keys[part])
            assert producer.statistics.skipped_records == 2345
        check(await read(mq, topic), ROWS, KEYS)


async def test_leaders_that_are_killed(server: Server, topic: str) -> None:
    """One between two runs, one in the middle of the next: whoever leads knows where to go on."""
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic)
        async with mq.producer(**NAME) as producer:
            await producer.send_columns(topic, values=ROWS[:2000], keys=KEYS[:2000])
        leader = server.leader_of(topic) or 1
        await anyio.to_thread.run_sync(server.kill_node, leader)
        async with mq.producer(**NAME) as producer:
            await producer.send_columns(topic, values=ROWS[:3000], keys=KEYS[:3000])
            assert producer.statistics.skipped_records == 2000
            await anyio.to_thread.run_sync(server.start_node, leader)
            other = server.leader_of(topic) or 1
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(anyio.to_thread.run_sync, server.kill_node, other)
                for number in range(3000, 3300):
                    await producer.send(topic, ROWS[number], key=KEYS[number])
        await anyio.to_thread.run_sync(server.start_node, other)
        async with mq.producer(**NAME) as producer:
            await producer.send_columns(topic, values=ROWS, keys=KEYS)
            assert producer.statistics.skipped_records == 3300
        check(await read(mq, topic), ROWS, KEYS)


async def test_a_topic_of_the_other_format(server: Server, topic: str) -> None:
    """It has no place for what named producers say: told at once, with the setting."""
    async with raftmq.connect(server.bootstrap) as mq:
        await create(mq, topic, **{"record.format": "kafka"})
        with pytest.raises(InvalidRecord, match=r"record\.format"):
            async with mq.producer(**NAME) as producer:
                await producer.send(topic, b"a")


def test_plain_scripts(server: Server, topic: str) -> None:
    """The same from a thread."""
    with sync.connect(server.bootstrap) as mq:
        mq.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        for end in (100, 200):
            with mq.producer(**NAME) as producer:
                for row in ROWS[:end]:
                    producer.enqueue(topic, row)
                producer.flush()
        assert producer.statistics.skipped_records == 100
        with pytest.raises(ReplayMismatch), mq.producer(**NAME) as producer:
            producer.send(topic, ROWS[0])
        with mq.consumer(topic, start="earliest") as consumer:
            found = Counter(record.value for record in consumer.records(timeout=2))
        assert found == Counter(ROWS[:200])
