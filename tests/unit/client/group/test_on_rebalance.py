"""What a program is told when its partitions change, and what waits for it meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.client.group.effects import Rebalance
from tests.unit.client.consumer.reading import take
from tests.unit.client.group.grouped import grouped, keys, parted, until

if TYPE_CHECKING:
    from trio.testing import MockClock

ALL = tuple(sorted(keys(0, 1, 2, 3)))


async def test_the_events_of_a_life(autojump_clock: MockClock) -> None:
    """Assigned at first; revoked when another one comes, and only what moves; assigned when it
    goes; all revoked at the end."""
    async with grouped(4) as here:
        first = here.begin("a")
        await until(lambda: first.held == set(ALL))
        second = here.begin("b")
        await until(lambda: parted((first, second), 0, 1, 2, 3))
        moved = tuple(sorted(second.held))
        await second.leave()
        await until(lambda: first.held == set(ALL))
        await first.leave()
        kinds = [(one.assigned, one.revoked, one.lost) for one in first.rebalances]
        assert kinds == [(ALL, (), ()), ((), moved, ()), (moved, (), ()), ((), ALL, ())]
        generations = [one.generation for one in first.rebalances]
        assert generations == sorted(generations)
        assert second.rebalances == [
            Rebalance(assigned=moved, generation=second.rebalances[0].generation),
            Rebalance(revoked=moved, generation=second.rebalances[1].generation),
        ]


async def test_eager_members_give_up_everything(autojump_clock: MockClock) -> None:
    """With "range" each rebalance takes all partitions away, and deals them anew."""
    async with grouped(4) as here:
        first = here.begin("a", assignor="range")
        await until(lambda: first.held == set(ALL))
        second = here.begin("b", assignor="range")
        await until(lambda: parted((first, second), 0, 1, 2, 3))
        assert first.revoked == [ALL]
        assert [len(one) for one in first.assigned] == [4, 2]
        assert first.held == keys(0, 1)


async def test_nothing_comes_before_the_callback_is_done(autojump_clock: MockClock) -> None:
    """It may seek: reading begins where it says."""
    async with grouped(1) as here:
        here.append(0, *map(str, range(9)))
        is_done = False

        async def callback(rebalance: Rebalance) -> None:
            nonlocal is_done
            for key in rebalance.assigned:
                await trio.sleep(2.0)
                c.seek(*key, offset=6)
                is_done = True

        async with here.consumer("a", on_rebalance=callback) as c:
            record = await anext(c)
            assert is_done
            assert record.offset == 6


async def test_nobody_gets_it_before_the_callback_is_done(autojump_clock: MockClock) -> None:
    """What is revoked is held until the callback returns; what was done is committed before."""
    async with grouped(2) as here:
        for partition in range(2):
            here.append(partition, "x")
        committed: list[int | None] = []

        async def callback(rebalance: Rebalance) -> None:
            for _, partition in rebalance.revoked:
                committed.append(here.committed(partition))
                await trio.sleep(3.0)
                assert not second.held

        first = here.begin("a", on_rebalance=callback)
        await until(lambda: len(first.records) == 2)
        second = here.begin("b")
        await until(lambda: parted((first, second), 0, 1))
        assert committed == [1]
        assert second.values == []


async def test_a_callback_that_never_returns(autojump_clock: MockClock) -> None:
    """The group waits as long as the rebalance timeout; then the partition is lost to it, and
    others go on."""
    async with grouped(2) as here:

        async def callback(rebalance: Rebalance) -> None:
            if rebalance.revoked:
                await trio.sleep_forever()

        first = here.begin("a", on_rebalance=callback)
        await until(lambda: first.held == keys(0, 1))
        second = here.begin("b")
        await until(lambda: len(second.held) == 1, seconds=20.0)
        assert not first.held & second.held


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_error_of_the_callback(autojump_clock: MockClock, kind: str) -> None:
    """It reaches the program where it asks for records; the member leaves, and others go on."""

    def callback(_: Rebalance) -> None:
        raise KeyError("mistake")

    async def slow_callback(_: Rebalance) -> None:
        await trio.sleep(0.1)
        raise KeyError("mistake")

    async with grouped(1) as here:
        given = callback if kind == "sync" else slow_callback
        with pytest.raises(KeyError, match="mistake"):
            async with here.consumer("a", on_rebalance=given) as c:
                await anext(c)
        here.append(0, "x")
        with trio.fail_after(3.0):
            async with here.consumer("b") as c:
                assert await take(c, 1) == ["x"]


async def test_an_error_while_it_leaves(autojump_clock: MockClock) -> None:
    """The callback fails over the last revocation: the block ends at once, with that error; what
    was done is committed, and the others have the partition."""

    def callback(rebalance: Rebalance) -> None:
        if rebalance.revoked:
            raise KeyError("mistake")

    async with grouped(1) as here:
        here.append(0, "x", "y")
        with trio.fail_after(3.0):
            with pytest.raises(KeyError, match="mistake"):
                async with here.consumer("a", on_rebalance=callback) as c:
                    await take(c, 1)
            assert here.committed(0) == 1
            async with here.consumer("b") as c:
                assert await take(c, 1) == ["y"]


async def test_errors_of_the_body_come_first(autojump_clock: MockClock) -> None:
    """Where both fail, the program is told what it raised itself."""

    def callback(rebalance: Rebalance) -> None:
        if rebalance.revoked:
            raise KeyError("mistake")

    async with grouped(1) as here:
        here.append(0, "x", "y")
        with pytest.raises(ValueError, match="bad"):  # noqa: PT012  # it leaves the block
            async with here.consumer("a", on_rebalance=callback) as c:
                await take(c, 1)
                raise ValueError("bad")


async def test_lost_is_not_revoked(autojump_clock: MockClock) -> None:
    """Whoever was silent for too long is told that its partitions are lost."""
    async with grouped(1) as here:
        first = here.begin("a")
        await until(lambda: first.held)
        here.world.network.isolate("a")
        await until(lambda: first.lost)
        assert first.rebalances[-1].lost == (("orders", 0),)
        assert first.revoked == []
        here.world.network.heal()
        await until(lambda: len(first.assigned) == 2)


async def test_commit_within_the_callback(autojump_clock: MockClock) -> None:
    """With "manual" the moment of revocation is the last chance: and it is one."""
    async with grouped(2) as here:
        for partition in range(2):
            here.append(partition, "x", "y")
        consumers = []

        async def callback(rebalance: Rebalance) -> None:
            if rebalance.revoked:
                await consumers[0].commit()

        async with here.consumer("a", commit="manual", on_rebalance=callback) as c:
            consumers.append(c)
            await take(c, 4)
            second = here.begin("b")
            with trio.move_on_after(3.0):
                await anext(c)
            [(_, theirs)] = second.held
            assert here.committed(theirs) == 2
            assert second.values == []


async def test_commit_within_the_last_callback(autojump_clock: MockClock) -> None:
    """Also while the block is left."""
    async with grouped(1) as here:
        here.append(0, "x", "y")
        consumers = []

        async def callback(rebalance: Rebalance) -> None:
            if rebalance.revoked:
                await consumers[0].commit()

        async with here.consumer("a", commit="manual", on_rebalance=callback) as c:
            consumers.append(c)
            await take(c, 2)
            assert here.committed(0) is None
        assert here.committed(0) == 2
