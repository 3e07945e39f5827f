"""The worlds of the controller have teeth: every planted bug is found by the worlds named for it.

A10.2.
"""

from __future__ import annotations

import pytest

from tests.simulation.controller_planted_bugs import BUGS
from tests.simulation.controller_world import failure

pytestmark = pytest.mark.teeth


@pytest.mark.parametrize("name", BUGS.cases)
def test_a_planted_bug_is_caught(name: str) -> None:
    """Each bug breaks a promise in one of its worlds."""
    assert BUGS.is_caught(name), f"not by {BUGS.cases[name]}: controller_planted_bugs.py says how"


@pytest.mark.parametrize("seed", sorted({seed for it in BUGS.cases.values() for seed in it.seeds}))
def test_the_worlds_that_catch_bugs_pass_without_them(seed: int) -> None:
    """It is the bug that fails there, and not the world."""
    found = failure(seed)
    assert found is None, found
