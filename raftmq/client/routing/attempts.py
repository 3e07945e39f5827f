"""One operation from its first attempt to its last: is another one worth it, may there be one?

Pure: the caller waits, and tells the time. Three cases, by what a repetition would do
(`RepeatEffect`).

Invariant: an error that says "it certainly did not happen" leaves here only if that is true of
every attempt.
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

PAUSES = Pauses(seconds_min=0.02, seconds_max=0.5)


def milliseconds_left(deadline: float, *, now: float) -> int:
    """As a request can say it: endless becomes very long."""
    return int(min(max(deadline - now, 0.0) * 1000, ID_MAX))


class RepeatEffect(Enum):
    """What happens if something is done twice."""

    HARMLESS = auto()  # it only reads
    FORBIDDEN = auto()  # so an attempt with an unknown outcome is the last one
    ACCEPTED = auto()  # the caller would rather have it twice than not at all


class Attempts:
    """Of what must be over by `deadline`."""

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
            OutcomeUnknown: there is none, and some attempt may have been carried out.
            RaftmqError: there is none; `error` itself.
        """
        is_late = now >= self._deadline and isinstance(error, Unreachable)
        if is_late and self._last is not None:  # its time was over: the one before says more
            error = self._last
        self._last = error
        if self._repeats is not RepeatEffect.HARMLESS and not error.definite:
            self._may_have_happened = True
            if self._repeats is RepeatEffect.FORBIDDEN:
                self._end(error)
        pause = self._backoff.next_seconds()
        if not error.retriable or now + pause >= self._deadline:
            self._end(error)
        return pause

    def _end(self, error: RaftmqError) -> NoReturn:
        if self._may_have_happened:
            raise OutcomeUnknown(f"it may have been carried out: {error}") from error
        raise error
