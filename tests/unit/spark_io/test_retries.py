"""Asking again: what is worth it, how long, and what the error says in the end."""

from __future__ import annotations

import pytest

from raftmq.errors import (
    InvalidConfig,
    LeaderNotAvailable,
    OffsetOutOfRange,
    RaftmqError,
    RequestTimedOut,
    Unreachable,
)
from spark_io.lookup import is_passing, retried


class Clock:
    """Time passes where somebody sleeps, and during each question."""

    def __init__(self, question_seconds: float = 0.0) -> None:
        self.time, self.question_seconds = 100.0, question_seconds
        self.pauses: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time += seconds


def ask(clock: Clock, *answers: RaftmqError | str, seconds_max: float = 60.0) -> str:
    """The last answer is repeated."""
    left = list(answers)

    def question() -> str:
        clock.time += clock.question_seconds
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, RaftmqError):
            raise answer
        return answer

    return retried(question, seconds_max, now=clock.now, sleep=clock.sleep)


def test_an_answer_at_once() -> None:
    clock = Clock()
    assert ask(clock, "yes") == "yes"
    assert clock.pauses == []


def test_an_election_passes() -> None:
    """Pauses grow, up to two seconds."""
    clock = Clock()
    assert ask(clock, *[LeaderNotAvailable("t-0: nobody leads")] * 7, "yes") == "yes"
    assert clock.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_what_no_repetition_mends() -> None:
    clock = Clock()
    with pytest.raises(OffsetOutOfRange) as caught:
        ask(clock, LeaderNotAvailable("t-0: nobody leads"), OffsetOutOfRange("t-0: gone"), "yes")
    assert not hasattr(caught.value, "__notes__")
    assert clock.pauses == [0.1]


def test_an_error_of_the_program_is_none_of_ours() -> None:
    with pytest.raises(ZeroDivisionError):
        retried(lambda: 1 // 0, 60.0)


def test_the_deadline() -> None:
    """The last failure is told, with how long it was tried; nobody sleeps past the deadline."""
    clock = Clock()
    with pytest.raises(LeaderNotAvailable, match="t-0: nobody leads") as caught:
        ask(clock, LeaderNotAvailable("t-0: nobody leads"), seconds_max=5.0)
    assert caught.value.__notes__ == ["tried for 5 s (retryTimeoutMs)"]
    assert clock.pauses == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert clock.time <= 105.0


def test_the_time_of_questions_counts() -> None:
    """Brokers that do not answer at all take up the time by themselves."""
    clock = Clock(question_seconds=30.0)
    with pytest.raises(RequestTimedOut):
        ask(clock, RequestTimedOut("no answer"), seconds_max=60.0)
    assert clock.pauses == [0.1]


def test_it_is_asked_once_at_least() -> None:
    assert ask(Clock(), "yes", seconds_max=0.0) == "yes"
    with pytest.raises(Unreachable):
        ask(Clock(), Unreachable("nobody is there"), "yes", seconds_max=0.0)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (LeaderNotAvailable("t-0: nobody leads"), True),
        (Unreachable("nobody is there"), True),
        (RequestTimedOut("no answer"), True),
        (OffsetOutOfRange("t-0: gone"), False),
        (InvalidConfig(["no"]), False),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_passes(error: RaftmqError, passes: bool) -> None:
    assert is_passing(error) is passes
