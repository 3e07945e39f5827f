"""Offsets fetched, deleted and expired: a fetch is linearizable, and nothing new is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.groups import offset_requests
from raftmq.client.group.planning import encode_subscription
from raftmq.errors import ErrorCode
from raftmq.metadata.commands import (
    DeleteGroup,
    DeleteOffsets,
    DeleteTopic,
    FeatureLevel,
    SeenOffset,
)
from raftmq.wire.bodies import TopicPartition
from raftmq.wire.messages.group_offsets import (
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OffsetToCommit,
)
from raftmq.wire.messages.groups import DeleteGroups, DescribeGroups, LeaveGroup, LeavingMember
from tests.unit.broker.asking import make, said
from tests.unit.broker.groups.coordinating import (
    DAY_MS,
    ELSEWHERE,
    GROUP,
    HERE,
    TOPIC,
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

    from raftmq.wire.messages.groups import JoinGroupReply

WEEK_MS = 7 * DAY_MS


async def leave(here: Coordinating, *members: JoinGroupReply) -> None:
    leaving = tuple(LeavingMember(one.member_id) for one in members)
    assert (await here.ask(LeaveGroup(GROUP, leaving))).error == ErrorCode.NONE
    await settle()


async def joined_as(here: Coordinating, instance_id: str) -> list[JoinGroupReply]:
    """In both steps."""
    given = await here.ask(join_of(instance_id=instance_id))
    assert given.error == ErrorCode.MEMBER_ID_REQUIRED, given.message
    reply = await here.ask(join_of(given.member_id, instance_id=instance_id))
    assert reply.error == ErrorCode.NONE, reply.message
    return [reply]


# Fetch


async def test_a_fetch_shows_what_was_committed(autojump_clock: MockClock) -> None:
    """With everything that was said; a partition of which nothing is known has -1."""
    async with coordinating() as here:
        await here.commit(7, metadata="half-way")
        asked = (TopicPartition(TOPIC, 1), TopicPartition(TOPIC, 0))
        none, found = (await here.ask(OffsetFetch(GROUP, asked))).partitions
        assert (none.partition, none.offset) == (1, -1)
        assert (found.partition, found.offset, found.metadata) == (0, 7, "half-way")
        assert found.committed_at_ms == here.now_ms
        assert (await here.ask(OffsetFetch(GROUP))).partitions == (found,)


async def test_a_fetch_waits_for_what_was_answered(autojump_clock: MockClock) -> None:
    """The commit is answered before this broker's own metadata shows it; a fetch that begins then
    shows it all the same (A9.2)."""
    async with coordinating() as here:
        here.cluster.follow_seconds = 3.0
        assert (await here.commit(5)).error == ErrorCode.NONE
        began_at = trio.current_time()
        assert await here.fetched() == 5
        assert trio.current_time() == began_at + 3.0


async def test_fetches_share_a_look(autojump_clock: MockClock) -> None:
    """Those that come while a barrier is under way wait for the next one, all for the same."""
    async with coordinating() as here:
        barriers = here.link.barriers
        here.cluster.delay_seconds = 1.0
        ends: list[float] = []

        async def fetch() -> None:
            await here.fetched()
            ends.append(trio.current_time())

        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            await trio.sleep(0.5)
            for _ in range(10):
                nursery.start_soon(fetch)
        assert here.link.barriers == barriers + 2
        assert ends == [began_at + 1.0] + 10 * [began_at + 2.0]


async def test_a_fetch_after_the_slot_was_lost(autojump_clock: MockClock) -> None:
    """It was this broker's when the fetch came, and is another's when the barrier is back."""
    async with coordinating() as here:
        await here.commit(1)
        here.cluster.follow_seconds = 1.0
        await here.give(ELSEWHERE)
        assert (await here.ask(OffsetFetch(GROUP))).error == ErrorCode.NOT_COORDINATOR


async def test_a_fetch_that_nobody_can_answer(autojump_clock: MockClock) -> None:
    """Without a leader of the quorum there is no offset, rather than an old one."""
    async with coordinating() as here:
        await here.commit(1)
        here.link.is_cut = True
        for timeout_ms in (1_000, 20_000):
            reply = await here.ask(OffsetFetch(GROUP, timeout_ms=timeout_ms))
            assert (reply.error, reply.partitions) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, ())


async def test_a_fetch_of_more_than_fits(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that there are is too many for one answer: they have to be named."""
    monkeypatch.setattr(offset_requests, "PARTITIONS_MAX", 1)
    async with coordinating() as here:
        await here.commit(1)
        await here.commit(2, 1)
        reply = await here.ask(OffsetFetch(GROUP))
        assert reply.error == ErrorCode.INVALID_REQUEST
        named = await here.ask(OffsetFetch(GROUP, (TopicPartition(TOPIC, 1),)))
        assert named.partitions[0].offset == 2


