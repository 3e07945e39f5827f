"""The block of a producer: what leaving it does, however it is left."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import trio

from raftmq.client.client import Client
from raftmq.errors import Closed, OutcomeUnknown
from tests.simulation.client_network import ClientNetwork
from tests.unit.client.producer.shell import (
    dispatcher_of,
    in_log,
    open_producer,
    open_stage,
    used_bytes,
)
from tests.unit.client.world import silent

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.producer.producer import Producer


async def test_outside_of_its_block(autojump_clock: MockClock) -> None:
    """Before and after it nothing is taken; it is opened once."""
    async with open_stage() as stage:
        producer = stage.client.producer()
        for _ in range(2):
            with pytest.raises(Closed, match=r"producer is not open|has been closed"):
                producer.send_nowait("t", b"x")
            with pytest.raises(Closed):
                await producer.enqueue("t", b"x")
            with pytest.raises(Closed):
                await producer.send_many("t", [b"x"])
            with pytest.raises(Closed):
                await producer.flush()
            if not producer._was_opened:
                async with producer:
                    await producer.send("t", b"x")
        with pytest.raises(Closed, match="opened once"):
            await producer.__aenter__()


async def test_leaving_the_block_delivers(autojump_clock: MockClock) -> None:
    """What was only handed in is in the log; an error of the body changes nothing about that."""
    async with open_stage() as stage:
        with suppress(KeyError):
            async with stage.client.producer(linger_ms=60_000) as producer:
                producer.send_nowait("t", b"1")
                raise KeyError
        async with stage.client.producer(linger_ms=60_000) as producer:
            producer.send_nowait("t", b"2")
        assert in_log(stage.world) == ["1", "2"]


async def test_leaving_delivers_what_callbacks_send(autojump_clock: MockClock) -> None:
    """A chain of records, each sent when the one before has arrived."""
    async with open_producer() as (world, producer):

        def send_next(_error: object, metadata: Any) -> None:
            if metadata.offset < 3:
                producer.send_nowait("t", b"%d" % (metadata.offset + 1), on_delivery=send_next)

        producer.send_nowait("t", b"0", on_delivery=send_next)
        world_of = world
    assert in_log(world_of) == ["0", "1", "2", "3"]


async def test_a_block_that_is_cancelled(autojump_clock: MockClock) -> None:
    """What is on its way is of unknown fate, the rest is given up; nobody waits any longer."""
    async with open_stage() as stage:
        stage.world.brokers[1].produces += [silent]
        with trio.move_on_after(1) as scope:
            async with stage.client.producer(linger_ms=0) as producer:
                flying = producer.send_nowait("t", b"1")
                await trio.sleep(0.5)
                waiting = producer.send_nowait("t", b"2")
                unknown = producer.send_nowait("nope", b"3")
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert trio.current_time() < 5
        with pytest.raises(OutcomeUnknown):
            flying.result()
        for delivery in (waiting, unknown):
            with pytest.raises(Closed) as caught:
                delivery.result()
            assert caught.value.definite
        assert used_bytes(producer) == 0
        queues = dispatcher_of(producer).accumulator.topics["t"].queues
        assert all(queue.is_idle for queue in queues.values())


async def test_a_client_that_is_closed_first(autojump_clock: MockClock) -> None:
    """What is on its way is of unknown fate, what waits was certainly not appended."""
    async with open_stage() as stage:
        stage.world.brokers[1].produces += [silent]
        network = ClientNetwork(stage.world.network.node("another"))
        client = await Client([stage.world.brokers[1].address], network=network).open()
        producer = await client.producer(linger_ms=0).open()
        flying = producer.send_nowait("t", b"1")
        await trio.sleep(0.5)
        waiting = producer.send_nowait("t", b"2")
        await client.aclose()
        with pytest.raises(OutcomeUnknown, match="may have been appended: "):
            await flying
        with pytest.raises(Closed, match="client was closed before it was delivered") as caught:
            await waiting
        assert caught.value.definite
        await producer.aclose()


async def test_a_background_that_breaks(autojump_clock: MockClock) -> None:
    """What it leaves has the error as its cause."""

    async def fail() -> None:
        raise ValueError("broken")

    async with open_stage() as stage:
        producer = await stage.client.producer(linger_ms=60_000).open()
        waiting = producer.send_nowait("t", b"1")
        await trio.sleep(0.1)  # its task has begun
        tasks = dispatcher_of(producer)._tasks
        assert tasks is not None
        tasks.start_soon(fail)
        with pytest.raises(Closed, match="before it was delivered") as caught:
            await waiting
        assert isinstance(caught.value.__cause__, ValueError)
        with pytest.raises(ValueError, match="broken"):
            await producer.aclose()


async def test_tasks_that_hand_in_while_the_block_is_cancelled(autojump_clock: MockClock) -> None:
    """They get an error rather than a promise that nobody keeps."""
    async with open_stage() as stage:
        stage.world.brokers[1].produces += [silent]
        ended = []

        async def send_for_ever(producer: Producer) -> None:
            try:
                while True:
                    await producer.enqueue("t", b"x" * 1000)
                    await trio.lowlevel.checkpoint()
            except Closed as error:
                ended.append(error)

        async with trio.open_nursery() as tasks:
            with trio.move_on_after(1):
                async with stage.client.producer(
                    batch_size=1, buffer_memory=64 << 10, max_request_size=10_000
                ) as producer:
                    for _ in range(5):
                        tasks.start_soon(send_for_ever, producer)
                    await trio.sleep_forever()
        assert len(ended) == 5
        assert used_bytes(producer) == 0
