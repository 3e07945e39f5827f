"""`open()` and `aclose()`: from different tasks, twice, never, cancelled, and with errors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import anyio
import anyio.lowlevel
import pytest

import raftmq
from raftmq.client.openable import Openable
from raftmq.errors import Closed, InvalidRequest, MessageTooLarge, Unreachable
from tests.unit.client.backends import on_trio_and_asyncio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup

    from raftmq.testing.server import Server


class Door(Openable):
    """With a task of its own, which can fail, and an end that takes until it may end."""

    def __init__(self, *, refusal: Exception | None = None) -> None:
        self._is_open, self.log, self._refusal = False, [], refusal
        self.may_enter, self.may_end, self.breaks = anyio.Event(), anyio.Event(), anyio.Event()
        self.may_enter.set()
        self.may_end.set()
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        await self.may_enter.wait()
        if self._refusal is not None:
            raise self._refusal
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._work)
        self._is_open = True
        return self

    async def __aexit__(self, *error: object) -> None:
        self._is_open = False
        try:
            if error[0] is None:
                await self.may_end.wait()
                self.log.append("delivered")
        finally:
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(*error)

    async def _work(self) -> None:
        await self.breaks.wait()
        raise ValueError("broken")


async def in_a_task(call: Callable[[], Awaitable[object]]) -> None:
    """As pytest's plugins run fixtures, and frameworks their lifespans."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)


@on_trio_and_asyncio
async def test_a_connection_that_a_fixture_holds(raftmq_broker: Server, raftmq_topic: str) -> None:
    """Client, producer and consumer, each opened in one task and closed in another; all arrives."""
    mq = raftmq.connect(raftmq_broker.bootstrap)
    await in_a_task(mq.open)
    await mq.admin.create_topic(raftmq_topic)
    producer, consumer = mq.producer(), mq.consumer(raftmq_topic)
    for each in (producer, consumer):
        await in_a_task(each.open)
    producer.send_nowait(raftmq_topic, b"x")
    await in_a_task(producer.aclose)
    assert (await anext(consumer)).value == b"x"
    for each in (consumer, mq, mq, producer):
        await in_a_task(each.aclose)
    with pytest.raises(Closed, match="has been closed"):
        mq.producer()


@on_trio_and_asyncio
async def test_what_was_not_delivered_is_raised_when_it_is_closed(
    raftmq_broker: Server, raftmq_topic: str
) -> None:
    """As at the end of a block: the first failure that nothing else has reported; and once."""
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await mq.admin.create_topic(raftmq_topic, config={"max.message.bytes": 1000})
        producer = await mq.producer().open()
        producer.send_nowait(raftmq_topic, b"x" * 2000)
        with pytest.raises(MessageTooLarge):
            await producer.aclose()
        await producer.aclose()


@on_trio_and_asyncio
async def test_the_client_is_closed_first(raftmq_broker: Server, raftmq_topic: str) -> None:
    """What its producers and consumers wait for fails with Closed, long before any timeout: also a
    record whose topic nobody knows yet."""
    mq = await raftmq.connect(raftmq_broker.bootstrap).open()
    await mq.admin.create_topic(raftmq_topic)
    producer, consumer = await mq.producer().open(), await mq.consumer(raftmq_topic).open()

    async def read() -> None:
        with pytest.raises(Closed, match="the client has been closed"):
            await anext(consumer)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        await mq.aclose()
        with anyio.fail_after(5), pytest.raises(Closed, match="the client has been closed"):
            await producer.send(raftmq_topic, b"x")
    for each in (producer, consumer):
        await each.aclose()


@on_trio_and_asyncio
async def test_who_waits_for_records_hears_of_the_error(
    raftmq_broker: Server, raftmq_topic: str
) -> None:
    """The background of a consumer breaks: the Closed of the task that waits names the error."""

    async def fail() -> None:
        raise ValueError("broken")

    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await mq.admin.create_topic(raftmq_topic)
        consumer = await mq.consumer(raftmq_topic).open()
        assert consumer._block is not None
        consumer._block._group.start_soon(fail)
        with pytest.raises(Closed, match="broken") as info:
            await anext(consumer)
        assert isinstance(info.value.__cause__, ValueError)
        with pytest.raises(ValueError, match="broken"):
            await consumer.aclose()


@on_trio_and_asyncio
async def test_a_second_open() -> None:
    """While it is open, after it was closed, and within a block: refused; it stays as it is."""
    door = await Door().open()
    for _ in range(2):
        with pytest.raises(Closed, match="opened once"):
            await door.open()
        assert door._is_open == (not door.log)
        await door.aclose()
    assert door.log == ["delivered"]
    async with Door() as other:
        with pytest.raises(InvalidRequest, match="leave out aclose"):
            await other.aclose()
        assert other._is_open


@on_trio_and_asyncio
async def test_aclose_without_open() -> None:
    """Nothing happens, and it can still be opened."""
    door = Door()
    await door.aclose()
    await door.open()
    await door.aclose()
    await door.aclose()
    assert door.log == ["delivered"]


@on_trio_and_asyncio
async def test_two_tasks_close_it() -> None:
    """Both wait for the end."""
    door = await Door().open()
    door.may_end = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(door.aclose)
        tasks.start_soon(door.aclose)
        await anyio.wait_all_tasks_blocked()
        door.may_end.set()
    assert door.log == ["delivered"]


