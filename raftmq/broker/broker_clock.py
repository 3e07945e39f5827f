"""What time it is on this broker, and whether that may be believed.

Owns both readings of the clock that go with a heartbeat, and what its answer makes of them. The
rule is `metadata/clocks.py`. Whatever deletes for age asks `confirmed_ms`, and waits where there is
none. Whoever stamps what comes in cannot wait: `stamp_ms` is the time of the confirmed clocks once
they were heard of, or what a wrong clock stamps would be deleted too early by a right one.
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
        # What the confirmed clocks showed while this one was wrong; the monotonic one counts on.
        self._known: ClockReading | None = None
        self._verdict, self._answered_at = ClockVerdict(), -CONFIRMED_SECONDS_MAX
        self._is_wrong = self._was_refused = False

    def read(self) -> ClockReading:
        return ClockReading(self._now_ms(), trio.current_time())

    @property
    def wrong(self) -> tuple[ClockOffset, ...]:
        """Whose clocks are wrong, as the controller has said a moment ago."""
        is_new = trio.current_time() - self._answered_at <= CONFIRMED_SECONDS_MAX
        return self._verdict.wrong if is_new else ()

    def on_answer(self, told: ClockReading, verdict: ClockVerdict) -> None:
        """The controller has heard this reading.

        That the clock is off counts once it was said twice in a row: machines that slept together
        wake up together, and the first one to be heard differs from what the others told before.
        """
        before, self._verdict, self._answered_at = self._verdict, verdict, trio.current_time()
        self._confirmed = told if verdict.is_confirmed else None
        if verdict.is_confirmed:
            self._known = None
        elif verdict.ahead_ms is not None and _is_off(before):
            self._known = told._replace(wall_ms=told.wall_ms - verdict.ahead_ms)
        self._maybe_tell(before, verdict)

    def _maybe_tell(self, before: ClockVerdict, verdict: ClockVerdict) -> None:
        """A controller that has heard nobody else yet calls nobody wrong: it is over only when the
        clock is confirmed.
        """
        ahead_ms = dict(verdict.wrong).get(self._broker_id)
        if self._is_wrong and verdict.is_confirmed:
            self._is_wrong = False
            logger.info("the clock is wrong no more: broker=%d", self._broker_id)
        elif not self._is_wrong and ahead_ms is not None and self._broker_id in dict(before.wrong):
            self._is_wrong = True
            logger.error(
                "the clock is wrong, nothing is deleted for its age: broker=%d ahead_ms=%d",
                self._broker_id,
                ahead_ms,
            )

    def stamp_ms(self) -> int:
        """The wall clock, unless it is known to be wrong and what time it is instead.

        One that has jumped a moment ago may be right: a machine that slept wakes up like that.
        """
        reading = self.read()
        if self._known is None:
            return reading.wall_ms
        expected_ms = self._known.wall_ms + round((reading.now - self._known.now) * 1000)
        is_right = abs(reading.wall_ms - expected_ms) <= JUMP_MS_MAX
        return reading.wall_ms if is_right else expected_ms

    def confirmed_ms(self) -> int | None:
        """What time it is; None if too few other brokers agree, or have been heard lately."""
        reading = self.read()
        is_refused = self._confirmed is None or not still_holds(self._confirmed, reading)
        if is_refused is not self._was_refused:
            self._was_refused = is_refused
            what = "waits for other brokers to confirm the clock" if is_refused else "goes on"
            logger.info("deletion by age %s: broker=%d", what, self._broker_id)
        return None if is_refused else reading.wall_ms


def _is_off(verdict: ClockVerdict) -> bool:
    """Others are confirmed, and this clock is not."""
    return verdict.ahead_ms is not None and not verdict.is_confirmed
