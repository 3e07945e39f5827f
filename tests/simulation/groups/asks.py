"""What members ask of coordinators in the world of groups, and commits as little as they can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from raftmq.wire.messages.groups import Heartbeat, JoinGroup, LeaveGroup, SyncGroup

if TYPE_CHECKING:
    from raftmq.errors import ErrorCode

GROUP = "billing"


class Commit(NamedTuple):
    """Offsets of what it works on."""

    member_id: str
    generation: int
    instance_id: str | None


class Committed(NamedTuple):
    error: ErrorCode
    message: str = ""


Ask: TypeAlias = JoinGroup | SyncGroup | Heartbeat | LeaveGroup | Commit
