"""Bugs that members of groups are known to have, to be planted into the rules of our client.

Owns the bugs, each a function that patches the code through a `Patch`. A bug takes away
one rule, never a check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raftmq.client.group.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from raftmq.client.group.effects import State
from raftmq.client.group.member_requests import MemberSession
from raftmq.client.group.membership import GroupMembership
from raftmq.client.group.owned_partitions import OwnedPartitions
from raftmq.client.group.planning import Planning

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from raftmq.client.group.assignors.assignor import Key, Plan, Subscribed
    from raftmq.client.group.effects import Effect
    from tests.simulation.planting import Patch

# -- time --------------------------------------------------------------------------------------


def sessions_count_from_the_answer(patch: Patch) -> None:
    """However long it was on its way, or lay unread."""
    on_answer = GroupMembership.on_answer

    def on_answer_now(
        self: GroupMembership, token: int, answer: Any, *, now: float
    ) -> list[Effect]:
        requests = self.requests
        if requests.beat is not None and requests.beat.token == token:
            requests.beat = requests.beat._replace(sent_at=now)
        if requests.step is not None and requests.step.token == token:
            requests.step = requests.step._replace(sent_at=now)
        return on_answer(self, token, answer, now=now)

    patch.setattr(GroupMembership, "on_answer", on_answer_now)


def silence_takes_nothing(patch: Patch) -> None:
    """Who hears nothing for a whole session goes on as before."""
    patch.setattr(MemberSession, "ends_at", property(lambda self: self.rejoin_by))


def the_group_waits_for_ever(patch: Patch) -> None:
    """Who is alive is waited for, as long as it takes it to join again."""
    hear = MemberSession.hear

    def settle(self: MemberSession, sent_at: float, *, is_settled: bool) -> None:
        hear(self, sent_at, is_settled=True)

    patch.setattr(MemberSession, "hear", settle)


# -- handing over ------------------------------------------------------------------------------


def nobody_waits_for_the_program(patch: Patch) -> None:
    """What is revoked is handed over while the program is still at it."""
    revoke = GroupMembership._revoke

    def revoke_at_once(
        self: GroupMembership, partitions: Iterable[Key], now: float
    ) -> list[Effect]:
        effects = revoke(self, partitions, now)
        return [*effects, *self._revoked(self.owned_partitions._token, now)]

    patch.setattr(GroupMembership, "_revoke", revoke_at_once)


def what_is_not_in_the_plan_is_kept(patch: Patch) -> None:
    """A cooperative member goes on with what the plan means for others."""

    def keep(
        self: OwnedPartitions, partitions: frozenset[Key], generation: int
    ) -> tuple[frozenset[Key], frozenset[Key]]:
        added = partitions - self.held
        self.held |= added
        self._assigned, self._generation = partitions, generation
        return added, frozenset()

    patch.setattr(OwnedPartitions, "on_assigned", keep)


def what_was_given_up_stays_nobodys(patch: Patch) -> None:
    """It has finished with them, and does not join again to say so."""
    revoked = GroupMembership._revoked

    def stay(self: GroupMembership, token: int, now: float) -> list[Effect]:
        if self._is_closing or not self.owned_partitions.is_cooperative:
            return revoked(self, token, now)
        if self.owned_partitions.end_revoking(token):
            self.state = State.STABLE
        return []

    patch.setattr(GroupMembership, "_revoked", stay)


def an_eager_member_keeps_reading(patch: Patch) -> None:
    """It says that it has stopped, and has not."""
    patch.setattr(OwnedPartitions, "to_give_up", lambda self, topics: frozenset())


# -- plans -------------------------------------------------------------------------------------


def what_is_held_is_given_away(patch: Patch) -> None:
    """A cooperative plan moves partitions at once."""

    def assign(
        self: CooperativeStickyAssignor,
        partitions: Mapping[str, int],
        members: Sequence[Subscribed],
    ) -> Plan:
        return StickyAssignor().assign(partitions, members)

    patch.setattr(CooperativeStickyAssignor, "assign", assign)


def growth_is_not_noticed(patch: Patch) -> None:
    """A leader plans once."""
    patch.setattr(Planning, "is_outdated", property(lambda self: False))
