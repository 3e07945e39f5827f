"""Bugs in what coordinators count as a crash, to be planted into ours one at a time.

Owns the bugs, each a function that patches the code through a `Patch`. A bug takes away one rule,
never a check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftmq.broker.groups.members import MemberState
from raftmq.broker.groups.phases import GroupOutbox
from raftmq.broker.groups.rebalance import GroupRebalance
from raftmq.metadata.apply import crashes

if TYPE_CHECKING:
    from raftmq.errors import RaftmqError
    from tests.simulation.planting import Patch


def to_leave_is_to_crash(patch: Patch) -> None:
    """Whoever goes is counted."""
    put_out = GroupRebalance.put_out

    def count_and_put_out(
        self: GroupRebalance, member: MemberState, error: RaftmqError, now: float
    ) -> None:
        if member.session_end > now:  # else it was counted
            self.note_crash(member)
        put_out(self, member, error, now)

    patch.setattr(GroupRebalance, "put_out", count_and_put_out)


def whoever_is_late_has_crashed(patch: Patch) -> None:
    """A member that is left out of a rebalance as its program is slow, though it is heard."""
    patch.setattr(MemberState, "is_silent", lambda self, now: True)


def a_crash_goes_with_each_save(patch: Patch) -> None:
    """It is not forgotten once it is on its way."""
    save = GroupOutbox.save

    def save_and_keep(self: GroupOutbox, **facts: object) -> None:
        kept = list(self._crashes)
        save(self, **facts)  # type: ignore[arg-type]
        self._crashes.extend(kept)

    patch.setattr(GroupOutbox, "save", save_and_keep)


def a_crash_during_a_rebalance_is_lost(patch: Patch) -> None:
    """Only what a stable group loses is counted."""
    note_crash = GroupRebalance.note_crash

    def note_if_stable(self: GroupRebalance, member: MemberState) -> None:
        if self.phase == "Stable":
            note_crash(self, member)

    patch.setattr(GroupRebalance, "note_crash", note_if_stable)


def accidents_have_no_end(patch: Patch) -> None:
    """Crashes beside others count like those of a record that was alone."""
    patch.setattr(crashes, "ACCIDENTS_MAX", 1_000)
