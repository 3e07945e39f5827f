"""Which members have crashed, and what they may have worked on then (A12.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from raftmq.broker.groups import crashes
from raftmq.broker.groups.phases import Crash, GroupSettings
from raftmq.client.group.planning import encode_assignment, encode_subscription
from raftmq.errors import ErrorCode, InvalidCommand
from raftmq.metadata.commands import CreateTopic, FeatureLevel
from raftmq.metadata.image import Crashes
from raftmq.wire.bodies import TopicPartition
from raftmq.wire.messages.group_offsets import OffsetCommit, OffsetFetch, OffsetToCommit
from raftmq.wire.messages.groups import (
    Heartbeat,
    LeaveGroup,
    LeavingMember,
    MemberAssignment,
    SyncGroup,
)
from tests.unit.broker.asking import said
from tests.unit.broker.groups.coordinating import (
    GROUP,
    TOPIC,
    Coordinating,
    coordinating,
    joined,
    settle,
)
from tests.unit.broker.groups.stage import (
    REBALANCE_SECONDS,
    SESSION_SECONDS,
    Stage,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.broker.groups.phases import SavePlan
    from raftmq.wire.messages.groups import JoinGroupReply

A0, A1, A2 = ("a", 0), ("a", 1), ("a", 2)


def claim(*owned: tuple[str, int], is_holding: bool = True) -> dict[str, bytes]:
    generation = 1 if owned else -1
    return {"range": encode_subscription("a", owned, generation=generation, is_holding=is_holding)}


def reading(stage: Stage, *parts: tuple[tuple[str, int], ...], **facts: Any) -> list[str]:
    """A stable group in which each member works on its part; the first one leads."""
    entered = [stage.enter(claim(), **facts) for _ in parts]
    stage.wait(6.0, *[member for member, _ in entered])
    members = [member_id for member_id, _ in entered]
    plan_and_sync(stage, members, *parts)
    return members


def plan_and_sync(stage: Stage, members: list[str], *parts: tuple[tuple[str, int], ...]) -> None:
    plan = {m: encode_assignment(part) for m, part in zip(members, parts, strict=True)}
    for member in members[1:]:
        stage.sync(member)
    stage.sync(members[0], plan)
    stage.save()
    assert stage.group.state == "Stable"


def next_save(stage: Stage, *members: str) -> SavePlan:
    """They join again, and a plan is made."""
    for member in members:
        stage.join(member, claim())
    for member in members[1:]:
        stage.sync(member)
    stage.sync(members[0], {members[0]: b"plan"})
    return stage.save()


def test_a_session_that_ends_is_a_crash() -> None:
    """It stands in the command of that rebalance, once, with what the member was given."""
    stage = Stage()
    leader, silent = reading(stage, (A0,), (A1, A2))
    stage.wait(SESSION_SECONDS, leader)
    assert next_save(stage, leader).crashes == (Crash(silent, frozenset({A1, A2})),)
    stage.join(leader, claim(A0))
    stage.sync(leader, {leader: b""})
    assert stage.save().crashes == ()


def test_all_have_crashed() -> None:
    """The save that says that the group is empty counts them."""
    stage = Stage()
    one, other = reading(stage, (A0,), (A1,))
    stage.wait(SESSION_SECONDS)
    found = {crash.member_id: crash.held for crash in stage.save().crashes}
    assert found == {one: {A0}, other: {A1}}


def test_to_leave_is_no_crash() -> None:
    """Nor is a rebalance."""
    stage = Stage()
    leader, other = reading(stage, (A0,), (A1,))
    stage.leave(LeavingMember(other))
    assert next_save(stage, leader).crashes == ()


def test_who_crashes_while_the_group_rebalances() -> None:
    """Before it has joined again, it works on what it was given; a cooperative member that has
    joined, on what it claims; an eager one, on nothing."""
    for has_joined, is_holding, held in (
        (False, True, {A1, A2}), (True, True, {A1}), (True, False, None),
    ):  # fmt: skip
        stage = Stage()
        leader, other = reading(stage, (A0,), (A1, A2))
        token = stage.join(leader, {"range": b"changed"})
        if has_joined:
            lost = stage.join(other, claim(A1, is_holding=is_holding))
            stage.wait(SESSION_SECONDS, leader)
        else:
            stage.wait(SESSION_SECONDS, leader)
            assert not stage.joined(token).error
        if has_joined:
            assert stage.joined(lost).generation == 2
            assert stage.heartbeat(other) == ErrorCode.UNKNOWN_MEMBER_ID
            stage.join(leader, {"range": b"changed"})
        stage.sync(leader, {leader: b""})
        expected = () if held is None else (Crash(other, frozenset(held)),)
        assert stage.save().crashes == expected


def test_who_was_never_told_has_not_begun() -> None:
    """It was given partitions, and has not asked for them."""
    stage = Stage()
    leader, other = reading(stage, (A0,), (A1,))
    stage.join(leader, claim(A0))
    stage.join(other, claim(A1))
    stage.sync(leader, {other: encode_assignment([A1, A2])})
    stage.save()
    stage.wait(SESSION_SECONDS, leader)
    assert next_save(stage, leader).crashes == (Crash(other, frozenset({A1})),)


def test_too_slow_is_no_crash_and_silent_is_one() -> None:
    """Where a rebalance ends before sessions do, heartbeats tell the two apart."""
    for beats in (True, False):
        stage = Stage()
        leader, other = reading(stage, (A0,), (A1,), session=2 * REBALANCE_SECONDS)
        stage.join(leader, {"range": b"changed"})
        stage.wait(REBALANCE_SECONDS, leader, *([other] if beats else []))
        stage.sync(leader, {leader: b""})
        assert stage.save().crashes == (() if beats else (Crash(other, frozenset({A1})),))


def test_who_does_not_ask_for_the_plan_may_be_dead() -> None:
    """It has joined with what it claims, and was silent as long as a rebalance may take."""
    stage = Stage()
    leader, other = reading(stage, (A0,), (A1,), session=2 * REBALANCE_SECONDS)
    stage.join(leader, {"range": b"changed"})
    stage.join(other, claim(A1))
    stage.sync(leader, {leader: b""})
    stage.wait(REBALANCE_SECONDS, leader)
    assert stage.save().crashes == ()  # the plan that was on its way
    assert next_save(stage, leader).crashes == (Crash(other, frozenset({A1})),)


def test_a_plan_that_was_refused_counts_nothing() -> None:
    """And what follows does not repeat it: better one too few than the same one twice."""
    stage = Stage()
    leader, _ = reading(stage, (A0,), (A1,))
    stage.wait(SESSION_SECONDS, leader)
    stage.join(leader, claim(A0))
    stage.sync(leader, {leader: b""})
    stage.fail(InvalidCommand("too large"))
    assert next_save(stage, leader).crashes == ()


def test_the_next_coordinator_counts_what_was_not_saved() -> None:
    """The member is one again, until its session ends once more."""
    stage = Stage(GroupSettings())
    leader, silent = reading(stage, (A0,), (A1,))
    saved = stage.first_save()
    stage.wait(SESSION_SECONDS, leader)
    stage.join(leader, claim(A0))
    stage.sync(leader, {leader: b""})
    assert stage.saves[0].crashes  # and it never arrives
    stage.move(saved)
    stage.wait(SESSION_SECONDS, leader)
    assert next_save(stage, leader).crashes == (Crash(silent, frozenset({A1})),)


def test_a_static_member_that_ends_or_is_back() -> None:
    """It does not leave, so nobody tells whether its process was stopped or has died."""
    for is_back in (True, False):
        stage = Stage()
        member = stage.given("i0")
        token = stage.join(member, claim(), instance="i0")
        stage.wait(6.0, member)
        assert not stage.joined(token).error
        stage.sync(member, {member: encode_assignment([A0])}, instance="i0")
        stage.save()
        if is_back:
            stage.come("i0", claim())
        else:
            stage.wait(SESSION_SECONDS)
        assert stage.save().crashes == (Crash(member, frozenset({A0})),)


@pytest.mark.parametrize("bytes_", [b"", b"\x92\x02\x80", b"\x92\x01\x81\xa1a\x91\x00", b"plan"])
def test_what_cannot_be_read_is_not_counted(bytes_: bytes) -> None:
    """Of another kind of client, or another version."""
    stage = Stage()
    leader, other = stage.gather(2, {"range": bytes_})
    stage.sync(other)
    stage.sync(leader, {other: bytes_})
    stage.save()
    stage.wait(SESSION_SECONDS, leader)
    stage.join(leader)
    stage.sync(leader, {leader: b""})
    assert stage.save().crashes == ()


# With the metadata


async def with_topic(here: Coordinating) -> None:
    await said(here.cluster, CreateTopic(TOPIC, "a", ((1,), (1,))))
    await settle()


async def one_member(here: Coordinating, *parts: tuple[str, int]) -> JoinGroupReply:
    """It works on both partitions, or these."""
    [member] = await joined(here, 1)
    plan = (MemberAssignment(member.member_id, encode_assignment(parts or (A0, A1))),)
    request = SyncGroup(GROUP, member.generation, member.member_id, assignments=plan)
    assert not (await here.ask(request)).error
    return member


def commit_alone(member: JoinGroupReply, offset: int) -> OffsetCommit:
    one = OffsetToCommit(TOPIC, 0, offset, is_alone=True)
    return OffsetCommit(GROUP, member.generation, member.member_id, (one,))


async def told(here: Coordinating, *partitions: int) -> list[tuple[int, int]]:
    """Offsets, and the crashes beside them."""
    wanted = tuple(TopicPartition(TOPIC, number) for number in partitions)
    reply = await here.ask(OffsetFetch(GROUP, wanted))
    return [(one.offset, one.crashes) for one in reply.partitions]


async def test_crashes_are_told_with_the_offsets(autojump_clock: MockClock) -> None:
    """Of the record that was alone; and where nothing is committed, which lists leave out."""
    async with coordinating(level=FeatureLevel.SCHEDULED) as here:
        await with_topic(here)
        for count in (1, 2):
            await one_member(here)
            await settle(20)
            assert await told(here, 0, 1) == [(-1, count), (-1, count)]
        member = await one_member(here)
        assert not (await here.ask(commit_alone(member, 7))).error
        await settle(20)
        assert await told(here, 0, 1) == [(7, 3), (-1, 2)]
        assert [one.partition for one in (await here.ask(OffsetFetch(GROUP))).partitions] == [0]


async def test_of_too_many_the_urgent_ones_are_counted(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was alone, wherever it stands; then those that were counted once; those that one
    crash more does not change come last."""

    async def crash(*alone: int) -> list[int]:
        """The partitions that are counted for."""
        member = await one_member(here, *partitions)
        for number in alone:
            one = OffsetToCommit(TOPIC, number, 7, is_alone=True)
            request = OffsetCommit(GROUP, member.generation, member.member_id, (one,))
            assert not (await here.ask(request)).error
        await settle(20)
        [held] = here.saves()[-1].crashed[0].held
        return sorted(held.numbers)

    monkeypatch.setattr(crashes, "CRASHED_PARTITIONS_MAX", 2)
    partitions = [("a", number) for number in range(5)]
    async with coordinating(level=FeatureLevel.SCHEDULED) as here:
        await said(here.cluster, CreateTopic(TOPIC, "a", ((1,),) * 5))
        await settle()
        assert await crash() == [0, 1]
        assert await crash() == [0, 1]
        assert await crash() == [2, 3]
        assert await crash(4) == [2, 4]
        assert await told(here, *range(5)) == [(-1, 2), (-1, 2), (-1, 1), (-1, 1), (7, 1)]


