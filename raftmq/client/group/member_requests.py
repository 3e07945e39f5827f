"""A group member's requests: built, and in flight; its session; what errors say of it. Pure.

`MemberQuestions` builds them from the options and the state that the caller passes. `Requests` owns
which are in flight, and when the next is due; `MemberSession` until when the partitions are surely
this member's.
"""

from __future__ import annotations

import math
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from raftmq.client.group.effects import AskCoordinator, ForgetCoordinator
from raftmq.client.group.planning import encode_subscription
from raftmq.errors import (
    CoordinatorLoadInProgress,
    FencedInstanceId,
    IllegalGeneration,
    RaftmqError,
    RebalanceInProgress,
    RemoteProtocolError,
    UnknownMemberId,
    UnsupportedVersion,
    error_for,
)
from raftmq.rpc.backoff import Backoff, Pauses
from raftmq.wire.messages.groups import (
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    Protocol,
    SyncGroup,
)
from raftmq.wire.tag_clauses import pack_filter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from raftmq.client.group.assignors.assignor import Key
    from raftmq.client.group.effects import Effect, GroupRequest
    from raftmq.client.group.member_options import MemberOptions
    from raftmq.wire.messages.groups import (
        HeartbeatReply,
        JoinGroupReply,
        LeaveGroupReply,
        MemberAssignment,
        SyncGroupReply,
    )

    Reply: TypeAlias = JoinGroupReply | SyncGroupReply | HeartbeatReply | LeaveGroupReply


class MemberQuestions:
    """The requests of one member."""

    def __init__(self, options: MemberOptions) -> None:
        self._options = options
        self._names = [assignor.name for assignor in options.assignors]
        self._tags = pack_filter(options.tag_filter)

    def join(
        self, member_id: str, topics: Iterable[str], owned: Iterable[Key], generation: int
    ) -> JoinGroup:
        """JoinGroup with the partitions owned in `generation`. All assignors get the same
        subscription.
        """
        options = self._options
        subscription = encode_subscription(
            topics,
            owned,
            generation=generation,
            is_holding=options.is_cooperative,
            user_data=options.user_data,
            rack=options.rack,
        )
        return JoinGroup(
            options.group,
            member_id,
            tuple(Protocol(name, subscription) for name in self._names),
            session_timeout_ms=options.session_timeout_ms,
            rebalance_timeout_ms=options.longest_rebalance_ms,
            instance_id=options.group_instance_id,
            tags=self._tags,
        )

    def problem_of(self, reply: JoinGroupReply) -> RaftmqError | None:
        """Why the answer to JoinGroup, which is no error, is of no use."""
        if not reply.member_id or reply.generation < 0 or reply.protocol not in self._names:
            what = f"generation {reply.generation}, assignor {reply.protocol!r}"
            return RemoteProtocolError(
                f"JoinGroup of member {reply.member_id!r} was answered with {what}"
            )
        # Members with other filters may be in the group, and commit over what this one wants.
        if self._tags and not reply.keeps_filter:
            return UnsupportedVersion(
                f"group {self._options.group}: its coordinator is a broker of a version that knows"
                " no filters of tags: upgrade all brokers, or read without tags"
            )
        return None

    def sync(
        self, member_id: str, generation: int, protocol: str, plan: tuple[MemberAssignment, ...]
    ) -> SyncGroup:
        """SyncGroup; `plan`: empty, except from the leader."""
        options = self._options
        return SyncGroup(
            options.group, generation, member_id, options.group_instance_id, protocol, plan
        )

    def beat(self, member_id: str, generation: int) -> Heartbeat:
        options = self._options
        return Heartbeat(options.group, generation, member_id, options.group_instance_id)

    def leave(self, member_id: str) -> LeaveGroup:
        options = self._options
        member = LeavingMember(member_id, options.group_instance_id, "the consumer has ended")
        return LeaveGroup(options.group, (member,))


# -- Requests in flight ---------------------------------------------------------------------------
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


def asks_for_id(request: GroupRequest) -> bool:
    """A group waits for an id that was given out, until it is used, or left by. Static members do
    not leave.
    """
    if not isinstance(request, JoinGroup):
        return False
    return not request.member_id and request.instance_id is None


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
    def first_join(self) -> OutstandingRequest | None:
        """A JoinGroup in flight whose answer names the member."""
        return self.step if self.step is not None and asks_for_id(self.step.request) else None

    @property
    def look_at(self) -> float:
        """When the next of these is due."""
        out = [asked.deadline for asked in (self.step, self.beat) if asked is not None]
        return min(self.step_at, self.beat_at, *out, math.inf)


# -- Session --------------------------------------------------------------------------------------
# Until when a member may assume that its partitions are its own.
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
# Errors in answers, and what they mean for the coordinator's identity.


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
