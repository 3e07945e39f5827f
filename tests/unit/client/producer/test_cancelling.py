"""Cancellation at every await of every call: no bytes lost, nothing half done, and it works on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from tests.unit.client.producer.shell import dispatcher_of, in_log, open_stage, used_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from trio.testing import MockClock

    from raftmq.client.producer.producer import Producer
    from tests.unit.client.producer.shell import Stage

CHECKPOINTS_MAX = 600  # more than any call here takes


async def slow_rows() -> AsyncIterator[bytes]:
    for number in range(3):
        await trio.sleep(0.005)
        yield b"%d" % number


async def send(producer: Producer, topic: str) -> None:
    await producer.send(topic, b"0")


async def enqueue_into_a_full_buffer(producer: Producer, topic: str) -> None:
    for number in range(3):
        await producer.enqueue(topic, b"%d" % number + bytes(40_000))


async def send_many(producer: Producer, topic: str) -> None:
    await producer.send_many(topic, [b"%d" % number + bytes(20_000) for number in range(6)])


async def send_async_rows(producer: Producer, topic: str) -> None:
    await producer.send_many(topic, slow_rows())


async def send_columns(producer: Producer, topic: str) -> None:
    await producer.send_columns(topic, values=[b"0", b"1"])


async def flush(producer: Producer, topic: str) -> None:
    producer.send_nowait(topic, b"0")
    await producer.flush()


CALLS = [
    send,
    enqueue_into_a_full_buffer,
    send_many,
    send_async_rows,
    send_columns,
    flush,
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("is_known", [True, False])
async def test_cancelled_anywhere(
    autojump_clock: MockClock,
    call: Callable[[Producer, str], Awaitable[None]],
    is_known: bool,
) -> None:
    """After k steps of the whole world, for each k until the call ends before that."""
    async with open_stage() as stage:
        for steps in range(CHECKPOINTS_MAX):
            topic = "t" if is_known else f"topic-{steps}"
            if not is_known:
                stage.world.add_topic(topic, 1 + steps % 2)
            options: dict[str, Any] = {"buffer_memory": 64 << 10, "max_request_size": 60_000}
            async with stage.client.producer(**options, batch_size=1000) as producer:
                before = len(in_log(stage.world, topic=topic))
                is_done = await _cancel_after(steps, call, producer, topic)
                with trio.fail_after(1):
                    await producer.flush()
                    _check(stage, producer, topic, before)
                    await producer.send(topic, b"works")
            assert in_log(stage.world, topic=topic)[-1] == "works"
            if is_done:
                assert steps > 1
                return
    raise AssertionError(f"not done after {CHECKPOINTS_MAX} steps")


async def _cancel_after(
    steps: int, call: Callable[[Producer, str], Awaitable[None]], producer: Producer, topic: str
) -> bool:
    """Whether the call was through before that."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as tasks:
            tasks.start_soon(_cancel_later, steps, scope)
            await call(producer, topic)
            tasks.cancel_scope.cancel()
    return not scope.cancelled_caught


async def _cancel_later(steps: int, scope: trio.CancelScope) -> None:
    """Three moments of scheduling for each of time."""
    for _ in range(steps // 4):
        await trio.testing.wait_all_tasks_blocked(0.0)
        await trio.sleep(0.001)
    for _ in range(steps % 4):
        await trio.lowlevel.checkpoint()
    scope.cancel()


def _check(stage: Stage, producer: Producer, topic: str, before: int) -> None:
    assert used_bytes(producer) == 0
    accumulator = dispatcher_of(producer).accumulator
    for each in accumulator.topics.values():
        assert not each.waiting
        assert all(queue.is_idle for queue in each.queues.values())
    arrived = [value[0] for value in in_log(stage.world, topic=topic)[before:]]
    assert arrived == [str(number) for number in range(len(arrived))], "in order, each once"
