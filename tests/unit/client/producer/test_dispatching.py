"""Requests that leave in the step that makes them, and answers that a callback takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.client.producer import dispatcher
from raftmq.errors import ErrorCode, OutcomeUnknown, UnknownTopicOrPartition
from tests.unit.client.producer.shell import (
    dispatcher_of,
    in_log,
    open_producer,
    open_stage,
    used_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio.testing import MockClock

    from raftmq.client.producer.delivery import Delivery
    from raftmq.client.producer.producer import Producer
    from raftmq.rpc.reply import Reply
    from tests.unit.client.producer.shell import Stage
    from tests.unit.client.world import Turn


async def slow(turn: Turn) -> Reply:
    await trio.sleep(3)
    return turn.carry_out()


class Spawned(trio.abc.Instrument):
    """Names of the client's tasks that have begun."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        if "raftmq.client." in task.name:
            self.names.append(task.name)


async def test_a_request_needs_no_task(autojump_clock: MockClock) -> None:
    """While the leader is connected; not even where it refuses, and the record is sent again."""
    async with open_producer() as (world, producer):
        await producer.send("t", b"1")
        spawned = Spawned()
        trio.lowlevel.add_instrument(spawned)
        world.brokers[1].produces += [lambda turn: turn.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)]
        await producer.send("t", b"2")
        trio.lowlevel.remove_instrument(spawned)
        assert in_log(world) == ["1", "2"]
        assert spawned.names == []


async def test_a_leader_that_has_hung_up(autojump_clock: MockClock) -> None:
    """The next request waits for a connection, in a task of its own."""
    async with open_producer() as (world, producer):
        await producer.send("t", b"1")
        world.brokers[1].hang_up()
        await trio.sleep(1)
        await producer.send("t", b"2")
        assert in_log(world) == ["1", "2"]


async def test_an_answer_after_the_end(autojump_clock: MockClock) -> None:
    """The block was cancelled while the leader worked: its answer is dropped, and the connection
    serves the next producer."""
    async with open_stage() as stage:
        stage.world.brokers[1].produces += [slow]
        with trio.move_on_after(1):
            async with stage.client.producer(linger_ms=0) as producer:
                late = producer.send_nowait("t", b"1")
                await trio.sleep_forever()
        with pytest.raises(OutcomeUnknown):
            late.result()
        await trio.sleep(5)
        assert in_log(stage.world) == ["1"]
        async with stage.client.producer() as another:
            await another.send("t", b"2")
        assert in_log(stage.world) == ["1", "2"]
        assert used_bytes(producer) == 0


class Exiting(BaseException):
    """Not an error that a callback's caller hides."""


def fail(*_arguments: object, **_named: object) -> None:
    raise Exiting


async def fail_in_a_callback(producer: Producer) -> None:
    await producer.enqueue("t", b"x", on_delivery=fail)


async def fail_by_a_defect(producer: Producer) -> None:
    dispatcher_of(producer)._sending.on_answer = fail  # type: ignore[method-assign]
    await producer.enqueue("t", b"x")


@pytest.mark.parametrize("send", [fail_in_a_callback, fail_by_a_defect])
async def test_an_error_where_an_answer_is_taken(
    autojump_clock: MockClock, send: Callable[[Producer], Awaitable[None]]
) -> None:
    """It is raised in the task of the connection, and ends the block of its producer alone."""

    async def run(stage: Stage) -> None:
        async with stage.client.producer() as producer:
            await send(producer)
            await trio.sleep_forever()

    async with open_stage() as stage, stage.client.producer(linger_ms=0) as other:
        stage.world.add_topic("u", 1)
        await other.send("u", b"1")
        stage.world.brokers[1].produces += [slow]
        waiting = other.send_nowait("u", b"2")
        await trio.sleep(0.5)
        with pytest.raises(Exiting):
            await run(stage)
        assert not waiting.is_done
        await waiting
        assert in_log(stage.world, topic="u") == ["1", "2"]


@pytest.mark.parametrize("where", ["ask_now", "answers_in"])
async def test_what_a_defect_leaves_in_flight_is_unknown(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A task that awaits such a record elsewhere learns it when the block has ended, and the
    memory is given back."""
    outcomes: list[str] = []

    async def wait(delivery: Delivery) -> None:
        with pytest.raises(OutcomeUnknown):
            await delivery
        outcomes.append("unknown")

    async def run(producer: Producer) -> None:
        async with producer:
            await producer.send("t", b"0")
            monkeypatch.setattr(dispatcher, where, fail)
            nursery.start_soon(wait, producer.send_nowait("t", b"1"))
            await trio.sleep_forever()

    async with open_stage() as stage, trio.open_nursery() as nursery:
        producer = stage.client.producer(linger_ms=0)
        with pytest.raises(Exiting):
            await run(producer)
        assert used_bytes(producer) == 0
    assert outcomes == ["unknown"]


async def test_a_result_that_is_not_there_yet_is_not_learnt(autojump_clock: MockClock) -> None:
    """Asking too early does not make the program one that knows of the failure."""

    async def run(producer: Producer) -> None:
        async with producer:
            early = producer.send_nowait("nowhere", b"1")
            with pytest.raises(AssertionError):
                early.result()

    async with open_stage() as stage:
        with pytest.raises(UnknownTopicOrPartition):
            await run(stage.client.producer(linger_ms=0))
