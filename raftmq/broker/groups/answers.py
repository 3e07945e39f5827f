"""Replies of a coordinator that say no, and what it tells of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from raftmq.wire.bodies import clip_message
from raftmq.wire.messages.groups import (
    DescribedGroup,
    DescribedMember,
    HeartbeatReply,
    JoinGroupReply,
    SyncGroupReply,
)

if TYPE_CHECKING:
    from raftmq.broker.groups.members import GroupMember
    from raftmq.broker.groups.rebalance import Rebalance
    from raftmq.errors import RaftmqError

Refusable = TypeVar("Refusable", JoinGroupReply, SyncGroupReply, HeartbeatReply)


def refused(reply: type[Refusable], error: RaftmqError) -> Refusable:
    return reply(error=error.code, message=clip_message(str(error)))


def refused_waiter(member: GroupMember, error: RaftmqError) -> JoinGroupReply | SyncGroupReply:
    """What a member is told in place of what it waits for."""
    if member.joining is not None:
        return refused(JoinGroupReply, error)
    return refused(SyncGroupReply, error)


def described(name: str, rebalance: Rebalance) -> DescribedGroup:
    return DescribedGroup(
        name,
        state=rebalance.phase,
        generation=rebalance.generation,
        protocol_type=rebalance.protocol_type,
        protocol=rebalance.protocol,
        leader=rebalance.leader,
        members=tuple(_described(member, rebalance.protocol) for member in rebalance.members),
    )


def _described(member: GroupMember, protocol: str) -> DescribedMember:
    return DescribedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.host,
        subscription=member.protocols.get(protocol, b""),
        assignment=member.assignment,
    )
