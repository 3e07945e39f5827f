"""The highest acknowledged and the highest polled offset of each key: what is unread. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NOWHERE = -1


class Seen:
    """Highest offsets, by key."""

    def __init__(self) -> None:
        self._sent: dict[str, int] = {}
        self._polled: dict[str, int] = {}

    def on_sent(self, key: str, offsets: Iterable[int | None]) -> None:
        """None: that value was not acknowledged."""
        known = [offset for offset in offsets if offset is not None]
        self._sent[key] = max([self._sent.get(key, NOWHERE), *known])

    def on_polled(self, key: str, offset: int) -> None:
        self._polled[key] = max(self._polled.get(key, NOWHERE), offset)

    def highest(self, key: str) -> int:
        """-1: none is known."""
        return max(self._sent.get(key, NOWHERE), self._polled.get(key, NOWHERE))

    def behind(self) -> list[str]:
        """Keys with acknowledged values that no process has polled."""
        return [key for key, sent in self._sent.items() if sent > self._polled.get(key, NOWHERE)]
