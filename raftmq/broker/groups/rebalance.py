"""Group rebalance: the phases of a group, its generation and leader, and the saved plan.

Owns the phase, generation, leader and filter, and the deadlines of joining and syncing. Admission
(`joins.py`) and refusals (`group.py`) are decided elsewhere.

Invariants, asserted by `check`:
  R1  Joins wait while the group prepares; also while it is stable and the return of a static member
      is being saved. Syncs wait while it completes, and at no other time.
  R2  It prepares only while a member is missing or about to join, or newcomers are gathered.
  R3  Empty means no members, and no filter. Of a generation that is not over, the leader is a
      member, and all members know its protocol.
  R4  Stable means that the plan of this generation is saved in the metadata: no assignment of
      another one has been sent. Without a saved plan no member has an assignment.
  R5  A generation belongs to one plan: it rises whenever a rebalance completes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from raftmq.broker.groups.phases import Crash, Phase
from raftmq.errors import RebalanceInProgress, UnknownMemberId
from raftmq.metadata.commands import GroupMemberRecord
from raftmq.wire.bodies import clip_message
from raftmq.wire.messages.groups import (
    DescribedGroup,
    DescribedMember,
    HeartbeatReply,
    JoinedMember,
    JoinGroupReply,
    SyncGroupReply,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.broker.groups.members import Members, MemberState
    from raftmq.broker.groups.phases import GroupOutbox, GroupSettings, SavePlan
    from raftmq.errors import RaftmqError
    from raftmq.metadata.image import GroupState


SAVE_AGAIN_SECONDS = 5.0  # that a group is empty: no member waits for it, so no hurry


class GroupRebalance:
    """Attributes:
    generation: of the last rebalance that completed.
    protocol, leader: of that generation; empty without one.
    tags: the filter of all members, an expression; empty: none.
    """

    def __init__(
        self, name: str, members: Members, outbox: GroupOutbox, settings: GroupSettings
    ) -> None:
        self.members, self.phase, self.generation = members, Phase.EMPTY, 0
        self.protocol_type = self.protocol = self.leader = self.tags = ""
        self._name, self._outbox = name, outbox
        self._delay_seconds = settings.initial_rebalance_delay_ms / 1000
        self._join_end = self._sync_end = self._save_again_at = math.inf
        self._gather_end: float | None = None  # latest end of gathering an empty group's newcomers
        self._has_grown = False  # a newcomer came during the present delay
        self._unsynced: set[str] = set()  # told of this generation, and have not sent SyncGroup
        self._is_planned = False  # the leader's plan is being saved
        self._saved_generation = 0

    def load(self, state: GroupState) -> None:
        """The state as it was saved; the members are there already."""
        self.generation = self._saved_generation = state.generation
        self.protocol_type, self.protocol = state.protocol_type, state.protocol
        self.leader, self.tags = state.leader, state.tags
        self.phase = Phase.STABLE if state.members else Phase.EMPTY

    @property
    def deadline(self) -> float:
        return min(self._join_end, self._sync_end, self._save_again_at)

    @property
    def is_saved(self) -> bool:
        return not self._outbox.is_saving and self._save_again_at == math.inf

    # -- the beginning ---------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Start a rebalance: every member has to join again; a plan under way is dropped."""
        # Several changes share one rebalance.
        if self.phase is Phase.PREPARING:
            return
        error = RebalanceInProgress(f"group {self._name} rebalances: join again")
        for member in self.members:
            member.has_come = False
            if member.syncing is not None:  # the plan that it waits for will never come
                self.refuse(member, error, now)
        self._unsynced.clear()
        self._sync_end, self._save_again_at, self._is_planned = math.inf, math.inf, False
        seconds = self.members.rebalance_seconds
        self._join_end, self._gather_end = now + seconds, None
        # A new group waits for more members first: programs are often started together, and each
        # newcomer would cost a rebalance.
        if self.phase is Phase.EMPTY and self._delay_seconds:
            self._join_end = now + self._delay_seconds
            self._gather_end = now + max(seconds, self._delay_seconds)
        self.phase, self._has_grown = Phase.PREPARING, False

    def on_growth(self) -> None:
        """A member came: the delay of a new group is prolonged."""
        self._has_grown = True

    def put_out(self, member: MemberState, error: RaftmqError, now: float) -> None:
        """Remove a member; the caller calls `on_leaving` once for all that go together."""
        if member.is_waiting:
            self.refuse(member, error, now)
        self.members.remove(member)
        self._unsynced.discard(member.member_id)

    def note_crash(self, member: MemberState) -> None:
        """Its session has ended, or its process was replaced: before it is removed or renamed."""
        held = member.held(self.protocol)
        if held:
            self._outbox.note_crash(Crash(member.member_id, held))

    def on_leaving(self, now: float) -> None:
        # While it prepares, the missing member only makes it complete sooner.
        if self.phase in (Phase.COMPLETING, Phase.STABLE):
            self.begin(now)
        self.maybe_complete(now)

    def on_renamed(self, old: str, new: str) -> None:
        """A static member is another process now, with another id."""
        if self.leader == old:
            self.leader = new
        # That id sends no SyncGroup any more.
        self._synced(old)

    def refuse(self, member: MemberState, error: RaftmqError, now: float) -> None:
        """Answer the waiting request with an error; the member's session runs again."""
        body = refused_waiter(member, error)
        self._outbox.answer(self.members.end_wait(member), body)
        self.members.start_session(member, now)

    # -- all have joined -------------------------------------------------------------------

    def maybe_complete(self, now: float) -> None:
        # Called after every change; only this phase can complete by it.
        if self.phase is not Phase.PREPARING:
            return
        if not len(self.members):  # the last one has left
            self._become_empty()
        # Gathering ends by time only, or the first member would be alone in its generation.
        elif self._gather_end is None and self.members.have_all_joined:
            self._next_generation(now)

    def on_tick(self, now: float) -> None:
        if self._join_end <= now:
            self._on_join_end(now)
        if self._sync_end <= now:
            self._on_sync_end(now)
        # The earlier save failed: until it succeeds the metadata shows members that are gone.
        if self._save_again_at <= now:
            self._save_again_at = math.inf
            self.save({})

    def _on_join_end(self, now: float) -> None:
        """Members that have not joined are left out; except static members, who may return, and
        members that joined and lost their connection, who may own what they claimed until their
        sessions end.

        1. Newcomers are being gathered, and there were some: prolong the delay.
        2. Only such absent members are left: wait until one returns, or their sessions end.
        """
        if self._gather_end is not None and self._has_grown and self._join_end < self._gather_end:
            self._has_grown = False
            self._join_end = min(now + self._delay_seconds, self._gather_end)
            return
        for member in self.members:
            is_here = member.joining is not None or member.has_come
            # A dynamic member that died, or is too slow.
            if not is_here and member.instance_id is None:
                if member.is_silent(now):
                    self.note_crash(member)
                self.members.remove(member)
        # Those who came go on without the others.
        if any(member.joining is not None for member in self.members):
            self._next_generation(now)
        # No member has joined that could be the leader.
        elif len(self.members):
            self._join_end, self._gather_end = now + self.members.rebalance_seconds, None
        else:
            self._become_empty()

    def _next_generation(self, now: float) -> None:
        self.generation += 1
        self.protocol = self.members.vote()
        joined = [member for member in self.members if member.joining is not None]
        # The leader has left or did not join in time.
        if self.leader not in {member.member_id for member in joined}:
            self.leader = joined[0].member_id
        self.phase, self._join_end, self._gather_end = Phase.COMPLETING, math.inf, None
        self._sync_end = now + self.members.rebalance_seconds
        # A member that joins and never asks for its assignment would block the plan of others.
        self._unsynced = {member.member_id for member in joined}
        for member in self.members:
            # Its connection broke, so it cannot have the answer yet; it must ask again.
            if member.has_come:
                self._unsynced.add(member.member_id)
            member.assignment, member.has_come = b"", False
        for member in joined:
            self.tell_joined(member, now)

    def _become_empty(self) -> None:
        self.generation += 1
        self.phase, self._join_end, self._gather_end = Phase.EMPTY, math.inf, None
        self.protocol = self.leader = self.tags = ""
        self.save({})

    def tell_joined(self, member: MemberState, now: float, *, must_sync_anew: bool = True) -> None:
        member.told_generation = self.generation
        is_leader = member.member_id == self.leader
        body = JoinGroupReply(
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            member_id=member.member_id,
            members=tuple(map(self._joined, self.members)) if is_leader else (),
            must_sync_anew=must_sync_anew,
            keeps_filter=True,
        )
        self._outbox.answer(self.members.end_wait(member), body)
        self.members.start_session(member, now)

    def _joined(self, member: MemberState) -> JoinedMember:
        subscription = member.protocols[self.protocol]
        return JoinedMember(member.member_id, member.instance_id, subscription)

    # -- the plan --------------------------------------------------------------------------

    def on_sync(self, member: MemberState) -> None:
        """It has sent SyncGroup."""
        self._synced(member.member_id)

    def _synced(self, member_id: str) -> None:
        self._unsynced.discard(member_id)
        if not self._unsynced:  # all of them have asked
            # All have asked: no one can be put out for silence any more.
            self._sync_end = math.inf

    def has_asked(self, member: MemberState) -> bool:
        """Whether it was told of this generation, and may have got its assignment."""
        is_told = member.told_generation == self.generation
        return is_told and member.member_id not in self._unsynced

    def on_unsynced(self, member: MemberState, now: float) -> None:
        """The member was told of this generation again, and has to send SyncGroup again."""
        self._unsynced.add(member.member_id)
        self._sync_end = min(self._sync_end, now + self.members.rebalance_seconds)

    def plan(self, assignments: Mapping[str, bytes]) -> None:
        """Save the leader's plan. The first one counts: another may be a retry of it."""
        assert self.phase is Phase.COMPLETING, "a plan is for a generation that has none"
        if not self._is_planned:  # a second copy may be a retry of the leader
            self._is_planned = True
            self.save(assignments)

    def save(self, assignments: Mapping[str, bytes]) -> None:
        self._outbox.save(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            members=tuple(self._to_save(m, assignments) for m in self.members),
            tags=self.tags,
        )

    def save_as_it_is(self) -> None:
        """Save the same plan, in which one member has another id."""
        # Other phases save a new plan anyway.
        assert self.phase is Phase.STABLE, "there is no plan"
        self.save({member.member_id: member.assignment for member in self.members})

    def _to_save(self, member: MemberState, assignments: Mapping[str, bytes]) -> GroupMemberRecord:
        return GroupMemberRecord(
            member_id=member.member_id,
            client_id=member.client_id,
            host=member.host,
            instance_id=member.instance_id,
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            subscription=member.protocols[self.protocol],
            assignment=assignments.get(member.member_id, b""),
        )

    def tell_synced(self, member: MemberState, now: float) -> None:
        assert self.generation == self._saved_generation, "R4: handed out before it was saved"
        member.works_on = member.assignment
        body = SyncGroupReply(protocol=self.protocol, assignment=member.assignment)
        self._outbox.answer(self.members.end_wait(member), body)
        self.members.start_session(member, now)

    def on_saved(self, save: SavePlan, now: float) -> None:
        """The outcome of a save. Three cases:

        1. A later save or another generation follows: members will hear of that one.
        2. The plan is saved: send every member its assignment.
        3. The return of a static member is saved.
        """
        self._outbox.settle(save)
        if not self._is_awaited(save):  # a later one is on its way, or the generation is over
            return
        self._saved_generation = save.generation
        if self.phase is Phase.COMPLETING:
            self._hand_out(save, now)
        elif self.phase is Phase.STABLE:  # the return of a static member
            for member in self.members:
                if member.joining is not None:
                    self.tell_joined(member, now, must_sync_anew=False)

    def on_save_failed(self, save: SavePlan, error: RaftmqError, now: float) -> None:
        self._outbox.settle(save)
        if not self._is_awaited(save):  # its outcome does not matter any more
            return
        # No member waits: just try again.
        if self.phase is Phase.EMPTY:
            self._save_again_at = now + SAVE_AGAIN_SECONDS
            return
        # The next generation gets another plan; these members have to join again.
        for member in self.members:
            if member.is_waiting:  # it waits for a plan that cannot be saved
                self.refuse(member, error, now)
        self.begin(now)

    def _is_awaited(self, save: SavePlan) -> bool:
        # Preparing: the plan is void already, and its members were refused.
        is_newest = save.number == self._outbox.newest_save
        is_over = self.phase is Phase.PREPARING
        return is_newest and not is_over and save.generation == self.generation

    def _hand_out(self, save: SavePlan, now: float) -> None:
        self.phase = Phase.STABLE
        for saved in save.members:
            self.members[saved.member_id].assignment = saved.assignment
        for member in self.members:
            if member.syncing is not None:  # the others fetch theirs with their SyncGroup
                self.tell_synced(member, now)

    def _on_sync_end(self, now: float) -> None:
        """Members that joined and did not send SyncGroup are put out, so that others can go on."""
        error = UnknownMemberId(f"group {self._name}: no SyncGroup came in time: join anew")
        for member_id in sorted(self._unsynced):
            member = self.members[member_id]
            if member.is_silent(now):
                self.note_crash(member)
            self.put_out(member, error, now)
        self._sync_end = math.inf
        self.on_leaving(now)

    # -- invariants ------------------------------------------------------------------------

    def check(self) -> None:
        members, phase = self.members, self.phase
        is_saving_return = phase is Phase.STABLE and self._outbox.is_saving
        may_join = phase is Phase.PREPARING or is_saving_return
        assert may_join or all(m.joining is None for m in members), "R1: joins"
        may_sync = phase is Phase.COMPLETING
        assert may_sync or all(m.syncing is None for m in members), "R1: syncs"
        if phase is Phase.PREPARING:
            is_gathering = self._gather_end is not None
            assert is_gathering or not members.have_all_joined, "R2: no member is missing"
        assert (phase is Phase.EMPTY) == (not len(members)), f"R3: {phase}, {len(members)} members"
        assert len(members) or not self.tags, f"R3: filter {self.tags} of no member"
        if phase in (Phase.COMPLETING, Phase.STABLE):
            assert self.leader in members, f"R3: leader {self.leader!r}"
            assert all(self.protocol in m.protocols for m in members), "R3: protocol"
        if phase is Phase.STABLE:
            assert self._saved_generation == self.generation, "R4: stable, and not saved"
        if phase is Phase.COMPLETING:
            assert not any(m.assignment for m in members), "R4: a part without a plan"
        assert self._saved_generation <= self.generation, "R5"
        assert self._unsynced <= {m.member_id for m in members}, "unsynced, and gone"
        assert (self._join_end < math.inf) == (phase is Phase.PREPARING), "when joins end"
        assert not self._unsynced or self._sync_end < math.inf, "when syncs end"


# -- Answers --------------------------------------------------------------------------------------
# Refusing replies of a coordinator, and the description of a group.


Refusable = TypeVar("Refusable", JoinGroupReply, SyncGroupReply, HeartbeatReply)


def refused(reply: type[Refusable], error: RaftmqError) -> Refusable:
    return reply(error=error.code, message=clip_message(str(error)))


def refused_waiter(member: MemberState, error: RaftmqError) -> JoinGroupReply | SyncGroupReply:
    """The refusal of the request that the member waits for."""
    if member.joining is not None:
        return refused(JoinGroupReply, error)
    return refused(SyncGroupReply, error)


def described(name: str, rebalance: GroupRebalance) -> DescribedGroup:
    return DescribedGroup(
        name,
        state=rebalance.phase,
        generation=rebalance.generation,
        protocol_type=rebalance.protocol_type,
        protocol=rebalance.protocol,
        leader=rebalance.leader,
        members=tuple(_described(member, rebalance.protocol) for member in rebalance.members),
        tags=rebalance.tags,
    )


def _described(member: MemberState, protocol: str) -> DescribedMember:
    return DescribedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.host,
        subscription=member.protocols.get(protocol, b""),
        assignment=member.assignment,
    )
