"""One task that asks for fresh metadata, however many wait for it.

Owns the waiting and the pace: at most one question is under way, those who come meanwhile wait for
its answer or, if it is about other topics, for the next one; while nothing new comes the questions
become rarer. Knows nothing of what is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from raftmq.errors import RaftmqError, Unreachable
from raftmq.rpc.backoff import Backoff, Pauses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

PAUSES = Pauses(seconds_min=0.05, seconds_max=0.5)


class _Round:
    """One question, and those who wait for its answer."""

    def __init__(self) -> None:
        self.topics: dict[str, None] = {}
        self.is_wanted = False
        self.problem = ""
        self.done = anyio.Event()

    def end(self, problem: str = "") -> None:
        self.problem = problem
        self.done.set()


class Refreshing:
    """`ask` learns about the topics that it is called with, and tells whether there was news.

    Attributes:
        problem: why nobody answered the last time; empty if somebody did.
    """

    def __init__(self, ask: Callable[[tuple[str, ...]], Awaitable[bool]], random: Random) -> None:
        self._ask, self._backoff = ask, Backoff(random, PAUSES)
        self._current: _Round | None = None
        self._next = _Round()
        self._asked = anyio.Event()
        self._not_before = 0.0
        self.problem = ""

    async def wait(self, topic: str | None) -> None:
        """Until somebody has told about `topic`, or, with None, about the brokers alone.

        Raises:
            Unreachable: nobody has.
        """
        joined = self._join(topic)
        await joined.done.wait()
        if joined.problem:
            raise Unreachable(joined.problem)

    async def run(self) -> None:
        """Until cancelled; then whoever waits is told."""
        try:
            while True:
                while not self._next.is_wanted:
                    self._asked = anyio.Event()
                    await self._asked.wait()
                await anyio.sleep_until(self._not_before)
                await self._perform()
        finally:
            self._next.end("the client is closed")  # and whoever comes later finds that

    def _join(self, topic: str | None) -> _Round:
        current = self._current
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
        if is_news:
            self._backoff.reset()
        else:
            self._not_before = anyio.current_time() + self._backoff.next_seconds()
