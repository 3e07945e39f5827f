"""The worlds have teeth: every planted bug is found by the worlds or the script named for it.

That the same pass without the bugs is asked here and in `test_scenarios.py`: otherwise one that
always fails would count as teeth.
"""

from __future__ import annotations

import pytest

from tests.simulation.replication.planted_bugs import CASES, is_caught
from tests.simulation.replication.world import failure

pytestmark = pytest.mark.teeth


@pytest.mark.parametrize("name", CASES)
def test_a_planted_bug_is_caught(name: str) -> None:
    """Each bug breaks a promise in one of its worlds."""
    assert is_caught(name), f"not by {CASES[name]}: planted_bugs.py says what to do"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.kinds])
def test_the_worlds_that_catch_bugs_pass_without_them(name: str) -> None:
    """It is the bug that fails there, and not the world; the gate plays the other ones anyway."""
    case = CASES[name]
    found = [failure(seed, kinds=case.kinds) for seed in case.seeds]
    assert not any(found), found
