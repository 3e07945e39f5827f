"""The group leader's work in a rebalance: partition counts, the plan, and its wire format. Pure.

Knows the last partition counts of topics, also while another member leads. Kafka:
ConsumerCoordinator.onLeaderElected, ConsumerProtocol.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from raftmq.client.group.assignors.assignor import Subscribed, problems_of
from raftmq.errors import InconsistentGroupProtocol, RemoteProtocolError
from raftmq.wire.bodies import ABSENT, ID_MAX
from raftmq.wire.messages.groups import (
    ASSIGNMENT_VERSION,
    SUBSCRIPTION_VERSION,
    Claimed,
    Dealt,
    JoinedMember,
    MemberAssignment,
    Numbered,
    TopicName,
    partitions_in,
    steps_of,
)
from raftmq.wire.nesting import Decoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from raftmq.client.group.assignors.assignor import Assignor, Key
    from raftmq.wire.messages.groups import JoinedMember


# -- Assignment -----------------------------------------------------------------------------------
# A member's assignment in a plan, as bytes. Pure.
#
# The leader's own also names the partition counts with which it has planned: a static leader that
# restarts, and need not plan anew, must notice what has changed since. For the same reason each
# member is told whether it claimed more than it gets: the process that did may be gone by then.


Count: TypeAlias = Annotated[int, Meta(ge=0, le=ID_MAX + 1)]


class _Format(Dealt, frozen=True):
    counts: dict[TopicName, Count]
    is_awaited: bool = False


class Assigned(NamedTuple):
    """A decoded assignment.

    Attributes:
        counts: partition counts by topic; only the leader's own has them.
        is_awaited: the member claims more, which no member gets before it joins again.
    """

    partitions: frozenset[Key]
    counts: dict[str, int]
    is_awaited: bool = False


def encode_assignment(
    partitions: Iterable[Key],
    counts: Mapping[str, int] | None = None,
    *,
    is_awaited: bool = False,
) -> bytes:
    by_name = dict(sorted((counts or {}).items()))
    return pack(_Format(ASSIGNMENT_VERSION, steps_of(partitions), by_name, is_awaited))


def decode_assignment(data: bytes) -> Assigned:
    """Empty bytes mean no partitions: the coordinator answers so to a member that the leader did
    not know.

    Raises:
        RemoteProtocolError: it is no assignment.
    """
    if not data:
        return Assigned(frozenset(), {})
    content = unpack(data, _Format, version=ASSIGNMENT_VERSION, what="assignment")
    partitions = partitions_in(content.partitions, what="assignment")
    return Assigned(partitions, content.counts, content.is_awaited)


# -- Leading --------------------------------------------------------------------------------------
# What the leader knows of the other members, and the plan that it makes for them. Pure.
#
# Owns the check that a plan is complete, for built-in and custom assignors, and the partition
# counts with which it was made: once they change, the group needs a rebalance.


class Leading:
    """The leader's view of one generation.

    Attributes:
        topics: all that any member subscribes to.
    """

    def __init__(self, members: tuple[Subscribed, ...]) -> None:
        self._members = members
        self.topics = frozenset[str]().union(*[member.topics for member in members])
        self._planned_with: Mapping[str, int] | None = None  # None: not planned yet

    @classmethod
    def told(cls, members: Iterable[JoinedMember]) -> Leading:
        """Raises InconsistentGroupProtocol: a member's subscription has another format."""
        try:
            return cls(
                tuple(
                    decode_subscription(
                        one.subscription, member_id=one.member_id, instance_id=one.instance_id
                    )
                    for one in members
                )
            )
        except RemoteProtocolError as error:
            raise InconsistentGroupProtocol(str(error)) from error

    def missing(self, counts: Mapping[str, int]) -> list[str]:
        """Topics whose number of partitions is not known."""
        return sorted(self.topics.difference(counts))

    def is_outdated(self, counts: Mapping[str, int]) -> bool:
        """Whether partition counts have changed since the plan. Topics that it lacked count as
        0.
        """
        planned = self._planned_with
        return planned is not None and any(
            topic in counts and counts[topic] != planned.get(topic, 0) for topic in self.topics
        )

    def plan(
        self, assignor: Assignor, counts: Mapping[str, int], *, leader: str
    ) -> tuple[MemberAssignment, ...]:
        """An assignment for every member.

        Raises:
            InvalidConfig: a program's own assignor has failed.
        """
        there = {topic: counts[topic] for topic in sorted(self.topics) if counts.get(topic)}
        plan = assignor.assign(there, self._members)
        problems = problems_of(plan, there, self._members, is_partial=assignor.is_cooperative)
        assert not problems, f"{assignor.name}: {problems[0]}"
        self._planned_with = there
        return tuple(
            MemberAssignment(
                member.member_id,
                encode_assignment(
                    part := plan.get(member.member_id, ()),
                    there if member.member_id == leader else None,
                    is_awaited=member.is_holding and not member.owned.issubset(part),
                ),
            )
            for member in self._members
        )

    def on_synced(self, counts: Mapping[str, int]) -> None:
        """The plan in force was made with these counts; if it is our own, they are the same."""
        self._planned_with = counts


