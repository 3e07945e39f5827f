"""Slots come and go: what a new coordinator knows, and what the old one still tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
import trio

from raftmq.errors import ErrorCode
from raftmq.metadata.commands import (
    NO_BROKER,
    AssignSlot,
    BrokerRegistered,
    RegisterBroker,
    UnfenceBroker,
)
from raftmq.metadata.image import SlotState, slot_of
from raftmq.wire.bodies import ABSENT, TopicPartition
from raftmq.wire.messages.group_offsets import OffsetDelete, OffsetFetch
from raftmq.wire.messages.groups import (
    DeleteGroups,
    DescribeGroups,
    FindCoordinator,
    Heartbeat,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    SyncGroup,
)
from tests.unit.broker.asking import fence, said
from tests.unit.broker.groups.coordinating import (
    ELSEWHERE,
    GROUP,
    HERE,
    TOPIC,
    Asked,
    Coordinating,
    commit_of,
    coordinating,
    join_of,
    joined,
    settle,
    stable,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

    from raftmq.wire.bodies import Request


async def answers_of(*asked: Asked) -> list[int]:
    """The errors of whole requests, in order."""
    errors: dict[int, int] = {}

    async def note(at: int, one: Asked) -> None:
        errors[at] = (await one.answer()).error

    async with trio.open_nursery() as nursery:
        for at, one in enumerate(asked):
            nursery.start_soon(note, at, one)
    return [errors[at] for at in range(len(asked))]


async def test_nothing_is_answered_before_the_past_is_known(autojump_clock: MockClock) -> None:
    """A slot is this broker's and the barrier is not back: ask again in a moment."""
    async with coordinating() as here:
        await here.give(ELSEWHERE)
        await settle()
        assert (await here.commit(1)).error == ErrorCode.NOT_COORDINATOR
        here.cluster.delay_seconds = 1.0
        await here.give(HERE)
        await settle()
        assert (await here.commit(1)).error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        listed = await here.ask(ListGroups())
        assert listed.error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await trio.sleep(1.0)
        assert (await here.commit(1)).error == ErrorCode.NONE


async def test_a_barrier_that_fails_is_asked_for_again(autojump_clock: MockClock) -> None:
    """While nobody leads the quorum the slot is not loaded; afterwards it is."""
    async with coordinating() as here:
        await here.give(ELSEWHERE)
        await here.give(HERE)
        here.link.is_cut = True
        await trio.sleep(12.0)
        assert (await here.commit(1)).error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        here.link.is_cut = False
        await trio.sleep(6.0)
        assert (await here.commit(1)).error == ErrorCode.NONE


async def test_a_broker_that_is_behind(autojump_clock: MockClock) -> None:
    """Its image gives it a slot that is another's by now: the barrier tells, and nobody is
    answered in between."""
    async with coordinating() as here:
        await here.give(ELSEWHERE)
        await settle()
        here.cluster.follow_seconds = 1.0
        await here.give(HERE)
        await trio.sleep(0.5)
        await here.give(ELSEWHERE)
        await trio.sleep(0.6)  # it has heard of the first of both
        assert (await here.commit(1)).error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await trio.sleep(1.0)
        assert (await here.commit(1)).error == ErrorCode.NOT_COORDINATOR


async def test_members_go_on_with_a_new_coordinator(autojump_clock: MockClock) -> None:
    """The group as it was saved, nobody joins anew; who does not show up is put out after its
    session, and the others are told to join."""
    async with coordinating() as here:
        first, second = await stable(here, 2)
        await here.give(ELSEWHERE)
        await settle()
        await here.give(HERE)
        await settle()
        for _ in range(4):
            beat = Heartbeat(GROUP, first.generation, first.member_id)
            assert (await here.ask(beat)).error == ErrorCode.NONE
            await trio.sleep(2.4)
        reply = await here.commit(5, generation=first.generation, member_id=first.member_id)
        assert reply.error == ErrorCode.NONE
        await trio.sleep(1.0)  # more than ten seconds since: the second has not been heard
        assert (await here.ask(beat)).error == ErrorCode.REBALANCE_IN_PROGRESS
        silent = Heartbeat(GROUP, second.generation, second.member_id)
        assert (await here.ask(silent)).error == ErrorCode.UNKNOWN_MEMBER_ID


async def test_who_waits_is_sent_away(autojump_clock: MockClock) -> None:
    """A member that waits for others to join learns at once that another broker coordinates."""
    async with coordinating() as here:
        (member,) = await stable(here, 1)
        stranger = await here.ask(join_of())
        waiting = here.begin(join_of(stranger.member_id))
        await settle()
        assert not waiting.is_answered
        await here.give(ELSEWHERE)
        await settle()
        assert waiting.body.error == ErrorCode.NOT_COORDINATOR
        beat = Heartbeat(GROUP, member.generation, member.member_id)
        assert (await here.ask(beat)).error == ErrorCode.NOT_COORDINATOR


