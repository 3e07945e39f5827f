"""The `Assignor` interface, the check of a plan, and claims from earlier generations. Pure.

Kafka: ConsumerPartitionAssignor. An assignor divides the partitions of topics among the members of
a group. It runs at one member, the leader, and must give the same plan wherever it runs: from the
same input, in any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


Key: TypeAlias = tuple[str, int]  # topic and number
Plan: TypeAlias = "Mapping[str, Sequence[Key]]"  # by member id


class Subscribed(NamedTuple):
    """A member, as it describes itself when it joins.

    Attributes:
        owned: what it was assigned in `generation`, or has kept of that.
        generation: -1: it owns nothing.
        is_holding: it reads what it owns during the rebalance; otherwise it has stopped.
        user_data: from its program, for an assignor of the program's own.
        rack: where it runs; empty: not given.
    """

    member_id: str
    topics: frozenset[str]
    owned: frozenset[Key] = frozenset()
    generation: int = ABSENT
    is_holding: bool = False
    instance_id: str | None = None
    user_data: bytes = b""
    rack: str = ""


class Assignor(Protocol):
    """A rule for dividing partitions.

    Attributes:
        name: by which the members of a group agree on one.
        is_cooperative: members may go on reading during a rebalance: it assigns no partition that
            another member holds.
    """

    @property
    def name(self) -> str: ...

    @property
    def is_cooperative(self) -> bool: ...

    def assign(self, partitions: Mapping[str, int], members: Sequence[Subscribed]) -> Plan:
        """Assign all partitions of `partitions`, which maps each topic to its number of partitions.

        A subscribed topic that is not in there has none.
        """
        ...


def in_order(members: Iterable[Subscribed]) -> list[Subscribed]:
    """Static members first, by the ids that they keep when they restart, then the others."""
    return sorted(
        members,
        key=lambda one: (one.instance_id is None, one.instance_id or one.member_id, one.member_id),
    )


def subscribers_of(topic: str, members: Iterable[Subscribed]) -> list[Subscribed]:
    """In the order of `members`."""
    return [member for member in members if topic in member.topics]


# -- Checking -------------------------------------------------------------------------------------
# Whether a plan is complete: every partition once, to a member that subscribes to its topic. Pure.


PROBLEMS_MAX = 10  # in one message; more would not help its reader


def problems_of(
    plan: Plan,
    partitions: Mapping[str, int],
    members: Sequence[Subscribed],
    *,
    is_partial: bool = False,
) -> list[str]:
    """What is wrong with a plan, in words.

    Args:
        is_partial: partitions may be left out.
    """
    topics_of = {member.member_id: member.topics for member in members}
    problems = [
        f"a part for {member_id!r}, which is no member"
        for member_id in plan
        if member_id not in topics_of
    ]
    owners: dict[Key, str] = {}
    for member_id, topics in topics_of.items():
        for key in plan.get(member_id, ()):
            if problem := _problem_of(key, member_id, topics, partitions, owners):
                problems.append(problem)
            else:
                owners[key] = member_id
    if not is_partial:  # cooperative: moving partitions are left out for now
        problems += [
            f"{topic}-{number} is given to no member"
            for topic, number in _to_deal_out(partitions, topics_of.values())
            if (topic, number) not in owners
        ]
    rest = len(problems) - PROBLEMS_MAX
    return [*problems[:PROBLEMS_MAX], f"and {rest} more"] if rest > 0 else problems


def _problem_of(
    key: Key,
    member_id: str,
    topics: frozenset[str],
    partitions: Mapping[str, int],
    owners: Mapping[Key, str],
) -> str:
    topic, number = key
    if topic not in topics:
        return f"{topic}-{number} is given to {member_id!r}, which does not subscribe to the topic"
    if not 0 <= number < partitions.get(topic, 0):
        there = partitions.get(topic, 0)
        return f"{topic}-{number} is given to {member_id!r}: the topic has {there} partitions"
    if key in owners:
        return f"{topic}-{number} is given to {owners[key]!r} and to {member_id!r}"
    return ""


def _to_deal_out(
    partitions: Mapping[str, int], subscriptions: Iterable[frozenset[str]]
) -> Iterator[Key]:
    subscribed = frozenset[str]().union(*subscriptions)
    return (
        (topic, number)
        for topic in sorted(partitions)
        if topic in subscribed
        for number in range(partitions[topic])
    )


# -- Claims ---------------------------------------------------------------------------------------
# Which member owns a partition already, by what the members say. Pure.
#
# A claim is as old as the generation in which it was assigned: of two, the newer one stands. Of two
# of the same generation neither stands, as one of them is wrong and cannot be told from the other.


def claims_of(members: Iterable[Subscribed]) -> dict[Key, tuple[Subscribed, ...]]:
    """By partition, the members with the newest claims: if it is one, the claim stands."""
    found: dict[Key, tuple[Subscribed, ...]] = {}
    for member in members:
        for key in member.owned:
            others = found.get(key)
            if others is None or others[0].generation < member.generation:
                found[key] = (member,)
            # Both are kept, so that the claim stands for neither.
            elif others[0].generation == member.generation:
                found[key] = (*others, member)
    return found
