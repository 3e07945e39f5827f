"""Shared transactions under lagging metadata, elections, and programs that are two, late or dead
(A11.3).

Of each committed version exactly the listed members can be read, once; a version is committed once;
nothing hangs; and every planted bug is found by the same walks. A failure prints the command that
replays it.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.transactions.members_planted_bugs import BUGS, is_caught
from tests.simulation.transactions.members_walk import MembersWalk, failure

BATCH = 40
SOAK_SEEDS = range(10_000, 34_000)


@pytest.mark.parametrize(
    "first", [pytest.param(0, marks=pytest.mark.gate), *range(BATCH, 400, BATCH)]
)
def test_versions_survive_their_troubles(first: int) -> None:
    found = [failure(seed) for seed in range(first, first + BATCH)]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK_SEEDS[::BATCH])
def test_versions_survive_many_troubles(first: int) -> None:
    found = [failure(seed) for seed in range(first, first + BATCH)]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.teeth
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str) -> None:
    """By its walk, which passes without it."""
    seed = BUGS[name].seed
    assert is_caught(name), f"not by walk {seed}: planted_bugs.py says what to do"
    assert not failure(seed)


def test_the_troubles_are_troubles() -> None:
    """A walk in which little happens would prove little: look what did in some."""
    counts: Counter[str] = Counter()
    for seed in range(60):
        walk = MembersWalk(seed)
        walk.play()
        counts += walk.counts
    least = {
        "version": 100, "empty version": 80, "joined": 1_800, "done": 150, "told again": 40,
        "commit ReplayMismatch": 5, "two openings": 3, "forgotten": 20, "refused": 900,
        "ahead": 1_000, "election": 300, "commit TransactionAborted": 20,
        "commit InvalidTransaction": 3,
        "join INVALID_TXN_STATE": 20, "join PRODUCER_FENCED": 8, "commit ConcurrentTransactions": 2,
    }  # fmt: skip
    assert all(counts[what] >= number for what, number in least.items()), counts
