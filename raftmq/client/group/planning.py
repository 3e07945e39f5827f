"""A leader's part of a rebalance: waiting for partition counts, planning, noticing changes. Pure.

Knows the partition counts of topics, as they were told last, also while somebody else leads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from raftmq.client.group.leading import Leading

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from raftmq.client.group.assignors.assignor import Assignor
    from raftmq.wire.messages.groups import JoinedMember, MemberAssignment

COUNTS_SECONDS_MAX = 5.0  # a leader waits so long for counts that it does not know


class Planning:
    """Attributes:
    plan: what to ask SyncGroup with; None: not made yet. Of who does not lead it is empty.
    plan_by: when to plan with what is known; endless: there is nothing to plan.
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
        """Somebody else leads."""
        self.end()
        self.plan = ()

    def lead(self, members: Iterable[JoinedMember], *, is_planned: bool, now: float) -> None:
        """`is_planned`: the plan that was made before a static leader came back stands.

        Raises:
            InconsistentGroupProtocol: a member says what this version cannot read.
        """
        self.end()
        self._leading = Leading.told(members)
        if is_planned:
            self.plan = ()
        else:
            self.plan_by = now + self._patience_seconds

    def maybe_plan(self, assignor: Assignor, *, leader: str, now: float) -> bool:
        """Once all partition counts are known, or have been waited for long enough.

        Raises:
            InvalidConfig: a program's own assignor has failed.
        """
        if self._leading is None or self.plan is not None:
            return False
        if self._leading.missing(self._counts) and now < self.plan_by:
            return False
        self.plan = self._leading.plan(assignor, self._counts, leader=leader)
        self.plan_by = math.inf
        return True

    def on_synced(self, counts: Mapping[str, int]) -> None:
        """The plan in force was made with these."""
        if self._leading is not None:
            self._leading.on_synced(counts)

    def end(self) -> None:
        """Of this generation nothing is planned any more."""
        self._leading, self.plan, self.plan_by = None, None, math.inf

    @property
    def is_leader(self) -> bool:
        return self._leading is not None

    @property
    def is_outdated(self) -> bool:
        """Whether the plan in force was made with other counts."""
        return self._leading is not None and self._leading.is_outdated(self._counts)

    def topics(self, own: Iterable[str]) -> tuple[str, ...]:
        """Whose counts matter here."""
        others = self._leading.topics if self._leading is not None else frozenset[str]()
        return tuple(sorted(others.union(own)))
