"""Where a group begins: whoever comes after a crash begins there, too; a new topic begins anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.errors import IllegalGeneration, RaftmqError
from tests.unit.client.consumer.reading import take
from tests.unit.client.group.grouped import grouped, parted, until

if TYPE_CHECKING:
    from trio.testing import MockClock

NINE = tuple(map(str, range(9)))
SOON = 1.0


@pytest.mark.parametrize("commit", ["batch", "record", "before", "manual"])
async def test_what_comes_while_nobody_reads(autojump_clock: MockClock, commit: str) -> None:
    """The first member waits for news, gets none, and crashes: its replacement hands out all that
    was written since the first one began, though "latest" is later by then."""
    options = {"commit": commit, "start": "latest"}
    async with grouped(1) as here:
        here.append(0, *NINE)
        first = here.begin("a", **options)
        await until(lambda: first.held)
        await trio.sleep(SOON)
        assert here.committed(0) == 9
        await first.crash()
        here.append(0, "x", "y")
        second = here.begin("b", **options)
        await until(lambda: second.values == ["x", "y"])
        assert first.values == []


async def test_who_commits_nothing_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    """With commit="none" not even where it has begun; each member begins at its start."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        first = here.begin("a", commit="none", start="latest")
        await until(lambda: first.held)
        await trio.sleep(SOON)
        assert here.committed(0) is None


async def test_the_beginning_of_a_log_needs_no_commit(autojump_clock: MockClock) -> None:
    """Whoever comes later finds it by himself."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual") as c:
            await take(c, 1)
            await trio.sleep(SOON)
            assert await c.committed("orders", 0) is None


async def test_what_the_program_says_stays(autojump_clock: MockClock) -> None:
    """It commits something while the coordinator hears of the beginning: that does not go back."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual", start="latest") as c:
            here.delay_quorum(0.5)
            await until(lambda: c.assignment and c.position("orders", 0) == 9)
            c.seek("orders", 0, offset=3)
            batch = await anext(c.batches(max_records=2))
            await c.commit(batch)
            await trio.sleep(SOON)
            assert here.committed(0) == 5


async def test_the_beginning_is_told_until_it_stands(autojump_clock: MockClock) -> None:
    """The coordinator cannot be reached for a while: then it hears of it."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        here.delay_quorum(0.2)
        async with here.consumer("a", commit="manual", start="latest") as c:
            await until(lambda: c.assignment and c.position("orders", 0) == 9)
            here.world.network.isolate("a")
            await trio.sleep(3.0)
            here.world.network.heal()
            await until(lambda: here.committed(0) == 9)


async def test_nobody_insists_who_is_no_member(autojump_clock: MockClock) -> None:
    """A program that chooses its partitions itself, of a group that has members: it is refused, and
    reads on."""
    async with grouped(1) as here:
        other = here.begin("b")
        await until(lambda: other.held)
        with pytest.raises(RaftmqError):  # noqa: PT012  # it leaves the block
            async with here.consumer(
                "a", assign=[("orders", 0)], start="latest", commit="manual"
            ) as c:
                here.append(0, "x")
                assert await take(c, 1) == ["x"]
                await c.commit()


# -- topics that are made anew -------------------------------------------------------------------


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_members_read_on_when_a_topic_is_made_anew(
    autojump_clock: MockClock, start: str
) -> None:
    """They are told that what they had is lost, and have it again at once: all of the new topic is
    read from its first record, as it is new to them, and what is committed belongs to it."""
    async with grouped(1) as here:
        first = here.begin("a", start=start)
        await until(lambda: first.held and first.consumer.position("orders", 0) is not None)
        await trio.sleep(SOON)
        here.append(0, *NINE)
        await until(lambda: first.values[-1:] == ["8"])
        await trio.sleep(SOON)
        generation, told = first.consumer.generation, len(first.rebalances)
        here.world.add_topic("orders", 1)
        here.append(0, "new", "newer")
        await until(lambda: first.values[-2:] == ["new", "newer"])
        assert [(one.lost, one.assigned) for one in first.rebalances[told:]] == [
            ((("orders", 0),), ()),
            ((), (("orders", 0),)),
        ]
        assert first.consumer.generation == generation
        await first.leave()
        assert first.error is None
        assert here.committed(0) == 2


async def test_what_was_read_of_the_old_topic_is_not_committed(autojump_clock: MockClock) -> None:
    """Nor does its position say anything of the new one."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        async with here.consumer("a", commit="manual") as c:
            old = await anext(c.batches())
            here.world.add_topic("orders", 1)
            here.append(0, "new")
            new = await anext(c.batches())
            assert (len(old), len(new)) == (9, 1)
            with pytest.raises(IllegalGeneration):
                await c.commit(old)
            await c.commit(new)
        assert here.committed(0) == 1


async def test_what_others_have_committed_of_the_new_topic(autojump_clock: MockClock) -> None:
    """A member hears late that the topic was made anew: it goes on where another one has stopped
    since, and nothing is handed out twice."""
    async with grouped(1) as here:
        here.append(0, *NINE)
        first = here.begin("a", delivery="at_most_once")
        await until(lambda: len(first.records) == 9)
        here.world.network.isolate("a")
        here.world.add_topic("orders", 1)
        here.append(0, "x", "y")
        second = here.begin("b", delivery="at_most_once")
        await until(lambda: second.values == ["x", "y"])
        await second.leave()
        here.append(0, "z")
        here.world.network.heal()
        await until(lambda: first.values[9:] == ["z"])


async def test_partitions_that_change_hands_meanwhile(autojump_clock: MockClock) -> None:
    """The topic is made anew while a member joins: each of the new records is handed out."""
    async with grouped(2) as here:
        for partition in range(2):
            here.append(partition, *NINE)
        first = here.begin("a")
        await until(lambda: len(first.records) == 18)
        second = here.begin("b")
        await trio.sleep(0.4)
        here.world.add_topic("orders", 1, 2)
        for partition in range(2):
            here.append(partition, f"new-{partition}")
        await until(lambda: parted((first, second), 0, 1))
        await until(lambda: len(first.records) + len(second.records) == 20)
        assert sorted([*first.values, *second.values])[-2:] == ["new-0", "new-1"]
        assert (first.error, second.error) == (None, None)
