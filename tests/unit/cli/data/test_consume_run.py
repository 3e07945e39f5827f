"""`raftmq consume -e` where the last offsets of a partition are no records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.cli.benching.consume import ConsumeBench, ConsumePlan
from raftmq.cli.data.consume_run import Range, RemainingRecords, write_all
from raftmq.cli.data.record_format import write_values
from tests.unit.client.consumer.reading import append, append_control, consumer, reading

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.client.world import World

ENDS = {("u", 0): Range(0, 5), ("u", 1): Range(0, 1)}


def fill(world: World) -> None:
    """One partition ends with control batches, the other one holds nothing else."""
    append(world, 0, "a", "b")
    append_control(world, 0)
    append(world, 0, "c")
    append_control(world, 0)
    append_control(world, 1)
    assert [one.end_offset for one in world.topics["u"].partitions] == [5, 1]


async def test_until_the_end(autojump_clock: MockClock) -> None:
    """All records are written, and it ends though no record reaches either end."""
    lines: list[bytes] = []

    async def write(data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        lines.extend(data.splitlines())

    async with reading(1, 2) as (world, client), consumer(client) as c:
        fill(world)
        with trio.fail_after(5):
            await write_all(c, RemainingRecords(ENDS), write_values, write)
        assert lines == [b"a", b"b", b"c"]


async def test_until_an_end_that_is_written_later(autojump_clock: MockClock) -> None:
    """The records are handed out before the control batch behind them is there."""
    lines: list[bytes] = []

    async def write(data: bytes) -> None:
        await trio.sleep(1)
        lines.extend(data.splitlines())

    async with reading(1) as (world, client), consumer(client) as c:
        append(world, 0, "a")
        async with trio.open_nursery() as nursery:
            extent = RemainingRecords({("u", 0): Range(0, 2)})
            nursery.start_soon(write_all, c, extent, write_values, write)
            await trio.sleep(3)
            assert not extent.is_over
            append_control(world, 0)
            nursery.cancel_scope.deadline = trio.current_time() + 5
        assert extent.is_over
        assert lines == [b"a"]


@pytest.mark.parametrize("seconds", [None, 2.0])
async def test_bench_until_the_end(autojump_clock: MockClock, seconds: float | None) -> None:
    """It counts the records, and ends."""
    async with reading(1, 2) as (world, client), consumer(client) as c:
        fill(world)
        run = ConsumeBench(RemainingRecords(ENDS), 6)
        with trio.fail_after(5):
            await run.go(c, ConsumePlan("u", None, seconds, quiet=True))
        assert run.rates()["records"] == 3
