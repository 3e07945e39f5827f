"""Retry rules of one operation: whether another attempt is worth it, and whether it is safe. Pure.

The caller waits and reads the clock. Three cases, by what a repetition would do (`RepeatEffect`).
Invariant: a definite error leaves here only if no attempt can have been carried out.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NoReturn

from raftmq.errors import OutcomeUnknown, Unreachable
from raftmq.rpc.backoff import Pauses
from raftmq.wire.bodies import ID_MAX

if TYPE_CHECKING:
    from raftmq.errors import RaftmqError
    from raftmq.rpc.backoff import Backoff

# A leader election takes some of these pauses; 0.5 s bounds the delay after a long one
PAUSES = Pauses(seconds_min=0.02, seconds_max=0.5)


def milliseconds_left(deadline: float, *, now: float) -> int:
    """As a request encodes it; an endless deadline becomes very long."""
    return int(min(max(deadline - now, 0.0) * 1000, ID_MAX))


class RepeatEffect(Enum):
    """What happens if an operation is carried out twice."""

    HARMLESS = auto()  # it only reads
    FORBIDDEN = auto()  # an attempt with an unknown outcome is the last one
    ACCEPTED = auto()  # the caller prefers duplicates to loss


class Attempts:
    """All attempts at one operation, which must be over by `deadline`."""

    def __init__(self, backoff: Backoff, *, deadline: float, repeats: RepeatEffect) -> None:
        self._backoff, self._deadline, self._repeats = backoff, deadline, repeats
        self._last: RaftmqError | None = None
        self._may_have_happened = False

    def check_time(self, now: float) -> None:
        """Called before each attempt but the first.

        Raises:
            RaftmqError: the time is over; see `on_failure`.
        """
        assert self._last is not None, "another attempt, and none has failed"
        if now >= self._deadline:
            self._end(self._last)

    def on_failure(self, error: RaftmqError, *, now: float) -> float:
        """Seconds until the next attempt.

        Raises:
            OutcomeUnknown: there is no next attempt, and some attempt may have been carried out.
            RaftmqError: there is no next attempt; `error` itself.
        """
        is_late = now >= self._deadline and isinstance(error, Unreachable)
        # The deadline cut it short: the error before names the cause
        if is_late and self._last is not None:
            error = self._last
        self._last = error
        if self._repeats is not RepeatEffect.HARMLESS and not error.definite:
            self._may_have_happened = True
            if self._repeats is RepeatEffect.FORBIDDEN:  # a repetition might do it twice
                self._end(error)
        pause = self._backoff.next_seconds()
        # No use waiting for an attempt that could not be made in time.
        if not error.retriable or now + pause >= self._deadline:
            self._end(error)
        return pause

    def _end(self, error: RaftmqError) -> NoReturn:
        if self._may_have_happened:  # by this attempt or an earlier one
            raise OutcomeUnknown(f"it may have been carried out: {error}") from error
        raise error