# -- Planning -------------------------------------------------------------------------------------


# A leader waits so long for partition counts, or a quarter of the rebalance timeout
COUNTS_SECONDS_MAX = 5.0


class Planning:
    """The plan of the current rebalance.

    Attributes:
        plan: what to send with SyncGroup; None: not made yet. Empty if another member leads.
        plan_by: when to plan with the counts that are known; math.inf: nothing to plan.
    """

    def __init__(self, *, rebalance_seconds: float) -> None:
        self._counts: dict[str, int] = {}
        self._patience_seconds = min(COUNTS_SECONDS_MAX, rebalance_seconds / 4)
        self._leading: Leading | None = None
        self.plan: tuple[MemberAssignment, ...] | None = None
        self.plan_by = math.inf

    def learn(self, counts: Mapping[str, int]) -> None:
        self._counts.update(counts)

    def follow(self) -> None:
        """Another member leads."""
        self.end()
        self.plan = ()

    def lead(self, members: Iterable[JoinedMember], *, is_planned: bool, now: float) -> None:
        """`is_planned`: the plan from before this static leader's restart stands.

        Raises:
            InconsistentGroupProtocol: a member's subscription has another format.
        """
        self.end()
        self._leading = Leading.told(members)
        if is_planned:  # its restart within the session changes nothing
            self.plan = ()
        else:
            self.plan_by = now + self._patience_seconds

    def maybe_plan(self, assignor: Assignor, *, leader: str, now: float) -> bool:
        """Plan, once all partition counts are known, or the wait for them is over.

        Raises:
            InvalidConfig: a program's own assignor has failed.
        """
        if self._leading is None or self.plan is not None:
            return False
        # Without its count a topic would get no partitions, and need another rebalance soon.
        if self._leading.missing(self._counts) and now < self.plan_by:
            return False
        self.plan = self._leading.plan(assignor, self._counts, leader=leader)
        self.plan_by = math.inf
        return True

    def on_synced(self, counts: Mapping[str, int]) -> None:
        """The plan in force was made with these counts."""
        if self._leading is not None:
            self._leading.on_synced(counts)

    def end(self) -> None:
        """The generation is over."""
        self._leading, self.plan, self.plan_by = None, None, math.inf

    @property
    def is_leader(self) -> bool:
        return self._leading is not None

    @property
    def is_outdated(self) -> bool:
        """Whether the plan in force was made with other counts."""
        return self._leading is not None and self._leading.is_outdated(self._counts)

    def topics(self, own: Iterable[str]) -> tuple[str, ...]:
        """Topics whose partition counts are needed."""
        others = self._leading.topics if self._leading is not None else frozenset[str]()
        return tuple(sorted(others.union(own)))


# -- Wire format ----------------------------------------------------------------------------------
# The frame of subscriptions and assignments. Pure.
#
# Members send these bytes to each other; brokers store them. A format version comes first: an
# unknown version is refused, as its meaning is not known; fields that are added at the end are
# skipped by members that do not know them.


PackedT = TypeVar("PackedT", bound=Numbered)


def pack(content: Numbered) -> bytes:
    return _encoder.encode(content)


def unpack(data: bytes, kind: type[PackedT], *, version: int, what: str) -> PackedT:
    """Raises RemoteProtocolError: malformed, over a limit, or of another version."""
    try:
        told = _decoder(Numbered).decode(data).format_version
        if told == version:
            content: PackedT = _decoder(kind).decode(data)
            return content
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise RemoteProtocolError(f"{what}: {error}") from error
    raise RemoteProtocolError(
        f"{what}: format {told}, this version of raftmq knows {version}: use one version for all "
        "members of the group"
    )


_encoder = msgspec.msgpack.Encoder()


@cache
def _decoder(kind: type[PackedT]) -> Decoder[PackedT]:
    return Decoder(kind)


# -- Subscription ---------------------------------------------------------------------------------
# A member's subscription in JoinGroup, as bytes: topics, and the partitions of them it owns. Pure.
#
# Topics are named, as programs subscribe to names: a topic that is deleted and created anew is the
# same subscription. Committed offsets have topic ids, which tell the two apart.


def encode_subscription(
    topics: Iterable[str],
    owned: Iterable[Key] = (),
    *,
    generation: int = ABSENT,
    is_holding: bool = False,
    user_data: bytes = b"",
    rack: str = "",
) -> bytes:
    """See `Subscribed`. The same content gives the same bytes: a coordinator compares them."""
    names = tuple(sorted(set(topics)))
    steps = steps_of(owned)
    content = Claimed(SUBSCRIPTION_VERSION, names, user_data, rack, steps, generation, is_holding)
    return pack(content)


def decode_subscription(
    data: bytes, *, member_id: str, instance_id: str | None = None
) -> Subscribed:
    """Raises RemoteProtocolError: names the member."""
    what = f"subscription of member {member_id!r}"
    content = unpack(data, Claimed, version=SUBSCRIPTION_VERSION, what=what)
    return Subscribed(
        member_id,
        frozenset(content.topics),
        partitions_in(content.owned, what=what),
        content.generation,
        content.is_holding,
        instance_id,
        content.user_data,
        content.rack,
    )
