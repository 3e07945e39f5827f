"""Groups of the admin: list from all brokers, describe, delete.

Each broker knows the groups that it coordinates, so a list is complete only if all brokers have
answered. A deletion is never sent again when the first request may have been carried out: a group
of the same name may have begun anew meanwhile.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import anyio

from raftmq.client.administration.questions import settle
from raftmq.client.administration.results import GroupDetails, GroupMember, GroupSummary
from raftmq.client.group.coordinator import CoordinatorLookup, checked
from raftmq.client.group.planning import decode_assignment, decode_subscription
from raftmq.client.routing.attempts import RepeatEffect, milliseconds_left
from raftmq.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    NonEmptyGroup,
    RaftmqError,
    ServerError,
)
from raftmq.wire.messages.groups import (
    CONSUMER_PROTOCOL,
    SLOTS_MAX,
    DeleteGroups,
    DescribeGroups,
    ListGroups,
)

if TYPE_CHECKING:
    from raftmq.client.administration.results import TopicPartition
    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.messages.groups import (
        DeleteGroupsReply,
        DescribedGroup,
        DescribedMember,
        DescribeGroupsReply,
        GroupOutcome,
        ListGroupsReply,
    )


# -- Members --------------------------------------------------------------------------------------
# Decodes a member's bytes: the topics of its subscription, and the partitions that it reads.
#
# Brokers store these bytes as they are, and members may be other programs. What cannot be decoded
# is None; the rest is still shown.


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


# -- Descriptions ---------------------------------------------------------------------------------


# Of one broker; then the list of brokers is refreshed, as it may have left
ANSWER_SECONDS_MAX = 5.0

OneT = TypeVar("OneT", "DescribedGroup", "GroupOutcome")


async def list_groups(cluster: Cluster, *, deadline: float) -> tuple[GroupSummary, ...]:
    """All groups, by name.

    Raises:
        RaftmqError: some broker has not answered, so the list would be incomplete.
    """
    attempts = cluster.new_attempts(deadline=deadline, repeats=RepeatEffect.HARMLESS)
    while True:
        try:
            return await _ask_all_brokers(cluster, deadline=deadline)
        # A broker has left, or is slow: ask all again, with a refreshed list.
        except RaftmqError as error:
            pause = attempts.on_failure(error, now=anyio.current_time())
        await anyio.sleep(pause)
        attempts.check_time(anyio.current_time())


async def _ask_all_brokers(cluster: Cluster, *, deadline: float) -> tuple[GroupSummary, ...]:
    # The list is complete only if it covers every broker there is now.
    await cluster.refresh(None, deadline=deadline)
    soon = min(deadline, anyio.current_time() + ANSWER_SECONDS_MAX)
    brokers = sorted(cluster.routes.addresses)
    outcomes = await settle([partial(_ask_one, cluster, one, deadline=soon) for one in brokers])
    found: dict[str, GroupSummary] = {}
    covered: set[int] | None = set()
    for outcome in outcomes:
        if isinstance(outcome, RaftmqError):  # one missing broker spoils the list
            raise outcome
        groups, slots = outcome
        found |= {one.name: one for one in groups}
        covered = None if covered is None or slots is None else covered | slots
    # After a coordinator was lost its slots have none for a moment: their groups are not gone.
    if covered is not None and len(covered) < SLOTS_MAX:
        raise CoordinatorNotAvailable(
            f"{SLOTS_MAX - len(covered)} of {SLOTS_MAX} slots of groups have no coordinator yet"
        )
    return tuple(found[name] for name in sorted(found))


async def _ask_one(
    cluster: Cluster, broker_id: int, *, deadline: float
) -> tuple[list[GroupSummary], set[int] | None]:
    """The groups of one broker, and the slots that all pages cover; None: it does not say."""
    found: list[GroupSummary] = []
    slots: set[int] | None = set(range(SLOTS_MAX))
    after, has_more = "", True
    while has_more:
        answer = await cluster.ask(broker_id, ListGroups(after), deadline=deadline)  # one page
        reply: ListGroupsReply = checked(answer.body)
        found += [
            GroupSummary(one.group, one.state, one.protocol_type, one.member_count, broker_id)
            for one in reply.groups
        ]
        slots = None if slots is None or reply.slots is None else slots & set(reply.slots)
        after, has_more = _next_page(after, reply)
    return found, slots


def _next_page(after: str, reply: ListGroupsReply) -> tuple[str, bool]:
    """The name after which the next page begins, if there is one. Raises ServerError: the pages
    would never end.
    """
    if not reply.has_more:  # the last page
        return after, False
    if not reply.groups or reply.groups[-1].group <= after:
        raise ServerError("a broker has more groups, and does not say which")
    return reply.groups[-1].group, True


async def describe_group(cluster: Cluster, name: str, *, deadline: float) -> GroupDetails:
    """As its coordinator knows it. Raises GroupIdNotFound, RaftmqError."""
    return await _describe(CoordinatorLookup(cluster, name), name, deadline=deadline)


async def _describe(coordinator: CoordinatorLookup, name: str, *, deadline: float) -> GroupDetails:
    def read(reply: DescribeGroupsReply) -> GroupDetails:
        told = only_one(reply.groups, name)
        assert coordinator.found is not None, "a coordinator has answered"
        return _details(told, coordinator.found.broker_id)

    return await coordinator.ask(
        partial(DescribeGroups, (name,)), read, deadline=deadline, repeats=RepeatEffect.HARMLESS
    )


async def delete_group(cluster: Cluster, name: str, *, deadline: float) -> None:
    """Delete a group with its committed offsets.

    Raises:
        NonEmptyGroup, GroupIdNotFound, RaftmqError: nothing was deleted. Definite.
        OutcomeUnknown: it may have been. Indefinite.
    """
    coordinator = CoordinatorLookup(cluster, name)
    # The coordinator refuses as well; this names the number of members and the remedy.
    check_empty(await _describe(coordinator, name, deadline=deadline), "delete it")

    def make() -> DeleteGroups:
        return DeleteGroups((name,), milliseconds_left(deadline, now=anyio.current_time()))

    def read(reply: DeleteGroupsReply) -> None:
        only_one(reply.groups, name)

    await coordinator.ask(make, read, deadline=deadline, repeats=RepeatEffect.FORBIDDEN)


async def check_no_members(cluster: Cluster, name: str, then: str, *, deadline: float) -> bool:
    """Whether there is such a group. Raises NonEmptyGroup, RaftmqError."""
    try:
        found = await describe_group(cluster, name, deadline=deadline)
    except GroupIdNotFound:  # a reset may begin a new group
        return False
    check_empty(found, then)
    return True


def check_empty(group: GroupDetails, then: str) -> None:
    """`then`: what can be done once it is empty. Raises NonEmptyGroup."""
    if group.members:
        count = len(group.members)
        raise NonEmptyGroup(
            f"group {group.name} has {count} {'member' if count == 1 else 'members'}: stop"
            f" {'it' if count == 1 else 'them'} first, or wait until"
            f" {'its session ends' if count == 1 else 'their sessions end'}, then {then}"
        )


def only_one(found: tuple[OneT, ...], name: str) -> OneT:
    """The answer for the group, if it is no error.

    Raises:
        ServerError: it is for other groups. Indefinite.
        RaftmqError: the group's error.
    """
    if [one.group for one in found] != [name]:
        raise ServerError(f"a broker was asked about group {name!r}, and told of others")
    return _told(found[0], name)


def _told(outcome: OneT, name: str) -> OneT:
    try:
        return checked(outcome)
    except GroupIdNotFound as error:
        raise GroupIdNotFound(f"there is no group {name!r}") from error


def _details(told: DescribedGroup, coordinator: int) -> GroupDetails:
    members = sorted(told.members, key=lambda one: one.member_id)
    return GroupDetails(
        told.group,
        told.state,
        told.generation,
        told.protocol_type,
        told.protocol,
        told.leader,
        coordinator,
        tuple(member_of(one, told.protocol_type) for one in members),
        told.tags or None,
    )
