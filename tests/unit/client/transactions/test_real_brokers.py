"""Transactions and `exactly_once` with real brokers in the test's process (A11.3, A11.4)."""

from __future__ import annotations

from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

import raftmq
from raftmq.errors import (
    IllegalGeneration,
    InvalidTransaction,
    ProducerFenced,
    TransactionAborted,
)
from tests.unit.client.backends import on_trio_and_asyncio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq.client.client import Client
    from raftmq.client.consumer.batch import AnyBatch
    from raftmq.testing import Server

READING: dict[str, Any] = {"start": "earliest", "delivery": "exactly_once"}


@asynccontextmanager
async def copier(mq: Client, source: str, target: str) -> AsyncIterator[None]:
    """A program that copies, for as long as the block runs; then it is cancelled."""

    async def copy(batch: AnyBatch, tx: Any) -> None:
        for value in batch.values:
            await tx.enqueue(target, value)

    async def run() -> None:
        async with mq.consumer(source, group=source, **READING) as consumer:
            await raftmq.exactly_once(mq, consumer, copy, interval_ms=20, max_records=17)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        yield
        tasks.cancel_scope.cancel()


@on_trio_and_asyncio
async def test_copiers_come_and_go(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Partitions change hands in the middle of transactions: each record has one result. The input
    comes in transactions, too, and no lag is left at its end."""
    source, target, count = f"{raftmq_topic}-in", f"{raftmq_topic}-out", 0
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await mq.admin.create_topic(source, partitions=4)
        await mq.admin.create_topic(target, partitions=2)
        results = list[int]()

        async def feed(producer: Any, more: int) -> None:
            nonlocal count
            async with producer.transaction() as tx:
                await tx.send_many(source, [b"%d" % (count + each) for each in range(more)])
            count += more

        async def gather() -> None:
            while len(set(results)) < count:
                results.append(int((await anext(reader)).value))

        async with (
            mq.producer(transactions=True, batch_size=64) as producer,
            mq.consumer(target, start="earliest") as reader,
            copier(mq, source, target),
        ):
            await feed(producer, 100)
            await gather()
            async with copier(mq, source, target):
                await feed(producer, 300)
                await gather()
                await feed(producer, 100)
            await gather()
            while any(one.lag for one in await mq.admin.group_lag(source)):
                await checkpoint()
        assert sorted(results) == list(range(500))


@on_trio_and_asyncio
async def test_offsets_that_are_others_by_now(raftmq_broker: Server, raftmq_topic: str) -> None:
    """The member that has read a batch is gone, and others read it again: the transaction that
    counts its results is aborted, also where the program goes on after the error, which says so."""
    async with (
        raftmq.connect(raftmq_broker.bootstrap) as mq,
        mq.producer(transactions=True) as producer,
    ):
        await mq.admin.create_topic(raftmq_topic)
        async with producer.transaction(wait_visible=True) as tx:
            await tx.send(raftmq_topic, "read")
        async with mq.consumer(raftmq_topic, group=raftmq_topic, **READING) as consumer:
            batch = await anext(consumer.batches())
        for is_caught in (False, True):
            with pytest.raises(TransactionAborted, match="leave its block") as aborted:  # noqa: PT012
                async with producer.transaction() as tx:
                    await tx.send(raftmq_topic, "result")
                    with pytest.raises(TransactionAborted) if is_caught else nullcontext():
                        tx.commit_offsets(batch)
            assert (aborted.value.reason, aborted.value.definite) == ("group", True)
            assert isinstance(aborted.value.__cause__, IllegalGeneration)
            assert tx.outcome == "aborted"
        assert not await mq.admin.group_offsets(raftmq_topic)


@on_trio_and_asyncio
async def test_a_topic_that_a_power_cut_may_cut(
    raftmq_broker: Server, raftmq_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With durability = page_cache atomicity ends there: each producer says so once a topic."""
    careful = f"{raftmq_topic}-fsync"
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await mq.admin.create_topic(raftmq_topic, config={"durability": "page_cache"})
        await mq.admin.create_topic(careful)
        for _ in range(2):
            async with mq.producer(transactions=True) as producer:
                for _ in range(2):
                    async with producer.transaction() as tx:
                        await tx.send(raftmq_topic, "a")
                        await tx.send(careful, "b")
    warnings = [one.getMessage() for one in caplog.records if "page_cache" in one.getMessage()]
    assert [raftmq_topic in one and careful not in one for one in warnings] == [True, True]


@on_trio_and_asyncio
async def test_ends_that_a_program_meets(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Its own errors, cancellation, an operator, another owner: only what was committed is read."""
    in_thread = anyio.to_thread.run_sync
    async with (
        raftmq.connect(raftmq_broker.bootstrap) as mq,
        mq.producer(transaction_id=raftmq_topic) as producer,
    ):
        await mq.admin.create_topic(raftmq_topic)
        with pytest.raises(KeyError):  # noqa: PT012  # the block
            async with producer.transaction() as tx:
                await tx.send(raftmq_topic, "own error")
                raise KeyError
        with anyio.CancelScope() as scope:
            async with producer.transaction() as tx:
                await tx.send(raftmq_topic, "cancelled")
                scope.cancel()
        assert tx.outcome == "aborted"
        with pytest.raises(TransactionAborted) as caught:  # noqa: PT012  # the block
            async with producer.transaction() as tx:
                await tx.send(raftmq_topic, "ended by an operator")
                await in_thread(raftmq_broker.abort_transaction, raftmq_topic)
        assert caught.value.reason == "operator"
        async with producer.transaction(version=3, wait_visible=True) as tx:
            await tx.send(raftmq_topic, "counts")
        async with producer.transaction(version=3) as tx:
            assert tx.is_done
            await tx.send(raftmq_topic, "dropped")
        with pytest.raises(InvalidTransaction):
            await producer.send(raftmq_topic, "outside")
        with pytest.raises(ProducerFenced):  # noqa: PT012  # the block
            async with producer.transaction() as tx:
                await tx.send(raftmq_topic, "of another owner")
                await in_thread(partial(raftmq_broker.fence_transaction, raftmq_topic))
        async with (
            mq.producer(transaction_id=raftmq_topic) as other,
            other.transaction(wait_visible=True) as tx,
        ):
            await tx.send(raftmq_topic, "last")
        values = list[bytes | None]()
        async with mq.consumer(raftmq_topic, start="earliest") as consumer:
            async for record in consumer:
                values.append(record.value)
                if record.value == b"last":
                    break
        assert values == [b"counts", b"last"]
