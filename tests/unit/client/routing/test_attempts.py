"""Whether there is another attempt, and what is known when there is none."""

from __future__ import annotations

from random import Random

import pytest

from raftmq.client.routing.attempts import PAUSES, Attempts, RepeatEffect, milliseconds_left
from raftmq.errors import (
    Disconnected,
    LeaderNotAvailable,
    MessageTooLarge,
    OutcomeUnknown,
    RaftmqError,
    ServerError,
    Unreachable,
)
from raftmq.rpc.backoff import Backoff

DEFINITE, UNKNOWN = LeaderNotAvailable("no leader"), Disconnected("gone")
FATAL, FATAL_UNKNOWN = MessageTooLarge("too large"), ServerError("oops")


def new(repeats: RepeatEffect, deadline: float = 10) -> Attempts:
    return Attempts(Backoff(Random(0), PAUSES), deadline=deadline, repeats=repeats)


@pytest.mark.parametrize(
    ("repeats", "failures", "outcome"),
    [
        (RepeatEffect.HARMLESS, [DEFINITE, UNKNOWN, DEFINITE], None),
        (RepeatEffect.HARMLESS, [UNKNOWN, FATAL], MessageTooLarge),
        (RepeatEffect.HARMLESS, [FATAL_UNKNOWN], ServerError),
        (RepeatEffect.FORBIDDEN, [DEFINITE, DEFINITE], None),
        (RepeatEffect.FORBIDDEN, [DEFINITE, UNKNOWN], OutcomeUnknown),
        (RepeatEffect.FORBIDDEN, [DEFINITE, FATAL], MessageTooLarge),
        (RepeatEffect.FORBIDDEN, [FATAL_UNKNOWN], OutcomeUnknown),
        (RepeatEffect.ACCEPTED, [UNKNOWN, DEFINITE, UNKNOWN], None),
        (RepeatEffect.ACCEPTED, [DEFINITE, FATAL], MessageTooLarge),
        (RepeatEffect.ACCEPTED, [UNKNOWN, FATAL], OutcomeUnknown),
        (RepeatEffect.ACCEPTED, [FATAL_UNKNOWN], OutcomeUnknown),
    ],
)
def test_the_last_failure_decides(
    repeats: RepeatEffect, failures: list[RaftmqError], outcome: type[RaftmqError] | None
) -> None:
    """All but the last are worth another attempt; None: the last one is, too."""
    attempts = new(repeats)
    for error in failures[:-1]:
        assert attempts.on_failure(error, now=0) > 0
    if outcome is None:
        assert attempts.on_failure(failures[-1], now=0) > 0
        return
    with pytest.raises(outcome) as found:
        attempts.on_failure(failures[-1], now=0)
    last = found.value if found.value in failures else found.value.__cause__
    assert last is failures[-1]


def test_nobody_waits_for_an_attempt_that_would_come_too_late() -> None:
    """The pause would not be over in time: the failure is told now."""
    attempts = new(RepeatEffect.FORBIDDEN, deadline=10)
    with pytest.raises(LeaderNotAvailable):
        attempts.on_failure(DEFINITE, now=9.99)


@pytest.mark.parametrize(
    ("failures", "outcome"),
    [([DEFINITE], LeaderNotAvailable), ([UNKNOWN, DEFINITE], OutcomeUnknown)],
)
def test_the_time_is_over_before_the_next_attempt(
    failures: list[RaftmqError], outcome: type[RaftmqError]
) -> None:
    """The same is known as after the last failure."""
    attempts = new(RepeatEffect.ACCEPTED, deadline=10)
    for error in failures:
        attempts.on_failure(error, now=0)
    attempts.check_time(9.9)
    with pytest.raises(outcome):
        attempts.check_time(10)


def test_an_attempt_without_any_time_says_nothing() -> None:
    """What the one before it met is told, as it tells what is the matter."""
    attempts = new(RepeatEffect.FORBIDDEN)
    attempts.on_failure(DEFINITE, now=9)
    with pytest.raises(LeaderNotAvailable):
        attempts.on_failure(Unreachable("not sent: its time is over"), now=10)


def test_pauses_grow_to_a_limit() -> None:
    """From 20 ms to half a second, give or take a fifth."""
    attempts = new(RepeatEffect.HARMLESS, deadline=1000)
    pauses = [attempts.on_failure(DEFINITE, now=0) for _ in range(10)]
    assert 0.016 <= pauses[0] <= 0.024
    assert all(0.4 <= pause <= 0.6 for pause in pauses[6:])


@pytest.mark.parametrize(
    ("deadline", "left"),
    [(10.0, 8_000), (2.0, 0), (1.0, 0), (float("inf"), (1 << 31) - 1), (1e300, (1 << 31) - 1)],
)
def test_what_is_left_of_the_time(deadline: float, left: int) -> None:
    """It always fits into a request."""
    assert milliseconds_left(deadline, now=2.0) == left
