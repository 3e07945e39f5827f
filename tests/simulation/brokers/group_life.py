"""One group member's own view: owned partitions, records in flight, and contact to coordinators.

By its own clock and its own events; `group_ledger` judges what that means for the group.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, TypeAlias

from tests.simulation.raft.checks import demand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.client.consumer.consumer import Consumer
    from raftmq.client.group.effects import Rebalance
    from raftmq.client.group.membership import GroupMembership
    from raftmq.metadata.commands import PartitionId
    from raftmq.metadata.image import CommittedOffset
    from tests.simulation.brokers.ledger import Spot

Key: TypeAlias = tuple[str, int]
Offsets: TypeAlias = "Mapping[PartitionId, CommittedOffset]"


class Life:
    """Of one member: what it has in hand.

    Attributes:
        topics: that it subscribes to; None: all that match a pattern.
        expected: the offset that comes next, of what it has.
        committed: by the group, when a partition was dealt out to this member.
        hand: what it was handed and has not finished; held: what it works on beside that.
        stale: of these, what belongs to partitions that it has lost since.
        is_misled: what it has heard last is not from who coordinates the group.
    """

    def __init__(self, name: str, consumer: Consumer, topics: tuple[str, ...] | None) -> None:
        self.name, self.consumer, self.topics = name, consumer, topics
        self.expected: dict[Key, int] = {}
        self.committed: dict[Key, Offsets] = {}
        self.hand: list[tuple[Spot, int]] = []
        self.held: list[tuple[Spot, int]] = []
        self.stale: set[tuple[Spot, int]] = set()
        self.is_misled = False
        self._heard_at = -inf
        self._heard_of: int | None = None  # the broker

    def hear(self, coordinator: int) -> None:
        """Look whom it has heard since the last time; `coordinator`: of the group, the broker."""
        assert self.consumer._membership is not None, "of no group"
        found = self.consumer._membership.member._coordinator.found
        heard_of = found.broker_id if found is not None else None
        heard_at = self.membership.session.heard_at
        if heard_at != self._heard_at:
            self.is_misled = not heard_of == self._heard_of == coordinator
        self._heard_at, self._heard_of = heard_at, heard_of

    @property
    def membership(self) -> GroupMembership:
        member = self.consumer._membership
        assert member is not None, "of no group"
        return member.member.membership

    def holds(self, now: float) -> frozenset[Key]:
        """By its own view, what it gives up included."""
        membership = self.membership
        is_in_time = now < membership.session.ends_at
        return membership.held if is_in_time else frozenset()

    def on_rebalance(self, rebalance: Rebalance, committed: Offsets) -> None:
        """What is revoked is finished, unless it was lost before, and given to it again."""
        work = (*self.hand, *self.held)
        self.stale.update(found for found in work if found[0][:2] in rebalance.lost)
        fresh = [found for found in work if found not in self.stale]
        busy = [found for found in fresh if found[0][:2] in rebalance.revoked]
        demand(not busy, f"{self.name}: {rebalance.revoked} are revoked, and in hand is {busy[:3]}")
        for key in (*rebalance.assigned, *rebalance.revoked, *rebalance.lost):
            self.expected.pop(key, None)
        self.committed.update(dict.fromkeys(rebalance.assigned, committed))

    def topic_id(self, key: Key) -> bytes | None:
        state = self.consumer._subscription.states.get(key)
        return state.topic_id if state else None


def may_share(one: Life, other: Life) -> bool:
    """One of them is behind, and cannot know it; none of its commits is accepted any more.

    What counts is when its partitions were assigned: a coordinator that has replaced its own knows
    nothing of generations since.
    """
    generations = [life.membership.owned_partitions.generation for life in (one, other)]
    if generations[0] == generations[1]:
        return False
    return (one if generations[0] < generations[1] else other).is_misled
