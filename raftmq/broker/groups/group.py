"""The rules of one consumer group: Kafka's classic rebalance protocol, without I/O.

Owns what each request means and who is answered what; the metadata keeps what must outlive the
coordinator. `members.py` holds the members, `rebalance.py` the phases, `joins.py` the admission.
Time and new ids are arguments; effects are returned, to be performed in order.
(Kafka: ClassicGroup, GroupMetadataManager)

Invariants, asserted by `check` after every input in tests and simulations (R1 to R5 are in
`rebalance.py`):
  G1  A token is answered once, or forgotten: it waits with one member, in the group.
  G2  No assignment is sent to a member before the plan is saved in the metadata.
  G3  Offsets are committed by members of the current generation only; by no member while a new
      plan is made; by senders that are not members only while the group has none.
  G4  `deadline` is not later than anything that time alone brings about.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from raftmq.broker.groups.joins import Join, Joins
from raftmq.broker.groups.members import Members, MemberState
from raftmq.broker.groups.phases import NO_EPOCH, GroupOutbox, Phase
from raftmq.broker.groups.rebalance import GroupRebalance, described, refused
from raftmq.errors import (
    ErrorCode,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidUpdateVersion,
    RebalanceInProgress,
    UnknownMemberId,
)
from raftmq.wire.messages.groups import (
    HeartbeatReply,
    LeaveGroupReply,
    ListedGroup,
    MemberLeft,
    SyncGroupReply,
)

if TYPE_CHECKING:
    from typing import Self

    from raftmq.broker.groups.phases import GroupEffect, GroupSettings, SavePlan, Token
    from raftmq.errors import RaftmqError
    from raftmq.metadata.image import GroupState
    from raftmq.wire.messages.groups import (
        DescribedGroup,
        Heartbeat,
        JoinGroup,
        LeaveGroup,
        LeavingMember,
        SyncGroup,
    )


class Group:
    """Every input returns effects. `now`, in seconds, never goes back."""

    def __init__(self, name: str, settings: GroupSettings, *, slot_epoch: int = NO_EPOCH) -> None:
        """A group that the metadata does not know. `slot_epoch` makes member ids comparable with
        those of other coordinators.
        """
        self.name = name
        self._members, self._outbox = Members(name), GroupOutbox(name)
        self._rebalance = GroupRebalance(name, self._members, self._outbox, settings)
        self._joins = Joins(name, self._rebalance, self._outbox, settings, slot_epoch=slot_epoch)
        self._is_abandoned = False

    @classmethod
    def loaded(
        cls,
        name: str,
        state: GroupState,
        settings: GroupSettings,
        *,
        now: float,
        slot_epoch: int = NO_EPOCH,
    ) -> Self:
        """The group as the previous coordinator saved it: Stable, or Empty. No rebalance; every
        member gets a whole session to send its next heartbeat.
        """
        group = cls(name, settings, slot_epoch=slot_epoch)
        # What each member knew: the saved plan is the generation that it was told of.
        for saved in state.members:
            member = MemberState(saved.member_id, saved.instance_id)
            member.client_id, member.host = saved.client_id, saved.host
            member.told_generation = state.generation
            member.session_timeout_ms = saved.session_timeout_ms
            member.rebalance_timeout_ms = saved.rebalance_timeout_ms
            member.assignment = member.works_on = saved.assignment
            member.is_remembered = True
            group._members.add(member)
            group._members.set_protocols(member, {state.protocol: saved.subscription})
            group._members.start_session(member, now)
        group._rebalance.load(state)
        return group

    # -- state -----------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return self._rebalance.generation

    @property
    def state(self) -> str:
        """Empty, PreparingRebalance, CompletingRebalance or Stable."""
        return self._rebalance.phase

    @property
    def deadline(self) -> float:
        """When `on_tick` is due at the latest; `math.inf` while time alone changes nothing.

        Read it again after every input: it moves both ways.
        """
        # The new coordinator keeps the sessions now.
        if self._is_abandoned:
            return math.inf
        return min(self._members.next_end, self._rebalance.deadline)

    @property
    def is_idle(self) -> bool:
        """No members, none about to join, nothing being saved: it may be dropped from memory, and
        made again when a request comes (`loaded`, if the metadata knows it).
        """
        is_empty = self._rebalance.phase is Phase.EMPTY and not self._members.pending
        return is_empty and self._rebalance.is_saved

    def commit_refusal(
        self, member_id: str, generation: int, instance_id: str | None, number: int = 0
    ) -> RaftmqError | None:
        """Why this member may not commit offsets now; None if it may.

        `number`: of the commit; a lower one than an earlier commit's is a late copy.
        """
        # A program that only stores offsets, without joining (G3).
        is_outsider = not member_id and instance_id is None and generation < 0
        if is_outsider and self._rebalance.phase is Phase.EMPTY:
            return None
        refusal = self._refusal(member_id, generation, instance_id)
        # A commit between join and sync would count for the generation before (G3).
        if refusal is None and self._rebalance.phase is Phase.COMPLETING:
            return self._rebalancing()
        # 0: an older client, which does not number its commits.
        if refusal is None and 0 < number < self._members[member_id].commit_number:
            return InvalidUpdateVersion(
                f"group {self.name}: {member_id} has committed again since commit {number}; nothing"
                " was changed"
            )
        return refusal

    def note_commit(self, member_id: str, number: int) -> None:
        """The commit was accepted. Senders that are not members are `Outsiders`."""
        member = self._members.get(member_id)
        if member is not None and number:  # 0: an older client, or not a member
            member.commit_number = number

    def describe(self) -> DescribedGroup:
        return described(self.name, self._rebalance)

    def listed(self) -> ListedGroup:
        protocol_type = self._rebalance.protocol_type
        return ListedGroup(self.name, protocol_type, self.state, len(self._members))

    def _refusal(
        self, member_id: str, generation: int, instance_id: str | None
    ) -> RaftmqError | None:
        """Why a request may not be made as this member, in this generation."""
        refusal = self._members.refusal(member_id, instance_id)
        if refusal is not None:  # not this member, or not any more
            return refusal
        # Told: a lost coordinator may have used the same number for another generation.
        if generation == self.generation == self._members[member_id].told_generation:
            return None
        return IllegalGeneration(
            f"group {self.name} is in generation {self.generation}, {member_id} in {generation}:"
            " join again"
        )

    def _rebalancing(self) -> RaftmqError:
        return RebalanceInProgress(f"group {self.name} rebalances: join again")

    # -- requests --------------------------------------------------------------------------
    #
    # Late copies within this ownership of the slot (those of others do not arrive here): JoinGroup
    # and OffsetCommit have numbers. The others do no harm, as they name a member and a generation,
    # and one ownership has each generation once. SyncGroup: it brings the plan of that generation,
    # of which the first copy counts; a member that waits for the same one is told to join again.
    # Heartbeat: a dead member's session ends one session later; its own clock ended earlier.
    # LeaveGroup: a member that wanted to leave does not use that id again.

    def on_join(
        self,
        request: JoinGroup,
        token: Token,
        *,
        client_id: str,
        host: str,
        new_member_id: str,
        now: float,
    ) -> list[GroupEffect]:
        """`new_member_id`: never used before; part of the id that a newcomer gets."""
        assert not self._is_abandoned, f"group {self.name} is coordinated elsewhere"
        self._joins.on_join(Join(request, token, client_id, host, new_member_id, now))
        return self._outbox.take()

    def on_sync(self, request: SyncGroup, token: Token, *, now: float) -> list[GroupEffect]:
        assert not self._is_abandoned, f"group {self.name} is coordinated elsewhere"
        refusal = self._sync_refusal(request)
        if refusal is None:  # else a late copy, or a member of an earlier generation
            self._sync(self._members[request.member_id], request, token, now)
        else:
            self._outbox.answer(token, refused(SyncGroupReply, refusal))
        return self._outbox.take()

    def on_heartbeat(self, request: Heartbeat, token: Token, *, now: float) -> list[GroupEffect]:
        """Answered at once. A heartbeat is how members learn of a rebalance."""
        assert not self._is_abandoned, f"group {self.name} is coordinated elsewhere"
        refusal = self._refusal(request.member_id, request.generation, request.instance_id)
        if refusal is None:  # else the member has to join again
            self._members.start_session(self._members[request.member_id], now)
            # The session goes on, and the member is told to join.
            if self._rebalance.phase is Phase.PREPARING:
                refusal = self._rebalancing()
        body = HeartbeatReply() if refusal is None else refused(HeartbeatReply, refusal)
        self._outbox.answer(token, body)
        return self._outbox.take()

    def on_leave(self, request: LeaveGroup, token: Token, *, now: float) -> list[GroupEffect]:
        """Answered at once, and so are the requests of the leaving members that wait."""
        assert not self._is_abandoned, f"group {self.name} is coordinated elsewhere"
        count = len(self._members)
        left = tuple(self._leave(leaving, now) for leaving in request.members)
        self._outbox.answer(token, LeaveGroupReply(members=left))
        self._after_leaving(count, now)
        return self._outbox.take()

    def _sync_refusal(self, request: SyncGroup) -> RaftmqError | None:
        member_id, protocol = request.member_id, self._rebalance.protocol
        refusal = self._refusal(member_id, request.generation, request.instance_id)
        if refusal is not None:
            return refusal
        if self._rebalance.phase is Phase.PREPARING:  # a new rebalance has begun since it joined
            return self._rebalancing()
        # A plan made by another assignor could not be decoded.
        if request.protocol not in ("", protocol):
            return InconsistentGroupProtocol(
                f"group {self.name} uses {protocol}, not {request.protocol}: join again"
            )
        return None

    def _sync(self, member: MemberState, request: SyncGroup, token: Token, now: float) -> None:
        # It asks again, so the earlier request was given up.
        if member.is_waiting:
            self._rebalance.refuse(member, self._rebalancing(), now)
        self._members.wait_sync(member, token)
        self._rebalance.on_sync(member)
        # Stable: a retry after the plan was saved. Completing: only the leader brings the plan.
        if self._rebalance.phase is Phase.STABLE:
            self._rebalance.tell_synced(member, now)
        elif member.member_id == self._rebalance.leader:  # followers wait for the leader's plan
            self._rebalance.plan({a.member_id: a.assignment for a in request.assignments})

    def _leave(self, leaving: LeavingMember, now: float) -> MemberLeft:
        member_id, instance_id = leaving.member_id, leaving.instance_id
        # An id that was given out and not used: nothing to take away from the others.
        if self._members.expects(member_id, instance_id):
            del self._members.pending[member_id]
            return MemberLeft(member_id, instance_id)
        # An administrator removes a static member by its instance id alone.
        if instance_id is not None and not member_id:
            known = self._members.of_instance(instance_id)
            member_id = known.member_id if known is not None else ""
        refusal = self._members.refusal(member_id, instance_id)
        if refusal is not None:
            return MemberLeft(leaving.member_id, instance_id, refusal.code)
        error = UnknownMemberId(f"group {self.name}: {member_id} has left")
        self._rebalance.put_out(self._members[member_id], error, now)
        return MemberLeft(member_id, instance_id, ErrorCode.NONE)

    def _after_leaving(self, count: int, now: float) -> None:
        """`count`: members before."""
        if len(self._members) < count:
            self._rebalance.on_leaving(now)
        else:
            self._rebalance.maybe_complete(now)  # it may have waited for an id not used yet

    # -- time and outcomes -----------------------------------------------------------------

    def on_tick(self, now: float) -> list[GroupEffect]:
        """May be called at any time; must be called at `deadline`."""
        assert not self._is_abandoned, f"group {self.name} is coordinated elsewhere"
        # `next_end` is a bound, so this is cheap between ends of sessions.
        if self._members.next_end <= now:
            self._end_sessions(now)
        self._rebalance.on_tick(now)
        return self._outbox.take()

    def _end_sessions(self, now: float) -> None:
        count = len(self._members)
        error = UnknownMemberId(f"group {self.name}: the session has ended: join anew")
        for member in self._members.silent(now):
            self._rebalance.note_crash(member)
            self._rebalance.put_out(member, error, now)
        self._members.drop_pending(now)
        self._after_leaving(count, now)
        self._members.look_ahead()

    def on_saved(self, save: SavePlan, *, now: float) -> list[GroupEffect]:
        if not self._is_abandoned:  # the outcome comes after the slot was lost
            self._rebalance.on_saved(save, now)
        return self._outbox.take()

    def on_save_failed(
        self, save: SavePlan, error: RaftmqError, *, now: float
    ) -> list[GroupEffect]:
        """The plan is certainly not in the metadata, and never will be. Members that wait for it
        get `error`, and another rebalance begins.
        """
        if not self._is_abandoned:
            self._rebalance.on_save_failed(save, error, now)
        return self._outbox.take()

    def forget(self, token: Token, *, now: float) -> None:
        """The connection of the request with this token has ended. Unknown tokens are ignored.

        Its sender stays a member, with a session to ask again in. The rebalance waits for it; if it
        does not come in time its join counts, as it believes that it owns what it has claimed.
        """
        member = self._members.waiter(token)
        if member is not None:  # answered already, or not a request that waits
            self._members.forget(member)
            self._members.start_session(member, now)

    def abandon(self, error: RaftmqError) -> list[GroupEffect]:
        """The slot was lost: requests that wait get `error`, usually NotCoordinator. No requests
        and no ticks afterwards; outcomes of saves and `forget` are ignored.
        """
        for member in self._members:
            if member.is_waiting:  # its client looks for the new coordinator
                self._rebalance.refuse(member, error, 0.0)
        self._is_abandoned = True
        return self._outbox.take()

    def check(self) -> None:
        """Asserts the invariants; for tests and simulations."""
        if self._is_abandoned:
            return
        self._members.check()  # G1, and the sessions' half of G4
        self._rebalance.check()
        assert not self._outbox.take(), "an effect was left behind"
