"""What an answer says of itself, and of who gave it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from raftmq.client.group.effects import ForgetCoordinator
from raftmq.errors import (
    CoordinatorLoadInProgress,
    FencedInstanceId,
    IllegalGeneration,
    RaftmqError,
    RebalanceInProgress,
    UnknownMemberId,
    error_for,
)

if TYPE_CHECKING:
    from raftmq.client.group.effects import Effect
    from raftmq.wire.messages.groups import (
        HeartbeatReply,
        JoinGroupReply,
        LeaveGroupReply,
        SyncGroupReply,
    )

    Reply: TypeAlias = JoinGroupReply | SyncGroupReply | HeartbeatReply | LeaveGroupReply

# What a coordinator thinks of a member, whatever that has asked.
VERDICTS = (RebalanceInProgress, IllegalGeneration, UnknownMemberId, FencedInstanceId)


def error_in(answer: Reply | RaftmqError) -> RaftmqError | None:
    if isinstance(answer, RaftmqError):
        return answer
    return error_for(answer.error, answer.message) if answer.error else None


def doubts(error: RaftmqError) -> list[Effect]:
    """Whether the next attempt is to be made elsewhere."""
    is_there = isinstance(error, CoordinatorLoadInProgress | RebalanceInProgress)
    return [] if is_there else [ForgetCoordinator(error)]
