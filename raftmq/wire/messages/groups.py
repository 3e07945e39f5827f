"""Messages of consumer groups: find coordinator, join, sync, heartbeat, leave, list, describe.

Kafka's classic rebalance protocol. A member joins, and its answer names the group's leader; the
leader, itself a member, sends the plan with SyncGroup; each member gets its assignment with the
answer to its SyncGroup. Subscriptions and assignments are opaque bytes for brokers.

A request that changes a group carries the `slot_epoch` under which its sender found the
coordinator: a late one, after the slot was with another coordinator, is refused with
NOT_COORDINATOR (decision 0025).
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
from msgspec import Meta

from raftmq.errors import ErrorCode, RemoteProtocolError
from raftmq.wire.bodies import (
    ABSENT,
    ID_MAX,
    NAME_CHARS_MAX,
    TIMEOUT_MS,
    Body,
    BrokerIdOrAbsent,
    ErrorMessage,
    ErrorNumber,
    Generation,
    MemberId,
    Milliseconds,
    Name,
    Natural,
    Request,
    SlotEpoch,
)
from raftmq.wire.nesting import Decoder
from raftmq.wire.tag_clauses import TagClauses, TagExpression  # noqa: TC001  # msgspec reads them

if TYPE_CHECKING:
    from collections.abc import Iterable

GROUPS_MAX = 1_000  # of one message
SLOTS_MAX = 64  # of groups, in a cluster
GROUPS_LISTED_MAX = 100_000  # of one page
MEMBERS_MAX = 2_000  # of one group: their plan has to fit into one command of the metadata
PROTOCOLS_MAX = 10  # assignors of one member
SUBSCRIPTION_BYTES_MAX = 1 << 16
ASSIGNMENT_BYTES_MAX = 1 << 19  # of one member; half of the largest metadata command
CONSUMER_PROTOCOL = "consumer"

Subscription: TypeAlias = Annotated[bytes, Meta(max_length=SUBSCRIPTION_BYTES_MAX)]
Assignment: TypeAlias = Annotated[bytes, Meta(max_length=ASSIGNMENT_BYTES_MAX)]
GroupNames: TypeAlias = Annotated[tuple[Name, ...], Meta(max_length=GROUPS_MAX)]


class CoordinatorRow(Body, frozen=True):
    """`broker_id` is -1 with an error. `slot_epoch` rises with each change of the coordinator."""

    group: Name
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    broker_id: BrokerIdOrAbsent = ABSENT
    slot_epoch: SlotEpoch = 0


class FindCoordinatorReply(Body, frozen=True):
    coordinators: Annotated[tuple[CoordinatorRow, ...], Meta(max_length=GROUPS_MAX)] = ()


class FindCoordinator(Request, frozen=True):
    """Answered by any broker. If its answer is out of date, the named broker answers requests with
    NOT_COORDINATOR."""

    api_key = 10
    reply = FindCoordinatorReply

    groups: GroupNames


class Protocol(Body, frozen=True):
    """An assignor that a member supports, and its subscription for it."""

    name: Name
    subscription: Subscription = b""


class JoinedMember(Body, frozen=True):
    """A member, as the group's leader needs it for its plan."""

    member_id: MemberId
    instance_id: Name | None = None
    subscription: Subscription = b""


class JoinGroupReply(Body, frozen=True):
    """`members` is filled in for the leader only. With MEMBER_ID_REQUIRED, `member_id` is the one
    to join with. `keeps_filter`: the coordinator knows filters of groups, and has compared it.
    """

    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    generation: Generation = ABSENT
    protocol: Name = ""
    leader: MemberId = ""
    member_id: MemberId = ""
    members: Annotated[tuple[JoinedMember, ...], Meta(max_length=MEMBERS_MAX)] = ()
    must_sync_anew: bool = True  # False: a static member is back, and keeps its assignment
    keeps_filter: bool = False


class JoinGroup(Request, frozen=True):
    """Answered once all known members have joined, or the rebalance timeout of the others is over.

    A client without a `member_id` gets one, and joins once more with it.
    `protocols`: the assignors that it supports, in the order of its preference.
    `number` rises with each JoinGroup of a member: a late, earlier one changes nothing (decision
    0025). 0: not checked.
    `tags`: the filter of the member, which is the same for all members of a group. In its normal
    form, from FeatureLevel.TAGS on.
    """

    api_key = 11
    reply = JoinGroupReply
    is_patient = True

    group: Name
    member_id: MemberId
    protocols: Annotated[tuple[Protocol, ...], Meta(min_length=1, max_length=PROTOCOLS_MAX)]
    session_timeout_ms: Milliseconds
    rebalance_timeout_ms: Milliseconds
    instance_id: Name | None = None
    protocol_type: Name = CONSUMER_PROTOCOL
    number: Natural = 0
    slot_epoch: SlotEpoch = 0
    tags: TagClauses = ()


