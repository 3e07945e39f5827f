"""The worlds of scheduled records have teeth: every planted bug is found by those named for it.

That the same worlds pass without the bugs is asked here, too: otherwise one that always fails
would count as teeth (A15).
"""

from __future__ import annotations

import pytest

from tests.simulation.scheduling.planted_bugs import BUGS, SECONDS
from tests.simulation.scheduling.world import failure

pytestmark = pytest.mark.teeth
WORLDS = sorted({(case.kinds, seed) for case in BUGS.cases.values() for seed in case.seeds})


@pytest.mark.parametrize("name", [name for name, case in BUGS.cases.items() if case.seeds])
def test_a_planted_bug_is_caught(name: str) -> None:
    """Each bug breaks a promise in one of its worlds."""
    case = BUGS.cases[name]
    assert BUGS.is_caught(name), f"not by {case}: planted_bugs.py says what to do"


@pytest.mark.soak
@pytest.mark.parametrize(("kinds", "seed"), WORLDS)
def test_the_worlds_that_catch_bugs_pass_without_them(kinds: tuple[str, ...], seed: int) -> None:
    """It is the bug that fails there, and not the world."""
    found = failure(seed, seconds=SECONDS, kinds=kinds)
    assert found is None, found
