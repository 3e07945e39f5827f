"""Shared transactions with a real broker in the test's process, on trio and asyncio (A11.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

import raftmq
from raftmq.errors import (
    InvalidTransaction,
    InvalidTransactionTimeout,
    ProducerFenced,
    ReplayMismatch,
    TransactionAborted,
    UnknownTransaction,
)
from tests.unit.client.backends import on_trio_and_asyncio

if TYPE_CHECKING:
    from raftmq.testing import Server

in_thread = anyio.to_thread.run_sync


async def written(version: raftmq.SharedVersion, topic: str, *values: str) -> raftmq.Receipt:
    async with version.join() as member:
        await member.send_columns(topic, values=values)
    return member.receipt


async def read(mq: raftmq.Client, topic: str, last: bytes) -> list[Any]:
    found = []
    async with mq.consumer(topic, start="earliest") as consumer:
        async for record in consumer:
            found.append(record.value)
            if record.value == last:
                break
    return found


@on_trio_and_asyncio
async def test_what_is_listed_counts(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Members of two clients; one fails, one is not listed; the commit comes twice, and members
    that come after it drop what they are given."""
    async with (
        raftmq.connect(raftmq_broker.bootstrap) as mq,
        raftmq.connect(raftmq_broker.bootstrap) as other,
    ):
        await mq.admin.create_topic(raftmq_topic, partitions=1)
        version, there = [
            one.shared_transaction(raftmq_topic, lineage="a").version(1) for one in (mq, other)
        ]
        receipts = [
            await written(version, raftmq_topic, "a"),
            await written(there, raftmq_topic, "b"),
        ]
        await written(there, raftmq_topic, "a copy")
        with pytest.raises(KeyError):  # noqa: PT012  # the block
            async with version.join() as failing:
                await failing.send(raftmq_topic, "half")
                raise KeyError
        with pytest.raises(TransactionAborted, match="committed without it"):  # noqa: PT012
            async with there.join() as late:
                await late.send(raftmq_topic, "late")
                done = await version.commit(receipts, wait_visible=True)
                await late.send(raftmq_topic, "later")
        assert done == raftmq.CommittedVersion(is_repeated=False, count=2)
        assert (await there.commit(receipts)).is_repeated
        async with there.join() as again:
            assert again.is_done
            await again.send_many(raftmq_topic, ["a", "b", "c"])
        with pytest.raises(ReplayMismatch, match="with 2 rows, and now has 3"):
            await version.commit([again.receipt])
        following = mq.shared_transaction(raftmq_topic, lineage="a").version(2)
        await following.commit([await written(following, raftmq_topic, "c")], wait_visible=True)
        assert await read(mq, raftmq_topic, b"c") == [b"a", b"b", b"c"]


@on_trio_and_asyncio
async def test_ends_that_are_not_commits(raftmq_broker: Server, raftmq_topic: str) -> None:
    """The program's own, an operator's, a higher version: each time all of it is written anew."""
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await mq.admin.create_topic(raftmq_topic, partitions=1)
        shared = mq.shared_transaction(raftmq_topic, lineage="")
        version = shared.version(1)
        receipt = await written(version, raftmq_topic, "program")
        await version.abort()
        with pytest.raises(TransactionAborted) as caught:
            await version.commit([receipt])
        assert caught.value.reason == "program"
        receipt = await written(version, raftmq_topic, "operator")
        await in_thread(raftmq_broker.abort_transaction, raftmq_topic)
        with pytest.raises(TransactionAborted) as caught:
            await version.commit([receipt])
        assert caught.value.reason == "operator"
        receipt = await written(version, raftmq_topic, "lower")
        higher = await written(shared.version(2), raftmq_topic, "counts")
        with pytest.raises(ProducerFenced):
            await written(version, raftmq_topic, "lower, again")
        with pytest.raises(TransactionAborted) as caught:
            await version.commit([receipt])
        assert caught.value.reason == "owner"
        await shared.version(2).commit([higher], wait_visible=True)
        assert await shared.version(2).abort() == raftmq.CommittedVersion(True, 1)
        assert (await version.commit([])).is_repeated
        assert await read(mq, raftmq_topic, b"counts") == [b"counts"]


@on_trio_and_asyncio
async def test_whose_id_it_is(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Another lineage's numbers, and single producers, are refused with the way out."""
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await mq.admin.create_topic(raftmq_topic, partitions=1)
        shared = mq.shared_transaction(raftmq_topic, lineage="a")
        await shared.version(5).commit([])
        other = mq.shared_transaction(raftmq_topic, lineage="b").version(0)
        with pytest.raises(InvalidTransaction, match="another id, or forget this one"):
            await written(other, raftmq_topic, "a")
        with pytest.raises(InvalidTransaction, match="another id"):
            await other.commit([])
        with pytest.raises(InvalidTransaction, match="another id"):
            async with mq.producer(transaction_id=raftmq_topic):
                pass
        async with mq.producer(transaction_id=f"{raftmq_topic}-single"):
            single = mq.shared_transaction(f"{raftmq_topic}-single", lineage="")
            with pytest.raises(InvalidTransaction, match="another id"):
                await written(single.version(1), raftmq_topic, "a")
        too_long = mq.shared_transaction("a", lineage="", transaction_timeout_ms=86_400_000)
        with pytest.raises(InvalidTransactionTimeout):
            await written(too_long.version(1), raftmq_topic, "a")
        await mq.admin.forget_transaction(raftmq_topic)
        await other.commit([await written(other, raftmq_topic, "a")], wait_visible=True)
        assert await read(mq, raftmq_topic, b"a") == [b"a"]


@on_trio_and_asyncio
async def test_what_was_dropped(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Members were told that the version is done: its commit waits until all can be read, and says
    so where the id is forgotten meanwhile."""
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await mq.admin.create_topic(raftmq_topic, partitions=1)
        version = mq.shared_transaction(raftmq_topic, lineage="").version(1)
        await version.commit([await written(version, raftmq_topic, "a")])
        dropped = await written(version, raftmq_topic, "b")
        done = await version.commit([dropped], wait_visible=True)
        assert done == raftmq.CommittedVersion(is_repeated=True, count=1)
        await mq.admin.forget_transaction(raftmq_topic)
        with pytest.raises(UnknownTransaction, match="the id was forgotten since"):
            await version.commit([dropped])
        again = await written(version, raftmq_topic, "c")
        with pytest.raises(UnknownTransaction, match="the id was forgotten since"):
            await version.commit([dropped, again])
        await version.commit([await written(version, raftmq_topic, "d")], wait_visible=True)
        assert await read(mq, raftmq_topic, b"d") == [b"a", b"d"]


@on_trio_and_asyncio
async def test_a_topic_that_a_power_cut_may_cut(
    raftmq_broker: Server, raftmq_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Members say it once a topic, as producers with transactions do."""
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await mq.admin.create_topic(raftmq_topic, config={"durability": "page_cache"})
        version = mq.shared_transaction(raftmq_topic, lineage="").version(1)
        receipts = [await written(version, raftmq_topic, value) for value in ("a", "b")]
        await version.commit(receipts)
    warnings = [one.getMessage() for one in caplog.records if "page_cache" in one.getMessage()]
    assert len(warnings) == 1
    assert raftmq_topic in warnings[0]
