"""A coordinator as members meet it: the classic protocol in its simplest form, for one group.

Answers go to `answers` as pairs of token and body. A plan is saved once somebody calls `on_saved`;
who takes over (`taken_over`) knows what was saved, and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from raftmq.errors import ErrorCode
from raftmq.wire.messages.groups import (
    Heartbeat,
    HeartbeatReply,
    JoinedMember,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeaveGroupReply,
    MemberLeft,
    SyncGroup,
    SyncGroupReply,
    interest_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from raftmq.wire.messages.groups import Interest, LeavingMember

GATHER_SECONDS = 0.5
REPLIES = {
    JoinGroup: JoinGroupReply,
    SyncGroup: SyncGroupReply,
    Heartbeat: HeartbeatReply,
    LeaveGroup: LeaveGroupReply,
}


class Phase(Enum):
    EMPTY = auto()
    PREPARING = auto()
    COMPLETING = auto()
    STABLE = auto()


@dataclass
class Known:
    """A member, and under which tokens it waits."""

    join: JoinGroup
    heard_at: float
    joining: object = None
    syncing: object = None
    assignment: bytes = b""
    has_synced: bool = False

    @property
    def protocols(self) -> dict[str, bytes]:
        return {each.name: each.subscription for each in self.join.protocols}

    @property
    def is_waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None


class CoordinatorModel:
    def __init__(self, ids: Iterator[str]) -> None:
        self._ids = ids
        self.answers: list[tuple[object, Any]] = []
        self.members: dict[str, Known] = {}
        self.phase, self.generation = Phase.EMPTY, 0
        self.leader = self.protocol = ""
        self._pending: dict[str, str | None] = {}
        self._due = self._gathered_at = math.inf
        self.plan: dict[str, bytes] | None = None  # to be saved
        self._saved: tuple[dict[str, Known], int, str, str] = ({}, 0, "", "")

    def taken_over(self, now: float) -> CoordinatorModel:
        other = CoordinatorModel(self._ids)
        members, other.generation, other.leader, other.protocol = self._saved
        other.members = {
            name: replace(known, heard_at=now, joining=None, syncing=None)
            for name, known in members.items()
        }
        other.phase = Phase.STABLE if members else Phase.EMPTY
        other._save()
        return other

    def on_request(self, request: Any, token: object, now: float) -> None:
        match request:
            case JoinGroup():
                self._on_join(request, token, now)
            case SyncGroup():
                self._on_sync(request, token, now)
            case Heartbeat():
                if self._is_known(request, token, now):
                    is_over = self.phase is Phase.PREPARING
                    error = ErrorCode.REBALANCE_IN_PROGRESS if is_over else ErrorCode.NONE
                    self.answers.append((token, HeartbeatReply(error)))
            case LeaveGroup():
                left = tuple(self._left(one) for one in request.members)
                self.answers.append((token, LeaveGroupReply(members=left)))
                self._put_out([one.member_id for one in request.members], now)

    def forget(self, is_gone: Any, now: float) -> None:
        """Connections have ended: whoever waited on them does not any more."""
        for known in self.members.values():
            if known.is_waiting and is_gone(known.joining or known.syncing):
                known.joining = known.syncing = None
                known.heard_at = now

    def tick(self, now: float) -> None:
        silent = [
            name
            for name, known in self.members.items()
            if not known.is_waiting and now >= known.heard_at + known.join.session_timeout_ms / 1000
        ]
        self._put_out(silent, now)
        if now >= self._due:
            self._on_due(now)
        self._maybe_complete(now)

    def on_saved(self, now: float) -> None:
        """The plan stands: everybody gets a part."""
        assert self.plan is not None, "nothing is being saved"
        for name, known in self.members.items():
            known.assignment = self.plan.get(name, b"")
        self.plan, self.phase = None, Phase.STABLE
        self._save()
        for name in self.members:
            self._tell_synced(name, now)

    # -- inside ----------------------------------------------------------------------------

    def _on_join(self, request: JoinGroup, token: object, now: float) -> None:
        name, instance = request.member_id, request.instance_id
        namesake = next(
            (each for each, one in self.members.items() if instance == one.join.instance_id), None
        )
        if instance is None:
            namesake = None
        if not name:
            self._pending[name := next(self._ids)] = instance
            self._refuse(JoinGroup, token, ErrorCode.MEMBER_ID_REQUIRED, member_id=name)
        elif name in self._pending and namesake is not None:
            self._use(name)
            self._replace(namesake, name, request, token, now)
        elif namesake not in (None, name):
            self._refuse(JoinGroup, token, ErrorCode.FENCED_INSTANCE_ID)
        elif name in self._pending:
            self._use(name)
            self._prepare(now)
            self.members[name] = Known(request, now, joining=token)
        elif name not in self.members:
            self._refuse(JoinGroup, token, ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            self._join_again(name, request, token, now)
        self._maybe_complete(now)

    def _left(self, leaving: LeavingMember) -> MemberLeft:
        """An id that was given out and not used is void."""
        name = leaving.member_id
        is_known = name in self.members or name in self._pending
        self._pending.pop(name, None)
        error = ErrorCode.NONE if is_known else ErrorCode.UNKNOWN_MEMBER_ID
        return MemberLeft(leaving.member_id, leaving.instance_id, error)

    def _use(self, name: str) -> None:
        """What was given out to its instance before is void."""
        given = list(self._pending)
        instance = self._pending.pop(name)
        for one in given[: given.index(name)]:
            if instance is not None and self._pending[one] == instance:
                del self._pending[one]

    def _join_again(self, name: str, request: JoinGroup, token: object, now: float) -> None:
        known = self.members[name]
        is_other = request.protocols != known.join.protocols
        known.join, known.heard_at = request, now
        is_wish = self.phase is Phase.STABLE and name == self.leader
        if self.phase is Phase.PREPARING or is_other or is_wish:
            self._prepare(now)
            known.joining = token
        else:
            known.joining, known.has_synced = token, False
            self._tell_joined(name, now)

    def _replace(self, old: str, new: str, request: JoinGroup, token: object, now: float) -> None:
        """A static member is back as another process: only its id changes, if all is quiet."""
        known = self.members.pop(old)
        for each, kind in ((known.joining, JoinGroup), (known.syncing, SyncGroup)):
            if each is not None:
                self._refuse(kind, each, ErrorCode.FENCED_INSTANCE_ID)
        is_same = _interests(known.join) == _interests(request)
        known.joining, known.syncing, known.join, known.heard_at = token, None, request, now
        self.members[new] = known
        self.leader = new if self.leader == old else self.leader
        if self.phase is Phase.STABLE and is_same:
            self._save()
            self._tell_joined(new, now, must_sync_anew=False)
        else:
            self._prepare(now)

    def _on_sync(self, request: SyncGroup, token: object, now: float) -> None:
        name = request.member_id
        if not self._is_known(request, token, now):
            return
        if self.phase is Phase.PREPARING:
            self._refuse(SyncGroup, token, ErrorCode.REBALANCE_IN_PROGRESS)
            return
        self.members[name].syncing, self.members[name].has_synced = token, True
        if self.phase is Phase.STABLE:
            self._tell_synced(name, now)
        elif name == self.leader and self.plan is None:
            self.plan = {one.member_id: one.assignment for one in request.assignments}

    def _is_known(self, request: SyncGroup | Heartbeat, token: object, now: float) -> bool:
        known = self.members.get(request.member_id)
        kind = type(request)
        if known is None:
            instances = {one.join.instance_id for one in self.members.values()}
            is_replaced = request.instance_id is not None and request.instance_id in instances
            code = ErrorCode.FENCED_INSTANCE_ID if is_replaced else ErrorCode.UNKNOWN_MEMBER_ID
            self._refuse(kind, token, code)
            return False
        if request.generation != self.generation:
            self._refuse(kind, token, ErrorCode.ILLEGAL_GENERATION)
            return False
        known.heard_at = now
        return True

    def _prepare(self, now: float) -> None:
        if self.phase is Phase.PREPARING:
            return
        for known in self.members.values():
            if known.syncing is not None:
                self._refuse(SyncGroup, known.syncing, ErrorCode.REBALANCE_IN_PROGRESS)
                known.syncing, known.heard_at = None, now
        self._gathered_at = now + GATHER_SECONDS if self.phase is Phase.EMPTY else now
        self.phase, self.plan = Phase.PREPARING, None
        self._due = now + self._rebalance_seconds()

    def _rebalance_seconds(self) -> float:
        times = [one.join.rebalance_timeout_ms for one in self.members.values()]
        return max(times, default=60_000) / 1000

    def _maybe_complete(self, now: float) -> None:
        if self.phase is not Phase.PREPARING:
            return
        if not self.members:
            self.generation += 1
            self.phase, self.leader = Phase.EMPTY, ""
            self._save()
        elif now >= self._gathered_at and all(one.joining for one in self.members.values()):
            self._next_generation(now)

    def _next_generation(self, now: float) -> None:
        joined = [name for name, one in self.members.items() if one.joining is not None]
        self.generation += 1
        self.leader = self.leader if self.leader in joined else joined[0]
        known_to_all = set.intersection(*[set(one.protocols) for one in self.members.values()])
        self.protocol = next(
            each for each in self.members[self.leader].protocols if each in known_to_all
        )
        self.phase, self._due = Phase.COMPLETING, now + self._rebalance_seconds()
        for name, known in self.members.items():
            known.assignment, known.has_synced = b"", name not in joined
        for name in joined:
            self._tell_joined(name, now)

    def _on_due(self, now: float) -> None:
        """Who has not come is put out; static members stay until they are silent for too long."""
        self._due = math.inf
        if self.phase is Phase.PREPARING:
            late = [name for name, one in self.members.items() if one.joining is None]
            self._put_out([one for one in late if not self.members[one].join.instance_id], now)
            if self.phase is Phase.PREPARING and any(one.joining for one in self.members.values()):
                self._next_generation(now)
            elif self.phase is Phase.PREPARING:
                self._due = now + self._rebalance_seconds()
        else:
            self._put_out([name for name, one in self.members.items() if not one.has_synced], now)

    def _put_out(self, names: Iterable[str], now: float) -> None:
        gone = [self.members.pop(name) for name in names if name in self.members]
        for known in gone:
            for token, kind in ((known.joining, JoinGroup), (known.syncing, SyncGroup)):
                if token is not None:
                    self._refuse(kind, token, ErrorCode.UNKNOWN_MEMBER_ID)
        if gone:
            self._prepare(now)
            self._maybe_complete(now)

    def _tell_joined(self, name: str, now: float, *, must_sync_anew: bool = True) -> None:
        known = self.members[name]
        members = [
            JoinedMember(each, one.join.instance_id, one.protocols[self.protocol])
            for each, one in self.members.items()
        ]
        body = JoinGroupReply(
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            member_id=name,
            members=tuple(members) if name == self.leader else (),
            must_sync_anew=must_sync_anew,
            keeps_filter=True,
        )
        self.answers.append((known.joining, body))
        known.joining, known.heard_at = None, now

    def _tell_synced(self, name: str, now: float) -> None:
        known = self.members[name]
        if known.syncing is not None:
            body = SyncGroupReply(protocol=self.protocol, assignment=known.assignment)
            self.answers.append((known.syncing, body))
            known.syncing, known.heard_at = None, now

    def _refuse(self, kind: Any, token: object, code: ErrorCode, **fields: str) -> None:
        self.answers.append((token, REPLIES[kind](error=code, **fields)))

    def _save(self) -> None:
        members = {name: replace(known) for name, known in self.members.items()}
        self._saved = (members, self.generation, self.leader, self.protocol)


def _interests(join: JoinGroup) -> dict[str, Interest | None]:
    """Of what it says to each assignor, what does not change by itself."""
    return {each.name: interest_in(each.subscription) for each in join.protocols}