class MemberAssignment(Body, frozen=True):
    member_id: MemberId
    assignment: Assignment


class SyncGroupReply(Body, frozen=True):
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    protocol: Name = ""
    assignment: Assignment = b""


class SyncGroup(Request, frozen=True):
    """Answered once the leader's plan is in the quorum. `assignments` come from the leader."""

    api_key = 14
    reply = SyncGroupReply
    is_patient = True

    group: Name
    generation: Generation
    member_id: MemberId
    instance_id: Name | None = None
    protocol: Name = ""
    assignments: Annotated[tuple[MemberAssignment, ...], Meta(max_length=MEMBERS_MAX)] = ()
    slot_epoch: SlotEpoch = 0


class HeartbeatReply(Body, frozen=True):
    """REBALANCE_IN_PROGRESS: join again; before that the member may finish its records."""

    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""


class Heartbeat(Request, frozen=True):
    api_key = 12
    reply = HeartbeatReply

    group: Name
    generation: Generation
    member_id: MemberId
    instance_id: Name | None = None
    slot_epoch: SlotEpoch = 0


class LeavingMember(Body, frozen=True):
    """Named by its member id, or a static member by its instance id alone."""

    member_id: MemberId = ""
    instance_id: Name | None = None
    reason: ErrorMessage = ""


class MemberLeft(Body, frozen=True):
    member_id: MemberId = ""
    instance_id: Name | None = None
    error: ErrorNumber = ErrorCode.NONE


class LeaveGroupReply(Body, frozen=True):
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    members: Annotated[tuple[MemberLeft, ...], Meta(max_length=MEMBERS_MAX)] = ()


class LeaveGroup(Request, frozen=True):
    api_key = 13
    reply = LeaveGroupReply

    group: Name
    members: Annotated[tuple[LeavingMember, ...], Meta(max_length=MEMBERS_MAX)]
    slot_epoch: SlotEpoch = 0


class ListedGroup(Body, frozen=True):
    """`state`: Empty, PreparingRebalance, CompletingRebalance, Stable."""

    group: Name
    protocol_type: Name = ""
    state: Name = ""
    member_count: Natural = 0


class ListGroupsReply(Body, frozen=True):
    """Sorted by name. `has_more`: another page follows."""

    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    groups: Annotated[tuple[ListedGroup, ...], Meta(max_length=GROUPS_LISTED_MAX)] = ()
    has_more: bool = False
    # Whose groups these are: lists are complete once they cover all slots. Older brokers send none.
    slots: Annotated[tuple[Natural, ...], Meta(max_length=SLOTS_MAX)] | None = None


class ListGroups(Request, frozen=True):
    """Groups that the broker coordinates, in pages: those whose names come after `after`. A client
    asks each broker.
    """

    api_key = 16
    reply = ListGroupsReply

    after: Name = ""


class DescribedMember(Body, frozen=True):
    member_id: MemberId
    instance_id: Name | None = None
    client_id: Name = ""
    host: Name = ""
    subscription: Subscription = b""
    assignment: Assignment = b""


class DescribedGroup(Body, frozen=True):
    group: Name
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""
    state: Name = ""
    generation: Generation = ABSENT
    protocol_type: Name = ""
    protocol: Name = ""
    leader: MemberId = ""
    members: Annotated[tuple[DescribedMember, ...], Meta(max_length=MEMBERS_MAX)] = ()
    tags: TagExpression = ""


class DescribeGroupsReply(Body, frozen=True):
    groups: Annotated[tuple[DescribedGroup, ...], Meta(max_length=GROUPS_MAX)] = ()


class DescribeGroups(Request, frozen=True):
    """Sent to the coordinator of all these groups."""

    api_key = 15
    reply = DescribeGroupsReply

    groups: GroupNames


class GroupOutcome(Body, frozen=True):
    group: Name
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""


class DeleteGroupsReply(Body, frozen=True):
    groups: Annotated[tuple[GroupOutcome, ...], Meta(max_length=GROUPS_MAX)] = ()


