"""The way to the broker that coordinates a group: found through any broker, again if it moves.

Owns who that is, as far as is known, and the loop in which a question to it is repeated. What a
repetition would do, the caller says (`RepeatEffect`).

Invariant: whatever changes something bears the slot epoch under which the broker that it is sent to
was found. So it takes effect there and then or never: not when it arrives late, and the slot has
been elsewhere. What deletes looks first, and bears what it has seen: when it arrives late it
deletes nothing that was committed since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import anyio
import msgspec

from raftmq.client.routing.attempts import milliseconds_left
from raftmq.errors import (
    CoordinatorNotAvailable,
    Disconnected,
    NotCoordinator,
    RaftmqError,
    RequestTimedOut,
    ServerError,
    Unreachable,
    error_for,
)
from raftmq.wire.messages.group_offsets import OffsetCommit, OffsetDelete, OffsetFetch
from raftmq.wire.messages.groups import (
    DeleteGroups,
    FindCoordinator,
    FindCoordinatorReply,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.routing.attempts import RepeatEffect
    from raftmq.client.routing.cluster import Cluster
    from raftmq.rpc.reply import Answer
    from raftmq.wire.bodies import Request
    from raftmq.wire.messages.group_offsets import OffsetFetchReply

FIND_SECONDS_MAX = 2.0  # for one broker's word on who coordinates: others may be asked
# Whoever answered so, or not at all, may not coordinate the group any more.
_DOUBTFUL = (
    CoordinatorNotAvailable,
    Disconnected,
    NotCoordinator,
    RequestTimedOut,
    Unreachable,
)

_CHANGES = (Heartbeat, JoinGroup, LeaveGroup, OffsetCommit, SyncGroup)
_DELETIONS = (DeleteGroups, OffsetDelete)

T = TypeVar("T")


class CoordinatorReply(Protocol):
    """A body that says by itself whether it is an error."""

    @property
    def error(self) -> int: ...
    @property
    def message(self) -> str: ...


OutcomeT = TypeVar("OutcomeT", bound=CoordinatorReply)


class FoundCoordinator(NamedTuple):
    """Who coordinates, and under which epoch of the slot."""

    broker_id: int
    slot_epoch: int


class CoordinatorLookup:
    """Of one group.

    Attributes:
        found: who it is; None: not known, or in doubt.
        sender: what to call whoever asks through this, and is no member.
    """

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster, self._group = cluster, group
        self.found: FoundCoordinator | None = None
        self.sender = cluster.new_name()
        self._finding = anyio.Lock()

    async def ask(
        self,
        make: Callable[[], Request],
        read: Callable[[Any], T],
        *,
        deadline: float,
        repeats: RepeatEffect,
    ) -> T:
        """What `read` makes of the body of an answer.

        Args:
            make: the request, made anew for each attempt.
            read: may raise what the body says; an error that is worth another try leads to one.

        Raises:
            OutcomeUnknown: a change was asked for, and may have been made.
            RaftmqError: what the last attempt met.
        """
        attempts = self._cluster.new_attempts(deadline=deadline, repeats=repeats)
        while True:
            try:
                answer = await self.ask_once(make(), deadline=deadline)
                return read(answer.body)
            except RaftmqError as error:
                self.doubt(error)
                pause = attempts.on_failure(error, now=anyio.current_time())
            await anyio.sleep(pause)
            attempts.check_time(anyio.current_time())

    async def ask_once(self, body: Request, *, deadline: float) -> Answer:
        """The answer to one attempt, whatever it says. The slot epoch is filled in here, and what
        a deletion has to bear.

        Raises:
            RaftmqError: there is none.
        """
        found = await self._find(deadline)
        if isinstance(body, _CHANGES):
            body = msgspec.structs.replace(body, slot_epoch=found.slot_epoch)
        elif isinstance(body, _DELETIONS):
            body = await self._seen(body, found, deadline=deadline)
        try:
            return await self._cluster.ask(found.broker_id, body, deadline=deadline)
        except RaftmqError as error:
            self.doubt(error)
            raise

    async def _seen(self, body: Request, found: FoundCoordinator, *, deadline: float) -> Request:
        """A deletion of what is there now. Older brokers say no epoch, and know only their own.

        Raises:
            RaftmqError: nobody knows what is there. Definite.
        """
        timeout_ms = milliseconds_left(deadline, now=anyio.current_time())
        look = OffsetFetch(self._group, (), timeout_ms=timeout_ms)
        answer = await self._without_effect(found.broker_id, look, deadline=deadline)
        reply: OffsetFetchReply = checked(answer.body)
        return msgspec.structs.replace(
            body,
            slot_epoch=reply.slot_epoch or found.slot_epoch,
            last_change=reply.last_change,
        )

    def doubt(self, error: RaftmqError) -> None:
        """After such an error somebody else may coordinate the group."""
        if isinstance(error, _DOUBTFUL):
            self.found = None

    async def _find(self, deadline: float) -> FoundCoordinator:
        async with self._finding:  # whoever waits for the same is told with it
            if self.found is None:
                self.found = await self._find_anew(deadline)
            return self.found

    async def _find_anew(self, deadline: float) -> FoundCoordinator:
        cluster = self._cluster
        with anyio.CancelScope(deadline=deadline):
            if not cluster.routes.addresses:
                await cluster.refresh(None, deadline=deadline)
        broker_id = cluster.any_broker()
        soon = min(deadline, anyio.current_time() + FIND_SECONDS_MAX)
        ask = FindCoordinator((self._group,))
        answer = await self._without_effect(broker_id, ask, deadline=soon)
        found = _found(self._group, answer.body)
        if found.broker_id not in cluster.routes.addresses:
            await cluster.refresh(None, deadline=soon)
        return found

    async def _without_effect(self, broker_id: int, body: Request, *, deadline: float) -> Answer:
        """Without an answer nothing has happened, whatever it is that is to be asked then."""
        try:
            return await self._cluster.ask(broker_id, body, deadline=deadline)
        except RaftmqError as error:
            if error.definite:
                raise
            raise CoordinatorNotAvailable(f"group {self._group!r}: {error}") from error


def _found(group: str, reply: FindCoordinatorReply) -> FoundCoordinator:
    if [one.group for one in reply.coordinators] != [group]:
        raise ServerError(f"a broker was asked who coordinates {group!r}, and told of others")
    coordinator = reply.coordinators[0]
    if coordinator.error:
        raise error_for(coordinator.error, coordinator.message or f"group {group!r}")
    return FoundCoordinator(coordinator.broker_id, coordinator.slot_epoch)


def checked(body: OutcomeT) -> OutcomeT:
    """`body`. Raises what it says, if that is an error."""
    if body.error:
        raise error_for(body.error, body.message)
    return body
