"""Nobody has two more than another, and everybody keeps as much as that allows. Pure.

Where subscriptions differ, it is as even as they allow: whoever has least cannot get another one
from somebody who has two more, not even over others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.client.group.assignors.assignor import in_order
from raftmq.client.group.assignors.balancing import balance
from raftmq.client.group.assignors.dealing import Dealing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raftmq.client.group.assignors.assignor import Plan, Subscribed
    from raftmq.client.group.assignors.dealing import Pool


class StickyAssignor:
    name = "sticky"
    is_cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Sequence[Subscribed]) -> Plan:
        """1. Everybody keeps what it has. 2. If all subscribe to the same, what is too much of that
        becomes free. 3. What is free goes to whoever has least. 4. Else what is too much moves.
        """
        dealing = Dealing(partitions, in_order(members))
        if len(dealing.pools) == 1:
            dealing.trim(dealing.pools[0], _quotas(dealing.pools[0]))
        for pool in sorted(dealing.pools, key=lambda pool: len(pool.subscribers)):
            dealing.fill(pool)
        if len(dealing.pools) > 1:
            balance(dealing)
        return dealing.plan()


def _quotas(pool: Pool) -> dict[int, int]:
    """Where it does not come out even, those that have most may keep one more."""
    had = {member: len(pool.parts.get(member, ())) for member in pool.subscribers}
    low, extra = divmod(sum(had.values()) + len(pool.free), len(had))
    ranked = sorted(had, key=lambda member: (-had[member], member))
    return {member: low + (rank < extra) for rank, member in enumerate(ranked)}
