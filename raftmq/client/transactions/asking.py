"""Asks the coordinator of a transaction id, again and again until there is an answer.

Owns the time of one attempt: a coordinator that is silent must not use up the time of all others,
one of which may have taken its place. The coordinator is that of a group of the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from raftmq.client.group.coordinator import CoordinatorLookup
from raftmq.client.routing.attempts import RepeatEffect, milliseconds_left
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.client.routing.attempts import Attempts
    from raftmq.client.routing.cluster import Cluster
    from raftmq.wire.bodies import Request

T = TypeVar("T")


class AskedCoordinator:
    """
    Args:
        request_seconds: how long one attempt may take.
    """

    def __init__(self, cluster: Cluster, transaction_id: str, request_seconds: float) -> None:
        self._cluster, self._request_seconds = cluster, request_seconds
        self._lookup = CoordinatorLookup(cluster, transaction_id)

    async def ask(
        self,
        make: Callable[[int], Request],
        read: Callable[[Any], T],
        *,
        deadline: float,
        on_failure: Callable[[RaftmqError], None] | None = None,
        is_over: Callable[[], bool] = lambda: False,
        repeats: RepeatEffect = RepeatEffect.HARMLESS,
    ) -> T:
        """A request that may be repeated without harm. The result of `read`.

        Args:
            make: builds it; gets the milliseconds that the broker may take.
            read: gets the answer's body, and may raise its error: a retriable one is repeated.
            on_failure: called where there is no answer.
            is_over: nobody can say more, whatever `read` has raised.
            repeats: ACCEPTED: what an attempt without an answer has done is to be told.

        Raises:
            OutcomeUnknown: with ACCEPTED: it may have been carried out. Indefinite.
            RaftmqError: of the last attempt.
        """
        attempts = self._cluster.new_attempts(deadline=deadline, repeats=repeats)
        while True:
            try:
                now = anyio.current_time()
                latest = min(deadline, now + self._request_seconds)
                # The broker answers in time, even where it waits for something.
                body = make(milliseconds_left(now + (latest - now) / 2, now=now))
                answer = await self._lookup.ask_once(body, deadline=latest)
            except RaftmqError as error:
                if on_failure is not None:
                    on_failure(error)
                pause = self._pause(attempts, error)
            else:
                try:
                    return read(answer.body)
                except RaftmqError as error:
                    if is_over():
                        raise
                    pause = self._pause(attempts, error)
            await anyio.sleep(pause)
            attempts.check_time(anyio.current_time())

    def _pause(self, attempts: Attempts, error: RaftmqError) -> float:
        # NotCoordinator, for example: the next attempt looks it up again.
        self._lookup.doubt(error)
        return attempts.on_failure(error, now=anyio.current_time())