async def test_commits_when_the_slot_is_lost(autojump_clock: MockClock) -> None:
    """The quorum refuses the one under way: certainly nothing happened, to it and to all that
    waited in line."""
    async with coordinating() as here:
        here.cluster.follow_seconds = 5.0  # this broker hears of nothing
        await here.give(ELSEWHERE)
        codes = await answers_of(here.begin(commit_of(1)), here.begin(commit_of(2, expected=1)))
        assert codes == [ErrorCode.NOT_COORDINATOR] * 2
        assert here.committed() is None
        here.coordinator.follow()  # the image still says that it is this broker's
        await settle()
        assert (await here.commit(3)).error == ErrorCode.NOT_COORDINATOR
        await trio.sleep(6.0)
        await here.give(HERE)
        await trio.sleep(6.0)
        assert (await here.commit(4)).error == ErrorCode.NONE


async def test_a_commit_of_unknown_fate_when_the_slot_is_lost(autojump_clock: MockClock) -> None:
    """It was applied, and that answer is lost with the slot: unknown, after a moment. What was in
    line behind it was not sent, and is told so."""
    async with coordinating() as here:
        here.cluster.delay_seconds = 3.0
        here.cluster.lose_answers(1)
        first = here.begin(commit_of(1))
        await settle()
        second = here.begin(commit_of(2, expected=1))
        codes: list[int] = []

        async def note() -> None:
            codes.extend(await answers_of(first, second))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(note)
            await here.give(ELSEWHERE)
        assert codes == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_COORDINATOR]
        assert here.committed() == 1


async def test_a_process_that_registers_anew(autojump_clock: MockClock) -> None:
    """Another process of this broker: all slots are given up with its registration, under another
    epoch, and what this process has in line changes nothing any more."""
    async with coordinating() as here:
        before = here.slot_state()
        here.cluster.follow_seconds = 5.0
        await register_anew(here)
        assert here.slot_state() == SlotState(NO_BROKER, before.epoch + 1)
        # The id of the command is of the process before: nobody can tell here what became of it.
        assert (await here.commit(1)).error == ErrorCode.REQUEST_TIMED_OUT
        assert here.committed() is None
        assert (await here.commit(2)).error == ErrorCode.NOT_COORDINATOR


async def test_slots_of_another_process_are_not_taken(autojump_clock: MockClock) -> None:
    """The image gives slots to a process that has taken this one's place; then this one learns
    that it is that process."""
    async with coordinating() as here:
        epoch = await register_anew(here)
        await said(here.cluster, UnfenceBroker(HERE, epoch))
        await here.give(HERE)
        await settle()
        assert (await here.commit(1)).error == ErrorCode.NOT_COORDINATOR
        here.broker_epoch = epoch
        here.coordinator.follow()
        await settle()
        assert (await here.commit(1)).error == ErrorCode.NONE


async def register_anew(here: Coordinating) -> int:
    """What the next process of this broker does first."""
    command = RegisterBroker(HERE, b"another process!", bytes([HERE]) * 16)
    result = await here.cluster.leader.propose(command)
    assert isinstance(result, BrokerRegistered)
    return result.broker_epoch


async def test_who_coordinates(autojump_clock: MockClock) -> None:
    """Any broker says; of a slot that is nobody's, or of a broker that is dead, to ask again.

    A8.1.
    """
    async with coordinating() as here:
        request = FindCoordinator((GROUP, "far", ""))
        found, free, bad = (await here.ask(request)).coordinators
        assert (found.error, found.broker_id) == (ErrorCode.NONE, HERE)
        assert found.slot_epoch == here.slot_state().epoch
        assert (free.error, free.broker_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, ABSENT)
        assert bad.error == ErrorCode.INVALID_GROUP_ID
        await here.give(3)
        await fence(here.cluster, 3)
        (dead,) = (await here.ask(FindCoordinator((GROUP,)))).coordinators
        assert dead.error == ErrorCode.COORDINATOR_NOT_AVAILABLE


CHANGES = (
    join_of("m"),
    join_of(instance_id="i"),
    commit_of(1),
    SyncGroup(GROUP, 1, "m"),
    Heartbeat(GROUP, 1, "m"),
    LeaveGroup(GROUP, (LeavingMember("m"),)),
    OffsetDelete(GROUP, (TopicPartition(TOPIC, 0),)),
)


