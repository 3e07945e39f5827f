"""Bugs that coordinators of groups are known to have, to be planted into ours one at a time.

Owns the bugs, each a function that patches the code through a `Patch`, and the list of them with
those of members (`client_bugs.py`) and of what counts as a crash (`crash_bugs.py`). A bug takes
away one rule, never a check. How many worlds find one says

    python -m tests.simulation.groups.planted_bugs --seeds 100
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from raftmq.broker.groups import coordinator
from raftmq.broker.groups import members as broker_members
from raftmq.broker.groups.group import Group
from raftmq.broker.groups.joins import Joins
from raftmq.broker.groups.members import Members
from raftmq.broker.groups.phases import Phase
from raftmq.broker.groups.rebalance import GroupRebalance
from tests.simulation.groups import client_bugs as members
from tests.simulation.groups import crash_bugs as crashes
from tests.simulation.groups import transactions
from tests.simulation.groups.plan import SECONDS
from tests.simulation.groups.world import drawn_world
from tests.simulation.planting import Case, Patch, PlantedBugs, main

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from raftmq.broker.groups.joins import Join
    from raftmq.broker.groups.members import MemberState
    from raftmq.broker.groups.phases import Token
    from raftmq.errors import RaftmqError
    from raftmq.metadata.image import GroupState

# -- plans -------------------------------------------------------------------------------------


def hand_out_before_it_is_saved(patch: Patch) -> None:
    """The leader's plan is told at once, and saved later."""
    plan = GroupRebalance.plan

    def plan_and_tell(self: GroupRebalance, assignments: Mapping[str, bytes]) -> None:
        plan(self, assignments)
        self._saved_generation, self.phase = self.generation, Phase.STABLE
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
            if member.syncing is not None:
                self.tell_synced(member, member.session_end)

    patch.setattr(GroupRebalance, "plan", plan_and_tell)


def any_save_is_the_plan(patch: Patch) -> None:
    """Whatever was saved, it is taken for what members wait for."""
    patch.setattr(
        GroupRebalance, "_is_awaited", lambda self, save: self.phase is not Phase.PREPARING
    )


def a_generation_comes_again(patch: Patch) -> None:
    """The number stays when a rebalance completes after one whose plan was not saved."""
    following = GroupRebalance._next_generation

    def next_generation(self: GroupRebalance, now: float) -> None:
        if self._saved_generation < self.generation:
            self.generation -= 1
        following(self, now)

    patch.setattr(GroupRebalance, "_next_generation", next_generation)


def a_failed_save_is_forgotten(patch: Patch) -> None:
    """Nobody is told, and those who wait go on waiting."""
    patch.setattr(
        GroupRebalance, "on_save_failed", lambda self, save, error, now: self._outbox.settle(save)
    )


# -- who speaks --------------------------------------------------------------------------------


def commits_of_any_generation(patch: Patch) -> None:
    """A member is a member, however long it has been away."""

    def refusal(
        self: Group, member_id: str, generation: int, instance_id: str | None, number: int = 0
    ) -> RaftmqError | None:
        return self._members.refusal(member_id, instance_id)

    patch.setattr(Group, "commit_refusal", refusal)


def commits_while_the_leader_plans(patch: Patch) -> None:
    """What is dealt out anew is committed by who had it."""
    patch.setattr(Group, "commit_refusal", lambda self, *who: self._refusal(*who[:3]))


def instances_are_not_fenced(patch: Patch) -> None:
    """Whoever was replaced is a stranger, and joins again: two processes take turns."""
    refusal = Members.refusal

    def lenient(self: Members, member_id: str, instance_id: str | None) -> RaftmqError | None:
        return refusal(self, member_id, None)

    patch.setattr(Members, "refusal", lenient)


def whoever_came_later_is_fenced(patch: Patch) -> None:
    """A new coordinator fences the process that it has not heard of."""
    patch.setattr(broker_members, "is_later", lambda member_id, other: False)


def a_return_is_not_saved(patch: Patch) -> None:
    """A static member that is back is told so at once; the metadata know its old id."""

    def tell_at_once(self: GroupRebalance) -> None:
        for member in self.members:
            if member.joining is not None:
                self.tell_joined(member, member.session_end, must_sync_anew=False)

    patch.setattr(GroupRebalance, "save_as_it_is", tell_at_once)


