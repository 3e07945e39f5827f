"""Control batches take offsets: whoever has all records has read them, too, and commits so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from tests.unit.client.consumer.reading import append_control
from tests.unit.client.group.grouped import grouped, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from trio.testing import MockClock

    from raftmq.client.consumer.consumer import Consumer
    from tests.unit.client.group.grouped import Grouped

    Read = Callable[[Consumer, list[str], bool], Awaitable[None]]  # whether it commits by hand

AUTOMATIC = ["batch", "record", "before"]


async def read_batches(c: Consumer, values: list[str], by_hand: bool) -> None:
    async for batch in c.batches():
        values.extend((value or b"").decode() for value in batch.values)
        if by_hand:
            await c.commit(batch)


async def read_records(c: Consumer, values: list[str], by_hand: bool) -> None:
    async for record in c:
        values.append((record.value or b"").decode())
        if by_hand:
            await c.commit(record)


def fill(here: Grouped) -> None:
    """Control batches stand between records, at the end, and alone."""
    here.append(0, "a", "b")
    append_control(here.world, 0, topic="orders")
    here.append(0, "c")
    append_control(here.world, 0, topic="orders")


def committed_to_the_end(here: Grouped) -> bool:
    partitions = here.world.topics["orders"].partitions
    return all(here.committed(number) == one.end_offset for number, one in enumerate(partitions))


@pytest.mark.parametrize("read", [read_batches, read_records])
@pytest.mark.parametrize("commit", [*AUTOMATIC, "manual"])
async def test_behind_the_last_record(autojump_clock: MockClock, commit: str, read: Read) -> None:
    """They are there before anything is read: no lag is left, and nothing comes again."""
    async with grouped(1) as here:
        fill(here)
        for expected in (["a", "b", "c"], []):
            values: list[str] = []
            async with here.consumer("a", commit=commit) as c, trio.open_nursery() as nursery:
                nursery.start_soon(read, c, values, commit == "manual")
                await until(lambda: committed_to_the_end(here), seconds=5.0)
                await trio.sleep(1.0)
                assert c.lag("orders", 0) == 0
                nursery.cancel_scope.cancel()
            assert values == expected
            assert committed_to_the_end(here)


@pytest.mark.parametrize("read", [read_batches, read_records])
@pytest.mark.parametrize("commit", AUTOMATIC)
async def test_when_all_was_read(autojump_clock: MockClock, commit: str, read: Read) -> None:
    """They come when the program waits for more already, also where there is nothing else."""
    async with grouped(2) as here:
        fill(here)
        values: list[str] = []
        async with here.consumer("a", commit=commit) as c, trio.open_nursery() as nursery:
            nursery.start_soon(read, c, values, False)
            await until(lambda: here.committed(0) == 5)
            for _ in range(2):
                await trio.sleep(3.0)
                for partition in range(2):
                    append_control(here.world, partition, topic="orders")
                await until(lambda: committed_to_the_end(here), seconds=5.0)
            nursery.cancel_scope.cancel()
        assert values == ["a", "b", "c"]


@pytest.mark.parametrize("commit", AUTOMATIC)
async def test_while_the_last_record_is_worked_on(autojump_clock: MockClock, commit: str) -> None:
    """What is in hand is not done because something came behind it; once more is asked for it is,
    and so is that."""
    async with grouped(1) as here:
        here.append(0, "a", "b")
        async with here.consumer("a", commit=commit) as c, trio.open_nursery() as nursery:
            await anext(c)
            await anext(c)
            append_control(here.world, 0, topic="orders")
            await trio.sleep(3.0)
            assert here.committed(0) in ((2, 3) if commit == "before" else (1,))
            nursery.start_soon(anext, c)
            await until(lambda: committed_to_the_end(here), seconds=5.0)
            nursery.cancel_scope.cancel()


async def test_before_does_not_go_back(autojump_clock: MockClock) -> None:
    """A batch was committed first, and its records are handed out one by one: what comes behind it
    meanwhile does not undo that."""
    async with grouped(1) as here:
        here.append(0, "a", "b")
        async with here.consumer("a", commit="before") as c:
            await anext(c)
            append_control(here.world, 0, topic="orders")
            for _ in range(20):
                await trio.sleep(0.1)
                assert here.committed(0) in (2, 3)
