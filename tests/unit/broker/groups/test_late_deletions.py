"""Deletions that a proxy kept back: what was committed since they were sent stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
import trio

from raftmq.broker.groups import coordinator
from raftmq.errors import ErrorCode
from raftmq.metadata.commands import CommitOffsets, FeatureLevel, GroupCommits, StoredOffset
from raftmq.metadata.image import slot_of
from raftmq.wire.bodies import TopicPartition
from raftmq.wire.messages.group_offsets import OffsetDelete, OffsetFetch
from raftmq.wire.messages.groups import DeleteGroups, LeaveGroup, LeavingMember
from tests.unit.broker.groups.coordinating import (
    GROUP,
    TOPIC,
    Coordinating,
    commit_of,
    coordinating,
    settle,
    stable,
)

if TYPE_CHECKING:
    from trio.testing import MockClock

Deletion = OffsetDelete | DeleteGroups

DELETIONS = (OffsetDelete(GROUP, (TopicPartition(TOPIC, 0),)), DeleteGroups((GROUP,)))
each_deletion = pytest.mark.parametrize(
    "request_", DELETIONS, ids=lambda request: type(request).__name__
)


async def seen(
    here: Coordinating, request: Deletion, *, partitions: tuple[TopicPartition, ...] | None = ()
) -> Deletion:
    """It bears what a look shows now."""
    told = await here.ask(OffsetFetch(GROUP, partitions))
    return msgspec.structs.replace(
        request, slot_epoch=told.slot_epoch, last_change=told.last_change
    )


async def commit_in_transaction(here: Coordinating, offset: int) -> None:
    """In the quorum, which the coordinator of the group hears of like everybody."""
    slot = here.slot_state()
    stored = StoredOffset(TOPIC, 0, offset, -1, "", here.now_ms + 1)
    await here.cluster.leader.propose(
        CommitOffsets(slot_of(GROUP), slot.epoch, (GroupCommits(GROUP, (stored,)),))
    )


async def error_of(here: Coordinating, request: Deletion) -> int:
    reply = await here.ask(request)
    if isinstance(request, OffsetDelete):
        return int(reply.error or reply.partitions[0].error)
    return int(reply.groups[0].error)


@each_deletion
async def test_a_deletion_that_comes_late(request_: Deletion, autojump_clock: MockClock) -> None:
    """Its sender asked again and was answered, then somebody committed: the first copy is refused.
    It does not help it that the same offset was committed as was there before."""
    async with coordinating() as here:
        await here.commit(3)
        first = await seen(here, request_)
        again = await seen(here, request_)
        assert await error_of(here, again) == ErrorCode.NONE
        assert here.committed() is None
        await here.commit(3)
        for late in (first, again):
            assert await error_of(here, late) == ErrorCode.INVALID_UPDATE_VERSION
        assert here.committed() == 3
        assert await error_of(here, await seen(here, request_)) == ErrorCode.NONE
        assert here.committed() is None


@each_deletion
async def test_a_transaction_that_has_committed_since(
    request_: Deletion, autojump_clock: MockClock
) -> None:
    """It takes another line than the group's, and the same offset counts, too: it was committed
    again. A deletion that bears a newer look is none too early."""
    async with coordinating(level=FeatureLevel.TRANSACTIONS) as here:
        await here.commit(3)
        late = await seen(here, request_)
        await commit_in_transaction(here, 3)
        assert await error_of(here, late) == ErrorCode.INVALID_UPDATE_VERSION
        assert here.committed() == 3
        assert await error_of(here, await seen(here, request_)) == ErrorCode.NONE
        assert here.committed() is None


@each_deletion
async def test_a_commit_in_line(request_: Deletion, autojump_clock: MockClock) -> None:
    """Whoever committed first is in line before the late deletion arrives, though not answered."""
    async with coordinating() as here:
        await here.commit(3)
        late = await seen(here, request_)
        commit = here.begin(commit_of(500))
        assert await error_of(here, late) == ErrorCode.INVALID_UPDATE_VERSION
        await commit.answer()
        assert here.committed() == 500


@each_deletion
async def test_a_commit_in_line_at_the_look(request_: Deletion, autojump_clock: MockClock) -> None:
    """A look at offsets does not show it, and it is answered afterwards: a deletion that bears that
    look is refused. A look without partitions waits for it, and its deletion is none too early."""
    async with coordinating() as here:
        await here.commit(3)
        here.cluster.delay_seconds = 2.0
        async with trio.open_nursery() as nursery:
            for offset in (500, 501):  # the second one is not sent before the first one is done
                nursery.start_soon(here.begin(commit_of(offset)).answer)
                await settle()
            late = await seen(here, request_, partitions=None)
            assert here.committed() == 500
        assert here.committed() == 501
        assert await error_of(here, late) == ErrorCode.INVALID_UPDATE_VERSION
        assert here.committed() == 501
        commit = here.begin(commit_of(502))
        assert await error_of(here, await seen(here, request_)) == ErrorCode.NONE
        assert here.committed() is None
        await commit.answer()


async def test_a_deletion_after_the_last_member_has_left(autojump_clock: MockClock) -> None:
    """That the group is empty is being saved: this is no reason to refuse."""
    async with coordinating() as here:
        await here.commit(3)
        (member,) = await stable(here, 1)
        here.cluster.delay_seconds = 2.0
        await here.ask(LeaveGroup(GROUP, (LeavingMember(member.member_id),)))
        assert await error_of(here, await seen(here, DELETIONS[1])) == ErrorCode.NONE
        assert here.committed() is None


async def test_a_look_that_is_over_before_the_line(autojump_clock: MockClock) -> None:
    """Nobody knows then what a deletion would take back."""
    async with coordinating() as here, trio.open_nursery() as nursery:
        here.cluster.delay_seconds = 2.0
        nursery.start_soon(here.begin(commit_of(500)).answer)
        await settle()
        told = await here.ask(OffsetFetch(GROUP, (), timeout_ms=500))
        assert told.error == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_group_that_had_members_since(autojump_clock: MockClock) -> None:
    """It has begun anew, though without a commit; other groups are no reason to refuse."""
    async with coordinating() as here:
        await here.commit(3)
        late = await seen(here, DeleteGroups((GROUP,)))
        (member,) = await stable(here, 1)
        await here.ask(LeaveGroup(GROUP, (LeavingMember(member.member_id),)))
        await settle()
        assert await error_of(here, late) == ErrorCode.INVALID_UPDATE_VERSION
        assert here.committed() == 3


@each_deletion
async def test_a_client_that_has_not_looked(request_: Deletion, autojump_clock: MockClock) -> None:
    """Those from before this field; they delete as they did."""
    async with coordinating() as here:
        await here.commit(3)
        assert await error_of(here, request_) == ErrorCode.NONE
        assert here.committed() is None


def test_few_groups_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that is known no more, no later change is overlooked."""
    monkeypatch.setattr(coordinator, "CHANGED_MAX", 2)
    order = coordinator.ChangeOrder()
    at = {}
    for number, name in enumerate("abc", 2):
        order.note(name, number)
        at[name] = number
    assert order.is_changed_since("a", 1)
    assert not order.is_changed_since("a", at["a"])
    assert order.is_changed_since("never", 1)
    assert not order.is_changed_since("never", at["c"])
    assert order.is_changed_since("c", at["b"])
    assert not order.is_changed_since("b", at["b"])
