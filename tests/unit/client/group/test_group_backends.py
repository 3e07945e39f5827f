"""Members of a group on both event loops, against a real broker over TCP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint

import raftmq
from tests.unit.client.backends import on_trio_and_asyncio

if TYPE_CHECKING:
    from raftmq.client.client import Client
    from raftmq.client.group.effects import Rebalance
    from raftmq.testing.server import Server

PARTITIONS, COUNT = 4, 40
QUICK = {"start": "earliest", "session_timeout_ms": 6000, "heartbeat_interval_ms": 100}


async def fill(mq: Client, topic: str, count: int = COUNT) -> None:
    async with mq.producer() as producer:
        for number in range(count):
            await producer.enqueue(topic, str(number).encode(), key=str(number).encode())
        await producer.flush()


async def make(mq: Client, topic: str) -> None:
    await mq.admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1)


@on_trio_and_asyncio
async def test_two_members(raftmq_broker: Server, raftmq_topic: str) -> None:
    """They share what there is, each record comes to one of them, and a third one that comes later
    has nothing left to do (A1.2)."""
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await make(mq, raftmq_topic)
        seen: list[list[int]] = [[], []]
        changed = anyio.Event()

        async def read(number: int) -> None:
            nonlocal changed
            async with mq.consumer(raftmq_topic, group=raftmq_topic, **QUICK) as consumer:
                async for record in consumer:
                    seen[number].append(int(record.value or b"-1"))
                    changed.set()

        async with anyio.create_task_group() as tasks:
            for number in range(2):
                tasks.start_soon(read, number)
            await fill(mq, raftmq_topic)
            while sum(map(len, seen)) < COUNT:
                changed = anyio.Event()
                await changed.wait()
            tasks.cancel_scope.cancel()
        assert sorted(seen[0] + seen[1]) == list(range(COUNT))
        offsets = await mq.admin.group_offsets(raftmq_topic)
        assert sum(found.offset for found in offsets.values()) <= COUNT


@on_trio_and_asyncio
async def test_one_after_the_other(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Each goes on where the one before has stopped, whatever the way of committing (A7.3)."""
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await make(mq, raftmq_topic)
        await fill(mq, raftmq_topic)
        seen: list[int] = []
        for commit in ("batch", "record", "manual"):
            async with mq.consumer(
                raftmq_topic, group=raftmq_topic, commit=commit, max_poll_records=3, **QUICK
            ) as consumer:
                for _ in range(10):
                    record = await anext(consumer)
                    seen.append(int(record.value or b"-1"))
                if commit == "manual":
                    await consumer.commit()
        assert len(seen) == len(set(seen)) == 30


@on_trio_and_asyncio
async def test_cancelled_while_it_opens(raftmq_broker: Server, raftmq_topic: str) -> None:
    """At whatever moment that is, also while it gets its id: the others need not wait for it."""
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await make(mq, raftmq_topic)
        async with mq.consumer(raftmq_topic, group=raftmq_topic, **QUICK) as first:
            while len(first.assignment) < PARTITIONS:  # noqa: ASYNC110  # it has no event
                await anyio.sleep(0.01)
            for number in range(40):
                with anyio.move_on_after(0.0002 * number):
                    async with mq.consumer(raftmq_topic, group=raftmq_topic, **QUICK):
                        if number % 2:
                            await anyio.sleep_forever()
            with anyio.fail_after(5):
                async with mq.consumer(raftmq_topic, group=raftmq_topic, **QUICK) as other:
                    while len(other.assignment) < PARTITIONS // 2:  # noqa: ASYNC110
                        await anyio.sleep(0.01)


@on_trio_and_asyncio
async def test_callbacks_and_cancellation(raftmq_broker: Server, raftmq_topic: str) -> None:
    """A coroutine function is waited for; a wait that is cancelled ends at once, and so does the
    block around it."""
    told: list[Rebalance] = []

    async def on_rebalance(rebalance: Rebalance) -> None:
        await checkpoint()
        told.append(rebalance)

    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await make(mq, raftmq_topic)
        async with mq.consumer(
            raftmq_topic, group=raftmq_topic, on_rebalance=on_rebalance, **QUICK
        ) as consumer:
            with anyio.move_on_after(0.3):
                await anext(consumer)
            with anyio.fail_after(5):
                while not told:  # noqa: ASYNC110  # a callback of ours
                    await anyio.sleep(0.01)
        assert [len(one.assigned or one.revoked) for one in told] == [PARTITIONS] * 2
        assert (await mq.admin.describe_group(raftmq_topic)).members == ()
