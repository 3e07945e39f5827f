"""`async with` blocks that end in another task than the one in which they began."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

import raftmq
from raftmq.client.block_tasks import BlockTasks
from raftmq.errors import InvalidRequest
from tests.unit.client.backends import on_trio_and_asyncio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from raftmq import Client, Rebalance
    from raftmq.testing.server import Server

WAY_OUT = r"contextlib\.aclosing.*call open\(\) and aclose\(\) in place of the block"


async def task_ended(call: Any) -> None:
    """As a plugin that runs the two halves of a fixture in a task each."""
    await asyncio.create_task(call)


@pytest.mark.parametrize("kind", ["client", "producer", "consumer", "member"])
def test_a_fixture_in_two_tasks(raftmq_broker: Server, raftmq_topic: str, kind: str) -> None:
    """The end of the block names `open` and `aclose`; what was handed in is delivered, and no task
    is left."""

    async def main() -> None:
        async with raftmq.connect(raftmq_broker.bootstrap) as other:
            await other.admin.create_topic(raftmq_topic)
            mq = raftmq.connect(raftmq_broker.bootstrap)
            if kind != "client":
                await mq.open()
            before = asyncio.all_tasks()
            given: Any = {
                "client": lambda: mq,
                "producer": mq.producer,
                "consumer": lambda: mq.consumer(raftmq_topic),
                "member": lambda: mq.consumer(raftmq_topic, group=raftmq_topic),
            }[kind]()
            await task_ended(given.__aenter__())
            if kind == "producer":
                given.send_nowait(raftmq_topic, b"x")
            with pytest.raises(InvalidRequest, match=WAY_OUT):
                await task_ended(given.__aexit__(None, None, None))
            left = {task.get_name() for task in asyncio.all_tasks() - before}
            # The client that is still open has connections.
            assert not {name for name in left if kind == "client" or ".network." not in name}
            ends = await other.admin.offsets(raftmq_topic, "latest")
            assert ends[0] == (kind == "producer")
            await mq.aclose()

    asyncio.run(main())


def test_an_error_of_the_program_comes_first(raftmq_broker: Server) -> None:
    """The block fails, and ends in another task: the program sees its own error."""

    async def main() -> None:
        mq = raftmq.connect(raftmq_broker.bootstrap)
        await task_ended(mq.__aenter__())
        assert not await mq.__aexit__(ValueError, ValueError("of the program"), None)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_member_that_is_cut_off_while_it_leaves(raftmq_broker: Server, raftmq_topic: str) -> None:
    """asyncio's own cancellation passes through shields: the block's end is over at once, and no
    task of it is left (S6)."""

    async def main() -> None:
        leaving = asyncio.Event()

        async def on_rebalance(change: Rebalance) -> None:
            if change.revoked:
                leaving.set()
                await asyncio.Event().wait()

        async def work(mq: Client) -> None:
            async with mq.consumer(
                raftmq_topic, group=raftmq_topic, start="earliest", on_rebalance=on_rebalance
            ) as consumer:
                await anext(consumer)

        async with raftmq.connect(raftmq_broker.bootstrap) as mq:
            await mq.admin.create_topic(raftmq_topic)
            async with mq.producer() as producer:
                await producer.send(raftmq_topic, "a")
            working = asyncio.create_task(work(mq))
            await leaving.wait()
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            left = {task.get_name() for task in asyncio.all_tasks()}
            assert not {name for name in left if ".consumer." in name or ".group." in name}

    asyncio.run(main())


def test_a_task_that_fails_before_the_end_elsewhere() -> None:
    """Its error is not lost: it is the cause of what the end raises."""

    async def fail() -> None:
        raise ValueError("of a task")

    async def main() -> None:
        blocks: list[BlockTasks] = []

        async def begin() -> None:
            blocks.append(BlockTasks(fail))
            await blocks[0].open()
            await asyncio.Event().wait()

        beginning = asyncio.create_task(begin())
        with pytest.raises(asyncio.CancelledError):
            await beginning
        with pytest.raises(InvalidRequest, match=WAY_OUT) as caught:
            await blocks[0].close()
        assert repr(caught.value.__cause__) == "ValueError('of a task')"

    asyncio.run(main())


async def read(mq: Client, topic: str) -> AsyncIterator[str]:
    async with mq.consumer(topic, start="earliest") as consumer:
        async for record in consumer:
            yield record.text()


def test_a_generator_that_is_left(raftmq_broker: Server, raftmq_topic: str) -> None:
    """A block within an async generator, which a loop breaks off: other calls go on, and the end of
    the block around it names the way out."""
    told: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: told.append(repr(context["exception"]))
        )
        async with raftmq.connect(raftmq_broker.bootstrap) as mq:
            await mq.admin.create_topic(raftmq_topic)
            async with mq.producer() as producer:
                await producer.send(raftmq_topic, "a")
                async for text in read(mq, raftmq_topic):
                    assert text == "a"
                    break
                for number in (1, 2):
                    assert (await producer.send(raftmq_topic, "b")).offset == number

    with pytest.raises(InvalidRequest, match=WAY_OUT):
        asyncio.run(main())
    assert len(told) == 1
    assert told[0].startswith("InvalidRequest")


@on_trio_and_asyncio
async def test_a_generator_that_is_closed(raftmq_broker: Server, raftmq_topic: str) -> None:
    """With `contextlib.aclosing`, as the error says."""
    async with raftmq.connect(raftmq_broker.bootstrap) as mq:
        await mq.admin.create_topic(raftmq_topic)
        async with mq.producer() as producer:
            await producer.send(raftmq_topic, "a")
            async with aclosing(read(mq, raftmq_topic)) as texts:
                async for text in texts:
                    assert text == "a"
                    break
            await producer.send(raftmq_topic, "b")
