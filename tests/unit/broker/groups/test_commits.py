"""Commits: one command under way, the rest gathers; order, what is expected, what is refused."""

from __future__ import annotations

from itertools import chain, count
from typing import TYPE_CHECKING

import pytest
import trio

from raftmq.broker.groups import pipeline
from raftmq.broker.groups.coordinator import OUTSIDERS_MAX
from raftmq.errors import ErrorCode
from raftmq.metadata.commands import CommandId, DeleteTopic
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.group_offsets import OffsetCommit, OffsetToCommit
from raftmq.wire.messages.groups import LeaveGroup, LeavingMember
from tests.unit.broker.groups.coordinating import (
    GROUP,
    HERE,
    NOW_MS,
    TOPIC,
    Asked,
    commit_of,
    coordinating,
    settle,
    stable,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trio.testing import MockClock

FAR = "far"  # another group, of another slot


async def errors_of(asked: Iterable[Asked]) -> list[int]:
    """Of the only partition of each."""
    bodies = [await one.answer() for one in asked]
    return [body.error or body.partitions[0].error for body in bodies]


async def test_a_commit_is_answered_once_it_is_applied(autojump_clock: MockClock) -> None:
    """The answer comes when the quorum has it, with the time of the coordinator (A9.1)."""
    async with coordinating() as here:
        here.cluster.delay_seconds = 2.0
        began_at = trio.current_time()
        reply = await here.commit(7, metadata="half-way")
        assert trio.current_time() == began_at + 2.0
        assert reply.error == ErrorCode.NONE
        assert [one.error for one in reply.partitions] == [ErrorCode.NONE]
        found = here.cluster.leader.image.offsets[GROUP][TOPIC, 0]
        assert (found.offset, found.metadata, found.committed_at_ms) == (7, "half-way", NOW_MS)


async def test_what_comes_meanwhile_goes_together(autojump_clock: MockClock) -> None:
    """Hundred commits of ten partitions while one is under way: one more command, the last of each
    partition in it, and all of them are answered (A9.2)."""
    async with coordinating() as here:
        here.cluster.delay_seconds = 1.0
        first = here.begin(commit_of(1))
        rest: list[Asked] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.answer)
            await settle()
            rest += [here.begin(commit_of(n, n % 10)) for n in range(100)]
            nursery.start_soon(errors_of, rest)
        _, both = here.commits()
        (group,) = both.groups
        assert sorted(one.offset for one in group.commits) == list(range(90, 100))
        assert {one.body.partitions[0].error for one in rest} == {ErrorCode.NONE}


async def test_each_slot_has_its_own_line(autojump_clock: MockClock) -> None:
    """Two groups of two slots do not wait for each other."""
    async with coordinating() as here:
        await here.give(2, FAR)
        await settle()
        here.cluster.delay_seconds = 1.0
        began_at = trio.current_time()
        asked = [here.begin(commit_of(1)), here.begin(commit_of(1, group=FAR))]
        async with trio.open_nursery() as nursery:
            for one in asked:
                nursery.start_soon(one.answer)
        assert trio.current_time() == began_at + 1.0


async def test_what_is_expected_keeps_its_place(autojump_clock: MockClock) -> None:
    """A commit, one that expects it, and another after that: three commands, in that order."""
    async with coordinating() as here:
        asked = [
            here.begin(commit_of(1)),
            here.begin(commit_of(2, expected=1)),
            here.begin(commit_of(3)),
            here.begin(commit_of(9, expected=1)),
            here.begin(commit_of(4, 1, expected=ABSENT)),
        ]
        assert await errors_of(asked) == [0, 0, 0, ErrorCode.INVALID_UPDATE_VERSION, 0]
        offsets = [[one.offset for one in it.groups[0].commits] for it in here.commits()]
        assert offsets == [[1], [2], [3], [9, 4]]
        assert asked[3].body.partitions[0].offset == 3  # what is there
        assert (here.committed(), here.committed(1)) == (3, 4)


