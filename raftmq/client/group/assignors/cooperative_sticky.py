"""Sticky, for members that go on reading while the group deals anew. Pure.

What is to move from one that is still reading it to another is given to nobody this time. Its
owner, seeing that it is not in its part, gives it up and joins again: then it is free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.group.assignors.claims import claims_of
from raftmq.client.group.assignors.sticky import StickyAssignor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raftmq.client.group.assignors.assignor import Plan, Subscribed


class CooperativeStickyAssignor:
    name = "cooperative_sticky"
    is_cooperative = True

    def assign(self, partitions: Mapping[str, int], members: Sequence[Subscribed]) -> Plan:
        target = StickyAssignor().assign(partitions, members)
        held = claims_of(member for member in members if member.is_holding)
        return {
            member_id: [
                key
                for key in keys
                if all(holder.member_id == member_id for holder in held.get(key, ()))
            ]
            for member_id, keys in target.items()
        }
