"""The end of a member's block: what was handed out is committed, or the program hears of it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.client.consumer.consumer import Consumer
from raftmq.errors import RaftmqError
from tests.unit.client.consumer.reading import append_control, take
from tests.unit.client.group.grouped import MEMBER, grouped, until

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.client.group.effects import Rebalance

NINE = tuple(map(str, range(9)))
NEVER_MS = 60_000  # nothing is committed along


async def test_the_group_deals_anew_meanwhile(autojump_clock: MockClock) -> None:
    """While a plan is saved no commits are taken: it waits for that, and commits then, so that
    nothing comes again."""
    async with grouped(2) as here:
        for partition in range(2):
            here.append(partition, *NINE)
        async with here.consumer("a", commit_interval_ms=NEVER_MS) as c:
            await take(c, 18)
            here.delay_quorum(1.0)
            other = here.begin("b")
            await trio.sleep(1.0)
            began_at = trio.current_time()
        assert (here.committed(0), here.committed(1)) == (9, 9)
        assert 0.5 < trio.current_time() - began_at < 4.0
        await until(lambda: len(other.held) == 2)
        await trio.sleep(2.0)
        assert other.values == []


async def test_nobody_answers(autojump_clock: MockClock) -> None:
    """What was handed out last is not committed, and the end of the block says so, in time."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        with pytest.raises(RaftmqError):  # noqa: PT012  # it leaves the block
            async with here.consumer("a", commit_interval_ms=NEVER_MS) as c:
                await take(c, 9)
                here.world.network.isolate("a")
                began_at = trio.current_time()
        assert trio.current_time() - began_at <= 5.0


async def test_an_error_of_the_body_is_the_one_that_counts(autojump_clock: MockClock) -> None:
    """Also if, beyond that, nothing could be committed."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        with pytest.raises(ValueError, match="bad"):  # noqa: PT012  # it leaves the block
            async with here.consumer("a", commit_interval_ms=NEVER_MS) as c:
                await take(c, 9)
                here.world.network.isolate("a")
                raise ValueError("bad")


async def test_all_of_it_is_cancelled(autojump_clock: MockClock) -> None:
    """From outside of the connection: what was finished is committed, and the others have its
    partitions, at once."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        with trio.CancelScope() as scope:
            async with here.consumer("a", commit_interval_ms=NEVER_MS) as c:
                batches = c.batches(max_records=3)
                for _ in range(3):
                    await anext(batches)
                began_at = trio.current_time()
                scope.cancel()
                await trio.sleep_forever()
        assert trio.current_time() - began_at < 0.2
        assert here.committed(0) == 6
        await until(lambda: here.saved().members == (), seconds=0.5)


@pytest.mark.parametrize(
    ("mode", "is_failed"), [("batch", True), ("record", True), ("batch", False)]
)
async def test_closed_in_finally(mode: str, is_failed: bool, autojump_clock: MockClock) -> None:
    """Opened and closed without a block, over an error or not: the record that was handed out last
    is not committed, as another task may be at work on it (A11.2)."""
    async with grouped(1) as here, here.connected("a") as cluster:
        here.append(0, *NINE)

        async def read_two() -> None:
            c = await Consumer(cluster, ("orders",), MEMBER | {"commit": mode}).open()
            try:
                await take(c, 2)
                if is_failed:
                    raise ValueError("bad")
            finally:
                await c.aclose()

        with pytest.raises(ValueError, match="bad") if is_failed else nullcontext():
            await read_two()
        assert here.committed(0) == 1


@pytest.mark.parametrize("mode", ["batch", "record"])
async def test_a_listener_takes_long_after_an_error(mode: str, autojump_clock: MockClock) -> None:
    """The background commits go on until the member has left: they commit no more than the last
    commit did, as what was in flight when the program failed was not finished (C3)."""

    async def listener(rebalance: Rebalance) -> None:
        if rebalance.revoked:
            await trio.sleep(0.5)

    async with grouped(1) as here:
        here.append(0, *NINE)
        with pytest.raises(ValueError, match="bad"):  # noqa: PT012  # it leaves the block
            async with here.consumer(
                "a", commit=mode, commit_interval_ms=200, on_rebalance=listener
            ) as c:
                await take(c, 9)
                append_control(here.world, 0, topic="orders")
                await until(lambda: c.position("orders", 0) == 10)
                raise ValueError("bad")
        assert here.committed(0) == 8


@pytest.mark.parametrize("is_failed", [True, False])
async def test_work_is_held_at_the_end(is_failed: bool, autojump_clock: MockClock) -> None:
    """A background commit waits for its turn behind the last commit, and is made when the member
    leaves already: what is still inside `processing` is not committed, however the block ends."""

    async def listener(_rebalance: Rebalance) -> None:
        await trio.lowlevel.checkpoint()  # the commit's turn comes meanwhile

    async with grouped(1) as here:
        here.append(0, *NINE)
        with pytest.raises(ValueError, match="bad") if is_failed else nullcontext():
            async with here.consumer("a", commit_interval_ms=1, on_rebalance=listener) as c:
                batches = c.batches(max_records=3)
                await anext(batches)
                here.delay_quorum(0.2)
                await anext(batches)
                await trio.sleep(0.1)  # the commit of the first batch is under way
                c.processing(await anext(batches)).__enter__()
                if is_failed:
                    raise ValueError("bad")
        await trio.sleep(1.0)  # a commit that was sent takes effect, whether the member is there
        assert here.committed(0) == 6
