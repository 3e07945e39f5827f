"""All partitions of all topics in one row, dealt like cards. Pure.

Where all subscribe to the same topics, nobody has two more than another. Who comes or goes moves
nearly everything.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

from raftmq.client.group.assignors.assignor import in_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raftmq.client.group.assignors.assignor import Key, Plan, Subscribed


class RoundRobinAssignor:
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
