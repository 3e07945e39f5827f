"""What the bytes of a member say: to which topics it has subscribed, and what it reads.

Brokers keep these bytes as they are, and members may be programs of another kind. What cannot be
read is told as not known, and hides nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.administration.groups.results import GroupMember
from raftmq.client.group.assignment import decode_assignment
from raftmq.client.group.subscription import decode_subscription
from raftmq.errors import RaftmqError
from raftmq.wire.messages.groups import CONSUMER_PROTOCOL

if TYPE_CHECKING:
    from raftmq.client.administration.groups.results import TopicPartition
    from raftmq.wire.messages.groups import DescribedMember


def member_of(told: DescribedMember, protocol_type: str) -> GroupMember:
    is_ours = protocol_type == CONSUMER_PROTOCOL
    return GroupMember(
        told.member_id,
        told.instance_id,
        told.client_id,
        told.host,
        _topics(told) if is_ours else None,
        _partitions(told.assignment) if is_ours else None,
    )


def _topics(told: DescribedMember) -> tuple[str, ...] | None:
    try:
        found = decode_subscription(told.subscription, member_id=told.member_id)
    except RaftmqError:
        return None
    return tuple(sorted(found.topics))


def _partitions(assignment: bytes) -> tuple[TopicPartition, ...] | None:
    try:
        return tuple(sorted(decode_assignment(assignment).partitions))
    except RaftmqError:
        return None
