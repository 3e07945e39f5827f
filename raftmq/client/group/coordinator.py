"""Finds a group's coordinator and sends requests to it; looks it up again when it moves.

Kafka: AbstractCoordinator.lookupCoordinator. Owns which broker that is, as far as is known, and the
loop that repeats a request. The caller says what a repetition would do (`RepeatEffect`).

Invariant (decision 0025): every change carries the slot epoch under which its broker was found, so
it takes effect there and then or never: not when it arrives late and the slot has moved meanwhile.
A deletion reads first, and carries what it has read: when it arrives late it deletes nothing that
was committed since.
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

FIND_SECONDS_MAX = 2.0  # for one broker's answer; then another one is asked
# After these errors another broker may coordinate the group.
_DOUBTFUL = (
    CoordinatorNotAvailable,
    Disconnected,
    NotCoordinator,
    RequestTimedOut,
    Unreachable,
)

_CHANGES = (Heartbeat, JoinGroup, LeaveGroup, OffsetCommit, SyncGroup)  # carry the slot epoch
_DELETIONS = (DeleteGroups, OffsetDelete)  # carry the slot's last change, too

T = TypeVar("T")


class CoordinatorReply(Protocol):
    """An answer that has an error code of its own."""

    @property
    def error(self) -> int: ...
    @property
    def message(self) -> str: ...


OutcomeT = TypeVar("OutcomeT", bound=CoordinatorReply)


class FoundCoordinator(NamedTuple):
    """The coordinating broker, and the slot epoch under which it was found."""

    broker_id: int
    slot_epoch: int


class CoordinatorLookup:
    """The coordinator of one group.

    Attributes:
        found: the coordinator; None: not known, or in doubt.
        sender: the name in commits of a program that is no member.
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
        """Send a request, again and again until it succeeds or must not. The result of `read`.

        Args:
            make: builds the request, anew for each attempt.
            read: gets the answer's body, and may raise its error; a retriable one is repeated.

        Raises:
            OutcomeUnknown: a change may have been made. Indefinite.
            RaftmqError: of the last attempt.
        """
        attempts = self._cluster.new_attempts(deadline=deadline, repeats=repeats)
        while True:
            try:
                answer = await self.ask_once(make(), deadline=deadline)
                return read(answer.body)
            except RaftmqError as error:
                # NotCoordinator, for example: the next attempt looks it up again.
                self.doubt(error)
                pause = attempts.on_failure(error, now=anyio.current_time())
            await anyio.sleep(pause)
            attempts.check_time(anyio.current_time())

    async def ask_once(self, body: Request, *, deadline: float) -> Answer:
        """One attempt; the answer, even if it is an error. Fills in the slot epoch, and what a
        deletion must carry.

        Raises:
            RaftmqError: there is no answer.
        """
        found = await self.find(deadline)
        if isinstance(body, _CHANGES):  # a late change must not take effect at another broker
            body = msgspec.structs.replace(body, slot_epoch=found.slot_epoch)
        elif isinstance(body, _DELETIONS):
            body = await self._seen(body, found, deadline=deadline)
        try:
            return await self._cluster.ask(found.broker_id, body, deadline=deadline)
        except RaftmqError as error:
            self.doubt(error)
            raise

    async def _seen(self, body: Request, found: FoundCoordinator, *, deadline: float) -> Request:
        """The deletion with the state that was read just before. Older brokers name no epoch.

        Raises:
            RaftmqError: the state cannot be read. Definite.
        """
        timeout_ms = milliseconds_left(deadline, now=anyio.current_time())
        look = OffsetFetch(self._group, (), timeout_ms=timeout_ms)
        # Reads the slot's last change, which the deletion then carries as a precondition.
        answer = await self._without_effect(found.broker_id, look, deadline=deadline)
        reply: OffsetFetchReply = checked(answer.body)
        return msgspec.structs.replace(
            body,
            slot_epoch=reply.slot_epoch or found.slot_epoch,
            last_change=reply.last_change,
        )

    def forget(self) -> None:
        """Look it up before the next request."""
        self.found = None

    def doubt(self, error: RaftmqError) -> None:
        """Forget the coordinator after an error that may mean that it has moved."""
        if isinstance(error, _DOUBTFUL):
            self.found = None

    async def find(self, deadline: float) -> FoundCoordinator:
        """Raises RaftmqError: no broker has named it. Definite."""
        async with self._finding:  # one lookup serves all callers that wait
            if self.found is None:
                self.found = await self._find_anew(deadline)
            return self.found

    async def _find_anew(self, deadline: float) -> FoundCoordinator:
        cluster = self._cluster
        if not cluster.routes.addresses:  # the first request of this client
            await cluster.refresh(None, deadline=deadline)
        broker_id = cluster.any_broker()
        soon = min(deadline, anyio.current_time() + FIND_SECONDS_MAX)
        ask = FindCoordinator((self._group,))
        answer = await self._without_effect(broker_id, ask, deadline=soon)
        found = _found(self._group, answer.body)
        if found.broker_id not in cluster.routes.addresses:  # a new broker, or a new address
            await cluster.refresh(None, deadline=soon)
        return found

    async def _without_effect(self, broker_id: int, body: Request, *, deadline: float) -> Answer:
        """A preparatory request: without its answer the caller's change was not sent, so the error
        is definite.
        """
        try:
            return await self._cluster.ask(broker_id, body, deadline=deadline)
        except RaftmqError as error:
            if error.definite:  # it says so itself already
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
    """`body`. Raises its error, if it has one."""
    if body.error:
        raise error_for(body.error, body.message)
    return body