def assignors_are_forgotten(patch: Patch) -> None:
    """Of the members of a coordinator that was lost, it is believed that they know only one."""
    patch.setattr(Members, "may_know_more", lambda self, *, without: False)


def a_member_with_another_filter_is_taken(patch: Patch) -> None:
    """Whether a record is read depends on which member has its partition."""
    patch.setattr(Joins, "_filter_refusal", lambda self, join, known: None)


# -- what comes late ---------------------------------------------------------------------------


def tenures_are_not_told_apart(patch: Patch) -> None:
    """The slot was elsewhere and is back: whatever was asked before is taken, numbers are gone."""
    patch.setattr(coordinator, "is_of_another_tenure", lambda slot_epoch, own: False)


def late_joins_count(patch: Patch) -> None:
    """A copy that was kept back claims what its sender had then."""
    patch.setattr(Joins, "_is_late", lambda self, request: False)


def late_commits_count(patch: Patch) -> None:
    """The last one that comes is the last one."""
    patch.setattr(Group, "note_commit", lambda self, member_id, number: None)


def a_static_member_joins_in_one_step(patch: Patch) -> None:
    """Its id is used as soon as it is given out, whoever may still wait for it."""
    give_id = Joins._give_id

    def give_and_use(self: Joins, join: Join) -> None:
        known = self._known(join.request)
        if join.request.instance_id is None:
            give_id(self, join)
            return
        member_id = self._ids.new(join.new_member_id, join.now)
        joining = join._replace(request=msgspec.structs.replace(join.request, member_id=member_id))
        if known is None:
            self._add(joining, member_id)
        else:
            self._on_return(joining, known)

    patch.setattr(Joins, "_give_id", give_and_use)


# -- who waits ---------------------------------------------------------------------------------


def forget_nothing(patch: Patch) -> None:
    """A connection that ended is answered like any other."""
    patch.setattr(Group, "forget", lambda self, token, *, now: None)


def silence_counts_for_whoever_waits(patch: Patch) -> None:
    """A member that waits for the others is put out for not speaking."""

    def silent(self: Members, now: float) -> list[MemberState]:
        return [member for member in self if member.session_end <= now]

    patch.setattr(Members, "silent", silent)


def the_dead_are_members(patch: Patch) -> None:
    """Sessions do not end."""

    def for_ever(self: Members, member: MemberState, now: float) -> None:
        member.session_end = math.inf

    patch.setattr(Members, "start_session", for_ever)


def the_dead_of_others_are_members(patch: Patch) -> None:
    """Who died before the coordinator came has no session that could end."""
    loaded = Group.loaded.__func__  # type: ignore[attr-defined]

    def without_sessions(
        cls: type[Group], name: str, state: GroupState, *args: object, **facts: object
    ) -> Group:
        group: Group = loaded(cls, name, state, *args, **facts)
        for member in group._members:
            member.session_end = math.inf
        return group

    patch.setattr(Group, "loaded", classmethod(without_sessions))


def whoever_hangs_is_waited_for(patch: Patch) -> None:
    """Joins have no end."""
    patch.setattr(
        GroupRebalance, "_on_join_end", lambda self, now: setattr(self, "_join_end", now + 9)
    )


def a_retry_is_not_noticed(patch: Patch) -> None:
    """A member that asks again is told what waits already, and the new request never."""
    wait_join = Members.wait_join

    def wait_once(self: Members, member: MemberState, token: Token) -> None:
        if member.joining is None:
            wait_join(self, member, token)

    patch.setattr(Joins, "_withdraw", lambda self, member, now: None)
    patch.setattr(Members, "wait_join", wait_once)


# -- rebalances --------------------------------------------------------------------------------


def the_leader_may_not_ask(patch: Patch) -> None:
    """A leader that joins again hears the same: new partitions are nobody's."""
    on_member = Joins._on_member

    def tell_again(self: Joins, join: Join, member: MemberState) -> None:
        is_stable = self._rebalance.phase is Phase.STABLE
        if is_stable and member.protocols == join.protocols:
            self._tell_again(member, join)
        else:
            on_member(self, join, member)

    patch.setattr(Joins, "_on_member", tell_again)


def the_past_is_not_loaded(patch: Patch) -> None:
    """A new coordinator begins with an empty group."""

    def begin_anew(
        cls: type[Group], name: str, state: GroupState, settings: object, **facts: object
    ) -> Group:
        return cls(name, settings, slot_epoch=facts["slot_epoch"])  # type: ignore[arg-type]

    patch.setattr(Group, "loaded", classmethod(begin_anew))


