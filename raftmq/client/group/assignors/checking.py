"""Whether a plan is whole: every partition once, to somebody who subscribes to it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from raftmq.client.group.assignors.assignor import Key, Plan, Subscribed

PROBLEMS_MAX = 10  # more say nothing more


def problems_of(
    plan: Plan,
    partitions: Mapping[str, int],
    members: Sequence[Subscribed],
    *,
    is_partial: bool = False,
) -> list[str]:
    """What is wrong with it, in words.

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
    if not is_partial:
        problems += [
            f"{topic}-{number} is given to nobody"
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
