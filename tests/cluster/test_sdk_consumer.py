"""Consumers against three brokers, on trio and on asyncio: every call, deaths, cancellation."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

import raftmq
from raftmq import testing
from raftmq.errors import Closed, InvalidConfig, OffsetOutOfRange, UnknownTopicOrPartition
from tests.unit.client.backends import on_trio_and_asyncio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with testing.cluster(3) as server:
        yield server


async def fill(mq: raftmq.Client, topic: str, *counts: int, size: int = 0) -> None:
    """So many records in each partition; values are their offsets, at least `size` long."""
    await mq.admin.create_topic(topic, partitions=len(counts))
    async with mq.producer(batch_size=4 << 10) as p:
        for partition, count in enumerate(counts):
            values = [b"%0*d" % (max(1, size), number) for number in range(count)]
            await p.send_columns(topic, values=values, partitions=[partition] * count)


async def take_all(c: raftmq.Consumer, *, seconds: float = 0.5) -> list[raftmq.ConsumerRecord]:
    """What comes until nothing has come for that time."""
    found: list[raftmq.ConsumerRecord] = []
    while True:
        with anyio.move_on_after(seconds) as scope:
            found.append(await anext(c))
        if scope.cancelled_caught:
            return found


@on_trio_and_asyncio
async def test_records_and_batches(server: Server, backend: str) -> None:
    """Everything a record and a batch tell; one partition for each batch, columns in parallel."""
    topic = f"told-{backend}"
    async with raftmq.connect(server.bootstrap) as mq:
        await mq.admin.create_topic(topic, partitions=2)
        async with mq.producer() as p:
            sent = await p.send(
                topic, b"v", key=b"k", headers={"trace": b"1"}, tags=["b", "a"], partition=1
            )
            await p.send_columns(topic, values=[b"x"] * 9, partitions=[1] * 9)
            await p.send(topic, b"other", partition=0)
        async with mq.consumer(topic, start="earliest") as c:
            assert c.assignment == [(topic, 0), (topic, 1)]
            assert await c.end_offsets() == {(topic, 0): 1, (topic, 1): 10}
            records = {(record.partition, record.offset): record for record in await take_all(c)}
            assert len(records) == 11
            assert records[1, 0] == raftmq.ConsumerRecord(
                topic, 1, 0, sent.timestamp, b"k", b"v", (("trace", b"1"),), ("a", "b")
            )
            assert c.position(topic, 1) == c.high_watermark(topic, 1) == 10
            assert c.lag(topic, 1) == 0
        async with mq.consumer(topic, start="earliest") as c:
            found: list[int] = []
            async for batch in c.batches(max_records=4):
                assert (batch.topic, len(batch) <= 4) == (topic, True)
                assert len(batch.offsets) == len(batch.values) == len(batch.keys) == len(batch)
                assert len(batch.timestamps) == len(batch.headers) == len(batch.tags) == len(batch)
                assert [each.offset for each in batch] == list(batch.offsets)
                if batch.partition == 1:
                    found += batch.offsets
                if len(found) == 10 and c.position(topic, 0) == 1:
                    break
            assert found == list(range(10))
        with pytest.raises(Closed, match="closed"):
            await anext(c)
        with pytest.raises(Closed, match="make another"):
            async with c:
                pass


@on_trio_and_asyncio
async def test_where_to_start_and_seek(server: Server, backend: str) -> None:
    """Both ends, an offset, a time; out of range raises, or goes on where it was told to (A1.3)."""
    topic = f"starts-{backend}"
    async with raftmq.connect(server.bootstrap) as mq:
        await mq.admin.create_topic(topic, partitions=1)
        base = datetime(2026, 1, 1, tzinfo=UTC)
        milliseconds = int(base.timestamp() * 1000)
        async with mq.producer() as p:
            stamps = [milliseconds + 1000 * number for number in range(10)]
            await p.send_columns(topic, values=[b"x"] * 10, timestamps=stamps)
        starts = {"earliest": 0, 7: 7, base + timedelta(seconds=4.5): 5}
        for start, offset in starts.items():
            async with mq.consumer(topic, start=start) as c:
                assert (await anext(c)).offset == offset
        async with mq.consumer(topic) as c:
            assert c.position(topic, 0) == 10
            assert await take_all(c, seconds=0.2) == []
            c.seek(topic, 0, timestamp=milliseconds + 2000)
            assert (await anext(c)).offset == 2
            c.seek(topic, 0, offset=8)
            assert [record.offset for record in await take_all(c)] == [8, 9]
            c.seek(topic, 0, timestamp=base + timedelta(days=1))
            assert await take_all(c, seconds=0.2) == []
            c.seek(topic, 0, offset=99)
            with pytest.raises(OffsetOutOfRange, match=rf"{topic}-0.*99.*seek"):
                await anext(c)
            c.seek(topic, 0, offset=0)
            assert (await anext(c)).offset == 0
            with pytest.raises(InvalidConfig, match="not read"):
                c.seek(topic, 5, offset=0)
        async with mq.consumer(topic, start=99, auto_offset_reset="earliest") as c:
            assert (await anext(c)).offset == 0


@on_trio_and_asyncio
async def test_pause_and_resume(server: Server, backend: str) -> None:
    """In the middle of a batch; the others go on, and what was paused goes on where it was."""
    topic = f"paused-{backend}"
    async with raftmq.connect(server.bootstrap) as mq:
        await fill(mq, topic, 300, 300)
        async with mq.consumer(topic, start="earliest", max_poll_records=50) as c:
            found: dict[int, list[int]] = {0: [], 1: []}
            for _ in range(40):
                record = await anext(c)
                found[record.partition].append(record.offset)
            for turn in range(10):
                c.pause((topic, turn % 2))
                assert c.paused == [(topic, turn % 2)]
                with anyio.move_on_after(0.1):
                    for _ in range(23):
                        record = await anext(c)
                        assert record.partition != turn % 2
                        found[record.partition].append(record.offset)
                c.resume((topic, turn % 2))
            for record in await take_all(c):
                found[record.partition].append(record.offset)
        assert found == {0: list(range(300)), 1: list(range(300))}


@on_trio_and_asyncio
async def test_records_by_their_tags(server: Server, backend: str) -> None:
    """Those that pass, of batches of one tag set and of many; a member of a group goes on behind
    what it has passed over (A12.1)."""
    topic = f"tagged-{backend}"
    some: list[list[str]] = [[], ["eu"], ["us"], ["eu", "test"], ["us", "eu"]]
    many = [[f"n{number}", "eu" if number % 3 else "us"] for number in range(100)]
    async with raftmq.connect(server.bootstrap) as mq:
        await mq.admin.create_topic(topic, partitions=1)
        async with mq.producer() as p:
            for tags in (*([each] * 3 for each in some), many, [["us"]] * 10):
                await p.send_columns(topic, values=[b"v"] * len(tags), tags=tags)
        async with mq.consumer(topic, start="earliest") as c:
            all_of_them = [(record.offset, record.tags) for record in await take_all(c)]
        assert len(all_of_them) == 125
        async with mq.consumer(topic, start="earliest", tags="eu & !test & !n7") as c:
            found = [(record.offset, record.tags) for record in await take_all(c)]
            assert (c.position(topic, 0), c.lag(topic, 0)) == (125, 0)
        assert found == [
            (offset, tags)
            for offset, tags in all_of_them
            if "eu" in tags and not {"test", "n7"} & {*tags}
        ]
        group = {"group": topic, "start": "earliest", "tags": {"n1", "n2"}}
        async with mq.consumer(topic, **group) as c:
            assert [record.offset for record in await take_all(c)] == [16, 17]
        [lag] = await mq.admin.group_lag(topic)
        assert (lag.committed, lag.lag) == (125, 0)


@on_trio_and_asyncio
async def test_partitions_that_are_added(server: Server, backend: str) -> None:
    """Read from their beginning, also by those who began with the latest (A10.4)."""
    topic = f"grown-{backend}"
    async with raftmq.connect(server.bootstrap) as mq:
        await fill(mq, topic, 5)
        async with mq.consumer(topic) as c, mq.producer() as p:
            await mq.admin.create_partitions(topic, 3)
            await p.send(topic, b"a", partition=2)
            with anyio.fail_after(10):
                record = await anext(c)
                assert (record.topic, record.partition, record.offset) == (topic, 2, 0)
            assert c.assignment == [(topic, each) for each in range(3)]
            assert c.position(topic, 0) == 5


@on_trio_and_asyncio
async def test_a_topic_that_is_not_there(server: Server, backend: str) -> None:
    """Told after a while, and read from its beginning once it is there."""
    topic = f"absent-{backend}"
    async with raftmq.connect(server.bootstrap) as mq, mq.consumer(topic) as c:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("raftmq.client.consumer.subscription.UNKNOWN_SECONDS_MAX", 0.5)
            with pytest.raises(UnknownTopicOrPartition, match=f"raftmq topic create {topic}"):
                await anext(c)
        await fill(mq, topic, 2)
        with anyio.fail_after(10):
            assert [(await anext(c)).offset for _ in range(2)] == [0, 1]


@on_trio_and_asyncio
async def test_leaders_die_while_they_are_read(server: Server, backend: str) -> None:
    """One after the other: every record once, in order, while more are sent (A1.5)."""
    topic, count = f"killed-read-{backend}", 3000
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}

    async def send() -> None:
        async with mq.producer(linger_ms=1) as p:
            for number in range(count):
                await p.enqueue(topic, b"%d" % number, partition=number % 3)
                if number % 50 == 0:
                    await anyio.sleep(0.02)

    async def kill() -> None:
        for partition in range(2):
            victim = await anyio.to_thread.run_sync(server.leader_of, topic, partition)
            await anyio.to_thread.run_sync(server.kill_node, victim)
            await anyio.sleep(0.5)
            await anyio.to_thread.run_sync(server.start_node, victim)

    async with raftmq.connect(server.bootstrap) as mq:
        await mq.admin.create_topic(topic, partitions=3)
        async with (
            mq.consumer(topic, start="earliest", max_poll_records=7) as c,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(send)
            tasks.start_soon(kill)
            with anyio.fail_after(25):
                values: set[bytes | None] = set()
                async for record in c:
                    found[record.partition].append(record.offset)
                    values.add(record.value)
                    if len(values) == count:
                        break
    for offsets in found.values():
        assert offsets == list(range(len(offsets)))


def in_scope(seconds: float) -> Any:
    return anyio.move_on_after(seconds)


def in_timeout(seconds: float) -> Any:
    return asyncio.timeout(seconds)


async def _read(c: raftmq.Consumer, found: list[int], turn: int) -> None:
    """One by one, or in batches."""
    if turn % 3:
        async for record in c:
            found.append(record.offset)  # noqa: PERF401 (it may be cancelled)
    else:
        async for batch in c.batches(max_records=11):
            found.extend(batch.offsets)


@on_trio_and_asyncio
async def test_cancelled_at_many_moments(server: Server, backend: str) -> None:
    """By scopes, by asyncio.timeout, by task.cancel: every record once, in order."""
    topic, count = f"cancelled-{backend}", 6000
    async with raftmq.connect(server.bootstrap) as mq:
        await fill(mq, topic, count)
        options: dict[str, Any] = {"max_poll_records": 17, "prefetch_bytes": 8 << 10}
        ways: list[Callable[..., Any]] = [in_scope]
        if backend == "asyncio":
            ways += [in_timeout, None]  # type: ignore[list-item]
        async with mq.consumer(topic, start="earliest", **options) as c:
            found: list[int] = []
            for turn in range(240):
                seconds, way = 0.00005 * (turn % 40), ways[turn % len(ways)]
                if way is None:
                    await _cancel_task(_read(c, found, turn), seconds)
                else:
                    with suppress(TimeoutError):
                        await _with(way(seconds), _read(c, found, turn))
            found += [record.offset for record in await take_all(c)]
        assert found == list(range(count))


async def _with(scope: Any, reading: Any) -> None:
    if hasattr(scope, "__aenter__"):
        async with scope:
            await reading
    else:
        with scope:
            await reading


async def _cancel_task(reading: Any, seconds: float) -> None:
    task = asyncio.create_task(reading)
    await asyncio.sleep(seconds)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _session(bootstrap: str, topic: str) -> None:
    async with (
        raftmq.connect(bootstrap) as mq,
        mq.producer() as p,
        mq.consumer(topic, start="earliest") as c,
    ):
        await p.enqueue(topic, b"x")
        while True:
            await anext(c)


def test_a_cancelled_task_of_asyncio_ends(server: Server) -> None:
    """Wherever it is while it connects, reads or closes: it ends as cancelled, and not otherwise;
    a time limit of asyncio raises TimeoutError."""

    async def cancel_everywhere() -> None:
        async with raftmq.connect(server.bootstrap) as mq:
            await mq.admin.create_topic("sessions")
        for step in range(60):
            task = asyncio.create_task(_session(server.bootstrap, "sessions"))
            await asyncio.sleep(0.0008 * step)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.0008 * step):
                    await _session(server.bootstrap, "sessions")
        await asyncio.sleep(0.1)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(cancel_everywhere())


@on_trio_and_asyncio
async def test_a_reader_that_stands_still(server: Server, backend: str) -> None:
    """What is fetched ahead stays within its bound, however much there is (A7.1)."""
    topic, bound = f"still-{backend}", 1 << 20
    async with raftmq.connect(server.bootstrap) as mq:
        await fill(mq, topic, 5000, 5000, 5000, size=1000)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            options: dict[str, Any] = {"prefetch_bytes": bound}
            async with mq.consumer(topic, start="earliest", **options) as c:
                await anyio.sleep(1.5)
                after, _ = tracemalloc.get_traced_memory()
                tracemalloc.stop()  # it slows down whatever comes now
                # The brokers are in this process, and hold what they have read, for a while.
                assert after - before < 4 * bound
                held = sum(one.undelivered.byte_count for one in c._subscription.states.values())
                assert held <= bound + 3 * (8 << 10)
                seen = [(await anext(c)).partition for _ in range(15_000)]
            assert [seen.count(partition) for partition in range(3)] == [5000] * 3
        finally:
            tracemalloc.stop()


@on_trio_and_asyncio
async def test_many_consumers_at_once(server: Server, backend: str) -> None:
    """Of one client and of two, each with everything; one that ends early disturbs nobody.

    A17.1.
    """
    topic = f"many-{backend}"
    counts: list[int] = []

    async def read(mq: raftmq.Client, count: int) -> None:
        async with mq.consumer(topic, start="earliest") as c:
            counts.append(len([await anext(c) for _ in range(count)]))

    async with raftmq.connect(server.bootstrap) as mq, raftmq.connect(server.bootstrap) as other:
        await fill(mq, topic, 100, 100)
        async with anyio.create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(read, mq if number % 2 else other, 200 if number else 1)
        assert sorted(counts) == [1, 200, 200, 200, 200, 200]
