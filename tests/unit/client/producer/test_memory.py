"""The buffer: how much memory it takes, and who waits for room in it."""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from raftmq.client.producer.record import RECORD_OVERHEAD_BYTES
from raftmq.errors import BufferFull, RaftmqError
from tests.unit.client.producer.shell import in_log, open_producer, open_stage, used_bytes

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_memory_stays_at_its_bound(autojump_clock: MockClock) -> None:
    """The broker is dead: whatever way records are handed in, they wait outside of the buffer.

    A4.6.
    """
    bound = 1 << 20
    options = {"buffer_memory": bound, "max_request_size": 100_000, "delivery_timeout_ms": 60_000}
    async with open_stage() as stage:
        stage.world.brokers[1].stop()
        with trio.move_on_after(30):
            async with stage.client.producer(**options) as producer:
                await trio.sleep(0.1)
                gc.collect()
                tracemalloc.start()
                async with trio.open_nursery() as tasks:
                    tasks.start_soon(_enqueue_for_ever, producer)
                    tasks.start_soon(
                        producer.send_many, "t", (b"%d" % each for each in range(1 << 40))
                    )
                    await trio.sleep(10)
                    gc.collect()
                    grown = tracemalloc.get_traced_memory()[0]
                    tracemalloc.stop()
                    assert bound * 0.7 < used_bytes(producer) <= bound
                    assert grown < bound * 1.1
                    with pytest.raises(BufferFull, match="buffer_memory is 1048576"):
                        producer.send_nowait("t", b"x")
                    tasks.cancel_scope.cancel()
                await trio.sleep_forever()
        assert used_bytes(producer) == 0


async def _enqueue_for_ever(producer: Any) -> None:
    while True:
        await producer.enqueue("t", b"0123456789", key=b"key")


async def test_memory_of_records_of_a_topic_that_nobody_knows(autojump_clock: MockClock) -> None:
    """They cost more, and are counted with it."""
    async with open_producer(buffer_memory=1 << 20, max_request_size=1000) as (_, producer):
        gc.collect()
        tracemalloc.start()
        with suppress(BufferFull):
            for number in range(100_000):
                producer.send_nowait("nope", b"%08d" % number, timestamp=(1 << 40) + (number << 20))
        grown = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert grown <= used_bytes(producer)
        with pytest.raises(RaftmqError):
            await producer.flush()
        assert used_bytes(producer) == 0


@pytest.mark.parametrize("way", ["plain", "keyed", "kept", "callback", "headers", "tags"])
async def test_a_record_costs_no_more_than_it_is_counted_with(
    autojump_clock: MockClock, way: str
) -> None:
    """Measured with small records, which cost most beside their bytes."""
    kept: list[Any] = []

    def ignore(_error: object, _metadata: object) -> None:
        pass

    async with open_stage() as stage:
        with trio.CancelScope() as scope:
            async with stage.client.producer(linger_ms=60_000) as producer:
                await producer.send("t", b"")
                gc.collect()
                tracemalloc.start()
                for number in range(2000):
                    given: dict[str, Any] = {
                        "plain": {},
                        "keyed": {"key": b"k%07d" % number},
                        "kept": {"key": b"k%07d" % number},
                        "callback": {"key": b"k%07d" % number, "on_delivery": ignore},
                        "headers": {"headers": {f"trace-{number}": b"v%d" % number}},
                        "tags": {"tags": [f"tag-{number}"]},
                    }[way]
                    delivery = producer.send_nowait(
                        "t", b"v%07d" % number, timestamp=(1 << 40) + (number << 20), **given
                    )
                    if way == "kept":
                        kept.append(delivery)
                grown = tracemalloc.get_traced_memory()[0]
                tracemalloc.stop()
                assert grown < used_bytes(producer) + 2000
                scope.cancel()
                await trio.sleep_forever()
    assert RECORD_OVERHEAD_BYTES == 256, "the docstring of buffer_memory says so"


async def test_enqueue_waits_in_order(autojump_clock: MockClock) -> None:
    """First come, first served, though later ones are smaller; one who gives up leaves no gap.

    A17.2.
    """
    async with open_stage() as stage:
        world = stage.world
        world.lead("t", 0, -1)
        options = {"buffer_memory": 64 << 10, "max_request_size": 60_000, "batch_size": 1000}
        async with stage.client.producer(**options) as producer, trio.open_nursery() as tasks:
            order: list[int] = []
            scopes = [trio.CancelScope() for _ in range(10)]

            async def enqueue(number: int) -> None:
                with scopes[number]:
                    await producer.enqueue("t", b"%d" % number + bytes(45_000 - 1000 * number))
                    order.append(number)

            await producer.enqueue("t", bytes(60_000))
            for number in range(10):
                tasks.start_soon(enqueue, number)
                await trio.testing.wait_all_tasks_blocked(0.0001)
            assert not order
            with pytest.raises(BufferFull):
                producer.send_nowait("t", b"")
            begin = trio.current_time()
            scopes[0].cancel()
            scopes[4].cancel()
            await trio.testing.wait_all_tasks_blocked(0.0001)
            assert trio.current_time() - begin < 0.1
            world.lead("t", 0, 2)
            await producer.flush()
        assert order == [1, 2, 3, 5, 6, 7, 8, 9]
        assert [value[0] for value in in_log(world)[1:]] == list("12356789")
        assert used_bytes(producer) == 0


async def test_a_bad_record_lets_the_next_in(autojump_clock: MockClock) -> None:
    """It has waited for room, and then cannot be sent: nobody waits for ever behind it."""
    async with open_stage() as stage:
        stage.world.lead("t", 0, -1)
        options = {"buffer_memory": 64 << 10, "max_request_size": 60_000}
        async with stage.client.producer(**options) as producer, trio.open_nursery() as tasks:
            await producer.send_many("t", [])
            producer.send_nowait("t", bytes(60_000))

            async def bad() -> None:
                with pytest.raises(RaftmqError):
                    await producer.enqueue("t", bytes(50_000), partition=9)

            tasks.start_soon(bad)
            await trio.testing.wait_all_tasks_blocked(0.0001)
            tasks.start_soon(producer.enqueue, "t", bytes(50_000))
            await trio.testing.wait_all_tasks_blocked(0.0001)
            stage.world.lead("t", 0, 1)
            with trio.fail_after(5):
                await producer.flush()
        assert len(in_log(stage.world)) == 2
