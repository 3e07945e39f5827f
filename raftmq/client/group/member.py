"""State machine of a group member: join, sync, heartbeat, revoke, leave, and its timeouts. Pure.

Kafka: the rules of AbstractCoordinator and ConsumerCoordinator. `membership.py` states what holds
after every step.

    OUTSIDE --> JOINING --> SYNCING --> STABLE --+
                   ^  ^--------------------------+  a rebalance begins
                   +------- REVOKING <-----------+  ... once the program has finished
    any --> LEAVING --> OUTSIDE                     at once for static members
    any --> FENCED                                  after an error that no repetition resolves

Eager members give up all partitions before they join again. Cooperative ones keep them, give up
what the new plan assigns to others, and join once more to hand it over.
"""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from raftmq.client.group.effects import (
    AskCoordinator,
    Assign,
    Fail,
    ForgetCoordinator,
    Left,
    LossCause,
    Lost,
    Revoke,
    State,
)
from raftmq.client.group.member_requests import MemberQuestions
from raftmq.client.group.owned_partitions import OwnedPartitions
from raftmq.client.group.planning import Planning, decode_assignment
from raftmq.errors import (
    CoordinatorLoadInProgress,
    FencedInstanceId,
    IllegalGeneration,
    MemberIdRequired,
    RaftmqError,
    RebalanceInProgress,
    RemoteProtocolError,
    RequestTimedOut,
    UnknownMemberId,
    error_for,
)
from raftmq.rpc.backoff import Backoff, Pauses
from raftmq.wire.bodies import ABSENT
from raftmq.wire.messages.groups import Heartbeat, JoinGroup, JoinGroupReply, SyncGroupReply

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.effects import Effect, GroupRequest
    from raftmq.client.group.member_options import MemberOptions
    from raftmq.wire.messages.groups import (
        HeartbeatReply,
        LeaveGroupReply,
    )

    Reply: TypeAlias = JoinGroupReply | SyncGroupReply | HeartbeatReply | LeaveGroupReply


# -- Requests -------------------------------------------------------------------------------------
# The requests of a member to its coordinator that are in flight, and when the next is due. Pure.
#
# Two at a time at most: a heartbeat, and one step of joining or leaving. Answers to any other, such
# as a step that was repeated, are dropped. Pauses grow while requests fail. Each JoinGroup has a
# number, the token: of two the coordinator counts the later one, whichever arrives first.


# 1 s at most, so that a member is back soon after its coordinator is
PAUSES = Pauses(seconds_min=0.05, seconds_max=1.0)


class OutstandingRequest(NamedTuple):
    """A request in flight. `step`, of a heartbeat: the step in flight when it was sent, if any."""

    token: int
    request: GroupRequest
    sent_at: float
    deadline: float
    step: GroupRequest | None = None


