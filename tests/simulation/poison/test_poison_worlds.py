"""A record that ends its process is set aside, and no innocent one (A12.5): in random worlds of
workers that crash, of `process` and of consumers, and with rules taken away, each of which some
world misses.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.poison.__main__ import played
from tests.simulation.poison.planted_bugs import BUGS, is_caught
from tests.simulation.poison.world import failure

BATCH = 50
SOAK_SEEDS = range(10_000, 40_000)


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize(
    "first", [pytest.param(0, marks=pytest.mark.gate), *range(BATCH, 200, BATCH)]
)
def test_poison_is_set_aside_alone(first: int, is_plain: bool) -> None:
    """All that kills is set aside; the rest is done, or was hit by accident when it was alone."""
    found = [failure(n, is_plain=is_plain) for n in range(first, first + BATCH)]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.soak
@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("first", SOAK_SEEDS[::BATCH])
def test_poison_is_set_aside_in_many_worlds(first: int, is_plain: bool) -> None:
    found = [failure(n, is_plain=is_plain) for n in range(first, first + BATCH)]
    assert not any(found), "\n".join(filter(None, found))


def test_it_takes_about_as_many_deaths_as_the_policy_says() -> None:
    """Most of what kills has as many deaths; two more where it stood behind what was committed
    last, and fewer where accidents were counted for it."""
    beyond = sum((played(seed) for seed in range(200)), Counter[int]())
    assert beyond[0] > beyond.total() / 3
    assert max(beyond) <= 8


@pytest.mark.teeth
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str) -> None:
    """By its world, which passes without it."""
    assert is_caught(name), f"not by world {BUGS[name].seed}: planted_bugs.py says what to do"
    assert not BUGS[name].found
