"""How far each key was acknowledged and polled, by anybody: what is still to be looked at. Pure."""

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
        """-1: nobody was told of any."""
        return max(self._sent.get(key, NOWHERE), self._polled.get(key, NOWHERE))

    def behind(self) -> list[str]:
        """Keys of which something was acknowledged that nobody has polled."""
        return [key for key, sent in self._sent.items() if sent > self._polled.get(key, NOWHERE)]
