"""Partitions that a group member owns, revokes, and claims when it joins. Pure.

Invariant: a partition that is being revoked is still held; every revocation has a deadline.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from raftmq.wire.bodies import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raftmq.client.group.assignors.assignor import Key

_NOTHING: frozenset[Key] = frozenset()


class OwnedPartitions:
    """The partitions of one member.

    Attributes:
        is_cooperative: it keeps partitions during a rebalance.
        held: all that it owns.
        revoking: of these, what the program still has to finish.
        revoke_by: deadline of the revocation; math.inf: nothing is being revoked.
        generation: of the newest assignment. It was saved before it was told: one that a JoinGroup
            has told may never be, and its number be used again by the next coordinator.
    """

    def __init__(self, *, is_cooperative: bool) -> None:
        self.is_cooperative = is_cooperative
        self.held = self.revoking = _NOTHING
        self.revoke_by = math.inf
        self._assigned = _NOTHING  # by the last completed rebalance
        self.generation = ABSENT
        self._token = 0

    @property
    def claim(self) -> tuple[frozenset[Key], int]:
        """The partitions to name in JoinGroup, and their generation. An eager member names what it
        had, too, so that the sticky assignor gives it back.
        """
        owned = self.held if self.is_cooperative else self._assigned
        return owned, self.generation if owned else ABSENT

    def to_give_up(self, topics: Iterable[str]) -> frozenset[Key]:
        """What to revoke before joining again with a subscription to `topics`."""
        if not self.is_cooperative:  # eager
            return self.held
        subscribed = frozenset(topics)
        return frozenset(key for key in self.held if key[0] not in subscribed)

    def on_assigned(
        self, partitions: frozenset[Key], generation: int
    ) -> tuple[frozenset[Key], frozenset[Key]]:
        """Apply an assignment. Returns what is new, and what has to be revoked."""
        added, gone = partitions - self.held, self.held - partitions
        self.held |= added
        self._assigned, self.generation = partitions, generation
        return added, gone

    def begin_to_revoke(self, partitions: Iterable[Key], *, revoke_by: float) -> int:
        """Revoke these, too. Returns the token of the whole revocation."""
        self.revoking = self.revoking.union(partitions)
        assert self.revoking, "revokes nothing"
        assert self.revoking <= self.held, "revokes what it does not have"
        self.revoke_by = min(self.revoke_by, revoke_by)
        self._token += 1
        return self._token

    def end_revoking(self, token: int) -> bool:
        """The program has finished; False: an earlier revocation, which was extended since."""
        if not self.revoking or token != self._token:  # more was added since, or it was lost
            return False
        self.drop_revoking()
        return True

    def drop_revoking(self) -> None:
        self.held -= self.revoking
        self.revoking, self.revoke_by = _NOTHING, math.inf

    def drop_all(self) -> None:
        """Own nothing, and claim nothing."""
        self.held = self.revoking = self._assigned = _NOTHING
        self.revoke_by, self.generation = math.inf, ABSENT
