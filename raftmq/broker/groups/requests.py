"""What members ask of the coordinator of their group: to join, to have a part, to stay, to leave.

Owns these requests from the connection to the rules of the group. They are handled in the order in
which they arrive, without waiting; an answer comes when the rules say so.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio

from raftmq.broker.groups.checks import check_name, check_session_timeout, told
from raftmq.errors import RaftmqError, UnknownMemberId
from raftmq.rpc.reply import PendingReply, Reply
from raftmq.wire.apis import ApiKey
from raftmq.wire.messages.groups import (
    HeartbeatReply,
    JoinGroupReply,
    LeaveGroupReply,
    SyncGroupReply,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from random import Random

    from raftmq.broker.groups.coordinator import Coordinator
    from raftmq.broker.groups.effects import GroupEffect
    from raftmq.broker.groups.slots import Hosted, OwnedSlot
    from raftmq.rpc.context import RequestContext
    from raftmq.rpc.service import Handler
    from raftmq.wire.header import Buffer
    from raftmq.wire.messages.groups import Heartbeat, JoinGroup, LeaveGroup, SyncGroup

MEMBER_ID_BYTES = 16  # drawn by chance; the client's name stands in front of it, for people
CONFIRM_SECONDS_MAX = 10.0  # for a look under way, and the one that follows it
CLIENT_CHARS_MAX = 150  # of that name: the rules of the group put more in front


class MemberRequests:
    """`chance` draws the ids of members."""

    def __init__(self, coordinator: Coordinator, chance: Random) -> None:
        self._coordinator, self._chance = coordinator, chance

    def handlers(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.JOIN_GROUP: self.join,
            ApiKey.SYNC_GROUP: self.sync,
            ApiKey.HEARTBEAT: self.heartbeat,
            ApiKey.LEAVE_GROUP: self.leave,
        }

    def join(
        self, context: RequestContext, request: JoinGroup, _payload: Buffer
    ) -> Reply | PendingReply | Awaitable[Reply]:
        if request.instance_id is not None and not request.member_id:
            return self._join_confirmed(context, request)
        return self._join(context, request)

    async def _join_confirmed(self, context: RequestContext, request: JoinGroup) -> Reply:
        """Of two processes of a static member the one that was given its id earlier is fenced. So
        nobody gives one out who was deposed and does not know: it would look older than that of a
        process which has ended since, and the only one that there is would be fenced.
        """
        try:
            check_name(request.group)
            slot = self._coordinator.slots.find(request.group, request.slot_epoch)
            timeout_ms, rules = request.session_timeout_ms, self._coordinator.settings.rules
            check_session_timeout(request.group, timeout_ms, rules)
            seconds = min(timeout_ms / 1000, CONFIRM_SECONDS_MAX)
            await self._coordinator.confirm(slot, request.group, seconds=seconds)
        except RaftmqError as error:
            return Reply(JoinGroupReply(**told(error)))
        answer = self._join(context, request)
        if isinstance(answer, Reply):
            return answer
        assert isinstance(answer.outcome, Reply), "whoever has no id yet is answered at once"
        return answer.outcome

    def _join(self, context: RequestContext, request: JoinGroup) -> Reply | PendingReply:
        try:
            check_name(request.group)
            slot = self._coordinator.slots.find(request.group, request.slot_epoch)
            hosted = self._coordinator.joined_group(slot, request.group)
        except RaftmqError as error:
            return Reply(JoinGroupReply(**told(error), member_id=request.member_id))
        pending = self._parked(hosted)
        effects = hosted.group.on_join(
            request,
            pending,
            client_id=context.client_id,
            host=context.peer,
            new_member_id=self._new_member_id(context.client_id),
            now=trio.current_time(),
        )
        self._coordinator.perform(slot, hosted, effects)
        return pending

    def sync(
        self, _context: RequestContext, request: SyncGroup, _payload: Buffer
    ) -> Reply | PendingReply:
        try:
            slot, hosted = self._find(request.group, request.slot_epoch)
        except RaftmqError as error:
            return Reply(SyncGroupReply(**told(error)))
        pending = self._parked(hosted)
        effects = hosted.group.on_sync(request, pending, now=trio.current_time())
        return self._performed(slot, hosted, effects, pending)

    def heartbeat(
        self, _context: RequestContext, request: Heartbeat, _payload: Buffer
    ) -> Reply | PendingReply:
        try:
            slot, hosted = self._find(request.group, request.slot_epoch)
        except RaftmqError as error:
            return Reply(HeartbeatReply(**told(error)))
        pending = PendingReply()
        effects = hosted.group.on_heartbeat(request, pending, now=trio.current_time())
        return self._performed(slot, hosted, effects, pending)

    def leave(
        self, _context: RequestContext, request: LeaveGroup, _payload: Buffer
    ) -> Reply | PendingReply:
        try:
            slot, hosted = self._find(request.group, request.slot_epoch)
        except RaftmqError as error:
            return Reply(LeaveGroupReply(**told(error)))
        pending = PendingReply()
        effects = hosted.group.on_leave(request, pending, now=trio.current_time())
        return self._performed(slot, hosted, effects, pending)

    def _find(self, name: str, slot_epoch: int) -> tuple[OwnedSlot, Hosted]:
        """
        Raises:
            NotCoordinator, CoordinatorLoadInProgress: see `Slots.find`.
            UnknownMemberId: nobody is in the group.
        """
        check_name(name)
        slot = self._coordinator.slots.find(name, slot_epoch)
        hosted = slot.groups.get(name)
        if hosted is None:
            raise UnknownMemberId(f"group {name} has no members: join it")
        return slot, hosted

    def _performed(
        self, slot: OwnedSlot, hosted: Hosted, effects: list[GroupEffect], pending: PendingReply
    ) -> PendingReply:
        self._coordinator.perform(slot, hosted, effects)
        return pending

    def _parked(self, hosted: Hosted) -> PendingReply:
        """An answer that may take minutes; the group is told if nobody waits for it any more."""
        pending = PendingReply()
        pending.on_dropped = partial(self._forget, hosted, pending)
        return pending

    def _forget(self, hosted: Hosted, pending: PendingReply) -> None:
        hosted.group.forget(pending, now=trio.current_time())

    def _new_member_id(self, client_id: str) -> str:
        drawn = self._chance.randbytes(MEMBER_ID_BYTES).hex()
        return f"{client_id[:CLIENT_CHARS_MAX]}-{drawn}" if client_id else drawn
