"""Planted bugs of groups, in the SDK or a broker, that are not planted in real clusters as well.

Each is a function that patches the code. A bug takes away one rule, or one step; never a check.
Only worlds with members of groups can find them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from raftmq.broker.groups.group import Group
from raftmq.broker.groups.members import Members
from raftmq.broker.groups.phases import Phase
from raftmq.broker.groups.rebalance import GroupRebalance
from raftmq.client.consumer.group_reader import GroupReader
from raftmq.client.group.member_shell import RebalanceListeners
from raftmq.client.group.offsets import MemberOffsets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from raftmq.client.group.effects import Assign
    from raftmq.metadata.image import GroupState
    from tests.simulation.planting import Patch

    Key = tuple[str, int]


# -- members -----------------------------------------------------------------------------------


def commit_what_is_in_hand(patch: Patch) -> None:
    """Records count as finished when they are handed out."""
    done = GroupReader.done

    def all_done(
        self: GroupReader, keys: Iterable[Key] | None = None, *, is_all: bool = False
    ) -> dict[Key, Any]:
        return done(self, keys, is_all=True)

    patch.setattr(GroupReader, "done", all_done)


def hand_out_while_revoking(patch: Patch) -> None:
    """What is to be given up is handed out as before, until it is gone."""
    patch.setattr(GroupReader, "hold_back", lambda self, keys: None)


def revoke_without_waiting(patch: Patch) -> None:
    """A revocation does not wait for records that the program is processing."""

    async def wait_finished(self: GroupReader, keys: Collection[Key]) -> None:
        pass

    patch.setattr(GroupReader, "wait_finished", wait_finished)


def begin_anew_after_a_move(patch: Patch) -> None:
    """A new owner does not fetch the committed offset."""

    async def find_nothing(self: RebalanceListeners, change: Assign) -> dict[Key, Any]:
        return {}

    patch.setattr(RebalanceListeners, "_find_committed", find_nothing)


def commit_in_vain(patch: Patch) -> None:
    """What could not be committed before it is handed out, is handed out all the same."""
    commit = MemberOffsets.commit

    async def commit_or_not(self: MemberOffsets, *given: Any, **named: Any) -> None:
        try:
            await commit(self, *given, **named)
        except Exception:  # of any kind
            return

    patch.setattr(MemberOffsets, "commit", commit_or_not)


# -- coordinators ------------------------------------------------------------------------------


def a_new_coordinator_knows_no_members(patch: Patch) -> None:
    """What was saved of groups is read, but for who is in them."""
    loaded = Group.loaded.__func__  # type: ignore[attr-defined]

    def empty(cls: type[Group], name: str, state: GroupState, *given: Any, **more: Any) -> Group:
        found: Group = loaded(cls, name, replace(state, members=()), *given, **more)
        return found

    patch.setattr(Group, "loaded", classmethod(empty))


def tell_the_plan_before_it_is_saved(patch: Patch) -> None:
    """Members get assignments before these are saved; the next coordinator may not know them."""
    plan = GroupRebalance.plan

    def plan_and_tell(self: GroupRebalance, assignments: Mapping[str, bytes]) -> None:
        plan(self, assignments)
        self._saved_generation, self.phase = self.generation, Phase.STABLE
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
            if member.syncing is not None:
                self.tell_synced(member, member.session_end)

    patch.setattr(GroupRebalance, "plan", plan_and_tell)


def nobody_is_waited_for(patch: Patch) -> None:
    """A rebalance completes without members that still own partitions and have not joined."""
    patch.setattr(Members, "rebalance_seconds", property(lambda self: 0.1))
