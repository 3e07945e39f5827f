"""Virtual time: one heap of events, and the trace of what happened.

Owns the order of events. Two at the same moment come in the order in which they were scheduled, so
that a seed is one replay.
"""

from __future__ import annotations

from hashlib import sha256
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Timeline:
    """Attributes:
    now: in seconds.
    lines: what was told by `say`.
    """

    def __init__(self) -> None:
        self.now, self.lines = 0.0, list[str]()
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, when: float, act: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heappush(self._events, (max(when, self.now), self._count, act, arguments))

    def after(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + seconds, act, *arguments)

    def run(self, seconds: float, after_each: Callable[[], None]) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, act, arguments = heappop(self._events)
            act(*arguments)
            after_each()
        self.now = end

    def say(self, text: str) -> None:
        self.lines.append(f"{self.now:9.4f} {text}")

    @property
    def digest(self) -> str:
        return sha256("\n".join(self.lines).encode()).hexdigest()