@on_trio_and_asyncio
async def test_an_error_of_opening() -> None:
    """It reaches who opens; there is nothing to close then."""
    door = Door(refusal=Unreachable("nobody"))
    with pytest.raises(Unreachable, match="nobody"):
        await door.open()
    await door.aclose()


@on_trio_and_asyncio
async def test_an_error_of_the_background() -> None:
    """A task breaks in between: calls name the error as their cause, aclose raises it, once."""
    door = await Door().open()
    door.breaks.set()
    while "error" not in str(door._why_closed("the door", was_opened=True)):
        await anyio.lowlevel.checkpoint()
    assert not door._is_open
    error = door._why_closed("the door", was_opened=True)
    assert "broken" in str(error)
    assert isinstance(error.__cause__, ValueError)
    with pytest.raises(ValueError, match="broken"):
        await door.aclose()
    await door.aclose()
    assert door.log == []


@on_trio_and_asyncio
async def test_a_cancelled_open() -> None:
    """What was opened so far is closed before the cancellation goes on."""
    door = Door()
    door.may_enter = anyio.Event()
    with anyio.move_on_after(0.01) as scope:
        await door.open()
    assert scope.cancelled_caught
    await door.aclose()
    with pytest.raises(Closed, match="opened once"):
        await door.open()


@on_trio_and_asyncio
async def test_a_cancelled_aclose() -> None:
    """It ends without delivering."""
    door = await Door().open()
    door.may_end = anyio.Event()
    with anyio.move_on_after(0.01) as scope:
        await door.aclose()
    assert scope.cancelled_caught
    assert (door._is_open, door.log) == (False, [])
    await door.aclose()


@on_trio_and_asyncio
async def test_closed_while_it_is_opened() -> None:
    """By another task: `open` raises Closed."""
    door, told = Door(), []
    door.may_enter = anyio.Event()

    async def open_it() -> None:
        with pytest.raises(Closed, match="while it was being opened") as info:
            await door.open()
        told.append(info.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_it)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(door.aclose)
        await anyio.wait_all_tasks_blocked()
        door.may_enter.set()
    assert told
    assert not door._is_open


def test_closed_in_another_loop() -> None:
    """Fixtures of different scopes have loops of their own: an error says so, nothing hangs."""
    first = asyncio.new_event_loop()
    try:
        door = first.run_until_complete(_opened_door())
        with pytest.raises(InvalidRequest, match="another event loop"):
            asyncio.run(door.aclose())
        first.run_until_complete(door.aclose())
        assert door.log == ["delivered"]
    finally:
        first.close()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_never_closed(backend: str) -> None:
    """The program ends: the loop ends the background, which delivers nothing any more."""
    door = anyio.run(_opened_door, backend=backend)
    assert (door._is_open, door.log) == (False, [])
    anyio.run(door.aclose, backend=backend)


async def _opened_door() -> Door:
    return await Door().open()


def test_a_task_of_asyncio_is_cancelled_while_it_opens() -> None:
    """asyncio's own cancellation, as of a lifespan that is broken off, ends the background."""

    async def main() -> None:
        door = Door()
        door.may_enter = anyio.Event()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await door.open()
        assert not door._is_open

    asyncio.run(main())


def test_blocking_classes_are_opened_and_closed_likewise(
    raftmq_broker: Server, raftmq_topic: str
) -> None:
    """`open` and `close` without a block; closing twice, or what was never opened, does nothing."""
    mq = raftmq.sync.connect(raftmq_broker.bootstrap)
    mq.close()
    mq.open()
    mq.admin.create_topic(raftmq_topic)
    producer, consumer = mq.producer(), mq.consumer(raftmq_topic)
    producer.close()
    producer.open()
    consumer.open()
    with pytest.raises(Closed, match="opened once"):
        producer.open()
    producer.enqueue(raftmq_topic, b"x")
    producer.close()
    assert [record.value for record in consumer.records(timeout=1)] == [b"x"]
    for _ in range(2):
        for each in (producer, consumer, mq):
            each.close()
    with pytest.raises(Closed, match="has been closed"):
        mq.producer()


@on_trio_and_asyncio
async def test_a_client_that_is_closed_first(raftmq_broker: Server, raftmq_topic: str) -> None:
    """What its producer and consumer wait for, and what comes later, ends with Closed at once."""
    mq = await raftmq.connect(raftmq_broker.bootstrap).open()
    await mq.admin.create_topic(raftmq_topic)
    early, late, unopened = await mq.producer().open(), await mq.producer().open(), mq.producer()
    consumer = await mq.consumer(raftmq_topic).open()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refused, consumer.__anext__)
            await anyio.lowlevel.checkpoint()
            waiting = await early.enqueue(raftmq_topic, b"x")
            await mq.aclose()
        with pytest.raises(Closed) as caught:
            await waiting
        assert caught.value.definite
        for producer in (early, late):
            await refused(lambda producer=producer: producer.send(raftmq_topic, b"x"))
        await refused(unopened.open)
        await refused(consumer.__anext__)
        for each in (consumer, early, late):
            await each.aclose()


async def refused(call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(Closed, match="client has been closed"):
        await call()
