"""What coordinators answer about offsets of groups, and to members of them.

With `autojump_clock`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from raftmq.errors import ErrorCode
from raftmq.wire.bodies import TopicPartition
from raftmq.wire.messages.group_offsets import (
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetToCommit,
)
from raftmq.wire.messages.groups import (
    DeleteGroups,
    DescribeGroups,
    FindCoordinator,
    Heartbeat,
    JoinedMember,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    MemberAssignment,
    Protocol,
    SyncGroup,
)
from tests.unit.client.conformance.harness import PATIENCE_SECONDS, Scenario, collect_into, topic

if TYPE_CHECKING:
    from tests.unit.client.conformance.harness import Harness, Place

OFFSET_SCENARIOS: list[Scenario] = []
MEMBER_SCENARIOS: list[Scenario] = []
about_offsets = collect_into(OFFSET_SCENARIOS)
about_members = collect_into(MEMBER_SCENARIOS)

GROUP = "billing"
SESSION_MS, REBALANCE_MS = 6_000, 10_000
SUBSCRIPTION = b"topics"


async def coordinator(here: Harness, *, by: int = 1) -> int:
    """Once broker `by` knows."""
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            (found,) = (await here.ask(by, FindCoordinator((GROUP,)))).body.coordinators
            assert found.group == GROUP
            if not found.error:
                return int(found.broker_id)
            await trio.sleep(0.1)


# Offsets


async def commit(
    here: Harness, place: Place, offset: int, *, by: int | None = None, **fields: Any
) -> Any:
    """Of one partition, by a program that is no member."""
    wanted = OffsetToCommit(place.topic_id, place.partition, offset, **fields)
    broker_id = await coordinator(here) if by is None else by
    return (await here.ask(broker_id, OffsetCommit(GROUP, -1, "", (wanted,)))).body


async def committed(here: Harness, *places: Place) -> dict[bytes, int]:
    wanted = tuple(TopicPartition(place.topic_id, place.partition) for place in places)
    body = (await here.ask(await coordinator(here), OffsetFetch(GROUP, wanted or None))).body
    assert body.error == ErrorCode.NONE
    return {one.topic_id: one.offset for one in body.partitions}


@about_offsets
async def all_brokers_name_one_coordinator(here: Harness) -> None:
    assert await coordinator(here, by=1) == await coordinator(here, by=2)


@about_offsets
async def what_is_committed_comes_back(here: Harness) -> None:
    """With all that was said of it; -1 where nothing is; all of it, where nothing is named."""
    place, other = await topic(here), await topic(here, "u")
    reply = await commit(here, place, 7, leader_epoch=3, metadata="m")
    assert (reply.error, reply.partitions[0].error) == (ErrorCode.NONE, ErrorCode.NONE)
    assert reply.partitions[0].offset == -1
    body = (await here.ask(await coordinator(here), OffsetFetch(GROUP))).body
    (found,) = body.partitions
    assert (found.topic_id, found.partition) == (place.topic_id, 0)
    assert (found.offset, found.leader_epoch, found.metadata) == (7, 3, "m")
    assert found.committed_at_ms > 0
    assert await committed(here, other, place) == {other.topic_id: -1, place.topic_id: 7}
    await commit(here, place, 5)
    assert await committed(here) == {place.topic_id: 5}


@about_offsets
async def a_commit_may_expect_what_is_there(here: Harness) -> None:
    """Otherwise it changes nothing, and is told what is there."""
    place = await topic(here)
    for offset, expected, error, there in (
        (5, 3, ErrorCode.INVALID_UPDATE_VERSION, -1),
        (5, -1, ErrorCode.NONE, -1),
        (6, -1, ErrorCode.INVALID_UPDATE_VERSION, 5),
        (6, 5, ErrorCode.NONE, -1),
    ):
        (told,) = (await commit(here, place, offset, expected=expected)).partitions
        assert (told.error, told.offset) == (error, there)
    assert await committed(here) == {place.topic_id: 6}


@about_offsets
async def only_the_coordinator_answers(here: Harness) -> None:
    place = await topic(here)
    await commit(here, place, 5)
    other = 3 - await coordinator(here) if await coordinator(here) < 3 else 1
    key = (TopicPartition(place.topic_id, 0),)
    for request in (OffsetFetch(GROUP), OffsetDelete(GROUP, key)):
        assert (await here.ask(other, request)).body.error == ErrorCode.NOT_COORDINATOR
    assert (await commit(here, place, 6, by=other)).error == ErrorCode.NOT_COORDINATOR
    for request in (DescribeGroups((GROUP,)), DeleteGroups((GROUP,))):
        (told,) = (await here.ask(other, request)).body.groups
        assert told.error == ErrorCode.NOT_COORDINATOR
    assert not (await here.ask(other, ListGroups())).body.groups
    assert await committed(here) == {place.topic_id: 5}


@about_offsets
async def a_group_of_offsets_alone_is_empty(here: Harness) -> None:
    """It is described and listed a moment later, until it is deleted, with its offsets."""
    place = await topic(here)
    assert not (await commit(here, place, 5)).error
    broker_id = await coordinator(here)
    told = await described(here, ErrorCode.NONE)
    assert (told.group, told.state) == (GROUP, "Empty")
    assert (told.members, told.leader, told.protocol) == ((), "", "")
    (listed,) = (await here.ask(broker_id, ListGroups())).body.groups
    assert (listed.group, listed.state, listed.member_count) == (GROUP, "Empty", 0)
    assert not (await here.ask(broker_id, ListGroups(after=GROUP))).body.groups
    for error in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        (deleted,) = (await here.ask(broker_id, DeleteGroups((GROUP,)))).body.groups
        assert (deleted.group, deleted.error) == (GROUP, error)
    await described(here, ErrorCode.GROUP_ID_NOT_FOUND)
    assert not (await here.ask(broker_id, ListGroups())).body.groups
    assert await committed(here) == {}


async def described(here: Harness, error: ErrorCode) -> Any:
    """Once it is so: a coordinator answers out of its own image, which may be a moment behind."""
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            request = DescribeGroups((GROUP,))
            (told,) = (await here.ask(await coordinator(here), request)).body.groups
            if told.error == error:
                return told
            await trio.sleep(0.1)


@about_offsets
async def offsets_are_deleted_one_by_one(here: Harness) -> None:
    """Where there is none, nothing is to be done."""
    place, other = await topic(here), await topic(here, "u")
    await commit(here, place, 5)
    await commit(here, other, 6)
    for _ in range(2):
        request = OffsetDelete(GROUP, (TopicPartition(place.topic_id, 0),))
        body = (await here.ask(await coordinator(here), request)).body
        assert (body.error, [one.error for one in body.partitions]) == (ErrorCode.NONE, [0])
    assert await committed(here) == {other.topic_id: 6}


# Members


class Member:
    """One that a scenario plays, request by request."""

    def __init__(self, here: Harness, instance_id: str | None = None) -> None:
        self._here, self._instance_id = here, instance_id
        self.member_id, self.generation = "", -1

    async def join(self) -> Any:
        request = JoinGroup(
            GROUP,
            self.member_id,
            (Protocol("range", SUBSCRIPTION),),
            SESSION_MS,
            REBALANCE_MS,
            self._instance_id,
        )
        body = await self._ask(request)
        if not body.error:
            self.generation = body.generation
        return body

    async def enter(self) -> Any:
        """With the id that it is given."""
        asked = await self.join()
        assert (asked.error, asked.generation) == (ErrorCode.MEMBER_ID_REQUIRED, -1)
        assert asked.member_id
        self.member_id = asked.member_id
        return await self.join()

    async def sync(self, *of: Member) -> Any:
        """As leader with a plan, in which each has its own id."""
        plan = tuple(MemberAssignment(one.member_id, one.member_id.encode()) for one in of)
        request = SyncGroup(
            GROUP, self.generation, self.member_id, self._instance_id, assignments=plan
        )
        return await self._ask(request)

    async def beat(self) -> ErrorCode:
        request = Heartbeat(GROUP, self.generation, self.member_id, self._instance_id)
        return ErrorCode((await self._ask(request)).error)

    async def leave(self) -> None:
        leaving = LeavingMember(self.member_id, self._instance_id)
        body = await self._ask(LeaveGroup(GROUP, (leaving,)))
        assert (body.error, [one.error for one in body.members]) == (ErrorCode.NONE, [0])

    async def _ask(self, request: Any) -> Any:
        return (await self._here.ask(await coordinator(self._here), request)).body


async def both(*asks: Any) -> list[Any]:
    """Answers of requests under way at once."""
    found: list[Any] = [None] * len(asks)

    async def ask(at: int) -> None:
        found[at] = await asks[at]()

    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            for at in range(len(asks)):
                nursery.start_soon(ask, at)
    return found


async def pair(here: Harness) -> tuple[Member, Member]:
    """The first leads; both have synced."""
    first, second = Member(here), Member(here)
    await both(first.enter, second.enter)
    joined = await both(first.join, second.join)
    if joined[0].leader == second.member_id:
        first, second = second, first
    await both(partial(first.sync, first, second), second.sync)
    return first, second


@about_members
async def a_member_joins_in_two_steps(here: Harness) -> None:
    """Alone it leads, and gets what it has planned, however often it asks."""
    member = Member(here)
    joined = await member.enter()
    assert (joined.error, joined.generation, joined.protocol) == (ErrorCode.NONE, 1, "range")
    assert joined.leader == joined.member_id == member.member_id
    assert joined.members == (JoinedMember(member.member_id, None, SUBSCRIPTION),)
    assert joined.must_sync_anew
    for plan in ((member,), ()):
        synced = await member.sync(*plan)
        told = synced.error, synced.protocol, synced.assignment
        assert told == (ErrorCode.NONE, "range", member.member_id.encode())
    assert await member.beat() == ErrorCode.NONE


@about_members
async def strangers_are_told_so(here: Harness) -> None:
    """A member id that was never given out, and a generation that is not this one."""
    member, stranger = Member(here), Member(here)
    await member.enter()
    await member.sync(member)
    stranger.member_id, stranger.generation = "stranger", 1
    assert await stranger.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await stranger.sync()).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await stranger.join()).error == ErrorCode.UNKNOWN_MEMBER_ID
    for generation in (0, 2):
        member.generation = generation
        assert await member.beat() == ErrorCode.ILLEGAL_GENERATION
        assert (await member.sync(member)).error == ErrorCode.ILLEGAL_GENERATION


@about_members
async def another_member_comes(here: Harness) -> None:
    """The first is told with its heartbeat; only the leader is told of both, and plans."""
    first, second = Member(here), Member(here)
    await first.enter()
    await first.sync(first)
    async with trio.open_nursery() as nursery:
        entered: list[Any] = []

        async def enter() -> None:
            entered.append(await second.enter())

        nursery.start_soon(enter)
        with trio.fail_after(PATIENCE_SECONDS):
            while await first.beat() != ErrorCode.REBALANCE_IN_PROGRESS:  # noqa: ASYNC110  # no event
                await trio.sleep(0.1)
        assert (await first.sync(first)).error == ErrorCode.REBALANCE_IN_PROGRESS
        joined = await first.join()
    (told,) = entered
    assert (joined.generation, told.generation) == (2, 2)
    assert joined.leader == told.leader == first.member_id
    assert {one.member_id for one in joined.members} == {first.member_id, second.member_id}
    assert told.members == ()
    synced = await both(second.sync, partial(first.sync, first, second))
    assert [one.assignment for one in synced] == [
        second.member_id.encode(),
        first.member_id.encode(),
    ]


@about_members
async def a_member_leaves(here: Harness) -> None:
    """It is one no more; the others join again."""
    first, second = await pair(here)
    await second.leave()
    assert await second.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert await first.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    joined = await first.join()
    assert [one.member_id for one in joined.members] == [first.member_id]


@about_members
async def an_id_that_was_not_used_is_given_back(here: Harness) -> None:
    """The others are not disturbed."""
    first, second = Member(here), Member(here)
    await first.enter()
    await first.sync(first)
    second.member_id = (await second.join()).member_id
    await second.leave()
    assert (await second.join()).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert await first.beat() == ErrorCode.NONE


@about_members
async def a_silent_member_is_put_out(here: Harness) -> None:
    """After its session, and not before."""
    first, second = await pair(here)
    assert await second.beat() == ErrorCode.NONE
    for _ in range(5):
        await trio.sleep(SESSION_MS / 6000)
        assert await first.beat() == ErrorCode.NONE
    await trio.sleep(SESSION_MS / 3000)
    assert await first.beat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert await second.beat() == ErrorCode.UNKNOWN_MEMBER_ID


@about_members
async def a_static_member_comes_back(here: Harness) -> None:
    """As another process: it has its assignment and its generation, and the one before nothing."""
    before, after = Member(here, "x"), Member(here, "x")
    await before.enter()
    await before.sync(before)
    joined = await after.enter()
    assert (joined.error, joined.generation) == (ErrorCode.NONE, 1)
    assert not joined.must_sync_anew
    assert after.member_id != before.member_id
    assert (await after.sync()).assignment == before.member_id.encode()
    assert await before.beat() == ErrorCode.FENCED_INSTANCE_ID
    assert (await before.join()).error == ErrorCode.FENCED_INSTANCE_ID
    assert await after.beat() == ErrorCode.NONE
