"""Builds a group member's requests: JoinGroup, SyncGroup, Heartbeat, LeaveGroup. Pure.

From its options and the state that the caller passes; keeps none of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.group.planning import encode_subscription
from raftmq.wire.messages.groups import (
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Protocol,
    SyncGroup,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.member_options import MemberOptions
    from raftmq.wire.messages.groups import MemberAssignment


class MemberQuestions:
    """The requests of one member."""

    def __init__(self, options: MemberOptions) -> None:
        self._options = options
        self._names = [assignor.name for assignor in options.assignors]

    def join(
        self, member_id: str, topics: Iterable[str], owned: Iterable[Key], generation: int
    ) -> JoinGroup:
        """JoinGroup with the partitions owned in `generation`. All assignors get the same
        subscription.
        """
        options = self._options
        subscription = encode_subscription(
            topics,
            owned,
            generation=generation,
            is_holding=options.is_cooperative,
            user_data=options.user_data,
            rack=options.rack,
        )
        return JoinGroup(
            options.group,
            member_id,
            tuple(Protocol(name, subscription) for name in self._names),
            session_timeout_ms=options.session_timeout_ms,
            rebalance_timeout_ms=options.longest_rebalance_ms,
            instance_id=options.group_instance_id,
        )

    def sync(
        self, member_id: str, generation: int, protocol: str, plan: tuple[MemberAssignment, ...]
    ) -> SyncGroup:
        """SyncGroup; `plan`: empty, except from the leader."""
        options = self._options
        return SyncGroup(
            options.group, generation, member_id, options.group_instance_id, protocol, plan
        )

    def beat(self, member_id: str, generation: int) -> Heartbeat:
        options = self._options
        return Heartbeat(options.group, generation, member_id, options.group_instance_id)

    def leave(self, member_id: str) -> LeaveGroup:
        options = self._options
        member = LeavingMember(member_id, options.group_instance_id, "the consumer has ended")
        return LeaveGroup(options.group, (member,))
