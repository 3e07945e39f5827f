"""The broker's wall clock: whether other brokers confirm it, and the corrected time of a wrong one.

Owns the reading that goes with each heartbeat, and what the controller's answer says about it; the
rule is `metadata/clocks.py` (decision 0026). Retention and offset expiry ask `confirmed_ms` and
wait while there is none. Stamping records cannot wait: `stamp_ms` is the time of the confirmed
clocks as soon as it is known, or what a wrong clock stamps would be deleted too early by a right
one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from raftmq.metadata.clocks import (
    CONFIRMED_SECONDS_MAX,
    JUMP_MS_MAX,
    ClockOffset,
    ClockReading,
    ClockVerdict,
    still_holds,
)

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("raftmq.broker")


class BrokerClock:
    """`now_ms`: the wall clock."""

    def __init__(self, broker_id: int, now_ms: Callable[[], int]) -> None:
        self._broker_id, self._now_ms = broker_id, now_ms
        self._confirmed: ClockReading | None = None
        # What the confirmed clocks showed while this one was wrong; counted on monotonically.
        self._known: ClockReading | None = None
        self._verdict, self._answered_at = ClockVerdict(), -CONFIRMED_SECONDS_MAX
        self._is_wrong = self._was_refused = False

    def read(self) -> ClockReading:
        return ClockReading(self._now_ms(), trio.current_time())

    @property
    def wrong(self) -> tuple[ClockOffset, ...]:
        """Brokers whose clocks are wrong, by the controller's last answer, if that is recent."""
        is_new = trio.current_time() - self._answered_at <= CONFIRMED_SECONDS_MAX
        return self._verdict.wrong if is_new else ()

    def on_answer(self, told: ClockReading, verdict: ClockVerdict) -> None:
        """The controller has answered the heartbeat that carried this reading.

        The clock counts as off after two such answers in a row: machines that were suspended
        together resume together, and the first one to be heard differs from the others' old times.
        """
        before, self._verdict, self._answered_at = self._verdict, verdict, trio.current_time()
        self._confirmed = told if verdict.is_confirmed else None
        # Right again: stamp the own time.
        if verdict.is_confirmed:
            self._known = None
        # The second answer in a row that says it is off.
        elif verdict.ahead_ms is not None and _is_off(before):
            self._known = told._replace(wall_ms=told.wall_ms - verdict.ahead_ms)
        self._maybe_tell(before, verdict)

    def _maybe_tell(self, before: ClockVerdict, verdict: ClockVerdict) -> None:
        """Log the beginning and the end. A new controller that has heard few brokers calls no
        clock wrong, so the end is only what confirms the clock.
        """
        ahead_ms = dict(verdict.wrong).get(self._broker_id)
        if self._is_wrong and verdict.is_confirmed:  # confirmed by a majority: the alarm is over
            self._is_wrong = False
            logger.info("the clock is wrong no more: broker=%d", self._broker_id)
        # Named as wrong twice in a row, see `on_answer`.
        elif not self._is_wrong and ahead_ms is not None and self._broker_id in dict(before.wrong):
            self._is_wrong = True
            logger.error(
                "the clock is wrong, nothing is deleted for its age: broker=%d ahead_ms=%d",
                self._broker_id,
                ahead_ms,
            )

    def stamp_ms(self) -> int:
        """The wall clock, or the corrected time while the wall clock is known to be wrong.

        A clock that has just jumped may be right: a machine that was suspended resumes like that.
        """
        reading = self.read()
        # Not known to be wrong, which is not the same as confirmed.
        if self._known is None:
            return reading.wall_ms
        expected_ms = self._known.wall_ms + round((reading.now - self._known.now) * 1000)
        # The clock was set right since the last answer.
        is_right = abs(reading.wall_ms - expected_ms) <= JUMP_MS_MAX
        return reading.wall_ms if is_right else expected_ms

    def confirmed_ms(self) -> int | None:
        """The time; None if too few other brokers agree, or were heard recently."""
        reading = self.read()
        is_refused = self._confirmed is None or not still_holds(self._confirmed, reading)
        # Logged at each change only, as retention asks every few seconds.
        if is_refused is not self._was_refused:
            self._was_refused = is_refused
            what = "waits for other brokers to confirm the clock" if is_refused else "goes on"
            logger.info("deletion by age %s: broker=%d", what, self._broker_id)
        return None if is_refused else reading.wall_ms


def _is_off(verdict: ClockVerdict) -> bool:
    """The other clocks are confirmed, and this one is not among them."""
    return verdict.ahead_ms is not None and not verdict.is_confirmed