class DeleteGroups(Request, frozen=True):
    """Deletes groups without members, with their offsets. Sent to their coordinator. With a
    `slot_epoch` all of them must be of one slot. `last_change`: as in OffsetDelete.
    """

    api_key = 42
    reply = DeleteGroupsReply

    groups: GroupNames
    timeout_ms: Milliseconds = TIMEOUT_MS
    slot_epoch: SlotEpoch = 0
    last_change: Natural = 0


# -- Subscriptions --------------------------------------------------------------------------------
# The common beginning of subscriptions, which coordinators read, too. Pure.
#
# For brokers subscriptions are opaque, except for this beginning: it changes when the member's
# program subscribes to something else, while the rest changes with every rebalance.


SUBSCRIPTION_VERSION = 1

TopicName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class Numbered(msgspec.Struct, frozen=True, array_like=True):
    """The first field of everything that members send to each other."""

    format_version: int


class Interest(Numbered, frozen=True):
    """`topics` are sorted, each named once."""

    topics: tuple[TopicName, ...]
    user_data: bytes
    rack: Name


def interest_in(subscription: bytes) -> Interest | None:
    """None: it is of another kind of client, or of another version."""
    try:
        interest: Interest = _decoder.decode(subscription)
    except ValueError:  # msgspec's errors are ValueErrors
        return None
    return interest if interest.format_version == SUBSCRIPTION_VERSION else None


_decoder = Decoder[Interest](Interest)


# -- Partitions -----------------------------------------------------------------------------------
# What a member may work on, by its subscription or its assignment, which coordinators read, too:
# it is counted if the member crashes. Pure.
#
# An unknown format version is not read, as its meaning is not known; fields that are added at the
# end are skipped. Partitions of a topic are encoded as the steps from one to the next, beginning at
# -1: so they are sorted, none is there twice, and most take one byte.


Key: TypeAlias = tuple[str, int]  # topic and number
Step: TypeAlias = Annotated[int, Meta(ge=1, le=ID_MAX + 1)]
Steps: TypeAlias = dict[TopicName, Annotated[tuple[Step, ...], Meta(min_length=1)]]

ASSIGNMENT_VERSION = 1  # the only one so far; readers refuse others
NOTHING: frozenset[Key] = frozenset()


class Claimed(Interest, frozen=True):
    """A subscription. `owned`: what the member got in `generation`, or has kept of that;
    `is_holding`: it works on it during the rebalance.
    """

    owned: Steps
    generation: Generation
    is_holding: bool


class Dealt(Numbered, frozen=True):
    """The beginning of an assignment."""

    partitions: Steps


def steps_of(partitions: Iterable[Key]) -> Steps:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return {
        topic: tuple([after - before for before, after in pairwise([-1, *numbers])])
        for topic, numbers in by_topic.items()
    }


def partitions_in(steps: Steps, *, what: str) -> frozenset[Key]:
    """Raises RemoteProtocolError, naming `what`: a number that no partition may have."""
    found: set[Key] = set()
    for topic, each in steps.items():
        last = sum(each) - 1
        if last > ID_MAX:
            raise RemoteProtocolError(f"{what}: {topic}-{last} is beyond {topic}-{ID_MAX}")
        found.update([(topic, number - 1) for number in accumulate(each)])
    return frozenset(found)


def held_by_claim(subscription: bytes) -> frozenset[Key]:
    """What a member that joins works on meanwhile; nothing, if it is of another kind of client."""
    try:
        claimed: Claimed = _claimed.decode(subscription)
        if claimed.format_version != SUBSCRIPTION_VERSION or not claimed.is_holding:
            return NOTHING
        return partitions_in(claimed.owned, what="subscription")
    except (ValueError, RemoteProtocolError):  # msgspec's errors are ValueErrors
        return NOTHING


def held_by_assignment(assignment: bytes) -> frozenset[Key]:
    """What a member works on once it has it; nothing, if it is of another kind of client."""
    try:
        dealt: Dealt = _dealt.decode(assignment)
        if dealt.format_version != ASSIGNMENT_VERSION:
            return NOTHING
        return partitions_in(dealt.partitions, what="assignment")
    except (ValueError, RemoteProtocolError):
        return NOTHING


_claimed = Decoder[Claimed](Claimed)
_dealt = Decoder[Dealt](Dealt)