class Requests:
    """`step`: of joining or leaving; `beat`: heartbeat in flight; `step_at`, `beat_at`: when to
    send the next if none is in flight, math.inf: not at all.
    """

    def __init__(self, random: Random) -> None:
        self._tokens = count(1)
        self._step_pauses, self._beat_pauses = Backoff(random, PAUSES), Backoff(random, PAUSES)
        self.step: OutstandingRequest | None = None
        self.beat: OutstandingRequest | None = None
        self.step_at = self.beat_at = math.inf

    def ask(self, request: GroupRequest, *, now: float, seconds_max: float) -> AskCoordinator:
        """Send a request: a step replaces the step before, a heartbeat the last heartbeat."""
        step = self.step.request if self.step is not None else None
        token = next(self._tokens)
        if isinstance(request, JoinGroup):  # the coordinator orders joins by it
            request = msgspec.structs.replace(request, number=token)
        asked = OutstandingRequest(token, request, now, now + seconds_max, step)
        if isinstance(request, Heartbeat):
            self.beat, self.beat_at = asked, math.inf
        else:
            self.step, self.step_at = asked, math.inf
        return AskCoordinator(asked.token, request, asked.deadline)

    def take(self, token: int) -> OutstandingRequest | None:
        """The request that this answers, which is not in flight any more. None: an outdated
        answer.
        """
        for asked in (self.step, self.beat):
            if asked is not None and asked.token == token:
                if asked is self.step:
                    self.step = None
                else:
                    self.beat = None
                return asked
        return None

    def expects(self, token: int) -> bool:
        return any(asked is not None and asked.token == token for asked in (self.step, self.beat))

    def overdue(self, now: float) -> list[int]:
        """Tokens of requests whose deadline has passed."""
        out = [asked for asked in (self.step, self.beat) if asked is not None]
        return [asked.token for asked in out if asked.deadline <= now]

    def repeat_step(self, *, now: float) -> None:
        """Send it once more, after a pause."""
        self.step, self.step_at = None, now + self._step_pauses.next_seconds()

    def repeat_beat(self, *, now: float) -> None:
        self.beat, self.beat_at = None, now + self._beat_pauses.next_seconds()

    def beat_next(self, at: float) -> None:
        """The last heartbeat was answered."""
        self.beat, self.beat_at = None, at
        self._beat_pauses.reset()

    def on_progress(self) -> None:
        """Joining has succeeded."""
        self._step_pauses.reset()

    def drop_step(self) -> None:
        self.step, self.step_at = None, math.inf

    def drop_all(self) -> None:
        self.drop_step()
        self.beat, self.beat_at = None, math.inf

    @property
    def look_at(self) -> float:
        """When the next of these is due."""
        out = [asked.deadline for asked in (self.step, self.beat) if asked is not None]
        return min(self.step_at, self.beat_at, *out, math.inf)


# -- Session --------------------------------------------------------------------------------------
# Until when a member may assume that its partitions are its own. Pure.
#
# A coordinator reassigns them once it has received nothing for the session timeout, or once it has
# waited for the member for the rebalance timeout. Its clocks start when it receives, ours when the
# request was sent: so ours end first.
#
# !    member        send --------------------- session timeout -----| stops reading
# !    coordinator          receive ----------- session timeout ----------| reassigns


class MemberSession:
    """`heard_at`: when the last request was sent that the coordinator has answered as of a member.
    `settled_at`: up to then at least the group did not wait for this member.
    """

    def __init__(self, *, session_seconds: float, rebalance_seconds: float) -> None:
        self._session_seconds, self._rebalance_seconds = session_seconds, rebalance_seconds
        self.heard_at = self.settled_at = -math.inf

    def hear(self, sent_at: float, *, is_settled: bool) -> None:
        """The coordinator has answered a request that was sent at `sent_at`."""
        self.heard_at = max(self.heard_at, sent_at)
        if is_settled:
            self.settled_at = max(self.settled_at, sent_at)

    @property
    def ends_at(self) -> float:
        """From then on other members may have been given the partitions."""
        return min(self.heard_at + self._session_seconds, self.rejoin_by)

    @property
    def rejoin_by(self) -> float:
        """If a rebalance has begun, the coordinator waits at least until then."""
        return self.settled_at + self._rebalance_seconds


# -- Verdicts -------------------------------------------------------------------------------------
# Errors in answers, and what they mean for the coordinator's identity. Pure.


# Errors that say something of the member, independent of its request.
VERDICTS = (RebalanceInProgress, IllegalGeneration, UnknownMemberId, FencedInstanceId)


def error_in(answer: Reply | RaftmqError) -> RaftmqError | None:
    if isinstance(answer, RaftmqError):
        return answer
    return error_for(answer.error, answer.message) if answer.error else None


def doubts(error: RaftmqError) -> list[Effect]:
    """The effect of looking up the coordinator again, unless the error comes from the right one."""
    is_there = isinstance(error, CoordinatorLoadInProgress | RebalanceInProgress)
    return [] if is_there else [ForgetCoordinator(error)]


# -- Member ---------------------------------------------------------------------------------------


# For the network, beyond the time that the coordinator may wait for other members
ANSWER_SECONDS = 5.0
LEAVE_SECONDS_MAX = 5.0  # then the session timeout ends the membership anyway


