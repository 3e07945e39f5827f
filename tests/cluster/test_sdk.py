"""The SDK as people type it, line by line, on trio and on asyncio, against three brokers."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

import raftmq
from raftmq import testing
from raftmq.errors import (
    Closed,
    InvalidConfig,
    InvalidRecord,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
    Unreachable,
)
from tests.unit.client.backends import on_trio_and_asyncio

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with testing.cluster(3) as server:
        yield server


@on_trio_and_asyncio
async def test_the_whole_of_it(server: Server, backend: str) -> None:
    """Everything that README and SDK page show, in one program."""
    topic, told = f"orders-{backend}", []
    async with raftmq.connect(server.addresses[0].__str__()) as mq:
        config = {"retention.ms": 86_400_000}
        await mq.admin.create_topic(topic, partitions=6, replication_factor=3, config=config)
        async with mq.producer(acks="all", linger_ms=5, compression="zstd") as p:
            meta = await p.send(topic, b"hello", key=b"c-17", headers={"trace": b"1"}, tags=["new"])
            assert (meta.topic, meta.offset) == (topic, 0)
            assert 0 <= meta.partition < 6
            assert abs(meta.timestamp / 1000 - datetime.now(UTC).timestamp()) < 60
            d = p.send_nowait(topic, b"x", on_delivery=lambda *each: told.append(each))
            found = await d
            assert told == [(None, found)]
            d = await p.enqueue(topic, b"x")
            rows = [b"row %d" % number for number in range(1000)]
            sent = await p.send_many(topic, rows, key=lambda row: row[-1:], progress=told.append)
            assert sum(each.record_count for each in sent) == 1000
            assert told[-1] == 1000
            await p.send_columns(
                topic,
                values=[b"a", None],
                keys=["k", 7],
                headers=[None, {"h": b"1"}],
                timestamps=[1_795_000_000_000, 1_795_000_000_001],
            )
            await p.flush()
            assert d.is_done
        await _read(mq, topic, meta)


async def _read(mq: raftmq.Client, topic: str, first: raftmq.RecordMetadata) -> None:
    async with mq.consumer(topic, start="earliest") as c:
        records = [await anext(c) for _ in range(1005)]
        place = first.partition, first.offset
        [record] = [each for each in records if (each.partition, each.offset) == place]
        assert (record.key, record.value) == (b"c-17", b"hello")
        assert (dict(record.headers), record.tags) == ({"trace": b"1"}, ("new",))
        assert record.timestamp == first.timestamp
        assert {each.key for each in records} >= {7, "k", None}
        c.seek(topic, first.partition, offset=0)
        assert (await anext(c)).partition == first.partition
        c.seek(topic, first.partition, timestamp=datetime.now(UTC) - timedelta(hours=1))
        c.pause(*[each for each in c.assignment if each[1] != first.partition])
        async for batch in c.batches(max_records=500):
            assert (batch.topic, batch.partition) == (topic, first.partition)
            assert len(batch.offsets) == len(batch.values) == len(batch)
            break
        c.resume(*c.paused)
        assert not c.paused
    async with mq.consumer(assign=[(topic, 0)], start="latest") as c:
        ends = await mq.admin.offsets(topic, "latest", partitions=[0])
        with anyio.move_on_after(0.2):
            await anext(c)
        assert c.position(topic, 0) == ends[0]


@on_trio_and_asyncio
async def test_a_leader_dies_under_a_producer(server: Server, backend: str) -> None:
    """All that was acknowledged is there afterwards, in order for each key; nothing is repeated
    but what the SDK says may be (A1.5, A4.1)."""
    topic = f"killed-{backend}"
    async with raftmq.connect(server.bootstrap) as mq:
        await mq.admin.create_topic(topic, partitions=3)
        async with mq.producer(linger_ms=1) as p:
            sent = [await p.enqueue(topic, b"%d" % number, key=1) for number in range(500)]
            leader = (await sent[0]).partition
            victim = await anyio.to_thread.run_sync(server.leader_of, topic, leader)
            await anyio.to_thread.run_sync(server.kill_node, victim)
            sent += [await p.enqueue(topic, b"%d" % number, key=1) for number in range(500, 1000)]
            offsets = [(await each).offset for each in sent]
            repeated = p.statistics.repeated_records
        await anyio.to_thread.run_sync(server.start_node, victim)
        assert offsets == sorted(offsets)
        async with mq.consumer(assign=[(topic, leader)], start="earliest") as c:
            ends = await c.end_offsets()
            values = [(await anext(c)).value for _ in range(ends[topic, leader])]
    assert [values[offset] for offset in offsets] == [b"%d" % number for number in range(1000)]
    assert len(values) - 1000 <= repeated


@on_trio_and_asyncio
async def test_what_is_wrong_is_told_at_once(server: Server) -> None:
    """Names, types, values and order of use; each error names the thing and the way out."""
    async with raftmq.connect(server.bootstrap, client_id="wrong") as mq:
        wrong = {
            "did you mean 'linger_ms'": partial(mq.producer, linger=5),
            "acks = 'most'": partial(mq.producer, acks="most"),
            "retries = 3 with acks = 0": partial(mq.producer, acks=0, retries=3),
            "preset = 'fast'": partial(mq.producer, preset="fast"),
            "compression = 'snappy'": partial(mq.producer, compression="snappy"),
            "did you mean 'start'": partial(mq.consumer, "t", starts=0),
            "start": partial(mq.consumer, "t", start="soon"),
            "commit = 'often'": partial(mq.consumer, "t", group="g", commit="often"),
            "topic": partial(mq.consumer),
        }
        for words, call in wrong.items():
            with pytest.raises((TypeError, InvalidConfig), match=words):
                call()
        with contextlib.suppress(TopicAlreadyExists):  # from the other event loop's turn
            await mq.admin.create_topic("wrong")
        with pytest.raises(TopicAlreadyExists):
            await mq.admin.create_topic("wrong")
        producer = mq.producer()
        with pytest.raises(Closed, match="enter its block, or call its open"):
            producer.send_nowait("wrong", b"x")
        async with producer:
            with pytest.raises(InvalidRecord, match="value is a dict"):
                await producer.send("wrong", {"a": 1})
            with pytest.raises(InvalidRecord, match="partition 99"):
                await producer.send("wrong", b"x", partition=99)
            with pytest.raises(TypeError, match="topic name None"):
                await producer.send(None, b"x")  # type: ignore[arg-type]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("raftmq.client.producer.sender.MISSING_SECONDS", 0.5)
                with pytest.raises(UnknownTopicOrPartition, match="raftmq topic create nowhere"):
                    await producer.send("nowhere", b"x")
    for bootstrap in ("nonsense", "host:port", "", []):
        with pytest.raises(InvalidConfig, match="bootstrap"):
            raftmq.connect(bootstrap)
    with pytest.raises(TypeError, match="did you mean 'client_id'"):
        raftmq.connect(clientid="x")
    with pytest.raises(Closed):
        mq.producer()


@on_trio_and_asyncio
async def test_nobody_is_there() -> None:
    """Every address that was tried is named, within the time that was given."""
    with anyio.fail_after(5):
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1\b"):
            async with raftmq.connect("127.0.0.1:1,127.0.0.1:2", connect_timeout_ms=300):
                pass


@on_trio_and_asyncio
async def test_an_error_of_the_program_stays_what_it_is(server: Server) -> None:
    """No group around it, whichever block it leaves."""
    with pytest.raises(ZeroDivisionError):
        async with raftmq.connect(server.bootstrap) as mq, mq.producer(), mq.consumer("wrong"):
            raise ZeroDivisionError