async def test_a_fetch_of_a_member(autojump_clock: MockClock) -> None:
    """Of this generation it is answered, also while parts are dealt out; of another it fails."""
    async with coordinating() as here:
        (member,) = await joined(here, 1)
        own = OffsetFetch(GROUP, generation=member.generation, member_id=member.member_id)
        assert (await here.ask(own)).error == ErrorCode.NONE
        await synced(here, [member])
        assert (await here.ask(own)).error == ErrorCode.NONE
        old = OffsetFetch(GROUP, generation=0, member_id=member.member_id)
        assert (await here.ask(old)).error == ErrorCode.ILLEGAL_GENERATION
        strange = OffsetFetch(GROUP, generation=1, member_id="stranger")
        assert (await here.ask(strange)).error == ErrorCode.UNKNOWN_MEMBER_ID
        await leave(here, member)
        assert (await here.ask(own)).error == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_fetch_of_who_was_replaced(autojump_clock: MockClock) -> None:
    """Another process has the place of a static member: the one before is told just that."""
    async with coordinating() as here:
        (old,) = await joined_as(here, "i")
        await synced(here, [old])
        own = OffsetFetch(GROUP, None, old.generation, old.member_id, instance_id="i")
        assert (await here.ask(own)).error == ErrorCode.NONE
        await joined_as(here, "i")
        assert (await here.ask(own)).error == ErrorCode.FENCED_INSTANCE_ID


# Delete


async def test_offsets_are_deleted(autojump_clock: MockClock) -> None:
    """Those that were named; none while the group has members who do not say what they read."""
    async with coordinating() as here:
        await here.commit(1)
        await here.commit(2, 1)
        request = OffsetDelete(GROUP, (TopicPartition(TOPIC, 0),))
        (member,) = await stable(here, 1)
        assert (await here.ask(request)).error == ErrorCode.NON_EMPTY_GROUP
        await leave(here, member)
        reply = await here.ask(request)
        assert (reply.error, [one.error for one in reply.partitions]) == (0, [0])
        assert (here.committed(0), here.committed(1)) == (None, 2)


async def test_offsets_that_members_read_on_from(autojump_clock: MockClock) -> None:
    """What they subscribe to stays; what they do not read, or nobody can any more, may go."""
    async with coordinating() as here:
        await make(here.cluster, (1,), topic_id=TOPIC, name="orders")
        await make(here.cluster, (1,), topic_id=b"u" * 16, name="users")
        wanted = tuple(OffsetToCommit(topic_id, 0, 5) for topic_id in (TOPIC, b"u" * 16))
        await here.ask(OffsetCommit(GROUP, -1, "", wanted))
        await stable(here, 1, subscription=encode_subscription(["orders", "to come"]))
        keys = tuple(TopicPartition(one.topic_id, 0) for one in wanted)
        reply = await here.ask(OffsetDelete(GROUP, keys))
        assert [one.error for one in reply.partitions] == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0]
        assert set(here.cluster.leader.image.offsets[GROUP]) == {(TOPIC, 0)}


