"""State machine of a group member: join, sync, heartbeat, revoke, leave, and its timeouts. Pure.

Kafka: the rules of AbstractCoordinator and ConsumerCoordinator.

    OUTSIDE --> JOINING --> SYNCING --> STABLE --+
                   ^  ^--------------------------+  a rebalance begins
                   +------- REVOKING <-----------+  ... once the program has finished
    any --> LEAVING --> OUTSIDE                     at once for static members
    any --> FENCED                                  after an error that no repetition resolves

Eager members give up all partitions before they join again. Cooperative ones keep them, give up
what the new plan assigns to others, and join once more to hand it over.

Each input returns what is to be done (`effects.py`), in order; after each, `deadline` says when
`on_tick` is due at the latest. `now` is a monotonic clock in seconds. The steps (`_join` and what
follows it) go from one state to another; `_check` states what holds after every input.

Invariants:
  M1  One step of joining or leaving is in flight at a time, and one heartbeat; other answers are
      dropped.
  M2  A held partition came with an answered SyncGroup, and was neither revoked nor lost since.
  M3  Nothing is held once the coordinator may reassign it, by this member's own clock
      (`MemberSession`).
  M4  An eager member joins holding nothing.
  M5  A member that is outside, leaving or fenced holds nothing; one that is outside or fenced has
      no request in flight.
  M6  A partition that is being revoked is held, and named as owned, until the program has finished
      with it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from raftmq.client.group.effects import (
    AskCoordinator,
    Assign,
    CommitIdentity,
    Fail,
    Left,
    LossCause,
    Lost,
    Revoke,
    State,
    WatchTopics,
)
from raftmq.client.group.member_requests import (
    VERDICTS,
    MemberQuestions,
    MemberSession,
    Requests,
    doubts,
    error_in,
)
from raftmq.client.group.owned_partitions import OwnedPartitions
from raftmq.client.group.planning import Planning, decode_assignment
from raftmq.errors import (
    FencedInstanceId,
    IllegalGeneration,
    MemberIdRequired,
    RaftmqError,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
)
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.groups import Heartbeat, JoinGroup, JoinGroupReply, SyncGroupReply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from random import Random

    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.effects import Effect
    from raftmq.client.group.member_options import MemberOptions
    from raftmq.client.group.member_requests import OutstandingRequest, Reply


# For the network, beyond the time that the coordinator may wait for other members
ANSWER_SECONDS = 5.0
LEAVE_SECONDS_MAX = 5.0  # then the session timeout ends the membership anyway
# The states in which the coordinator may count it as a member that takes part.
_IN = (State.JOINING, State.SYNCING, State.STABLE, State.REVOKING)


class GroupMembership:
    """One member of a group.

    Args:
        topics: what it subscribes to, by name; `pattern.py` resolves patterns.
        random: for backoff.

    Attributes:
        state: see `State`.
        member_id: assigned by the coordinator; empty before and after membership.
        generation: to commit with; -1: in none.
        protocol: the assignor that the group has agreed on; empty before.
        topics: what it subscribes to.
        is_started: it has joined once, or tried to.
    """

    def __init__(self, options: MemberOptions, topics: Iterable[str], *, random: Random) -> None:
        self.state, self.is_started = State.OUTSIDE, False
        self.member_id, self.generation, self.protocol = "", ABSENT, ""
        self.topics = tuple(sorted(set(topics)))
        self.owned_partitions = OwnedPartitions(is_cooperative=options.is_cooperative)
        self.session = MemberSession(
            session_seconds=options.session_seconds, rebalance_seconds=options.rebalance_seconds
        )
        self.requests = Requests(random)
        self.planning = Planning(rebalance_seconds=options.rebalance_seconds)
        self._options, self._questions = options, MemberQuestions(options)
        self._assignors = {assignor.name: assignor for assignor in options.assignors}
        # When the program got the records that it works on; None: it waits for records, or is in a
        # `processing` block.
        self._busy_since: float | None = None
        # It leaves for good; it has left because the program did not ask for records.
        self._is_closing = self._is_away = False
        self._joined_topics, self._watched = self.topics, tuple[str, ...]()
        self._leave_by = math.inf

    # -- what the program does -------------------------------------------------------------

    def start(self, *, now: float) -> list[Effect]:
        """Join. Called once."""
        assert not self.is_started, "started twice"
        self.is_started = True
        return self._run(self._join, now)

    def subscribe(self, topics: Iterable[str], *, now: float) -> list[Effect]:
        """Subscribe to these instead: a changed subscription leads to a rebalance."""
        self.topics = tuple(sorted(set(topics)))
        return self._run(self._maybe_rejoin, now)

    def leave(self, *, now: float) -> list[Effect]:
        """Give up everything, and leave, except for static members, which may come back. Ends with
        Left, or with Fail; nothing follows.
        """
        self._is_closing = True
        return self._run(self._close, now)

    def on_revoked(self, token: int, *, now: float) -> list[Effect]:
        """The program has finished the records of what Revoke named, and that is committed."""
        return self._run(lambda now: self._revoked(token, now), now)

    def on_handed_out(self, *, now: float) -> list[Effect]:
        """The program has got records, and must ask for more within `max_poll_interval_ms`. The end
        of a `processing` block counts as well.
        """
        self._busy_since = now
        return self._finish(self._maybe_lose(now), now)

    def on_asked(self, *, now: float) -> list[Effect]:
        """The program asks for records, or is in a `processing` block: the poll interval does not
        count. A member that had left because of it joins again.
        """
        self._busy_since = None
        return self._run(self._come_back, now)

    # -- what comes from outside -----------------------------------------------------------

    def on_answer(self, token: int, answer: Reply | RaftmqError, *, now: float) -> list[Effect]:
        """The outcome of an AskCoordinator: the answer's body, or why there is none.

        A missing answer is noticed in `on_tick`.
        """
        asked = self.requests.take(token)
        if asked is None:  # outdated: the step was repeated or dropped
            return []
        error = error_in(answer)
        self._learn(asked, error)
        lost = self._maybe_lose(now)  # the session had ended: join anew
        return self._finish(lost or self._take_answer(asked, answer, error, now), now)

    def on_metadata(self, counts: Mapping[str, int], *, now: float) -> list[Effect]:
        """Partition counts by topic; 0: there certainly is no such topic.

        Topics that are not named keep their last count.
        """
        self.planning.learn(counts)
        return self._run(self._on_counts, now)

    def on_refused(self, error: RaftmqError, *, generation: int, now: float) -> list[Effect]:
        """A commit, or an OffsetFetch, was refused; `generation`: the one it was sent with. Errors
        that say nothing of membership have no effect.
        """
        is_current = generation == self.generation != ABSENT
        # A late answer of an earlier generation
        if not is_current or not isinstance(error, VERDICTS):
            return self._finish(self._maybe_lose(now), now)
        return self._run(lambda now: self._on_verdict(error, now), now)

    def on_tick(self, *, now: float) -> list[Effect]:
        """Time has passed."""
        return self._run(self._tick, now)

    # -- state -----------------------------------------------------------------------------

    @property
    def identity(self) -> CommitIdentity:
        """To commit under."""
        instance_id = self._options.group_instance_id
        return CommitIdentity(self.member_id, self.generation, instance_id, self.is_started)

    @property
    def is_leader(self) -> bool:
        """Whether it plans for the group."""
        return self.planning.is_leader

    @property
    def held(self) -> frozenset[Key]:
        """Its partitions, including those that are being revoked."""
        return self.owned_partitions.held

    @property
    def held_until(self) -> float:
        """When all partitions are lost, unless the coordinator answers before."""
        return self.session.ends_at

    def may_hand_out(self, partition: Key, *, now: float) -> bool:
        """Checked before records are handed out, as a late tick notices a lost session late."""
        is_kept = partition in self.held and partition not in self.owned_partitions.revoking
        return is_kept and now < self.held_until

    def expects(self, token: int) -> bool:
        """Whether an answer would still be used; otherwise the request may be cancelled."""
        return self.requests.expects(token)

    def deadline(self) -> float:
        """When `on_tick` is due at the latest; math.inf: not before another input."""
        return min(
            self.requests.look_at,
            self.owned_partitions.revoke_by,
            self.held_until if self.held else math.inf,
            self.planning.plan_by,
            self._leave_by,
            self._poll_by,
        )

    # -- every input -----------------------------------------------------------------------

    def _run(self, act: Callable[[float], list[Effect]], now: float) -> list[Effect]:
        """Apply timeouts first, then the input."""
        lost = self._maybe_lose(now)
        return self._finish([*lost, *act(now)], now)

    def _finish(self, effects: list[Effect], now: float) -> list[Effect]:
        if self.state in _IN:
            watched = self.planning.topics(self.topics)
            if watched != self._watched:  # as leader it needs the topics of all members
                self._watched = watched
                effects = [*effects, WatchTopics(watched)]
        self._check(now)
        return effects

    def _check(self, now: float) -> None:
        held, state = self.held, self.state
        assert state in _IN or not held, f"M5: {state.name}, and holds {len(held)}"
        is_out = state in (State.OUTSIDE, State.FENCED)
        is_waiting = self.requests.look_at != math.inf
        assert not (is_out and is_waiting), f"M5: {state.name}, and awaits something"
        assert not held or now < self.session.ends_at, "M3: held for too long"
        is_joining = state in (State.JOINING, State.SYNCING)
        is_eager = not self.owned_partitions.is_cooperative
        assert not (is_joining and is_eager and held), "M4: joins, and holds"
        is_revoking = bool(self.owned_partitions.revoking)
        assert is_revoking == (state is State.REVOKING), "M6: revokes nothing, or unnoticed"

    # -- joining ---------------------------------------------------------------------------

    def _join(self, now: float) -> list[Effect]:
        self.state, self._joined_topics = State.JOINING, self.topics
        self.planning.end()
        return [self._ask_step(now)]

    def _maybe_rejoin(self, now: float) -> list[Effect]:
        """Join again if the subscription, or the partition counts that the leader planned with,
        have changed.
        """
        is_other = self.topics != self._joined_topics
        if self.state is State.JOINING and is_other:
            return self._join(now)
        # Other states join anyway.
        if self.state is State.STABLE and (is_other or self.planning.is_outdated):
            return self._rejoin(now)
        return []

    def _on_counts(self, now: float) -> list[Effect]:
        """Partition counts have come."""
        return self._maybe_plan(now) or self._maybe_rejoin(now)

    def _take_answer(
        self,
        asked: OutstandingRequest,
        answer: Reply | RaftmqError,
        error: RaftmqError | None,
        now: float,
    ) -> list[Effect]:
        """1. A heartbeat. 2. An id, to join or leave. 3. Leaving. 4. An error. 5. A step."""
        if isinstance(asked.request, Heartbeat):
            return self._on_heartbeat(asked, error, now)
        if isinstance(error, MemberIdRequired) and isinstance(answer, JoinGroupReply):
            self.member_id = answer.member_id
            return [self._ask_step(now)]
        if self.state is State.LEAVING:  # nothing else matters any more
            return self._on_leave_answered(error, now)
        if error is not None:
            return self._on_step_failed(error, now)
        if isinstance(answer, JoinGroupReply):
            return self._on_joined(answer, now)
        assert isinstance(answer, SyncGroupReply), f"{type(answer).__name__} to a step"
        return self._on_synced(answer, now)

    def _rejoin(self, now: float) -> list[Effect]:
        given_up = self.owned_partitions.to_give_up(self.topics)
        return self._revoke(given_up, now) if given_up else self._join(now)

    def _ask_step(self, now: float) -> AskCoordinator:
        """The request that the state calls for."""
        questions, seconds_max = self._questions, self._options.rebalance_seconds + ANSWER_SECONDS
        if self.state is State.JOINING:
            owned, generation = self.owned_partitions.claim
            join = questions.join(self.member_id, self._joined_topics, owned, generation)
            return self.requests.ask(join, now=now, seconds_max=seconds_max)
        if self.state is State.SYNCING:
            plan = self.planning.plan
            assert plan is not None, "a leader without a plan"
            sync = questions.sync(self.member_id, self.generation, self.protocol, plan)
            return self.requests.ask(sync, now=now, seconds_max=seconds_max)
        assert self.state is State.LEAVING, f"nothing to ask when {self.state.name}"
        leave = questions.leave(self.member_id)
        return self.requests.ask(leave, now=now, seconds_max=self._leave_by - now)

    def _on_step_failed(self, error: RaftmqError, now: float) -> list[Effect]:
        """1. and 2. Joining begins anew. 3. A repetition. 4. A fatal error."""
        if isinstance(error, UnknownMemberId | IllegalGeneration):
            keeps_id = isinstance(error, IllegalGeneration) or self._may_be_replaced
            return self._lose(now, keeps_id=keeps_id, is_hurried=False)
        if isinstance(error, RebalanceInProgress) and self.state is State.SYNCING:
            return self._rejoin(now)
        if error.retriable or isinstance(error, RebalanceInProgress):
            self._repeat_step(now)
            return doubts(error)
        return self._fail(error, now)

    @property
    def _may_be_replaced(self) -> bool:
        """By another process with this static member's id, which it must not displace. Joining with
        the old member id finds out: only if the coordinator has no such member, it joins anew.
        """
        return self._options.is_static and self.state is not State.JOINING

    def _repeat_step(self, now: float) -> None:
        """Repeat the step; the heartbeat in flight may have been lost with it."""
        self.requests.repeat_step(now=now)
        if self.requests.beat is not None:  # the same connection has failed
            self.requests.repeat_beat(now=now)

    def _on_joined(self, reply: JoinGroupReply, now: float) -> list[Effect]:
        if problem := self._questions.problem_of(reply):
            return self._on_step_failed(problem, now)
        self.member_id, self.generation = reply.member_id, reply.generation
        self.protocol, self.state = reply.protocol, State.SYNCING
        self.requests.beat_next(now + self._options.heartbeat_seconds)
        # Another member is the leader and plans: sync with an empty plan.
        if reply.leader != reply.member_id:
            self.planning.follow()
            return [self._ask_step(now)]
        try:
            self.planning.lead(reply.members, is_planned=not reply.must_sync_anew, now=now)
        except RaftmqError as error:
            return self._fail(error, now)
        return self._maybe_plan(now) if reply.must_sync_anew else [self._ask_step(now)]

    def _maybe_plan(self, now: float) -> list[Effect]:
        if self.state is not State.SYNCING:  # planning belongs to that step
            return []
        assignor = self._assignors[self.protocol]
        try:
            is_made = self.planning.maybe_plan(assignor, leader=self.member_id, now=now)
        except RaftmqError as error:
            return self._fail(error, now)
        return [self._ask_step(now)] if is_made else []

    def _on_synced(self, reply: SyncGroupReply, now: float) -> list[Effect]:
        """The rebalance is over. Give up partitions that the plan assigns to others, then join once
        more; also where an earlier process of this static member had them.
        """
        try:
            assigned = decode_assignment(reply.assignment)
        except RaftmqError as error:
            return self._fail(error, now)
        # The answer was so late that another member may own the partitions.
        if now >= self.session.ends_at:
            return self._lose(now, keeps_id=True)
        self.planning.on_synced(assigned.counts)
        self.requests.on_progress()
        self.state = State.STABLE
        added, gone = self.owned_partitions.on_assigned(assigned.partitions, self.generation)
        effects: list[Effect] = [Assign(tuple(sorted(added)), self.generation)]
        if gone:  # only cooperative members still hold any here
            return [*effects, *self._revoke(gone, now)]
        after = self._rejoin(now) if assigned.is_awaited else self._maybe_rejoin(now)
        return [*effects, *after]

    # -- staying ---------------------------------------------------------------------------

    def _learn(self, asked: OutstandingRequest, error: RaftmqError | None) -> None:
        """Note what an answer says of the coordinator's clocks. It waits for this member where a
        rebalance is under way and no step of it was in flight before. A successful heartbeat says
        that none is under way, unless the member has joined it already.
        """
        if error is None:
            is_beat = isinstance(asked.request, Heartbeat)
            is_late = is_beat and self.state is State.SYNCING and asked.step is None
            self.session.hear(asked.sent_at, is_settled=not is_late)
        elif isinstance(error, RebalanceInProgress) and isinstance(asked.request, Heartbeat):
            self.session.hear(asked.sent_at, is_settled=isinstance(asked.step, JoinGroup))

    def _on_verdict(self, error: RaftmqError, now: float) -> list[Effect]:
        """An error that says something of the member. While it joins, its generation is about to
        end anyway.
        """
        if isinstance(error, RebalanceInProgress):
            is_news = self.state in (State.STABLE, State.SYNCING)
            return self._rejoin(now) if is_news else []
        if isinstance(error, IllegalGeneration):  # a rebalance has ended without it
            return [] if self.state is State.JOINING else self._lose(now, keeps_id=True)
        if isinstance(error, UnknownMemberId):
            return self._lose(now, keeps_id=self._may_be_replaced)
        return [] if error.retriable else self._fail(error, now)

    def _tick(self, now: float) -> list[Effect]:
        """1. Missing answers. 2. A program that takes too long. 3. What is due."""
        effects: list[Effect] = []
        for token in self.requests.overdue(now):
            effects += self._on_overdue(token, now)
        if now >= self.owned_partitions.revoke_by:
            effects += self._on_revoke_overdue(now)
        if now >= self._poll_by:  # max_poll_interval_ms has passed
            effects += self._step_out(now)
        if now >= self._leave_by:  # no answer to LeaveGroup: the session will end it
            effects += self._on_left(now)
        effects += self._maybe_plan(now)
        if now >= self.requests.step_at:
            effects.append(self._ask_step(now))
        if now >= self.requests.beat_at:
            effects.append(self._beat(now))
        return effects

    @property
    def _poll_by(self) -> float:
        """When the program has to ask for records at the latest (max_poll_interval_ms)."""
        is_out = self.state in (State.OUTSIDE, State.LEAVING, State.FENCED)
        if self._busy_since is None or is_out or self._is_closing:
            return math.inf
        return self._busy_since + self._options.poll_seconds_max

    def _on_heartbeat(
        self, asked: OutstandingRequest, error: RaftmqError | None, now: float
    ) -> list[Effect]:
        if error is not None and error.retriable:
            self.requests.repeat_beat(now=now)
            doubted = doubts(error)
            # It may have gone to a broker that is gone
            if doubted and self.requests.step is not None:
                self.requests.repeat_step(now=now)
            return doubted
        self.requests.beat_next(asked.sent_at + self._options.heartbeat_seconds)
        return [] if error is None else self._on_verdict(error, now)

    def _on_overdue(self, token: int, now: float) -> list[Effect]:
        asked = self.requests.take(token)
        if asked is None:  # handling the one before has dropped it
            return []
        what = f"{type(asked.request).__name__} of group {self._options.group!r}"
        error = RequestTimedOut(f"{what}: no answer in {now - asked.sent_at:.1f} s")
        return self._take_answer(asked, error, error, now)

    def _beat(self, now: float) -> AskCoordinator:
        assert self.generation != ABSENT, "a heartbeat of no generation"
        request = self._questions.beat(self.member_id, self.generation)
        return self.requests.ask(request, now=now, seconds_max=self._options.session_seconds / 3)

    # -- giving up -------------------------------------------------------------------------

    def _revoked(self, token: int, now: float) -> list[Effect]:
        if not self.owned_partitions.end_revoking(token):  # an earlier revocation
            return []
        return self._depart(now) if self._is_closing else self._join(now)

    def _maybe_lose(self, now: float) -> list[Effect]:
        if not self.owned_partitions.held or now < self.session.ends_at:  # the session goes on
            return []
        return self._lose(now, keeps_id=True)

    def _revoke(self, partitions: Iterable[Key], now: float) -> list[Effect]:
        """Joining or leaving goes on when the program has finished its records of these."""
        self.state = State.REVOKING
        self.planning.end()
        self.requests.drop_step()
        token = self.owned_partitions.begin_to_revoke(partitions, revoke_by=self.session.rejoin_by)
        revoking = tuple(sorted(self.owned_partitions.revoking))
        return [Revoke(token, revoking, self.owned_partitions.revoke_by)]

    def _on_revoke_overdue(self, now: float) -> list[Effect]:
        lost = tuple(sorted(self.owned_partitions.revoking))
        self.owned_partitions.drop_revoking()
        after = self._depart(now) if self._is_closing else self._join(now)
        return [Lost(lost, LossCause.NOT_FINISHED), *after]

    def _lose(self, now: float, *, keeps_id: bool, is_hurried: bool = True) -> list[Effect]:
        """Other members may own the partitions by now. Join anew, at once if `is_hurried`."""
        lost = self._drop_all()
        if not keeps_id:  # the coordinator does not know it any more
            self.member_id = ""
        if self._is_closing:
            return [*lost, *self._depart(now)]
        if is_hurried:
            return [*lost, *self._join(now)]
        self.state, self._joined_topics = State.JOINING, self.topics
        self.requests.repeat_step(now=now)
        return lost

    def _drop_all(self, cause: LossCause = LossCause.OTHER) -> list[Effect]:
        held = tuple(sorted(self.owned_partitions.held))
        self.owned_partitions.drop_all()
        self.requests.drop_all()
        self.planning.end()
        self.generation = ABSENT
        return [Lost(held, cause)] if held else []

    def _fail(self, error: RaftmqError, now: float) -> list[Effect]:
        effects = self._drop_all()
        is_known = not isinstance(error, FencedInstanceId)
        # A courtesy: the group need not wait for the session timeout.
        if self.member_id and is_known and not self._options.is_static:
            leave = self._questions.leave(self.member_id)
            effects.append(self.requests.ask(leave, now=now, seconds_max=LEAVE_SECONDS_MAX))
            self.requests.drop_all()
        self.state = State.FENCED
        return [*effects, Fail(error)]

    # -- leaving ---------------------------------------------------------------------------

    def _close(self, now: float) -> list[Effect]:
        """1. It is out. 2. It is leaving already. 3. and 4. Leave, after a revocation if it has
        partitions.
        """
        if self.state in (State.OUTSIDE, State.FENCED):  # never joined, or ended
            return [Left()]
        held = self.owned_partitions.held
        if self.state is State.LEAVING or (held and held == self.owned_partitions.revoking):
            return []
        return self._revoke(held, now) if held else self._depart(now)

    def _come_back(self, now: float) -> list[Effect]:
        """The program asks for records again: join, if the member left because it did not."""
        was_away, self._is_away = self._is_away, False
        is_out = self.state is State.OUTSIDE and not self._is_closing
        return self._join(now) if was_away and is_out else []

    def _step_out(self, now: float) -> list[Effect]:
        """The program did not ask for records in time: leave, so that other members get its
        partitions.
        """
        self._is_away, self._busy_since = True, None
        lost = self._drop_all(LossCause.NOT_ASKED)
        return [*lost, *self._depart(now)]

    def _depart(self, now: float) -> list[Effect]:
        """A static member sends nothing: it may be back within its session."""
        first_join = self.requests.first_join  # its answer names an id that the group waits for
        self._drop_all()
        if self._options.is_static or not (self.member_id or first_join):
            return self._on_left(now)
        self.state, self._leave_by = State.LEAVING, now + LEAVE_SECONDS_MAX
        self.requests.step = first_join
        return [self._ask_step(now)] if self.member_id else []

    def _on_leave_answered(self, error: RaftmqError | None, now: float) -> list[Effect]:
        # It was removed already, for example, or got no id.
        if error is None or not error.retriable or not self.member_id:
            return self._on_left(now)
        self.requests.repeat_step(now=now)
        return doubts(error)

    def _on_left(self, now: float) -> list[Effect]:
        self._drop_all()
        self.state, self._leave_by = State.OUTSIDE, math.inf
        if not self._options.is_static:  # a static member's id stays valid
            self.member_id = ""
        if self._is_closing:
            return [Left()]
        return [] if self._is_away else self._join(now)
