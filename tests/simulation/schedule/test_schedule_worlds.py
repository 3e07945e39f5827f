"""Scheduled records under skewed clocks, deposed leaders, crashes and retention (A12.2, A12.3).

Each is delivered once and not early, or was cancelled or aborted and never is; and every planted
bug breaks a promise in the same worlds. A failure prints the command that replays it.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.schedule.planted_bugs import BUGS, is_caught
from tests.simulation.schedule.world import World, failure

BATCH = 50
SOAK_SEEDS = range(10_000, 40_000)


@pytest.mark.parametrize(
    "first", [pytest.param(0, marks=pytest.mark.gate), *range(BATCH, 200, BATCH)]
)
def test_scheduled_records_survive_their_troubles(first: int) -> None:
    found = [failure(seed) for seed in range(first, first + BATCH)]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK_SEEDS[::BATCH])
def test_scheduled_records_survive_many_troubles(first: int) -> None:
    found = [failure(seed) for seed in range(first, first + BATCH)]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.teeth
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str) -> None:
    """By its world, which passes without it."""
    assert is_caught(name), f"not by world {BUGS[name].seed}: planted_bugs.py says what to do"
    assert not failure(BUGS[name].seed)


def test_the_troubles_are_troubles() -> None:
    """A world in which little happens would prove little: look what did in some."""
    counts: Counter[str] = Counter()
    for seed in range(40):
        world = World(seed)
        world.play()
        counts += world.counts
    least = {
        "DELIVERY": 200, "COPY": 20, "cancel": 100, "commit": 5, "abort": 5, "deleted": 30,
        "records deleted": 4, "election": 120, "crash": 60, "unread": 15, "start over": 4,
        "settled while it was read": 5,
    }  # fmt: skip
    assert all(counts[what] >= number for what, number in least.items()), counts