async def test_groups_are_deleted(autojump_clock: MockClock) -> None:
    """One with members stays, one that is not there is told; the rest is gone when that is
    answered, here as well."""
    async with coordinating() as here:
        here.cluster.follow_seconds = 1.0
        await here.commit(1)
        (member,) = await stable(here, 1)
        request = DeleteGroups((GROUP,))
        assert [one.error for one in (await here.ask(request)).groups] == [68]
        await leave(here, member)
        assert [one.error for one in (await here.ask(request)).groups] == [0]
        assert GROUP not in here.quorum.image.offsets
        (described,) = (await here.ask(DescribeGroups((GROUP,)))).groups
        assert described.error == ErrorCode.GROUP_ID_NOT_FOUND
        assert [one.error for one in (await here.ask(request)).groups] == [69]
        assert [one.error for one in (await here.ask(DeleteGroups(("far",)))).groups] == [16]
        await stable(here, 1)  # and whoever comes next begins anew


async def test_a_group_is_described_right_after_its_first_commit(
    autojump_clock: MockClock,
) -> None:
    """The commit was answered, and this broker's image is a second behind: the group is there
    (A9.2)."""
    async with coordinating() as here:
        here.cluster.follow_seconds = 1.0
        await here.commit(1)
        assert GROUP not in here.quorum.image.offsets
        (described,) = (await here.ask(DescribeGroups((GROUP,)))).groups
        assert (described.error, described.state) == (0, "Empty")


# Expiry


async def expire(here: Coordinating, *, after_ms: int = WEEK_MS) -> None:
    here.now_ms += after_ms
    await here.expiry.look()
    await settle()


async def test_offsets_of_nobody_expire_one_by_one(autojump_clock: MockClock) -> None:
    """Each after a week since it was committed; with the last one the group is gone (A9.3)."""
    async with coordinating() as here:
        await make(here.cluster, (1,), topic_id=TOPIC)
        await here.commit(1)
        here.now_ms += DAY_MS
        await here.commit(2, 1)
        await expire(here, after_ms=WEEK_MS - 2 * DAY_MS)
        assert (here.committed(0), here.committed(1)) == (1, 2)
        await expire(here, after_ms=DAY_MS)
        assert (here.committed(0), here.committed(1)) == (None, 2)
        await expire(here)
        assert GROUP not in here.cluster.leader.image.offsets


async def test_a_clock_that_nobody_believes_forgets_nothing(autojump_clock: MockClock) -> None:
    """Neither offsets of nobody, nor those of topics that are gone; once the clock is confirmed
    again, both.
    """
    async with coordinating() as here:
        await make(here.cluster, (1,), topic_id=TOPIC)
        await here.commit(1)
        await said(here.cluster, DeleteTopic(TOPIC))
        here.is_clock_confirmed = False
        await expire(here, after_ms=5 * WEEK_MS)
        assert here.committed() == 1
        here.is_clock_confirmed = True
        await expire(here, after_ms=0)
        assert here.committed() is None


async def test_a_clock_that_jumps_after_the_look_forgets_nothing(
    autojump_clock: MockClock,
) -> None:
    """What was found waits in line: it is looked at again, with the time of then."""
    async with coordinating() as here:
        await make(here.cluster, (1,), topic_id=TOPIC)
        await here.commit(1)
        await settle()
        here.now_ms += WEEK_MS
        here.cluster.delay_seconds = 1.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.begin(commit_of(2, 1)).answer)
            await settle()
            await here.expiry.look()
            here.is_clock_confirmed = False
            await trio.sleep(10.0)
        assert (here.committed(0), here.committed(1)) == (1, 2)


async def test_offsets_of_members_stay(autojump_clock: MockClock) -> None:
    """However old they are; a week after the last member has left they are forgotten, and so is
    the group."""
    async with coordinating() as here:
        await make(here.cluster, (1,), topic_id=TOPIC)
        (member,) = await stable(here, 1)
        await here.commit(1, generation=member.generation, member_id=member.member_id)
        await expire(here, after_ms=5 * WEEK_MS)
        assert here.committed() == 1
        await leave(here, member)
        await expire(here, after_ms=WEEK_MS - 1)
        assert here.committed() == 1
        await expire(here, after_ms=1)
        image = here.cluster.leader.image
        assert (GROUP in image.groups, GROUP in image.offsets) == (False, False)