# -- transactions ------------------------------------------------------------------------------


def a_lost_partition_comes_back_in_its_generation(patch: Patch) -> None:
    """A follower that joins a stable group again is told the same, whatever it has lost."""
    patch.setattr(GroupRebalance, "has_asked", lambda self, member: member.member_id == self.leader)


def a_return_is_told_before_it_is_saved(patch: Patch) -> None:
    """To a process that asks again while it waits."""
    on_member = Joins._on_member

    def tell_at_once(self: Joins, join: Join, member: MemberState) -> None:
        is_stable = self._rebalance.phase is Phase.STABLE
        if is_stable and not self._rebalance.has_asked(member):
            self._withdraw(member, join.now)
            self._update(member, join)
            self._tell_again(member, join)
        else:
            on_member(self, join, member)

    patch.setattr(Joins, "_on_member", tell_at_once)


def a_transaction_names_what_a_join_was_told(patch: Patch) -> None:
    """That generation may never be saved."""
    patch.setattr(transactions, "generation_of", lambda membership: membership.generation)


SAVES = ("slow_saves", "come", "leave")
BROKEN = ("refuse_saves", "come", "leave")
MOVES = ("crash_coordinator", "restart", "move")
LOST = ("pause", "mute", "cut", "come")
# Every bug with the faults of the worlds that look for it (none: those that each seed draws). Their
# seeds stand in a file: any change of the code shifts the worlds, and `--reseed` looks for others.
FAULTS: dict[Callable[[Patch], None], tuple[str, ...]] = {
    hand_out_before_it_is_saved: (),
    any_save_is_the_plan: (*SAVES, "grow"),
    a_generation_comes_again: ("refuse_saves", "come", "restart"),
    a_failed_save_is_forgotten: BROKEN,
    commits_of_any_generation: (),
    commits_while_the_leader_plans: SAVES,
    instances_are_not_fenced: ("double",),
    whoever_came_later_is_fenced: ("double", *MOVES),
    a_return_is_not_saved: (),
    tenures_are_not_told_apart: ("late", "late", "move"),
    late_joins_count: ("late", "grow", "come"),
    late_commits_count: ("late",),
    a_static_member_joins_in_one_step: ("late", "restart"),
    forget_nothing: (),
    silence_counts_for_whoever_waits: (),
    the_dead_are_members: ("crash", "restart"),
    the_dead_of_others_are_members: ("crash", "crash_coordinator"),
    whoever_hangs_is_waited_for: (),
    a_retry_is_not_noticed: ("cut", "come", "leave"),
    the_leader_may_not_ask: ("grow",),
    the_past_is_not_loaded: (),
    a_lost_partition_comes_back_in_its_generation: ("mute", "pause", *MOVES),
    a_return_is_told_before_it_is_saved: ("slow_saves", "restart", "cut", *MOVES),
    a_transaction_names_what_a_join_was_told: (*MOVES, "come", "slow_saves"),
    assignors_are_forgotten: ("come", "move"),
    a_member_with_another_filter_is_taken: ("come", "restart"),
    crashes.to_leave_is_to_crash: ("leave", "come", "poison"),
    crashes.whoever_is_late_has_crashed: ("come", "leave", "poison"),
    crashes.a_crash_goes_with_each_save: ("crash", "poison"),
    crashes.a_crash_during_a_rebalance_is_lost: ("crash", "come", "poison"),
    crashes.accidents_have_no_end: ("poison", "crash"),
    members.sessions_count_from_the_answer: LOST,
    members.silence_takes_nothing: LOST,
    members.the_group_waits_for_ever: ("hang", "come"),
    members.nobody_waits_for_the_program: (),
    members.what_is_not_in_the_plan_is_kept: (),
    members.what_was_given_up_stays_nobodys: ("come",),
    members.an_eager_member_keeps_reading: (),
    members.what_is_held_is_given_away: (),
    members.growth_is_not_noticed: ("grow",),
}
BUGS = PlantedBugs(
    drawn_world,
    {bug: Case((), kinds, SECONDS) for bug, kinds in FAULTS.items()},
    seeds_file=Path(__file__).with_name("planted_seeds.json"),
)

if __name__ == "__main__":
    main(BUGS, __doc__.splitlines()[0])
