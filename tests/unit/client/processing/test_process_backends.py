"""`process` on both event loops against a real broker: plain handlers in threads (A11.2, A12.5)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

import raftmq
from tests.unit.client.backends import on_trio_and_asyncio

if TYPE_CHECKING:
    from raftmq.client.client import Client
    from raftmq.client.consumer.record import ConsumerRecord
    from raftmq.testing.server import Server

COUNT = 40
QUICK: dict[str, Any] = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 100}
AT_ONCE = raftmq.RetryPolicy(attempts=2, backoff=raftmq.Exponential(0.01), in_place=True)


async def fill(mq: Client, topic: str) -> None:
    await mq.admin.create_topic(topic, partitions=2, replication_factor=1)
    async with mq.producer() as producer:
        await producer.send_many(topic, range(COUNT), value=str, key=lambda row: row % 8)


async def committed(mq: Client, group: str) -> int:
    return sum(found.offset for found in (await mq.admin.group_offsets(group)).values())


@on_trio_and_asyncio
async def test_a_generator_that_is_returned(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Nobody has run it: its record is not handled."""

    def handle(record: ConsumerRecord) -> object:
        return (each for each in record.text())

    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await fill(mq, raftmq_topic)
        with pytest.raises(TypeError, match="returned a generator, which nobody has run"):
            await mq.process(raftmq_topic, group=raftmq_topic, handler=handle)


@on_trio_and_asyncio
async def test_plain_handlers(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Four at a time, in threads, in the order of each key; one fails twice, with an error that no
    coroutine may raise, and is set aside."""
    lock, done, at_work, most = threading.Lock(), list[tuple[int, int]](), 0, 0
    stop, met = threading.Event(), threading.Event()

    def handle(record: ConsumerRecord) -> None:
        nonlocal at_work, most
        assert threading.current_thread() is not threading.main_thread()
        with lock:
            at_work += 1
            most = max(most, at_work)
            if at_work == 2:
                met.set()
        assert met.wait(10), "one at a time"
        with lock:
            at_work -= 1
            number = int(record.text())
            if number == 17:
                raise StopIteration
            done.append((record.key, number))
            if len(done) == COUNT - 1:
                stop.set()

    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await fill(mq, raftmq_topic)
        options = {"group": raftmq_topic, "concurrency": 4, "retry": AT_ONCE, "stop": stop}
        await mq.process(raftmq_topic, handler=handle, **options, **QUICK)  # type: ignore[arg-type]
        assert 2 <= most <= 4
        assert sorted(number for _, number in done) == [n for n in range(COUNT) if n != 17]
        for key in range(8):
            of_the_key = [number for other, number in done if other == key]
            assert of_the_key == sorted(of_the_key)
        # Key 1: if nothing else, what stands behind the dead letter was handled
        assert await committed(mq, raftmq_topic) >= COUNT - 5


@on_trio_and_asyncio
async def test_cancelled(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Async handlers; what was finished is committed."""
    count, full = 0, anyio.Event()

    async def handle(record: ConsumerRecord) -> None:
        nonlocal count
        if count == 10:
            full.set()
            await anyio.sleep_forever()
        count += 1

    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await fill(mq, raftmq_topic)

        async def run() -> None:
            await mq.process(raftmq_topic, handler=handle, group=raftmq_topic, **QUICK)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await full.wait()
            tasks.cancel_scope.cancel()
        assert await committed(mq, raftmq_topic) == 10


@on_trio_and_asyncio
async def test_an_error_is_raised_as_it_is(raftmq_broker: Server, raftmq_topic: str) -> None:
    """No group of errors, on either loop, from a plain handler or not."""

    def handle(record: ConsumerRecord) -> None:
        raise KeyError(record.text())

    async def handle_soon(record: ConsumerRecord) -> None:
        await checkpoint()
        raise KeyError(record.text())

    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await fill(mq, raftmq_topic)
        for handler in (handle, handle_soon):
            with pytest.raises(KeyError) as caught:
                await mq.process(raftmq_topic, handler=handler, group=raftmq_topic, **QUICK)
            assert "offset 0: not finished" in caught.value.__notes__[0]


@on_trio_and_asyncio
async def test_cancelled_by_itself(raftmq_broker: Server, raftmq_topic: str, backend: str) -> None:
    """A handler under asyncio that lets a cancellation of something else through has failed as with
    any error: its worker must not end unseen."""
    if backend == "trio":  # where that cannot be
        return
    import asyncio

    async def handle(record: ConsumerRecord) -> None:
        raise asyncio.CancelledError

    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await fill(mq, raftmq_topic)
        with pytest.raises(RuntimeError, match="was not cancelled"):
            await mq.process(raftmq_topic, handler=handle, group=raftmq_topic, **QUICK)
