"""Requests of members to coordinators in the world of groups; commits have few fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from raftmq.wire.messages.groups import Heartbeat, JoinGroup, LeaveGroup, SyncGroup

if TYPE_CHECKING:
    from raftmq.client.group.assignors.assignor import Key
    from raftmq.errors import ErrorCode

GROUP = "billing"


class Commit(NamedTuple):
    """Offsets of what it works on: the higher `number`, the further. `alone`: it only says that the
    first record of this partition is handled now, and nothing else.
    """

    member_id: str
    generation: int
    instance_id: str | None
    number: int = 0
    slot_epoch: int = 0
    alone: Key | None = None


class Committed(NamedTuple):
    error: ErrorCode
    message: str = ""


Ask: TypeAlias = JoinGroup | SyncGroup | Heartbeat | LeaveGroup | Commit


def addressed(ask: Ask, slot_epoch: int) -> Ask:
    """To the coordinator that was found under that epoch."""
    if isinstance(ask, Commit):
        return ask._replace(slot_epoch=slot_epoch)
    return msgspec.structs.replace(ask, slot_epoch=slot_epoch)
