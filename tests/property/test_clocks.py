"""What follows from the rule of clocks, whatever they show."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from raftmq.metadata.clocks import DIFFERENCE_MS_MAX, Clocks

DAY_MS = 86_400_000
FAR = st.integers(-20 * DAY_MS, 20 * DAY_MS)
NEAR = st.integers(-2 * DIFFERENCE_MS_MAX, 2 * DIFFERENCE_MS_MAX)
TELLING = st.lists(st.one_of(FAR, NEAR, st.none()), min_size=1, max_size=9)


def _clocks(told: list[int | None]) -> Clocks:
    heard = {number: clock_ms for number, clock_ms in enumerate(told) if clock_ms is not None}
    return Clocks(heard, len(told))


@given(TELLING)
def test_two_confirmed_clocks_have_a_witness_in_common(told: list[int | None]) -> None:
    """They differ by twice the bound at most; and nobody is confirmed and wrong at once."""
    found = _clocks(told)
    verdicts = {number: found.verdict(number) for number in found.heard}
    right = [found.heard[number] for number, one in verdicts.items() if one.is_confirmed]
    assert not right or max(right) - min(right) <= 2 * DIFFERENCE_MS_MAX
    for number, verdict in verdicts.items():
        wrong = {one.broker_id for one in verdict.wrong}
        assert not (verdict.is_confirmed and number in wrong)


@given(st.data(), st.integers(1, 9), FAR)
def test_while_most_are_right_no_wrong_one_is_confirmed(
    data: st.DataObject, count: int, true_ms: int
) -> None:
    """However the others lie, together or not, and whoever of them all is silent."""
    lying_max = (count - 1) // 2
    told: list[int | None] = [true_ms] * (count - lying_max)
    told += data.draw(st.lists(st.one_of(FAR, NEAR), min_size=lying_max, max_size=lying_max))
    silent = data.draw(st.sets(st.integers(0, count - 1)))
    found = _clocks([None if number in silent else one for number, one in enumerate(told)])
    for number, clock_ms in found.heard.items():
        if found.verdict(number).is_confirmed:
            assert abs(clock_ms - true_ms) <= DIFFERENCE_MS_MAX


@given(st.lists(NEAR, min_size=1, max_size=9), FAR)
def test_clocks_that_jump_together_agree_as_before(told: list[int], jump_ms: int) -> None:
    """Virtual machines that were asleep together: only differences count."""
    before, after = _clocks([*told]), _clocks([one + jump_ms for one in told])
    assert [before.verdict(number) for number in before.heard] == [
        after.verdict(number) for number in after.heard
    ]
