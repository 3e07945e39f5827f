"""Whose clock may be believed: the controller's verdict, and how long a broker believes it."""

from __future__ import annotations

import pytest

from raftmq.metadata.clocks import (
    CONFIRMED_SECONDS_MAX,
    JUMP_MS_MAX,
    ClockOffset,
    ClockReading,
    Clocks,
    ClockVerdict,
    still_holds,
)

MINUTE_MS = 60_000
DAY_MS = 86_400_000


def clocks(*ahead_ms: int | None, awaited: int = 0) -> Clocks:
    """Of brokers 1, 2, ...; None: registered, and not heard."""
    heard = {number: told for number, told in enumerate(ahead_ms, 1) if told is not None}
    return Clocks(heard, len(ahead_ms), awaited)


def confirmed(all_clocks: Clocks) -> set[int]:
    return {number for number in range(1, 9) if all_clocks.verdict(number).is_confirmed}


@pytest.mark.parametrize(
    ("heard", "right", "wrong"),
    [
        ((7,), {1}, {}),  # nobody else is there to be asked
        ((0, 4 * MINUTE_MS), {1, 2}, {}),
        ((0, DAY_MS), set(), {1: -DAY_MS, 2: DAY_MS}),  # and nobody knows which one
        ((0, 0, 15 * DAY_MS), {1, 2}, {3: 15 * DAY_MS}),
        ((0, 0, -15 * DAY_MS), {1, 2}, {3: -15 * DAY_MS}),
        ((15 * DAY_MS,) * 3, {1, 2, 3}, {}),  # all have jumped together
        ((0, DAY_MS, -DAY_MS), set(), {1: -DAY_MS, 2: DAY_MS, 3: -2 * DAY_MS}),
        ((0, 4 * MINUTE_MS, 8 * MINUTE_MS), {1, 2, 3}, {}),  # two of three, for each of them
        ((0, 0, DAY_MS, DAY_MS), set(), {1: -DAY_MS, 2: -DAY_MS, 3: DAY_MS, 4: DAY_MS}),
        ((0, 0, None), {1, 2}, {}),
        ((0, DAY_MS, None), set(), {1: -DAY_MS, 2: DAY_MS}),
        ((0, None), set(), {}),  # half of them is not most of them
        ((0, 0, None, None, None), set(), {}),
        ((0, 0, DAY_MS, None, None), set(), {3: DAY_MS}),
    ],
)
def test_most_decide(heard: tuple[int | None, ...], right: set[int], wrong: dict[int, int]) -> None:
    """All that are registered count; an alarm needs somebody who is heard and disagrees."""
    found = clocks(*heard)
    assert confirmed(found) == right
    assert dict(found.verdict(1).wrong) == wrong


def test_a_wrong_clock_is_told_by_how_much() -> None:
    """Against those that are confirmed; where none is, nobody knows what time it is."""
    assert clocks(0, 2, 15 * DAY_MS).verdict(3).ahead_ms == 15 * DAY_MS - 2
    assert clocks(0, 15 * DAY_MS).verdict(2).ahead_ms is None
    assert clocks(0, 15 * DAY_MS, None).verdict(2).ahead_ms is None


def test_nobody_is_wrong_before_all_were_heard() -> None:
    """A controller that took office just now knows two clocks of three: the third one decides."""
    assert clocks(0, DAY_MS, None, awaited=1).verdict(1) == ClockVerdict()
    assert clocks(0, DAY_MS, 0).verdict(1) == ClockVerdict(True, (ClockOffset(2, DAY_MS),), 0)
    assert clocks(0, None, None, awaited=2).verdict(1) == ClockVerdict()


def test_whoever_tells_no_time_confirms_nobody() -> None:
    """Two of three brokers are of an older version: the third one waits for another."""
    assert not clocks(0, None, None).verdict(1).is_confirmed
    assert not clocks(0, None, None).verdict(2).is_confirmed


@pytest.mark.parametrize(
    ("seconds", "wall_ms", "holds"),
    [
        (0.0, 0, True),
        (CONFIRMED_SECONDS_MAX, int(CONFIRMED_SECONDS_MAX * 1000), True),
        (CONFIRMED_SECONDS_MAX + 0.1, int(CONFIRMED_SECONDS_MAX * 1000), False),
        (1.0, 1000 + JUMP_MS_MAX, True),
        (1.0, 1001 + JUMP_MS_MAX, False),
        (1.0, 15 * DAY_MS, False),
        (1.0, -15 * DAY_MS, False),
        (-1.0, -1000, False),
    ],
)
def test_a_confirmation_does_not_outlive_a_jump(seconds: float, wall_ms: int, holds: bool) -> None:
    """Both clocks went on alike, for a few seconds: it is still the clock that was confirmed."""
    begin = ClockReading(1_000_000, 500.0)
    assert still_holds(begin, ClockReading(1_000_000 + wall_ms, 500.0 + seconds)) is holds
