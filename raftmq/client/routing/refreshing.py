"""Metadata refreshes shared by all callers: one request at a time, rarer while nothing changes.

Owns the waiting and the pace: callers that come while a request is in flight wait for its answer
or, if it is about other topics, for the next one. Does not know what is requested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from raftmq.errors import RaftmqError, Unreachable
from raftmq.rpc.backoff import Backoff, Pauses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

# Long enough not to flood brokers, short against a leader election
PAUSES = Pauses(seconds_min=0.05, seconds_max=0.5)


class _Round:
    """One metadata request, and the callers that wait for its answer."""

    def __init__(self) -> None:
        self.topics: dict[str, None] = {}
        self.is_wanted = False
        self.problem = ""
        self.done = anyio.Event()

    def end(self, problem: str = "") -> None:
        self.problem = problem
        self.done.set()


class Refreshing:
    """Runs `ask` for the topics that callers wait for; `ask` returns whether anything has changed.

    Attributes:
        problem: why the last request failed; empty if it did not.
    """

    def __init__(self, ask: Callable[[tuple[str, ...]], Awaitable[bool]], random: Random) -> None:
        self._ask, self._backoff = ask, Backoff(random, PAUSES)
        self._current: _Round | None = None
        self._next = _Round()
        self._asked = anyio.Event()
        self._not_before = 0.0
        self.problem = ""

    async def wait(self, topic: str | None) -> None:
        """Wait until a request about `topic` was answered, or, with None, any request.

        Raises:
            Unreachable: no broker has answered.
        """
        joined = self._join(topic)
        # Ends with the answer, with the failure at every broker, or when the client closes.
        await joined.done.wait()
        if joined.problem:
            raise Unreachable(joined.problem)

    async def run(self) -> None:
        """Runs until cancelled; then callers that still wait get an error."""
        try:
            while True:
                while not self._next.is_wanted:
                    self._asked = anyio.Event()
                    await self._asked.wait()  # nothing to ask: until a caller joins
                # The last answer brought nothing new: pause, while further callers join.
                await anyio.sleep_until(self._not_before)
                await self._perform()
        finally:
            self._next.end("the client is closed")  # later callers join this round and fail at once

    def _join(self, topic: str | None) -> _Round:
        current = self._current
        # The request in flight is about this topic already.
        if current is not None and (topic is None or topic in current.topics):
            return current
        if topic is not None:
            self._next.topics[topic] = None
        self._next.is_wanted = True
        self._asked.set()
        return self._next

    async def _perform(self) -> None:
        asked = self._current = self._next
        self._next = _Round()
        is_news, problem = False, "the client is closed"
        try:
            is_news, problem = await self._ask(tuple(asked.topics)), ""
        except RaftmqError as error:
            problem = str(error)
        finally:
            self._current, self.problem = None, problem
            asked.end(problem)
        if is_news:  # something changes: ask again at once if needed
            self._backoff.reset()
        else:
            self._not_before = anyio.current_time() + self._backoff.next_seconds()
