"""Range and round robin assignors, which ignore earlier assignments. Pure.

For groups that want a predictable assignment more than a stable one; `sticky.py` has the default.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

from raftmq.client.group.assignors.assignor import in_order, subscribers_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raftmq.client.group.assignors.assignor import Key, Plan, Subscribed


# -- Range ----------------------------------------------------------------------------------------
# Each topic in runs: the first member gets the first partitions of every topic. Pure.
#
# Topics with equal counts and equal keys are read side by side by one member. With many topics of
# few partitions the first members get more than the last.


class RangeAssignor:
    """Kafka: RangeAssignor."""

    name = "range"
    is_cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[Subscribed]) -> Plan:
        ordered = in_order(members)
        plan: dict[str, list[Key]] = {member.member_id: [] for member in ordered}
        for topic in sorted(partitions):
            subscribers = subscribers_of(topic, ordered)
            if not subscribers:  # its last subscriber has just left
                continue
            first = 0
            for number, member in enumerate(subscribers):
                extra = number < partitions[topic] % len(subscribers)
                end = first + partitions[topic] // len(subscribers) + extra
                plan[member.member_id] += [(topic, each) for each in range(first, end)]
                first = end
        return plan


# -- Round robin ----------------------------------------------------------------------------------
# All partitions of all topics in one row, assigned in turn. Pure.
#
# If all subscribe to the same topics, no member has two more than another. A member that comes or
# goes moves nearly everything.


class RoundRobinAssignor:
    """Kafka: RoundRobinAssignor."""

    name = "round_robin"
    is_cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[Subscribed]) -> Plan:
        ordered = in_order(members)
        plan: dict[str, list[Key]] = {member.member_id: [] for member in ordered}
        subscribed = frozenset[str]().union(*[member.topics for member in ordered])
        turns = cycle(ordered)
        for topic in sorted(subscribed.intersection(partitions)):
            for number in range(partitions[topic]):
                member = next(one for one in turns if topic in one.topics)
                plan[member.member_id].append((topic, number))
        return plan
