"""Which brokers have answered lately, and which throttle this client. Pure.

Owns the order in which brokers are tried for requests that any of them can answer, and how long a
broker may delay the client. Requests that only one broker can answer do not ask here for an order.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from random import Random

LATELY_SECONDS = 10.0  # a broker that answered so recently is most likely alive
THROTTLE_SECONDS_MAX = 30.0  # an absurd delay in an answer must not silence the client for longer


class Experience:
    """Of all brokers that are known."""

    def __init__(self) -> None:
        self._answered_at: dict[int, float] = {}
        self._quiet_until: dict[int, float] = {}

    def on_answer(self, broker_id: int, *, throttle_ms: int, now: float) -> None:
        self._answered_at[broker_id] = now
        if throttle_ms:  # the broker asks for a pause: its quota is exceeded
            quiet_until = now + min(throttle_ms / 1000, THROTTLE_SECONDS_MAX)
            self._quiet_until[broker_id] = max(quiet_until, self.quiet_until(broker_id))

    def on_doubt(self, broker_id: int) -> None:
        """The broker has not answered, or not yet: others are tried before it."""
        self._answered_at.pop(broker_id, None)

    def quiet_until(self, broker_id: int) -> float:
        """Until when the broker throttles this client; in the past if it does not."""
        return self._quiet_until.get(broker_id, -inf)

    def forget_all_but(self, broker_ids: Collection[int]) -> None:
        """Only `broker_ids` are in the cluster now."""
        for known in (self._answered_at, self._quiet_until):
            for broker_id in known.keys() - set(broker_ids):
                del known[broker_id]

    def in_order(self, broker_ids: Sequence[int], *, now: float, random: Random) -> list[int]:
        """The order of trial: 1. brokers that answered lately, 2. others, 3. those that throttle.

        Random among equals, so that the load is spread.
        """
        return sorted(
            random.sample(broker_ids, len(broker_ids)), key=lambda it: self._rank(it, now)
        )

    def _rank(self, broker_id: int, now: float) -> int:
        if self.quiet_until(broker_id) > now:
            return 3
        return 1 if now - self._answered_at.get(broker_id, -inf) < LATELY_SECONDS else 2
