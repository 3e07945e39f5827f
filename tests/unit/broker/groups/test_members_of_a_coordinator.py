"""Members and their coordinator: what is saved and when, what is in memory, who is told."""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.groups import coordinator as coordinator_module
from raftmq.broker.groups import group_requests
from raftmq.errors import ErrorCode
from raftmq.metadata.commands import CommitOffsets, SaveGroup, decode_command
from raftmq.metadata.image import slot_of
from raftmq.wire.messages.group_offsets import OffsetCommit
from raftmq.wire.messages.groups import (
    DescribeGroups,
    Heartbeat,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    MemberAssignment,
    SyncGroup,
)
from tests.unit.broker.groups.coordinating import (
    ELSEWHERE,
    GROUP,
    HERE,
    QUICK,
    Coordinating,
    commit_of,
    coordinating,
    join_of,
    joined,
    settle,
    stable,
    synced,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.broker.groups.coordinator import OwnedSlot
    from raftmq.wire.messages.groups import JoinGroupReply


LISTED = ("billing", "audit", "search")


def slot_of_group(here: Coordinating) -> OwnedSlot:
    return here.coordinator.slots.find(GROUP)


def sync_of(member: JoinGroupReply, *members: JoinGroupReply) -> SyncGroup:
    plan = tuple(MemberAssignment(one.member_id, one.member_id.encode()) for one in members)
    return SyncGroup(GROUP, member.generation, member.member_id, assignments=plan)


async def test_two_members_share_a_group(autojump_clock: MockClock) -> None:
    """Found, joined, synced, heard of, described and listed; the plan is in the metadata."""
    async with coordinating() as here:
        first, second = await stable(here, 2)
        assert {len(first.members), len(second.members)} == {0, 2}
        state = here.cluster.leader.image.groups[GROUP]
        assert (state.generation, state.leader) == (first.generation, first.leader)
        assert [(one.client_id, one.host) for one in state.members] == [
            ("c0", "peer"),
            ("c1", "peer"),
        ]
        (described,) = (await here.ask(DescribeGroups((GROUP,)))).groups
        assert (described.state, len(described.members)) == ("Stable", 2)
        (listed,) = (await here.ask(ListGroups())).groups
        assert (listed.group, listed.state, listed.member_count) == (GROUP, "Stable", 2)


async def test_unknown_groups_do_not_add_up(autojump_clock: MockClock) -> None:
    """The quorum does not answer: five groups that are not known take no longer than one."""
    same_slot = (name for name in map(str, count()) if slot_of(name) == slot_of(GROUP))
    async with coordinating() as here:
        here.link.is_cut = True
        started = trio.current_time()
        described = (await here.ask(DescribeGroups(tuple(islice(same_slot, 5))))).groups
        assert {one.error for one in described} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert trio.current_time() - started == pytest.approx(10)


async def test_a_part_is_told_once_the_plan_is_saved(autojump_clock: MockClock) -> None:
    """The quorum takes a second: so long nobody has a part, and a lost answer adds to that."""
    async with coordinating() as here:
        first, second = await joined(here, 2)
        here.cluster.delay_seconds = 1.0
        here.cluster.lose_answers(1)
        asked = [here.begin(sync_of(first, first, second)), here.begin(sync_of(second))]
        await trio.sleep(1.05)
        assert not any(one.is_answered for one in asked)
        await trio.sleep(1.1)
        assert [one.body.assignment for one in asked] == [
            one.member_id.encode() for one in (first, second)
        ]
        assert len(here.saves()) == 2  # one intention, proposed twice, applied once


async def test_a_commit_comes_before_the_next_plan(autojump_clock: MockClock) -> None:
    """It is accepted while the others join, and applied before the next generation is saved, slow
    as the quorum is; after that it is refused."""
    async with coordinating() as here:
        first, second = await stable(here, 2)
        who = {"generation": second.generation, "member_id": second.member_id}
        here.cluster.delay_seconds = 1.0
        asked = [here.begin(join_of(first.member_id))]
        commits = [here.begin(commit_of(n, **who)) for n in (1, 2)]
        asked.append(here.begin(join_of(second.member_id)))
        async with trio.open_nursery() as nursery:
            for one in commits:
                nursery.start_soon(one.answer)
            members = [await one.answer() for one in asked]
            await synced(here, members)
        assert [one.body.partitions[0].error for one in commits] == [ErrorCode.NONE] * 2
        assert (await here.commit(3, **who)).error == ErrorCode.ILLEGAL_GENERATION
        commands = [decode_command(entry.data).command for entry in here.cluster.log]
        kinds = [type(it) for it in commands if isinstance(it, SaveGroup | CommitOffsets)]
        assert kinds == [SaveGroup, CommitOffsets, SaveGroup]
        assert here.committed() == 2


async def test_who_is_silent_is_put_out(autojump_clock: MockClock) -> None:
    """The clock sees to it, nobody asks; once the last one is out that is saved, and the group is
    out of memory."""
    async with coordinating() as here:
        await stable(here, 2)
        await trio.sleep(120.0)
        state = here.cluster.leader.image.groups[GROUP]
        assert state.members == ()
        assert not slot_of_group(here).groups
        assert (await here.commit(1)).error == ErrorCode.NONE  # it is nobody's now
        (described,) = (await here.ask(DescribeGroups((GROUP,)))).groups
        assert (described.state, described.generation) == ("Empty", state.generation)
        (listed,) = (await here.ask(ListGroups())).groups
        assert (listed.state, listed.member_count) == ("Empty", 0)


async def test_lists_come_in_pages(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit into one answer comes with the next one: by name, each group once, with
    members, saved, or with offsets only."""
    monkeypatch.setattr(group_requests, "PAGE_BYTES_MAX", 1)
    async with coordinating(QUICK, *LISTED) as here:
        await stable(here, 1, group=LISTED[0])
        for name in LISTED[1:]:
            await here.commit(1, group=name)
        reply = await here.ask(ListGroups())
        found = [one.group for one in reply.groups]
        while reply.has_more:
            reply = await here.ask(ListGroups(found[-1]))
            assert len(reply.groups) == 1
            found += [one.group for one in reply.groups]
        assert found == sorted(LISTED)


async def test_a_group_begins_where_it_ended(autojump_clock: MockClock) -> None:
    """Its generation goes on, also where this broker's own metadata is behind what it saved."""
    async with coordinating() as here:
        (member,) = await stable(here, 1)
        here.cluster.follow_seconds = 30.0
        left = await here.ask(LeaveGroup(GROUP, (LeavingMember(member.member_id),)))
        assert left.error == ErrorCode.NONE
        await settle()
        assert slot_of_group(here).groups  # not forgotten: what is known here is older
        (again,) = await stable(here, 1)
        assert again.generation > member.generation + 1
        await here.ask(LeaveGroup(GROUP, (LeavingMember(again.member_id),)))
        await trio.sleep(31.0)
        await here.expiry.look()
        assert not slot_of_group(here).groups


async def test_a_plan_that_the_quorum_refuses(autojump_clock: MockClock) -> None:
    """Too large for a command: whoever waits is told, and the group deals out anew."""
    async with coordinating() as here:
        members = await joined(here, 3)
        leader = next(one for one in members if one.member_id == one.leader)
        plan = tuple(MemberAssignment(one.member_id, bytes(1 << 19)) for one in members)
        request = SyncGroup(GROUP, leader.generation, leader.member_id, assignments=plan)
        reply = await here.ask(request)
        assert reply.error != ErrorCode.NONE
        assert not here.saves()
        beat = Heartbeat(GROUP, leader.generation, leader.member_id)
        assert (await here.ask(beat)).error == ErrorCode.REBALANCE_IN_PROGRESS


async def test_a_connection_that_ends(autojump_clock: MockClock) -> None:
    """Nobody waits for the answer any more; the member joins anew, with the id that it has."""
    async with coordinating() as here:
        refused = await here.ask(join_of())
        waiting = here.begin(join_of(refused.member_id))
        waiting.drop()
        again = await here.ask(join_of(refused.member_id))
        assert (again.error, again.leader) == (ErrorCode.NONE, refused.member_id)
        await synced(here, [again])


async def test_nobody_is_given_a_part_who_does_not_wait_for_it(autojump_clock: MockClock) -> None:
    """A member joins and its connection ends: the others wait until it has joined again."""
    async with coordinating() as here:
        first, second = await stable(here, 2)
        here.begin(join_of(first.member_id)).drop()
        waiting = here.begin(join_of(second.member_id))
        await trio.sleep(5.0)
        assert not waiting.is_answered
        members = [await here.ask(join_of(first.member_id)), await waiting.answer()]
        assert {one.generation for one in members} == {first.generation + 1}


async def test_the_metadata_keep_so_many_groups(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new one is turned away, with what to do, also if nobody is in those that are kept; whoever
    comes back to one of them is welcome."""
    monkeypatch.setattr(coordinator_module, "GROUPS_SAVED_MAX", 1)
    async with coordinating() as here:
        await here.give(HERE, "another")
        await settle()
        (member,) = await stable(here, 1)
        await here.ask(LeaveGroup(GROUP, (LeavingMember(member.member_id),)))
        await settle()
        reply = await here.ask(join_of(group="another"))
        assert reply.error == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert "delete groups" in reply.message
        await stable(here, 1)


async def test_a_broker_has_so_many_groups(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more with members is refused, with what to do; those that are there grow."""
    monkeypatch.setattr(coordinator_module, "GROUPS_MAX", 1)
    async with coordinating() as here:
        await here.give(HERE, "another")
        await settle()
        (member,) = await stable(here, 1)
        reply = await here.ask(join_of(group="another"))
        assert reply.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "add brokers" in reply.message
        assert (await here.ask(join_of())).error == ErrorCode.MEMBER_ID_REQUIRED
        await here.ask(LeaveGroup(GROUP, (LeavingMember(member.member_id),)))
        await trio.sleep(60.0)
        assert (await here.ask(join_of(group="another"))).error == ErrorCode.MEMBER_ID_REQUIRED


async def test_commits_that_come_late(autojump_clock: MockClock) -> None:
    """Over a connection that was given up: a member's later commit is in line already. The same
    one may be said again, and who does not count is not counted."""
    async with coordinating() as here:
        (member,) = await stable(here, 1)
        who = {"generation": member.generation, "member_id": member.member_id}
        for number, offset, code in [
            (1, 10, ErrorCode.NONE),
            (3, 30, ErrorCode.NONE),
            (2, 20, ErrorCode.INVALID_UPDATE_VERSION),
            (3, 30, ErrorCode.NONE),
            (0, 25, ErrorCode.NONE),
            (4, 40, ErrorCode.NONE),
        ]:
            assert (await here.commit(offset, number=number, **who)).error == code, number
        assert here.committed() == 40


async def test_a_commit_without_partitions_settles_what_is_on_its_way(
    autojump_clock: MockClock,
) -> None:
    """Once it is answered nothing that was sent before it changes anything: whoever lets somebody
    else commit for it, a transaction say, begins with that."""
    async with coordinating() as here:
        (member,) = await stable(here, 1)
        who = {"generation": member.generation, "member_id": member.member_id}
        nothing = OffsetCommit(GROUP, partitions=(), number=2, **who)
        assert (await here.ask(nothing)).error == ErrorCode.NONE
        assert (await here.commit(7, number=1, **who)).error == ErrorCode.INVALID_UPDATE_VERSION
        assert here.committed() is None


async def test_a_commit_without_partitions_waits_for_what_is_in_line(
    autojump_clock: MockClock,
) -> None:
    """A commit that has arrived, and whose sender has given it up, is carried out before that; if
    that cannot be known in time, it is not said."""
    async with coordinating() as here, trio.open_nursery() as nursery:
        (member,) = await stable(here, 1)
        who = {"generation": member.generation, "member_id": member.member_id}
        here.cluster.delay_seconds = 2.0
        nursery.start_soon(here.begin(commit_of(7, number=1, **who)).answer)
        await settle()
        hasty = OffsetCommit(GROUP, partitions=(), number=2, timeout_ms=500, **who)
        assert (await here.ask(hasty)).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert here.committed() is None
        nothing = OffsetCommit(GROUP, partitions=(), number=3, **who)
        assert (await here.ask(nothing)).error == ErrorCode.NONE
        assert here.committed() == 7


async def test_a_pause_of_the_process(autojump_clock: MockClock) -> None:
    """It did not run for a minute, and what members have said meanwhile is read first: nobody is
    put out who has spoken."""
    async with coordinating() as here:
        (member,) = await stable(here, 1)
        autojump_clock.autojump_threshold = float("inf")
        autojump_clock.jump(60.0)  # all alarms are late at once
        autojump_clock.autojump_threshold = 0.0
        await trio.sleep(1.0)
        beat = Heartbeat(GROUP, member.generation, member.member_id)
        assert (await here.ask(beat)).error == ErrorCode.NONE
        await trio.sleep(5.0)
        assert (await here.ask(beat)).error == ErrorCode.NONE


async def test_requests_to_a_group_without_members(autojump_clock: MockClock) -> None:
    """Whoever believes to be one joins anew."""
    async with coordinating() as here:
        for request in (
            Heartbeat(GROUP, 1, "m"),
            SyncGroup(GROUP, 1, "m"),
            LeaveGroup(GROUP, (LeavingMember("m"),)),
        ):
            assert (await here.ask(request)).error == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await here.ask(join_of(group=""))).error == ErrorCode.INVALID_GROUP_ID


async def test_what_is_known_of_groups_elsewhere(autojump_clock: MockClock) -> None:
    """They are not listed here; their members are not kept in memory."""
    async with coordinating() as here:
        await stable(here, 1)
        slot = slot_of_group(here)
        await here.give(ELSEWHERE)
        await settle()
        assert (await here.ask(ListGroups())).groups == ()
        assert not slot.groups
        assert slot.slot == slot_of(GROUP)