@pytest.mark.parametrize("request_", CHANGES, ids=lambda it: type(it).__name__)
async def test_what_was_asked_of_another_tenure(
    request_: Request, autojump_clock: MockClock
) -> None:
    """The slot was elsewhere, and is back at this broker: what was meant for the tenure before, and
    for one of which it has not heard yet, is refused, and changes nothing."""
    async with coordinating() as here:
        before = here.slot_state().epoch
        await here.give(ELSEWHERE)
        await here.give(HERE)
        await settle()
        now = here.slot_state().epoch
        for slot_epoch in (before, now + 1):
            asked = msgspec.structs.replace(request_, slot_epoch=slot_epoch)
            assert (await here.ask(asked)).error == ErrorCode.NOT_COORDINATOR
        meant = msgspec.structs.replace(request_, slot_epoch=now)
        assert (await here.ask(meant)).error != ErrorCode.NOT_COORDINATOR


async def test_a_commit_that_comes_late_across_tenures(autojump_clock: MockClock) -> None:
    """A member commits 20 and then 30 where the slot went meanwhile; a proxy delivers the first 20
    when it is back: the group stays where it was. So it is for who is no member, and so is the
    deletion of a group."""
    async with coordinating() as here:
        (member,) = await stable(here, 1)
        before = here.slot_state().epoch
        who = {"generation": member.generation, "member_id": member.member_id}
        late = commit_of(20, number=1, slot_epoch=before, **who)
        await here.give(ELSEWHERE)
        await here.give(HERE)
        await settle()
        now = here.slot_state().epoch
        reply = await here.commit(30, number=2, slot_epoch=now, **who)
        assert reply.error == ErrorCode.NONE
        await here.give(ELSEWHERE)
        await here.give(HERE)
        await settle()
        assert (await here.ask(late)).error == ErrorCode.NOT_COORDINATOR
        await here.ask(LeaveGroup(GROUP, (LeavingMember(member.member_id),)))
        outsider = await here.commit(20, slot_epoch=before)
        assert outsider.error == ErrorCode.NOT_COORDINATOR
        (deleted,) = (await here.ask(DeleteGroups((GROUP,), slot_epoch=before))).groups
        assert deleted.error == ErrorCode.NOT_COORDINATOR
        assert here.committed() == 30


async def test_ids_of_instances_come_from_the_newest_coordinator(autojump_clock: MockClock) -> None:
    """Whoever was deposed and does not know gives out none: the id would look older than that of a
    process which has ended since, and its process would be fenced. Nor does who knows nothing."""
    async with coordinating() as here:
        here.cluster.follow_seconds = 1.0
        number = slot_of(GROUP)
        await said(here.cluster, AssignSlot(number, here.slot_state().epoch, ELSEWHERE))
        assert (await here.ask(join_of())).error == ErrorCode.MEMBER_ID_REQUIRED
        refused = await here.ask(join_of(instance_id="i"))
        assert refused.error == ErrorCode.NOT_COORDINATOR
        assert not refused.member_id
    async with coordinating() as here:
        here.link.is_cut = True
        refused = await here.ask(join_of(instance_id="i"))
        assert refused.error == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_session_that_is_not_allowed_waits_for_no_look(autojump_clock: MockClock) -> None:
    """A static member is told at once what is wrong, not to ask again for ever; one that may have a
    session of minutes is told within seconds that nobody can confirm its coordinator."""
    async with coordinating() as here:
        here.link.is_cut = True
        for timeout_ms in (5, 10_000_000):
            refused = await here.ask(join_of(instance_id="i", session_timeout_ms=timeout_ms))
            assert refused.error == ErrorCode.INVALID_SESSION_TIMEOUT
        started = trio.current_time()
        refused = await here.ask(join_of(instance_id="i", session_timeout_ms=1_800_000))
        assert refused.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert trio.current_time() - started <= 10.0


@pytest.mark.parametrize("request_", [join_of("m"), commit_of(1), OffsetFetch(GROUP)], ids=repr)
async def test_another_brokers_group(request_: Request, autojump_clock: MockClock) -> None:
    """Every request says that this is not the coordinator."""
    async with coordinating() as here:
        await here.give(ELSEWHERE)
        await settle()
        assert (await here.ask(request_)).error == ErrorCode.NOT_COORDINATOR
        (described,) = (await here.ask(DescribeGroups((GROUP,)))).groups
        assert described.error == ErrorCode.NOT_COORDINATOR


async def test_a_plan_under_way_when_the_slot_is_lost(autojump_clock: MockClock) -> None:
    """The quorum refuses to save it: whoever waits for a part of it looks for the coordinator."""
    async with coordinating() as here:
        (member,) = await joined(here, 1)
        here.cluster.follow_seconds = 5.0
        number = slot_of(GROUP)
        await said(here.cluster, AssignSlot(number, here.slot_state().epoch, ELSEWHERE))
        reply = await here.ask(SyncGroup(GROUP, member.generation, member.member_id))
        assert reply.error == ErrorCode.NOT_COORDINATOR
        assert not here.cluster.leader.image.groups
