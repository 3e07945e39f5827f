"""The way to the broker that coordinates a group: found through any broker, again if it moves.

Owns who that is, as far as is known, and the loop in which a question to it is repeated. What a
repetition would do, the caller says (`Repeats`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio

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
from raftmq.wire.messages.groups import FindCoordinator, FindCoordinatorReply

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.routing.attempts import Repeats
    from raftmq.client.routing.cluster import Cluster
    from raftmq.rpc.reply import Answer
    from raftmq.wire.bodies import Request

FIND_SECONDS_MAX = 2.0  # for one broker's word on who coordinates: others may be asked
# Whoever answered so, or not at all, may not coordinate the group any more.
_DOUBTFUL = (
    CoordinatorNotAvailable,
    Disconnected,
    NotCoordinator,
    RequestTimedOut,
    Unreachable,
)

T = TypeVar("T")


class Outcome(Protocol):
    """A body that says by itself whether it is an error."""

    @property
    def error(self) -> int: ...
    @property
    def message(self) -> str: ...


OutcomeT = TypeVar("OutcomeT", bound=Outcome)


class Coordinator:
    """Of one group.

    Attributes:
        broker_id: who it is; None: not known, or in doubt.
    """

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster, self._group = cluster, group
        self.broker_id: int | None = None
        self._finding = anyio.Lock()

    async def ask(
        self,
        make: Callable[[], Request],
        read: Callable[[Any], T],
        *,
        deadline: float,
        repeats: Repeats,
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
        """The answer to one attempt, whatever it says.

        Raises:
            RaftmqError: there is none.
        """
        broker_id = await self._find(deadline)
        try:
            return await self._cluster.ask(broker_id, body, deadline=deadline)
        except RaftmqError as error:
            self.doubt(error)
            raise

    def doubt(self, error: RaftmqError) -> None:
        """After such an error somebody else may coordinate the group."""
        if isinstance(error, _DOUBTFUL):
            self.broker_id = None

    async def _find(self, deadline: float) -> int:
        async with self._finding:  # whoever waits for the same is told with it
            if self.broker_id is None:
                self.broker_id = await self._find_anew(deadline)
            return self.broker_id

    async def _find_anew(self, deadline: float) -> int:
        cluster = self._cluster
        with anyio.CancelScope(deadline=deadline):
            if not cluster.routes.addresses:
                await cluster.refresh(None, deadline=deadline)
        broker_id = cluster.any_broker()
        soon = min(deadline, anyio.current_time() + FIND_SECONDS_MAX)
        found = _found(self._group, await self._ask_where(broker_id, deadline=soon))
        if found not in cluster.routes.addresses:
            await cluster.refresh(None, deadline=soon)
        return found

    async def _ask_where(self, broker_id: int, *, deadline: float) -> FindCoordinatorReply:
        """Without an answer nothing has happened, whatever it is that is to be asked then."""
        try:
            answer = await self._cluster.ask(
                broker_id, FindCoordinator((self._group,)), deadline=deadline
            )
        except RaftmqError as error:
            if error.definite:
                raise
            raise CoordinatorNotAvailable(f"group {self._group!r}: {error}") from error
        reply: FindCoordinatorReply = answer.body
        return reply


def _found(group: str, reply: FindCoordinatorReply) -> int:
    if [one.group for one in reply.coordinators] != [group]:
        raise ServerError(f"a broker was asked who coordinates {group!r}, and told of others")
    coordinator = reply.coordinators[0]
    if coordinator.error:
        raise error_for(coordinator.error, coordinator.message or f"group {group!r}")
    return coordinator.broker_id


def checked(body: OutcomeT) -> OutcomeT:
    """`body`. Raises what it says, if that is an error."""
    if body.error:
        raise error_for(body.error, body.message)
    return body