async def test_a_commit_saves_its_group(autojump_clock: MockClock) -> None:
    """It is in line, or was answered a moment ago, and this broker's metadata is behind: what is
    there by then decides."""
    async with coordinating() as here:
        await make(here.cluster, (1,), topic_id=TOPIC)
        await here.commit(1)
        await settle()
        here.now_ms += WEEK_MS
        here.cluster.delay_seconds, here.cluster.follow_seconds = 1.0, 1.0
        fresh = here.begin(commit_of(2))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fresh.answer)
            await settle()
            await here.expiry.look()
            await trio.sleep(10.0)
        assert here.committed() == 2
        assert not here.log(DeleteGroup)


@pytest.mark.parametrize("level", [FeatureLevel.LOG_STARTS, FeatureLevel.TRANSACTIONS])
async def test_expiry_says_what_it_saw(level: FeatureLevel, autojump_clock: MockClock) -> None:
    """`expiry_overtakes_commit`: a transaction moves offsets past the line of their group, maybe
    between the decision of expiry and its command. Not below the level: nodes that do not know
    the field would delete what others keep.
    """
    async with coordinating(level=level) as here:
        await make(here.cluster, (1,), topic_id=TOPIC)
        await here.commit(1)
        first_ms = here.now_ms
        here.now_ms += DAY_MS
        await here.commit(2, 1)
        await expire(here, after_ms=WEEK_MS - DAY_MS)
        await expire(here)
        (single,), (whole,) = here.log(DeleteOffsets), here.log(DeleteGroup)
        if level is FeatureLevel.TRANSACTIONS:
            assert (single.partitions, single.seen) == ((), (SeenOffset(TOPIC, 0, 1, first_ms),))
            assert whole.seen == (SeenOffset(TOPIC, 1, 2, first_ms + DAY_MS),)
        else:
            assert (single.partitions, single.seen, whole.seen) == (((TOPIC, 0),), (), None)
        assert GROUP not in here.cluster.leader.image.offsets


async def test_offsets_of_a_topic_that_is_gone(autojump_clock: MockClock) -> None:
    """They go, with members or without; a topic that nobody has heard of yet may be new."""
    async with coordinating() as here:
        await make(here.cluster, (1,), topic_id=TOPIC)
        (member,) = await stable(here, 1)
        await here.commit(1, generation=member.generation, member_id=member.member_id)
        await expire(here, after_ms=offset_requests.GONE_MS)
        assert here.committed() == 1
        await said(here.cluster, DeleteTopic(TOPIC))
        await settle()
        await expire(here, after_ms=0)
        assert here.committed() is None
        await here.commit(1, generation=member.generation, member_id=member.member_id)
        await expire(here, after_ms=offset_requests.GONE_MS - 1)
        assert here.committed() == 1


async def test_what_cannot_be_forgotten_now_is_forgotten_later(autojump_clock: MockClock) -> None:
    """The quorum takes nothing for a while: the next look finds it again."""
    async with coordinating() as here:
        await here.commit(1)
        here.link.is_cut = True
        await expire(here)
        await trio.sleep(20.0)
        here.link.is_cut = False
        await trio.sleep(10.0)
        assert here.committed() == 1
        await here.expiry.look()
        await settle()
        assert here.committed() is None


async def test_only_the_coordinator_forgets(autojump_clock: MockClock) -> None:
    """Of another one's groups nothing is deleted; by its own clock it is looked at again."""
    async with coordinating() as here:
        await here.commit(1)
        await here.give(ELSEWHERE)
        await settle()
        here.now_ms += WEEK_MS
        async with trio.open_nursery() as nursery:
            nursery.start_soon(here.expiry.run)
            await trio.sleep(3_600.0)
            assert here.committed() == 1
            await here.give(HERE)
            await trio.sleep(3_600.0)
            nursery.cancel_scope.cancel()
        assert here.committed() is None
