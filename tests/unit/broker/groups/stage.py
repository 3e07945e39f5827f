"""One group on a stage: members act by name, the clock is moved by hand, every answer is noted.

After every input the group's invariants are checked, and so is that nobody is answered twice.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from raftmq.broker.groups.group import Group
from raftmq.broker.groups.phases import AnswerRequest, GroupSettings, SavePlan
from raftmq.errors import ErrorCode
from raftmq.metadata.image import GroupState
from raftmq.tag_filter import parse
from raftmq.wire.messages.groups import (
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeaveGroupReply,
    LeavingMember,
    MemberAssignment,
    Protocol,
    SyncGroup,
    SyncGroupReply,
)
from raftmq.wire.tag_clauses import pack_filter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.broker.groups.phases import GroupEffect
    from raftmq.errors import RaftmqError
    from raftmq.wire.bodies import Body

BodyT = TypeVar("BodyT", bound="Body")
SESSION_SECONDS, REBALANCE_SECONDS, DELAY_SECONDS = 10.0, 60.0, 3.0
RANGE = {"range": b""}


class Stage:
    """Attributes:
    answers: what was told, by token; a token is a number.
    saves: what is on its way into the metadata.
    """

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings()
        self.group, self.now = Group("billing", self.settings, slot_epoch=1), 0.0
        self.answers: dict[object, Body] = {}
        self.saves: deque[SavePlan] = deque()
        self._saved: list[SavePlan] = []
        self._slot_epoch = 1
        self._token = self._member = 0
        self._open: set[object] = set()

    # -- requests --------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        protocols: Mapping[str, bytes] = RANGE,
        *,
        instance: str | None = None,
        session: float = SESSION_SECONDS,
        rebalance: float = REBALANCE_SECONDS,
        protocol_type: str = "consumer",
        number: int = 0,
        tags: str = "",
    ) -> int:
        request = JoinGroup(
            "billing",
            member_id,
            tuple(Protocol(name, subscription) for name, subscription in protocols.items()),
            round(session * 1000),
            round(rebalance * 1000),
            instance,
            protocol_type,
            number,
            tags=pack_filter(parse(tags) if tags else None),
        )
        self._member += 1
        token = self._new_token()
        effects = self.group.on_join(
            request,
            token,
            client_id="client",
            host="host",
            new_member_id=f"m{self._member}",
            now=self.now,
        )
        self.perform(effects)
        return token

    def sync(
        self,
        member_id: str,
        plan: Mapping[str, bytes] | None = None,
        *,
        generation: int | None = None,
        instance: str | None = None,
        protocol: str = "",
    ) -> int:
        generation = self.group.generation if generation is None else generation
        assignments = tuple(MemberAssignment(who, what) for who, what in (plan or {}).items())
        request = SyncGroup("billing", generation, member_id, instance, protocol, assignments)
        token = self._new_token()
        self.perform(self.group.on_sync(request, token, now=self.now))
        return token

    def heartbeat(
        self, member_id: str, *, generation: int | None = None, instance: str | None = None
    ) -> int:
        """The error that it is answered."""
        generation = self.group.generation if generation is None else generation
        token = self._new_token()
        request = Heartbeat("billing", generation, member_id, instance)
        self.perform(self.group.on_heartbeat(request, token, now=self.now))
        return self.told(token, HeartbeatReply).error

    def leave(self, *leaving: LeavingMember) -> list[int]:
        token = self._new_token()
        self.perform(self.group.on_leave(LeaveGroup("billing", leaving), token, now=self.now))
        return [member.error for member in self.told(token, LeaveGroupReply).members]

    def commit(
        self, member_id: str, generation: int, instance: str | None = None, number: int = 0
    ) -> int:
        refusal = self.group.commit_refusal(member_id, generation, instance, number)
        if refusal is None:
            self.group.note_commit(member_id, number)
        return ErrorCode.NONE if refusal is None else refusal.code

    # -- what else happens -----------------------------------------------------------------

    def wait(self, seconds: float, *alive: str) -> None:
        """Time passes; who is `alive` sends heartbeats, whatever they are answered."""
        end = self.now + seconds
        beat = self.now
        while self.now < end:
            beat = min(beat + 1.0, end) if alive else end
            while self.group.deadline <= beat:
                self.now = max(self.now, self.group.deadline)
                self.perform(self.group.on_tick(self.now))
            self.now = beat
            for member_id in alive:
                self.heartbeat(member_id)

    def save(self) -> SavePlan:
        """The oldest save arrives."""
        save = self.saves.popleft()
        self._saved.append(save)
        self.perform(self.group.on_saved(save, now=self.now))
        return save

    def first_save(self) -> SavePlan:
        return self._saved[0]

    def fail(self, error: RaftmqError) -> None:
        save = self.saves.popleft()
        self.perform(self.group.on_save_failed(save, error, now=self.now))

    def forget(self, token: int) -> None:
        self._open.discard(token)
        self.group.forget(token, now=self.now)
        self.group.check()

    def move(self, save: SavePlan) -> None:
        """Another coordinator takes over from what was saved last."""
        command = save.command(slot_epoch=2, changed_at_ms=0)
        state = GroupState(
            command.generation,
            command.protocol_type,
            command.protocol,
            command.leader,
            command.members,
            tags=command.tags,
        )
        self._slot_epoch += 1
        self.group = Group.loaded(
            "billing", state, self.settings, now=self.now, slot_epoch=self._slot_epoch
        )
        self.group.check()
        self.saves.clear()
        self._open.clear()

    def perform(self, effects: list[GroupEffect]) -> None:
        for effect in effects:
            if isinstance(effect, AnswerRequest):
                self._open.remove(effect.token)
                self.answers[effect.token] = effect.body
            else:
                self.saves.append(effect)
        self.group.check()

    def _new_token(self) -> int:
        self._token += 1
        self._open.add(self._token)
        return self._token

    # -- what was told ---------------------------------------------------------------------

    def told(self, token: int, kind: type[BodyT]) -> BodyT:
        body = self.answers[token]
        assert isinstance(body, kind), f"{body}"
        return body

    def joined(self, token: int) -> JoinGroupReply:
        return self.told(token, JoinGroupReply)

    def part(self, token: int) -> bytes:
        """What a member was given."""
        reply = self.told(token, SyncGroupReply)
        assert reply.error == ErrorCode.NONE, f"{reply}"
        return reply.assignment

    def error(self, token: int) -> int:
        body = self.answers[token]
        assert isinstance(body, JoinGroupReply | SyncGroupReply), f"{body}"
        return body.error

    def is_waiting(self, token: int) -> bool:
        return token not in self.answers

    # -- whole scenes ----------------------------------------------------------------------

    def enter(self, protocols: Mapping[str, bytes] = RANGE, **facts: Any) -> tuple[str, int]:
        """A dynamic member joins, in its two steps: its id, and the token of the second one."""
        reply = self.joined(self.join("", protocols, **facts))
        assert reply.error == ErrorCode.MEMBER_ID_REQUIRED, f"{reply}"
        return reply.member_id, self.join(reply.member_id, protocols, **facts)

    def given(self, instance: str, **facts: Any) -> str:
        """A process of a static member takes its first step: the id that it is given."""
        reply = self.joined(self.join(instance=instance, **facts))
        assert reply.error == ErrorCode.MEMBER_ID_REQUIRED, f"{reply}"
        return reply.member_id

    def come(self, instance: str, protocols: Mapping[str, bytes] = RANGE, **facts: Any) -> int:
        """It takes both of its steps: the token of the second one."""
        return self.join(self.given(instance, **facts), protocols, instance=instance, **facts)

    def gather(self, count: int, protocols: Mapping[str, bytes] = RANGE) -> list[str]:
        """New members of an empty group, as far as their common generation. The first one leads."""
        entered = [self.enter(protocols) for _ in range(count)]
        self.wait(2 * DELAY_SECONDS)
        assert all(not self.joined(token).error for _, token in entered)
        return [member_id for member_id, _ in entered]

    def settle(self, *members: str) -> SavePlan:
        """All sync, the first one leads: everybody gets its own name."""
        tokens = [self.sync(member) for member in members[1:]]
        tokens.append(self.sync(members[0], {member: member.encode() for member in members}))
        save = self.save()
        assert all(self.part(token) for token in tokens)
        assert self.group.state == "Stable"
        return save

    def stable(self, count: int, protocols: Mapping[str, bytes] = RANGE) -> list[str]:
        members = self.gather(count, protocols)
        self.settle(*members)
        return members