class MemberRules:
    """The rules of one member.

    Attributes:
        busy_since: when the program got the records that it works on; None: it waits for records,
            or is in a `processing` block.
        is_closing: it leaves for good.
    """

    def __init__(self, options: MemberOptions, topics: Iterable[str], random: Random) -> None:
        self.state = State.OUTSIDE
        self.member_id, self.generation, self.protocol = "", ABSENT, ""
        self.topics = tuple(sorted(set(topics)))
        self.owned_partitions = OwnedPartitions(is_cooperative=options.is_cooperative)
        self.session = MemberSession(
            session_seconds=options.session_seconds, rebalance_seconds=options.rebalance_seconds
        )
        self.requests = Requests(random)
        self.planning = Planning(rebalance_seconds=options.rebalance_seconds)
        self.busy_since: float | None = None
        self.is_closing = self._is_away = False
        self._options, self._questions = options, MemberQuestions(options)
        self._assignors = {assignor.name: assignor for assignor in options.assignors}
        self._joined_topics = self.topics
        self._leave_by = math.inf

    # -- joining ---------------------------------------------------------------------------

    def join(self, now: float) -> list[Effect]:
        self.state, self._joined_topics = State.JOINING, self.topics
        self.planning.end()
        return [self._ask_step(now)]

    def maybe_rejoin(self, now: float) -> list[Effect]:
        """Join again if the subscription, or the partition counts that the leader planned with,
        have changed.
        """
        is_other = self.topics != self._joined_topics
        if self.state is State.JOINING and is_other:
            return self.join(now)
        # Other states join anyway.
        if self.state is State.STABLE and (is_other or self.planning.is_outdated):
            return self._rejoin(now)
        return []

    def on_counts(self, now: float) -> list[Effect]:
        """Partition counts have come."""
        return self._maybe_plan(now) or self.maybe_rejoin(now)

    def on_answer(
        self,
        asked: OutstandingRequest,
        answer: Reply | RaftmqError,
        error: RaftmqError | None,
        now: float,
    ) -> list[Effect]:
        """1. A heartbeat. 2. Leaving. 3. An error. 4. and 5. The next step of joining."""
        if isinstance(asked.request, Heartbeat):
            return self._on_heartbeat(asked, error, now)
        if self.state is State.LEAVING:  # nothing else matters any more
            return self._on_leave_answered(error, now)
        if error is not None:
            return self._on_step_failed(answer, error, now)
        if isinstance(answer, JoinGroupReply):
            return self._on_joined(answer, now)
        assert isinstance(answer, SyncGroupReply), f"{type(answer).__name__} to a step"
        return self._on_synced(answer, now)

    def _rejoin(self, now: float) -> list[Effect]:
        given_up = self.owned_partitions.to_give_up(self.topics)
        return self._revoke(given_up, now) if given_up else self.join(now)

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

    def _on_step_failed(
        self, answer: Reply | RaftmqError, error: RaftmqError, now: float
    ) -> list[Effect]:
        """1. The id to join with. 2. and 3. Joining begins anew. 4. A repetition. 5. A fatal
        error.
        """
        if isinstance(error, MemberIdRequired) and isinstance(answer, JoinGroupReply):
            self.member_id = answer.member_id
            return [self._ask_step(now)]
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
        if not reply.member_id or reply.generation < 0 or reply.protocol not in self._assignors:
            what = f"generation {reply.generation}, assignor {reply.protocol!r}"
            problem = f"JoinGroup of member {reply.member_id!r} was answered with {what}"
            return self._on_step_failed(reply, RemoteProtocolError(problem), now)
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
        after = self._rejoin(now) if assigned.is_awaited else self.maybe_rejoin(now)
        return [*effects, *after]

    # -- staying ---------------------------------------------------------------------------

    def learn(self, asked: OutstandingRequest, error: RaftmqError | None) -> None:
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

    def on_verdict(self, error: RaftmqError, now: float) -> list[Effect]:
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

    def tick(self, now: float) -> list[Effect]:
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
    def look_at(self) -> float:
        """When something is due next."""
        return min(
            self.requests.look_at,
            self.owned_partitions.revoke_by,
            self.session.ends_at if self.owned_partitions.held else math.inf,
            self.planning.plan_by,
            self._leave_by,
            self._poll_by,
        )

    @property
    def _poll_by(self) -> float:
        """When the program has to ask for records at the latest (max_poll_interval_ms)."""
        is_out = self.state in (State.OUTSIDE, State.LEAVING, State.FENCED)
        if self.busy_since is None or is_out or self.is_closing:
            return math.inf
        return self.busy_since + self._options.poll_seconds_max

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
        return [] if error is None else self.on_verdict(error, now)

    def _on_overdue(self, token: int, now: float) -> list[Effect]:
        asked = self.requests.take(token)
        if asked is None:  # handling the one before has dropped it
            return []
        what = f"{type(asked.request).__name__} of group {self._options.group!r}"
        error = RequestTimedOut(f"{what}: no answer in {now - asked.sent_at:.1f} s")
        return self.on_answer(asked, error, error, now)

    def _beat(self, now: float) -> AskCoordinator:
        assert self.generation != ABSENT, "a heartbeat of no generation"
        request = self._questions.beat(self.member_id, self.generation)
        return self.requests.ask(request, now=now, seconds_max=self._options.session_seconds / 3)

    # -- giving up -------------------------------------------------------------------------

    def on_revoked(self, token: int, now: float) -> list[Effect]:
        if not self.owned_partitions.end_revoking(token):  # an earlier revocation
            return []
        return self._depart(now) if self.is_closing else self.join(now)

    def maybe_lose(self, now: float) -> list[Effect]:
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
        after = self._depart(now) if self.is_closing else self.join(now)
        return [Lost(lost, LossCause.NOT_FINISHED), *after]

    def _lose(self, now: float, *, keeps_id: bool, is_hurried: bool = True) -> list[Effect]:
        """Other members may own the partitions by now. Join anew, at once if `is_hurried`."""
        lost = self._drop_all()
        if not keeps_id:  # the coordinator does not know it any more
            self.member_id = ""
        if self.is_closing:
            return [*lost, *self._depart(now)]
        if is_hurried:
            return [*lost, *self.join(now)]
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

    def close(self, now: float) -> list[Effect]:
        """1. It is out. 2. It is leaving already. 3. and 4. Leave, after a revocation if it has
        partitions.
        """
        if self.state in (State.OUTSIDE, State.FENCED):  # never joined, or ended
            return [Left()]
        held = self.owned_partitions.held
        if self.state is State.LEAVING or (held and held == self.owned_partitions.revoking):
            return []
        return self._revoke(held, now) if held else self._depart(now)

    def come_back(self, now: float) -> list[Effect]:
        """The program asks for records again: join, if the member left because it did not."""
        was_away, self._is_away = self._is_away, False
        is_out = self.state is State.OUTSIDE and not self.is_closing
        return self.join(now) if was_away and is_out else []

    def _step_out(self, now: float) -> list[Effect]:
        """The program did not ask for records in time: leave, so that other members get its
        partitions.
        """
        self._is_away, self.busy_since = True, None
        lost = self._drop_all(LossCause.NOT_ASKED)
        return [*lost, *self._depart(now)]

    def _depart(self, now: float) -> list[Effect]:
        """A static member sends nothing: it may be back within its session."""
        self._drop_all()
        if self._options.is_static or not self.member_id:
            return self._on_left(now)
        self.state, self._leave_by = State.LEAVING, now + LEAVE_SECONDS_MAX
        return [self._ask_step(now)]

    def _on_leave_answered(self, error: RaftmqError | None, now: float) -> list[Effect]:
        if error is None or not error.retriable:  # e.g. it was removed already
            return self._on_left(now)
        self.requests.repeat_step(now=now)
        return doubts(error)

    def _on_left(self, now: float) -> list[Effect]:
        self._drop_all()
        self.state, self._leave_by = State.OUTSIDE, math.inf
        if not self._options.is_static:  # a static member's id stays valid
            self.member_id = ""
        if self.is_closing:
            return [Left()]
        return [] if self._is_away else self.join(now)
