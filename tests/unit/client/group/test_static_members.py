"""Members with a name of their own restart within their session, and nobody is disturbed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import FencedInstanceId, IllegalGeneration
from tests.unit.client.group.grouped import grouped, keys, parted, until

if TYPE_CHECKING:
    from trio.testing import MockClock


async def test_a_restart(autojump_clock: MockClock) -> None:
    """It leaves in order and is back within its session: it has what it had, the others hear
    nothing, the generation stays."""
    async with grouped(4) as here:
        first, second = (here.begin(name, group_instance_id=name) for name in "ab")
        await until(lambda: parted((first, second), 0, 1, 2, 3))
        had, told, generation = first.held, len(second.rebalances), second.consumer.generation
        await first.leave()
        await trio.sleep(2.0)
        again = here.begin("a2", group_instance_id="a")
        await until(lambda: again.held)
        assert again.held == had
        await trio.sleep(3.0)
        assert len(second.rebalances) == told
        assert again.consumer.generation == second.consumer.generation == generation


async def test_it_goes_on_where_it_was(autojump_clock: MockClock) -> None:
    """What was done before the restart is not done again; what came meanwhile is."""
    async with grouped(1) as here:
        here.append(0, "before")
        first = here.begin("a", group_instance_id="a")
        await until(lambda: first.values == ["before"])
        await first.leave()
        here.append(0, "meanwhile")
        again = here.begin("a2", group_instance_id="a")
        await until(lambda: again.values == ["meanwhile"])


async def test_it_does_not_come_back(autojump_clock: MockClock) -> None:
    """After its session the others have its partitions."""
    async with grouped(2) as here:
        first, second = (here.begin(name, group_instance_id=name) for name in "ab")
        await until(lambda: parted((first, second), 0, 1))
        await first.leave()
        await trio.sleep(4.0)
        assert len(second.held) == 1
        await until(lambda: second.held == keys(0, 1), seconds=10.0)


async def test_two_with_one_name(autojump_clock: MockClock) -> None:
    """The later one has the place; the earlier one ends with an error that says so, and hands out
    nothing any more."""
    async with grouped(2) as here:
        first = here.begin("a", group_instance_id="one")
        await until(lambda: first.held == keys(0, 1))
        second = here.begin("b", group_instance_id="one")
        await until(lambda: second.held == keys(0, 1))
        await first.ended.wait()
        assert isinstance(first.error, FencedInstanceId)
        for partition in range(2):
            here.append(partition, "x")
        await until(lambda: len(second.records) == 2)
        assert first.values == []


async def test_who_was_replaced_asks_what_is_committed(autojump_clock: MockClock) -> None:
    """Before its next heartbeat: it is told that another process has its place, and does not take
    that from it again."""
    async with grouped(1) as here:
        here.append(0, "x")
        async with here.consumer("a", group_instance_id="one", heartbeat_interval_ms=2900) as c:
            await anext(c)
            other = here.begin("b", group_instance_id="one")
            await until(lambda: other.held, seconds=2.5)
            with pytest.raises(FencedInstanceId):
                await c.committed("orders", 0)
            await trio.sleep(8.0)
            assert other.error is None
            assert (other.held, c.assignment) == (keys(0), [])
            with pytest.raises(FencedInstanceId):
                await anext(c)


async def test_who_was_replaced_commits_nothing(autojump_clock: MockClock) -> None:
    """Its commit is refused, and what is committed stays."""
    async with grouped(1) as here:
        here.append(0, "x", "y", "z")
        async with here.consumer("a", group_instance_id="one", commit="manual") as c:
            first, second = await anext(c), await anext(c)
            await c.commit(first)
            other = here.begin("b", group_instance_id="one", commit="none")
            await until(lambda: len(other.records) == 2)
            with pytest.raises((FencedInstanceId, IllegalGeneration)):
                await c.commit(second)
        assert here.committed(0) == 1
