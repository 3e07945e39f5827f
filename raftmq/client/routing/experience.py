"""What a client has met with each broker: who answered lately, and who asks to be left alone. Pure.

Owns the order in which brokers are asked what any of them can answer, and how long a broker may
keep a client waiting. It decides for nobody whom to ask where only one broker will do.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from random import Random

LATELY_SECONDS = 10.0
THROTTLE_SECONDS_MAX = 30.0  # a broker that asks for more is asked again after so long


class Experience:
    """Of all brokers that are known."""

    def __init__(self) -> None:
        self._answered_at: dict[int, float] = {}
        self._quiet_until: dict[int, float] = {}

    def on_answer(self, broker_id: int, *, throttle_ms: int, now: float) -> None:
        self._answered_at[broker_id] = now
        if throttle_ms:
            quiet_until = now + min(throttle_ms / 1000, THROTTLE_SECONDS_MAX)
            self._quiet_until[broker_id] = max(quiet_until, self.quiet_until(broker_id))

    def on_doubt(self, broker_id: int) -> None:
        """It has not answered, or not yet: whoever has a choice asks somebody else first."""
        self._answered_at.pop(broker_id, None)

    def quiet_until(self, broker_id: int) -> float:
        """When it may be asked again, on the clock of the answers; in the past if it may be now."""
        return self._quiet_until.get(broker_id, -inf)

    def forget_all_but(self, broker_ids: Collection[int]) -> None:
        """What is left are `broker_ids`."""
        for known in (self._answered_at, self._quiet_until):
            for broker_id in known.keys() - set(broker_ids):
                del known[broker_id]

    def in_order(self, broker_ids: Sequence[int], *, now: float, random: Random) -> list[int]:
        """Whom to ask first: 1. who answered lately, 2. all others, 3. who is to be left alone.

        Equals come in any order, so that the load is spread.
        """
        return sorted(
            random.sample(broker_ids, len(broker_ids)), key=lambda it: self._rank(it, now)
        )

    def _rank(self, broker_id: int, now: float) -> int:
        if self.quiet_until(broker_id) > now:
            return 3
        return 1 if now - self._answered_at.get(broker_id, -inf) < LATELY_SECONDS else 2
