"""What a program is told where a commit is refused: why, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raftmq.errors import IllegalGeneration, UnknownMemberId, UnknownTopicOrPartition
from tests.unit.client.group.grouped import grouped, until

if TYPE_CHECKING:
    from trio.testing import MockClock

NINE = tuple(map(str, range(9)))
HAS_MEMBERS = r"group 'billing' has members, .*another group name"


async def test_a_commit_after_too_long(autojump_clock: MockClock) -> None:
    """Why the partition is gone, and who has it; also once it is back."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual", max_poll_interval_ms=3000) as c:
            record = await anext(c)
            await until(lambda: not c.assignment)
            words = r"group 'billing', as .* max_poll_interval_ms = 3000: .*reads it.*[.]processing"
            for _ in range(2):
                with pytest.raises(IllegalGeneration, match=words):
                    await c.commit(record)
                await anext(c)
            assert here.committed(0) in (None, 0)


async def test_a_commit_beside_members(autojump_clock: MockClock) -> None:
    """Nobody can join there: it takes another group, or no members."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        member = here.begin("a", commit="none")
        await until(lambda: len(member.records) == 9)
        async with here.consumer("b", assign=[("orders", 0)], commit="manual") as c:
            record = await anext(c)
            for work in (record, None):
                with pytest.raises(UnknownMemberId, match=HAS_MEMBERS):
                    await c.commit(work)
        await member.leave()
        assert here.committed(0) is None


async def test_the_end_of_a_block_beside_members(autojump_clock: MockClock) -> None:
    """The same."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        member = here.begin("a", commit="none")
        await until(lambda: len(member.records) == 9)
        with pytest.raises(UnknownMemberId, match=HAS_MEMBERS):
            async with here.consumer("b", assign=[("orders", 0)]) as c:
                await anext(c)
        await member.leave()


@pytest.mark.parametrize("commit", ["before", "record"])
async def test_records_beside_members(autojump_clock: MockClock, commit: str) -> None:
    """Whoever commits by himself says so, and does not wait for a turn that never comes."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        member = here.begin("a", commit="none")
        await until(lambda: len(member.records) == 9)
        with pytest.raises(UnknownMemberId, match=HAS_MEMBERS):  # noqa: PT012
            async with here.consumer("b", assign=[("orders", 0)], commit=commit) as c:
                await anext(c)
                await anext(c)
        await member.leave()


async def test_what_is_committed_where_nothing_is(autojump_clock: MockClock) -> None:
    """No partition, or no topic: that is not the same as nothing committed."""
    async with grouped(1) as here, here.consumer("a") as c:
        with pytest.raises(
            UnknownTopicOrPartition, match=r"orders-1 does not exist: .* 1 partition"
        ):
            await c.committed("orders", 1)
        with pytest.raises(
            UnknownTopicOrPartition, match="there is no topic 'order': make it first"
        ):
            await c.committed("order", 0)
