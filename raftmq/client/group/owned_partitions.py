"""What a member has, what it is giving up of that, and what it says of it when it joins. Pure.

Invariant: what is being revoked is held; nothing is revoked without an end in sight.
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
    """Attributes:
    is_cooperative: it keeps what it has while the group deals anew.
    held: what it has.
    revoking: what of that the program still has to finish.
    revoke_by: until when; endless: nothing is being revoked.
    """

    def __init__(self, *, is_cooperative: bool) -> None:
        self.is_cooperative = is_cooperative
        self.held = self.revoking = _NOTHING
        self.revoke_by = math.inf
        self._assigned = _NOTHING  # with the last rebalance
        self._generation = ABSENT  # of that
        self._token = 0

    @property
    def claim(self) -> tuple[frozenset[Key], int]:
        """What to say it owns, and since which generation. Others should not get what an eager
        member had, either: it could go on where it stopped.
        """
        owned = self.held if self.is_cooperative else self._assigned
        return owned, self._generation if owned else ABSENT

    def to_give_up(self, topics: Iterable[str]) -> frozenset[Key]:
        """Before it joins again, with a subscription to `topics`."""
        if not self.is_cooperative:
            return self.held
        subscribed = frozenset(topics)
        return frozenset(key for key in self.held if key[0] not in subscribed)

    def on_assigned(
        self, partitions: frozenset[Key], generation: int
    ) -> tuple[frozenset[Key], frozenset[Key]]:
        """What is new, and what has to be given up."""
        added, gone = partitions - self.held, self.held - partitions
        self.held |= added
        self._assigned, self._generation = partitions, generation
        return added, gone

    def begin_to_revoke(self, partitions: Iterable[Key], *, revoke_by: float) -> int:
        """These, too; the token of all that are being revoked now."""
        self.revoking = self.revoking.union(partitions)
        assert self.revoking, "revokes nothing"
        assert self.revoking <= self.held, "revokes what it does not have"
        self.revoke_by = min(self.revoke_by, revoke_by)
        self._token += 1
        return self._token

    def end_revoking(self, token: int) -> bool:
        """The program has finished; False: with something else than what is being revoked now."""
        if not self.revoking or token != self._token:
            return False
        self.drop_revoking()
        return True

    def drop_revoking(self) -> None:
        self.held -= self.revoking
        self.revoking, self.revoke_by = _NOTHING, math.inf

    def drop_all(self) -> None:
        """And claim none of it."""
        self.held = self.revoking = self._assigned = _NOTHING
        self.revoke_by, self._generation = math.inf, ABSENT