async def test_one_refused_of_a_request(autojump_clock: MockClock) -> None:
    """Each partition stands for itself: expected, too much metadata, and as it should be."""
    long = "é" * 3_000  # characters that the wire takes, and bytes that the quorum does not
    wanted = (
        OffsetToCommit(TOPIC, 0, 5, expected=4),
        OffsetToCommit(TOPIC, 1, 6, metadata=long),
        OffsetToCommit(TOPIC, 2, 7, leader_epoch=3),
    )
    async with coordinating() as here:
        reply = await here.ask(OffsetCommit(GROUP, -1, "", wanted))
        assert [(one.partition, one.error) for one in reply.partitions] == [
            (0, ErrorCode.INVALID_UPDATE_VERSION),
            (1, ErrorCode.OFFSET_METADATA_TOO_LARGE),
            (2, ErrorCode.NONE),
        ]
        assert reply.partitions[0].offset == ABSENT
        assert (here.committed(0), here.committed(1), here.committed(2)) == (None, None, 7)
        nothing = await here.ask(OffsetCommit(GROUP, -1, "", ()))
        assert (nothing.error, nothing.partitions) == (ErrorCode.NONE, ())


async def test_a_large_request_becomes_several_commands(autojump_clock: MockClock) -> None:
    """Four thousand partitions, some with metadata: no command is too large, none is left out."""
    wanted = tuple(
        OffsetToCommit(TOPIC, n, n, metadata="m" * 2_000 * (n % 10 == 0)) for n in range(4_000)
    )
    async with coordinating() as here:
        reply = await here.ask(OffsetCommit(GROUP, -1, "", wanted))
        assert [one.partition for one in reply.partitions] == list(range(4_000))
        assert not any(one.error for one in reply.partitions)
        assert len(here.cluster.leader.image.offsets[GROUP]) == 4_000
        assert len(here.commits()) >= 2


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (commit_of(1, group=""), ErrorCode.INVALID_GROUP_ID),
        (commit_of(1, group="g" * 201), ErrorCode.INVALID_GROUP_ID),
        (commit_of(1, group=FAR), ErrorCode.NOT_COORDINATOR),
        (commit_of(1, generation=3, member_id="m"), ErrorCode.UNKNOWN_MEMBER_ID),
        (
            OffsetCommit(GROUP, -1, "", (OffsetToCommit(TOPIC, 0, 1), OffsetToCommit(TOPIC, 0, 2))),
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
async def test_what_is_refused_at_once(
    request_: OffsetCommit, code: ErrorCode, autojump_clock: MockClock
) -> None:
    """Names that no group has, another one's group, a stranger, a partition named twice."""
    async with coordinating() as here:
        asked = here.begin(request_)
        assert asked.is_answered
        assert (asked.body.error, asked.body.partitions) == (code, ())
        assert not here.commits()


async def test_the_line_has_an_end(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit is refused, retriable, and the next one fits once the line has moved."""
    monkeypatch.setattr(pipeline, "LINE_ENTRIES_MAX", 3)
    async with coordinating() as here:
        here.cluster.delay_seconds = 1.0
        asked = [here.begin(commit_of(n)) for n in range(5)]
        assert [one.is_answered for one in asked] == [False, False, False, True, True]
        assert asked[4].body.error == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert "commit less often" in asked[4].body.message
        await errors_of(asked[:3])
        assert (await here.commit(9)).error == ErrorCode.NONE
        assert here.committed() == 9


async def test_groups_and_partitions_have_a_number(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What every node has to keep is bounded; what is there may be committed again."""
    limits = "raftmq.broker.groups.checks"
    async with coordinating() as here:
        await here.commit(1)
        monkeypatch.setattr(f"{limits}.GROUPS_WITH_OFFSETS_MAX", 1)
        monkeypatch.setattr(f"{limits}.OFFSETS_OF_GROUP_MAX", 1)
        assert (await here.commit(2)).error == ErrorCode.NONE
        another = await here.commit(1, 1)
        assert another.error == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        await here.give(2, FAR)
        await settle()
        reply = await here.commit(1, group=FAR)
        assert reply.error == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert "delete groups" in reply.message


async def test_programs_that_are_no_members_have_names(autojump_clock: MockClock) -> None:
    """What comes late of one of them changes nothing, though others commit as well; who says no
    name is not counted. Those who were silent for longest are forgotten."""
    async with coordinating() as here:
        for sender, number, offset, code in [
            ("a", 1, 10, ErrorCode.NONE),
            ("a", 3, 30, ErrorCode.NONE),
            ("a", 2, 20, ErrorCode.INVALID_UPDATE_VERSION),
            ("b", 1, 15, ErrorCode.NONE),
            ("", 1, 16, ErrorCode.NONE),
            ("a", 1, 10, ErrorCode.INVALID_UPDATE_VERSION),
        ]:
            reply = await here.commit(offset, number=number, sender=sender)
            assert reply.error == code, (sender, number)
        assert here.committed() == 16
        outsiders = here.coordinator.slots.find(GROUP).outsiders
        for number in range(OUTSIDERS_MAX):
            outsiders.note(GROUP, f"c{number}", 2)
        assert not outsiders.is_late(GROUP, "a", 1)
        assert outsiders.is_late(GROUP, "c0", 1)


async def test_programs_that_are_no_members_are_not_told_apart(autojump_clock: MockClock) -> None:
    """Older ones, that say no name: one that is started anew counts its commits from one, and they
    count, though the coordinator remembers the group and what the first process has sent."""
    async with coordinating() as here:
        here.cluster.follow_seconds = 0.02  # so the group is in memory when it has become empty
        await settle(1.0)
        (member,) = await stable(here, 1)
        await here.ask(LeaveGroup(GROUP, (LeavingMember(member.member_id),)))
        await settle(0.5)
        assert GROUP in here.coordinator.slots.find(GROUP).groups
        for number in range(1, 6):
            assert (await here.commit(10 * number, number=number)).error == ErrorCode.NONE
        assert (await here.commit(60, number=1)).error == ErrorCode.NONE
        await settle()
        assert here.committed() == 60


# What the quorum does not say


async def test_an_answer_that_was_lost(autojump_clock: MockClock) -> None:
    """Applied, and nobody heard of it: the same id again, and the answer of the first time."""
    async with coordinating() as here:
        here.cluster.lose_answers(1)
        assert (await here.commit(5, expected=ABSENT)).partitions[0].error == ErrorCode.NONE
        (_, first), (_, again) = here.link.sent
        assert first == again
        assert here.committed() == 5


async def test_a_command_that_was_lost(autojump_clock: MockClock) -> None:
    """Never applied: it is by the next attempt, before whatever came after it."""
    async with coordinating() as here:
        here.cluster.lose_answers(2, applied=False)
        asked = [here.begin(commit_of(5)), here.begin(commit_of(6, expected=5))]
        assert await errors_of(asked) == [0, 0]
        assert here.committed() == 6


async def test_nobody_takes_it_in_time(autojump_clock: MockClock) -> None:
    """Without a leader it waits as long as it may; then, between attempts or in one, it is told
    whether it may still happen."""
    async with coordinating() as here:
        here.link.is_cut = True
        replies: list[int] = []

        async def try_one(offset: int, timeout_ms: int) -> None:
            replies.append((await here.commit(offset, timeout_ms=timeout_ms)).error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(try_one, 1, 1_000)
            await trio.sleep(0.5)
            nursery.start_soon(try_one, 2, 1_000)
        # The first was in an attempt whose end is open, the second in line behind it.
        assert replies == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE]
        here.link.is_cut = False
        assert (await here.commit(3, timeout_ms=20_000)).error == ErrorCode.NONE
        (only,) = here.commits()  # what was given up was not tried again: nobody had taken it
        assert [one.offset for one in only.groups[0].commits] == [3]


async def test_the_quorum_has_forgotten_an_id(autojump_clock: MockClock) -> None:
    """A thousand commands of this broker overtook it: whatever may be said twice is said under
    another id; whatever expects something is told as unknown."""
    async with coordinating() as here:
        far = CommandId(HERE, here.broker_epoch, 5_000)
        await here.cluster.leader.propose(DeleteTopic(b"?" * 16), command_id=far)
        here.sequences = chain([1], count(5_001))
        assert (await here.commit(5)).error == ErrorCode.NONE
        here.sequences = chain([2], count(6_000))
        assert (await here.commit(6, expected=5)).error == ErrorCode.REQUEST_TIMED_OUT
        here.sequences = chain([3, 4, 5, 6], count(7_000))
        assert (await here.commit(7)).error == ErrorCode.REQUEST_TIMED_OUT
        assert (await here.commit(8)).error == ErrorCode.NONE
