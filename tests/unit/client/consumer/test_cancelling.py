"""A wait that is cancelled, wherever it stands, loses nothing and leaves nothing behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
import trio

from tests.unit.client.consumer.reading import append, consumer, reading, texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.consumer.record import ConsumerRecord

PARTITIONS = 3
BATCHES = 4
RECORDS = 3


class CancelAfter(trio.abc.Instrument):
    """Cancels `scope` once the task that made it has run so many more times."""

    def __init__(self, scope: trio.CancelScope, steps: int) -> None:
        self._scope, self._left, self._task = scope, steps, trio.lowlevel.current_task()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task:
            self._left -= 1
            if self._left == 0:
                self._scope.cancel()


async def one_by_one(c: Consumer, found: list[ConsumerRecord]) -> None:
    async for record in c:
        found.append(record)  # noqa: PERF401 (it may be cancelled)


async def in_batches(c: Consumer, found: list[ConsumerRecord]) -> None:
    async for records in c.batches(max_records=2):
        found.extend(records)


@pytest.mark.parametrize("read", [one_by_one, in_batches])
@pytest.mark.parametrize("steps", [*range(1, 12), 15, 20, 30])
async def test_cancelled_after_so_many_steps(
    autojump_clock: MockClock, steps: int, read: Callable[..., Any]
) -> None:
    """Again and again, then the rest at one go: every record once, in order."""
    async with reading(1, 2, 1) as (world, client):
        async with consumer(client, max_poll_records=2) as c:
            found: list[ConsumerRecord] = []
            for number in range(BATCHES):
                for partition in range(PARTITIONS):
                    append(world, partition, *[f"{number}{each}" for each in range(RECORDS)])
                for _ in range(20):
                    with trio.CancelScope(deadline=trio.current_time() + 0.05) as scope:
                        instrument = CancelAfter(scope, steps)
                        trio.lowlevel.add_instrument(instrument)
                        try:
                            await read(c, found)
                        finally:
                            trio.lowlevel.remove_instrument(instrument)
                    await trio.sleep(0.001)
            with trio.move_on_after(1):
                await read(c, found)
        expected = [f"{number}{each}" for number in range(BATCHES) for each in range(RECORDS)]
        for partition in range(PARTITIONS):
            assert texts([one for one in found if one.partition == partition]) == expected


@pytest.mark.parametrize("steps", range(1, 25))
async def test_opening_and_closing_at_any_moment(autojump_clock: MockClock, steps: int) -> None:
    """Cancelled while it is opened, read or closed: no task stays, and another consumer works."""
    async with reading(1, 2) as (world, client):
        append(world, 0, "a")
        tasks_before = trio.lowlevel.current_statistics().tasks_living
        with trio.CancelScope() as scope:
            instrument = CancelAfter(scope, steps)
            trio.lowlevel.add_instrument(instrument)
            try:
                with trio.move_on_after(1):
                    async with consumer(client) as c:
                        await one_by_one(c, [])
            finally:
                trio.lowlevel.remove_instrument(instrument)
        await trio.sleep(10)
        # Connections to brokers stay, and each is two tasks on either side.
        assert trio.lowlevel.current_statistics().tasks_living - tasks_before <= 20
        async with consumer(client) as c:
            assert (await anext(c)).value == b"a"


async def test_handing_out_records_is_no_checkpoint(autojump_clock: MockClock) -> None:
    """Nobody else runs while the records of one batch are handed out."""
    async with reading(1) as (world, client):
        append(world, 0, *map(str, range(100)))
        async with consumer(client) as c:
            await anext(c)
            with anyio.CancelScope() as scope:
                scope.cancel()
                for _ in range(99):
                    await anext(c)
            assert not scope.cancelled_caught
            assert c.position("u", 0) == 100


async def test_breaking_off_a_loop_loses_nothing(autojump_clock: MockClock) -> None:
    """Records one by one and batches, in turns, with the rest of a batch left over each time."""
    async with reading(1) as (world, client):
        for number in range(6):
            append(world, 0, *[f"{number}{each}" for each in range(4)])
        found = []
        async with consumer(client, max_poll_records=5) as c:
            while len(found) < 24:
                async for record in c:
                    found.append(record.offset)
                    break
                async for records in c.batches(max_records=3):
                    found += records.offsets
                    break
                async for record in c:
                    found.append(record.offset)
                    if record.offset % 3 == 0:
                        break
                    if len(found) == 24:
                        break
        assert found == list(range(24))
