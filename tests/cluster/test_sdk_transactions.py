"""Transactions against real brokers over real sockets, on trio and on asyncio (A11.3, A11.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

import raftmq
import raftmq.sync
from raftmq.client.client import connect
from raftmq.errors import ProducerFenced, TransactionAborted
from raftmq.testing import broker, cluster
from tests.unit.client.backends import on_trio_and_asyncio

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raftmq.testing.server import Server

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One for all: each test makes its own topic."""
    with broker() as started:
        yield started


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "".join(each if each.isalnum() else "-" for each in request.node.name)


async def read(mq: Any, topic: str, count: int, **options: Any) -> list[bytes]:
    """The first records of a topic that a reader gets."""
    found: list[bytes] = []
    async with mq.consumer(topic, start="earliest", **options) as consumer:
        async for record in consumer:
            found.append(record.value)
            if len(found) == count:
                break
    return found


@on_trio_and_asyncio
async def test_what_readers_get(server: Server, topic: str) -> None:
    """What is committed; those of the other level get all."""
    async with connect(server.bootstrap) as mq:
        await mq.admin.create_topic(topic)
        async with mq.producer(transaction_id=topic) as producer:
            for value, is_fine in (("a", True), ("b", False), ("c", True)):
                async with producer.transaction(wait_visible=True) as tx:
                    await tx.send_many(topic, [value, value + value])
                    if not is_fine:
                        await tx.abort()
                assert tx.outcome == ("committed" if is_fine else "aborted")
        assert await read(mq, topic, 4) == [b"a", b"aa", b"c", b"cc"]
        found = await read(mq, topic, 6, isolation_level="read_uncommitted")
        assert found == [b"a", b"aa", b"b", b"bb", b"c", b"cc"]


@on_trio_and_asyncio
async def test_aborted_and_fenced_on_demand(server: Server, topic: str) -> None:
    """What a test of a program can do to it."""
    async with connect(server.bootstrap) as mq:
        await mq.admin.create_topic(topic)
        async with mq.producer(transaction_id=topic) as producer:
            with pytest.raises(TransactionAborted) as caught:  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    await tx.send(topic, "a")
                    await anyio.to_thread.run_sync(server.abort_transaction, topic)
            assert caught.value.reason == "operator"
            async with producer.transaction() as tx:
                await tx.send(topic, "b")
            with pytest.raises(ProducerFenced):  # noqa: PT012  # the block
                async with producer.transaction() as tx:
                    await tx.send(topic, "c")
                    await anyio.to_thread.run_sync(server.fence_transaction, topic)
            with pytest.raises(ProducerFenced):
                async with producer.transaction():
                    pass
        assert await read(mq, topic, 1) == [b"b"]


def test_blocking(server: Server, topic: str) -> None:
    with raftmq.sync.connect(server.bootstrap) as mq:
        mq.admin.create_topic(topic)
        with mq.producer(transaction_id=topic, delivery="exactly_once") as producer:
            for version in (1, 1, 2):
                with producer.transaction(version=version, wait_visible=True) as tx:
                    for number in range(100):
                        tx.enqueue(topic, f"{version} {number}")
                assert tx.outcome == "committed"
        with mq.consumer(topic, start="earliest") as consumer:
            records = [record.value for _, record in zip(range(200), consumer, strict=False)]
    assert records == [
        f"{version} {number}".encode() for version in (1, 2) for number in range(100)
    ]


async def test_exactly_once_while_a_leader_is_killed() -> None:
    """Each record that is read has its result once."""
    count = 600
    with cluster(3) as server:
        async with connect(server.bootstrap) as mq:
            await mq.admin.create_topic("orders", partitions=3)
            await mq.admin.create_topic("results", partitions=2)

            async def transform(batch: Any, tx: Any) -> None:
                for value in batch.values:
                    await tx.enqueue("results", value)

            async def run() -> None:
                options = {"group": "billing", "start": "earliest", "delivery": "exactly_once"}
                async with mq.consumer("orders", **options) as consumer:
                    await raftmq.exactly_once(mq, consumer, transform, max_records=20)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                async with mq.producer() as producer:
                    for number in range(count):
                        await producer.enqueue("orders", f"{number:04}")
                        if number == count // 2:
                            leader = await anyio.to_thread.run_sync(server.leader_of, "orders", 0)
                            assert leader is not None
                            await anyio.to_thread.run_sync(server.kill_node, leader)
                with anyio.fail_after(60):
                    found = await read(mq, "results", count)
                tasks.cancel_scope.cancel()
            with anyio.move_on_after(1):  # what comes twice comes now
                found = await read(mq, "results", count + 1)
    assert sorted(found) == [f"{number:04}".encode() for number in range(count)]
