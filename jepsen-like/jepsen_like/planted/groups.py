"""Planted bugs of consumer groups: generations, commits, fetched offsets, ownership.

Each is a function that patches the code through a `Patch`. A bug takes away one rule, or one step;
never a check.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from raftmq.broker.groups.group import Group
from raftmq.broker.groups.offset_requests import OffsetRequests
from raftmq.client.consumer.group_reader import GroupReader
from raftmq.client.group.member_requests import MemberSession
from raftmq.rpc.reply import Reply
from raftmq.wire.messages.group_offsets import CommitOutcome, OffsetCommitReply

if TYPE_CHECKING:
    from jepsen_like.planted.patch import Patch
    from raftmq.errors import RaftmqError
    from raftmq.metadata.image import MetadataImage
    from raftmq.wire.messages.group_offsets import OffsetCommit, OffsetFetch


def commits_of_any_generation(patch: Patch) -> None:
    """Any former member of the group may commit, of any generation."""

    def refuse_nobody(_: Group, *_identity: Any) -> RaftmqError | None:
        return None

    patch.setattr(Group, "commit_refusal", refuse_nobody)


def answer_a_commit_before_it_is_applied(patch: Patch) -> None:
    """A commit is acknowledged when it is queued."""

    async def committed(_: OffsetRequests, request: OffsetCommit, *_line: Any) -> Reply:
        outcomes = [CommitOutcome(one.topic_id, one.partition) for one in request.partitions]
        return Reply(OffsetCommitReply(partitions=tuple(outcomes)))

    patch.setattr(OffsetRequests, "_committed", committed)


def tell_offsets_as_they_are_known_here(patch: Patch) -> None:
    """Without a read barrier: the quorum may have newer offsets, or another coordinator."""

    async def newest(self: OffsetRequests, request: OffsetFetch) -> MetadataImage:
        self._coordinator.slots.find(request.group)
        return self._coordinator.image

    patch.setattr(OffsetRequests, "_newest", newest)


def go_on_with_what_was_given_up(patch: Patch) -> None:
    """A member says that it has finished with a partition, and reads on."""
    patch.setattr(GroupReader, "hold_back", lambda self, keys: None)
    patch.setattr(GroupReader, "release", lambda self, keys, cause: self.events.on_finished())


def sessions_do_not_end_here(patch: Patch) -> None:
    """A member without heartbeats keeps its partitions until a coordinator revokes them."""
    patch.setattr(MemberSession, "ends_at", property(lambda self: math.inf))
