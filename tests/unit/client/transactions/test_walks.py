"""Random walks of the client's machine: requests and answers are lost, doubled, late (A11.3)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.client.transactions.walk_model import Walk

SEEDS = 200  # within so many a planted bug is found


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32))
def test_whatever_the_network_does(seed: int) -> None:
    """Transactions are whole, and told as they were decided."""
    Walk(seed).run(30)


@pytest.mark.parametrize("bug", ["commits_despite_failed_send", "end_overtakes_sends"])
def test_planted_bugs_are_found(bug: str) -> None:
    """Each of them would tear transactions."""
    found = 0
    for seed in range(SEEDS):
        try:
            Walk(seed, **{bug: True}).run(30)
        except AssertionError:
            found += 1
    assert found >= 10


def test_they_meet_what_they_are_for() -> None:
    """Commits, aborts, and some that nobody knows of; a walk of nothing would find nothing."""
    told: Counter[bool | None] = Counter()
    for seed in range(50):
        walk = Walk(seed)
        walk.run(30)
        told.update(is_committed for _, is_committed in walk.told)
    assert told[True] > 200
    assert told[False] > 100
    assert told[None] > 5
