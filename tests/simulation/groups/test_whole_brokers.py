"""Groups on whole brokers: members go on when their coordinator dies, and no offset is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from raftmq.errors import RebalanceInProgress
from raftmq.metadata.image import SLOT_COUNT
from tests.simulation.groups.whole_brokers import Member, Whole, group_of, whole_brokers

if TYPE_CHECKING:
    from trio.testing import MockClock

COMMITS = 80


async def two_members(whole: Whole, group: str) -> tuple[Member, Member]:
    first, second = Member(whole, group), Member(whole, group)
    async with trio.open_nursery() as nursery:
        for one in (first, second):
            nursery.start_soon(one.join)
    assert [one.assignment for one in (first, second)] == [
        one.member_id.encode() for one in (first, second)
    ]
    return first, second


async def test_slots_are_everybodys(autojump_clock: MockClock) -> None:
    """Each of the brokers coordinates about a third of all groups (A8.1)."""
    async with whole_brokers() as whole:
        await trio.sleep(10.0)
        owned = [
            len(list(node.broker._coordinator.slots)) if node.broker else 0
            for node in whole.nodes.values()
        ]
        assert sum(owned) == SLOT_COUNT
        assert min(owned) >= SLOT_COUNT // 3 - 1


async def test_a_group_from_join_to_commit(autojump_clock: MockClock) -> None:
    """Found, joined by two, each with its part, heard of, offsets committed and fetched."""
    async with whole_brokers() as whole:
        first, second = await two_members(whole, "billing")
        await first.beat()
        await first.commit(5)
        await second.commit(7, 1)
        assert await second.fetched() == {0: 5, 1: 7}


async def test_the_coordinator_is_killed(autojump_clock: MockClock) -> None:
    """Another one takes over: no member rejoins, commits go on in the same generation, and earlier
    commits are there. So it is for each broker, with any leader of the quorum (A8.7)."""
    async with whole_brokers() as whole:
        for number, node in whole.nodes.items():
            await trio.sleep(10.0)  # slots are spread again
            group = group_of(number, whole, prefix=f"of-{number}")
            first, second = await two_members(whole, group)
            await first.commit(5)
            node.kill()
            await first.beat()
            await second.beat()
            assert await whole.coordinator(group) != number
            assert await second.fetched() == {0: 5}
            await second.commit(7, 1)
            assert await first.fetched() == {0: 5, 1: 7}
            node.start()
            await whole.wait_slots()


async def test_a_coordinator_starts_again(autojump_clock: MockClock) -> None:
    """All of them are killed at once and started again: members and offsets are in the quorum. Who
    does not come back is put out."""
    async with whole_brokers() as whole:
        first, second = await two_members(whole, "billing")
        await first.commit(5)
        for node in whole.nodes.values():
            node.kill()
        await trio.sleep(1.0)
        for node in whole.nodes.values():
            node.start()
        await first.beat()
        await first.commit(6)
        assert await first.fetched() == {0: 6}
        with trio.fail_after(30.0):
            while True:
                try:
                    await first.beat()
                except RebalanceInProgress:
                    break
                await trio.sleep(1.0)
        await first.join()
        assert first.generation == second.generation + 1
        await first.commit(8)


async def test_commits_while_coordinators_die(autojump_clock: MockClock) -> None:
    """A member commits one offset after the other while brokers are killed in turn: what is there
    is never below what was acknowledged, and in the end it is the last one."""
    async with whole_brokers() as whole:
        member, other = await two_members(whole, "billing")
        acknowledged = 0

        async def commit_all() -> None:
            nonlocal acknowledged
            for offset in range(1, COMMITS + 1):
                await member.commit(offset)
                acknowledged = offset
                await trio.sleep(0.2)

        async def check() -> None:
            before = acknowledged
            assert (await other.fetched()).get(0, 0) >= before

        async def kill_in_turn() -> None:
            for number in (1, 2, 3):
                for act in (whole.nodes[number].kill, whole.nodes[number].start):
                    await trio.sleep(3.0)
                    await check()
                    await other.beat()
                    act()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit_all)
            nursery.start_soon(kill_in_turn)
        assert await member.fetched() == {0: COMMITS}
