"""A12.3: the timing wheel returns each key once, not early, and at the moment that it names."""

from __future__ import annotations

from random import Random

from raftmq.broker.timing_wheel import LEVELS, SLOT_BITS, TimingWheel
from raftmq.model import DELAY_TICK_MS

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def wheel_of(*delays_ms: int) -> TimingWheel[int]:
    """A key for each delay, by its place."""
    wheel: TimingWheel[int] = TimingWheel(NOW)
    for key, delay in enumerate(delays_ms):
        wheel.set(key, NOW + delay)
    return wheel


def test_a_key_is_returned_when_its_tick_has_come() -> None:
    """Rounded up to the tick: not a millisecond early, and once."""
    wheel = wheel_of(250)
    assert wheel.next_due() == NOW + 300
    assert wheel.advance(NOW + 299) == []
    assert wheel.advance(NOW + 300) == [0]
    assert wheel.advance(NOW + 400) == []
    assert wheel.next_due() is None


def test_keys_come_by_due_tick_then_as_they_were_set() -> None:
    """Also where they waited in different levels, and where one was set again."""
    wheel = wheel_of(5 * HOUR_MS, 30, 20, 7_000)
    wheel.set(2, NOW + 25)
    wheel.set(4, NOW + 10)
    assert wheel.advance(NOW + DAY_MS) == [1, 2, 4, 3, 0]


def test_what_is_overdue_when_it_is_set_is_due_at_once() -> None:
    """Its moment has passed: the caller does not sleep."""
    wheel = wheel_of(-5_000, -9_000)
    assert wheel.next_due() == NOW - 9_000
    assert wheel.advance(NOW) == [1, 0]


def test_a_key_that_is_set_again_has_its_last_time_only() -> None:
    """Earlier or later than before."""
    wheel = wheel_of(1_000, 60_000)
    wheel.set(0, NOW + 2_000)
    wheel.set(1, NOW + 500)
    assert len(wheel) == 2
    assert wheel.advance(NOW + 1_000) == [1]
    assert wheel.advance(NOW + 2_000) == [0]


def test_a_discarded_key_is_not_returned() -> None:
    """One that is not there is discarded in silence; the moment named may be in vain, once."""
    wheel = wheel_of(40_000, 40_500)
    wheel.discard(0)
    wheel.discard(7)
    assert wheel.next_due() == NOW + 40_000
    assert wheel.advance(NOW + 40_000) == []
    assert wheel.next_due() == NOW + 40_500
    assert wheel.advance(NOW + 40_500) == [1]


def test_a_clock_that_stands_still_returns_nothing_more() -> None:
    """Called twice at one moment, and again after a key was added that is due."""
    wheel = wheel_of(0)
    assert wheel.advance(NOW) == [0]
    assert wheel.advance(NOW) == []
    wheel.set(1, NOW)
    assert wheel.advance(NOW) == [1]


def test_after_a_clock_went_back_nothing_is_early() -> None:
    """The clock was an hour ahead: keys that were set then, and before, wait for their time."""
    wheel = wheel_of(2 * HOUR_MS)
    assert wheel.advance(NOW + HOUR_MS) == []
    wheel.set(1, NOW + 30_000)  # due, by the clock that is ahead
    assert wheel.advance(NOW + 10_000) == []
    assert wheel.next_due() == NOW + 30_000
    assert wheel.advance(NOW + 30_000) == [1]
    assert wheel.advance(NOW + 2 * HOUR_MS) == [0]


def test_delays_beyond_the_last_level_are_kept() -> None:
    """Thirty days, and more than the wheel reaches."""
    reach_ms = DELAY_TICK_MS << (SLOT_BITS * LEVELS)
    wheel = wheel_of(30 * DAY_MS, 3 * reach_ms)
    assert wheel.advance(NOW + 30 * DAY_MS - 1) == []
    assert wheel.advance(NOW + 30 * DAY_MS) == [0]
    for part in range(1, 24):
        assert wheel.advance(NOW + part * reach_ms // 8) == []
    assert wheel.next_due() == NOW + 3 * reach_ms
    assert wheel.advance(NOW + 3 * reach_ms) == [1]


def test_a_hundred_thousand_timers_over_an_hour() -> None:
    """None early, none a tick late, each once, and hardly a turn without a key."""
    random = Random(7)
    due = {key: NOW + random.randrange(HOUR_MS) for key in range(100_000)}
    wheel: TimingWheel[int] = TimingWheel(NOW)
    for key, due_ms in due.items():
        wheel.set(key, due_ms)
    returned: list[int] = []
    turns = 0
    while (now := wheel.next_due()) is not None:
        keys = wheel.advance(now)
        assert all(due[key] <= now < due[key] + DELAY_TICK_MS for key in keys)
        returned += keys
        turns += 1
    assert sorted(returned) == sorted(due)
    assert turns <= HOUR_MS // DELAY_TICK_MS + 1