async def test_below_its_level_nothing_is_counted(autojump_clock: MockClock) -> None:
    """Nodes of an earlier version would pass over it, and have another image."""
    async with coordinating(level=FeatureLevel.TAGS) as here:
        await with_topic(here)
        member = await one_member(here)
        assert not (await here.ask(commit_alone(member, 7))).error
        await settle(20)
        assert await told(here, 0, 1) == [(7, 0), (-1, 0)]
        assert not any(save.crashed for save in here.saves())
        assert not any(
            one.alone_by for command in here.commits() for one in command.groups[0].commits
        )


async def test_an_outsider_is_not_alone(autojump_clock: MockClock) -> None:
    """It has no session that could end."""
    async with coordinating(level=FeatureLevel.SCHEDULED) as here:
        one = OffsetToCommit(TOPIC, 0, 7, is_alone=True)
        assert not (await here.ask(OffsetCommit(GROUP, -1, "", (one,)))).error
        [command] = here.commits()
        assert not command.groups[0].commits[0].alone_by


async def test_partitions_that_do_not_exist_are_not_counted(autojump_clock: MockClock) -> None:
    """Of a topic that is gone, or in a plan that somebody has made up."""
    async with coordinating(level=FeatureLevel.SCHEDULED) as here:
        await said(here.cluster, CreateTopic(TOPIC, "a", ((1,),)))
        await settle()
        member = await one_member(here)
        await settle(20)
        assert await told(here, 0, 1) == [(-1, 1), (-1, 0)]
        assert here.saves()[-1].crashed[0].member_id == member.member_id
        assert here.cluster.leader.image.offsets[GROUP][TOPIC, 0].crashes == Crashes(1)


async def test_who_leaves_has_not_crashed(autojump_clock: MockClock) -> None:
    """Nor who only hears of a rebalance late."""
    async with coordinating(level=FeatureLevel.SCHEDULED) as here:
        await with_topic(here)
        member = await one_member(here)
        beat = Heartbeat(GROUP, member.generation, member.member_id)
        assert not (await here.ask(beat)).error
        await here.ask(LeaveGroup(GROUP, (LeavingMember(member.member_id),)))
        await settle(20)
        assert await told(here, 0, 1) == [(-1, 0), (-1, 0)]
