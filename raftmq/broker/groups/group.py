"""One consumer group, as its coordinator sees it: Kafka's classic protocol, without I/O.

Owns what each request means and who is told what; the metadata hold what must outlive the
coordinator. The parts: `members.py` who is in it, `rebalance.py` the phases, `joins.py` who may
join. Time and new ids are handed in; effects come back, to be performed in their order.

Invariants, asserted by `check` after every input of tests and simulations (R1 to R5 stand in
`rebalance.py`):
  G1  A token is answered once, or forgotten: it waits with one member, in the group.
  G2  No part of a plan is told to anybody before the plan stands in the metadata.
  G3  Offsets are committed by members of the current generation only; by nobody while a new plan
      is made; by whoever is no member only while there are none.
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
    """Every input hands back effects. `now` in seconds never goes back."""

    def __init__(self, name: str, settings: GroupSettings, *, slot_epoch: int = NO_EPOCH) -> None:
        """A group of which the metadata knows nothing. `slot_epoch` makes ids comparable with those
        of other coordinators.
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
        """The group as the coordinator before saved it: Stable, or Empty. No rebalance; every
        member has a whole session to show up.
        """
        group = cls(name, settings, slot_epoch=slot_epoch)
        for saved in state.members:
            member = MemberState(saved.member_id, saved.instance_id)
            member.client_id, member.host = saved.client_id, saved.host
            member.told_generation = state.generation
            member.session_timeout_ms = saved.session_timeout_ms
            member.rebalance_timeout_ms = saved.rebalance_timeout_ms
            member.assignment, member.is_remembered = saved.assignment, True
            group._members.add(member)
            group._members.set_protocols(member, {state.protocol: saved.subscription})
            group._members.start_session(member, now)
        group._rebalance.load(state)
        return group

    # -- questions -------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return self._rebalance.generation

    @property
    def state(self) -> str:
        """Empty, PreparingRebalance, CompletingRebalance or Stable."""
        return self._rebalance.phase

    @property
    def deadline(self) -> float:
        """When `on_tick` is due, at the latest; `math.inf` while nothing can happen by itself.

        Ask again after every input: it moves either way.
        """
        if self._is_abandoned:
            return math.inf
        return min(self._members.next_end, self._rebalance.deadline)

    @property
    def is_idle(self) -> bool:
        """Nobody is in it or on the way, nothing is being saved: it may be dropped from memory, and
        be made anew (`loaded`, where the metadata knows it) when somebody asks.
        """
        is_empty = self._rebalance.phase is Phase.EMPTY and not self._members.pending
        return is_empty and self._rebalance.is_saved

    def commit_refusal(
        self, member_id: str, generation: int, instance_id: str | None, number: int = 0
    ) -> RaftmqError | None:
        """Why offsets of this member may not be committed now; None if they may.

        `number`: of the commit; one that is lower than another's before it comes late.
        """
        is_nobody = not member_id and instance_id is None and generation < 0
        if is_nobody and self._rebalance.phase is Phase.EMPTY:
            return None
        refusal = self._refusal(member_id, generation, instance_id)
        if refusal is None and self._rebalance.phase is Phase.COMPLETING:
            return self._rebalancing()
        if refusal is None and 0 < number < self._members[member_id].commit_number:
            return InvalidUpdateVersion(
                f"group {self.name}: {member_id} has committed again since commit {number}; nothing"
                " was changed"
            )
        return refusal

    def note_commit(self, member_id: str, number: int) -> None:
        """It was taken. Whoever is no member is not known here."""
        member = self._members.get(member_id)
        if member is not None and number:
            member.commit_number = number

    def describe(self) -> DescribedGroup:
        return described(self.name, self._rebalance)

    def listed(self) -> ListedGroup:
        protocol_type = self._rebalance.protocol_type
        return ListedGroup(self.name, protocol_type, self.state, len(self._members))

    def _refusal(
        self, member_id: str, generation: int, instance_id: str | None
    ) -> RaftmqError | None:
        """Why somebody may not speak as this member, in this generation."""
        refusal = self._members.refusal(member_id, instance_id)
        if refusal is not None:
            return refusal
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
    # Copies that come late, within this tenure (of other tenures none arrives here). JoinGroup and
    # OffsetCommit have numbers. The others do no harm, as they name a member and a generation, and
    # one tenure has each generation once. SyncGroup: the plan is the one of that generation, or a
    # retry of it, and of both the first counts; whoever waits for the same is told to join again.
    # Heartbeat: a member that is dead is missed one session after it; its own clock ended earlier.
    # LeaveGroup: the id that it names is not used again by whoever wanted to leave.

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
        """`new_member_id`: never used before; a part of the id that whoever has none will get."""
        assert not self._is_abandoned, f"group {self.name} is somebody else's"
        self._joins.on_join(Join(request, token, client_id, host, new_member_id, now))
        return self._outbox.take()

    def on_sync(self, request: SyncGroup, token: Token, *, now: float) -> list[GroupEffect]:
        assert not self._is_abandoned, f"group {self.name} is somebody else's"
        refusal = self._sync_refusal(request)
        if refusal is None:
            self._sync(self._members[request.member_id], request, token, now)
        else:
            self._outbox.answer(token, refused(SyncGroupReply, refusal))
        return self._outbox.take()

    def on_heartbeat(self, request: Heartbeat, token: Token, *, now: float) -> list[GroupEffect]:
        """Answered at once."""
        assert not self._is_abandoned, f"group {self.name} is somebody else's"
        refusal = self._refusal(request.member_id, request.generation, request.instance_id)
        if refusal is None:
            self._members.start_session(self._members[request.member_id], now)
            if self._rebalance.phase is Phase.PREPARING:
                refusal = self._rebalancing()
        body = HeartbeatReply() if refusal is None else refused(HeartbeatReply, refusal)
        self._outbox.answer(token, body)
        return self._outbox.take()

    def on_leave(self, request: LeaveGroup, token: Token, *, now: float) -> list[GroupEffect]:
        """Answered at once; whatever those who leave were waiting for is answered, too."""
        assert not self._is_abandoned, f"group {self.name} is somebody else's"
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
        if self._rebalance.phase is Phase.PREPARING:
            return self._rebalancing()
        if request.protocol not in ("", protocol):
            return InconsistentGroupProtocol(
                f"group {self.name} uses {protocol}, not {request.protocol}: join again"
            )
        return None

    def _sync(self, member: MemberState, request: SyncGroup, token: Token, now: float) -> None:
        if member.is_waiting:
            self._rebalance.refuse(member, self._rebalancing(), now)
        self._members.wait_sync(member, token)
        self._rebalance.on_sync(member)
        if self._rebalance.phase is Phase.STABLE:
            self._rebalance.tell_synced(member, now)
        elif member.member_id == self._rebalance.leader:
            self._rebalance.plan({a.member_id: a.assignment for a in request.assignments})

    def _leave(self, leaving: LeavingMember, now: float) -> MemberLeft:
        member_id, instance_id = leaving.member_id, leaving.instance_id
        if self._members.expects(member_id, instance_id):
            del self._members.pending[member_id]
            return MemberLeft(member_id, instance_id)
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
        """`count`: how many there were."""
        if len(self._members) < count:
            self._rebalance.on_leaving(now)
        else:
            self._rebalance.maybe_complete(now)  # somebody may have been on the way

    # -- what else happens -----------------------------------------------------------------

    def on_tick(self, now: float) -> list[GroupEffect]:
        """Any time; needed at `deadline`."""
        assert not self._is_abandoned, f"group {self.name} is somebody else's"
        if self._members.next_end <= now:
            self._end_sessions(now)
        self._rebalance.on_tick(now)
        return self._outbox.take()

    def _end_sessions(self, now: float) -> None:
        count = len(self._members)
        error = UnknownMemberId(f"group {self.name}: the session has ended: join anew")
        for member in self._members.silent(now):
            self._rebalance.put_out(member, error, now)
        self._members.drop_pending(now)
        self._after_leaving(count, now)
        self._members.look_ahead()

    def on_saved(self, save: SavePlan, *, now: float) -> list[GroupEffect]:
        if not self._is_abandoned:
            self._rebalance.on_saved(save, now)
        return self._outbox.take()

    def on_save_failed(
        self, save: SavePlan, error: RaftmqError, *, now: float
    ) -> list[GroupEffect]:
        """It certainly does not stand in the metadata, and never will. Whoever waited for it is
        told `error`, and the group begins another rebalance.
        """
        if not self._is_abandoned:
            self._rebalance.on_save_failed(save, error, now)
        return self._outbox.take()

    def forget(self, token: Token, *, now: float) -> None:
        """Nobody waits under `token` any more: its connection ended. Unknown tokens are fine.

        Whoever asked is a member still, and has a session to ask again in. Others wait for it, but
        if it does not come in time, its join counts: it believes that it has what it has claimed.
        """
        member = self._members.waiter(token)
        if member is not None:
            self._members.forget(member)
            self._members.start_session(member, now)

    def abandon(self, error: RaftmqError) -> list[GroupEffect]:
        """The slot was lost: whoever waits is told `error` (NotCoordinator as a rule). The group
        takes no requests and no ticks afterwards; outcomes of saves and `forget` do nothing.
        """
        for member in self._members:
            if member.is_waiting:
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
