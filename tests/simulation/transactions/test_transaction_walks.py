"""Transactions under lagging metadata, elections, take-overs and late messages (A11.3).

All of a committed one and nothing of an aborted one is readable, no reader ever saw anything else,
nothing hangs; and every planted bug is found by the same walks. A failure prints the command that
replays it.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.transactions.planted_bugs import BUGS, is_caught
from tests.simulation.transactions.walk import Walk, failure

BATCH = 250
SOAK_SEEDS = range(10_000, 60_000)


@pytest.mark.parametrize(
    "first", [pytest.param(0, marks=pytest.mark.gate), *range(BATCH, 2_000, BATCH)]
)
def test_transactions_survive_their_troubles(first: int) -> None:
    found = [failure(seed) for seed in range(first, first + BATCH)]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK_SEEDS[::BATCH])
def test_transactions_survive_many_troubles(first: int) -> None:
    found = [failure(seed) for seed in range(first, first + BATCH)]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.teeth
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str) -> None:
    """By its walk, which passes without it."""
    assert is_caught(name), f"not by walk {BUGS[name].seed}: planted_bugs.py says what to do"
    assert not failure(BUGS[name].seed)


def test_the_troubles_are_troubles() -> None:
    """A walk in which little happens would prove little: look what did in some."""
    counts: Counter[str] = Counter()
    for seed in range(200):
        walk = Walk(seed)
        walk.play()
        counts += walk.counts
    least = {"commit": 200, "abort": 400, "take-over": 150, "ahead": 800, "election": 600}
    assert all(counts[what] >= number for what, number in least.items()), counts
