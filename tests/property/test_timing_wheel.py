"""The timing wheel against a sorted list, under a clock that runs, jumps, stands and goes back."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from raftmq.broker.timing_wheel import TimingWheel
from raftmq.model import DELAY_TICK_MS

NOW = 1_700_000_000_000
DELAYS = st.one_of(
    st.integers(-5_000, 20_000),
    st.integers(0, 30 * 86_400_000),
    st.integers(0, 20 * 365 * 86_400_000),  # beyond the last level
)
STEPS = st.one_of(st.integers(0, 500), st.integers(-20_000, 400_000), st.integers(0, 10**11))
KEYS = st.integers(0, 12)


class WheelAgainstList(RuleBasedStateMachine):
    """Attributes:
    due: of each key its due tick, and a number that says which was set first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now, self.number = NOW, 0
        self.wheel: TimingWheel[int] = TimingWheel(NOW)
        self.due: dict[int, tuple[int, int]] = {}

    @rule(key=KEYS, delay=DELAYS)
    def set(self, key: int, delay: int) -> None:
        self.number += 1
        self.wheel.set(key, self.now + delay)
        self.due[key] = (-(-(self.now + delay) // DELAY_TICK_MS), self.number)

    @rule(key=KEYS)
    def discard(self, key: int) -> None:
        self.wheel.discard(key)
        self.due.pop(key, None)

    @rule(step=STEPS)
    def run_clock(self, step: int) -> None:
        self.now += step
        self.advance()

    @rule()
    def sleep(self) -> None:
        """Until the moment that the wheel names; at most one for each discarded key is in vain."""
        for _ in range(20):
            named = self.wheel.next_due()
            if named is None:
                assert not self.due
                return
            self.now = max(self.now, named)
            if self.advance():
                return
        raise AssertionError("the wheel names moments in vain")

    def advance(self) -> list[int]:
        expected = sorted(
            (each, key) for key, each in self.due.items() if each[0] * DELAY_TICK_MS <= self.now
        )
        keys = self.wheel.advance(self.now)
        assert keys == [key for _, key in expected]
        for key in keys:
            del self.due[key]
        return keys

    @invariant()
    def names_no_moment_too_late(self) -> None:
        named = self.wheel.next_due()
        earliest = min(self.due.values(), default=None)
        assert len(self.wheel) == len(self.due)
        assert (named is None) == (earliest is None)
        if named is not None and earliest is not None:
            assert named <= earliest[0] * DELAY_TICK_MS


TestWheelAgainstList = WheelAgainstList.TestCase
