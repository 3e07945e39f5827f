"""The worlds have teeth: every planted bug is found by the worlds named for it."""

from __future__ import annotations

import pytest

from tests.simulation.groups.planted_bugs import BUGS

pytestmark = pytest.mark.teeth


@pytest.mark.parametrize("name", BUGS.cases)
def test_a_planted_bug_is_caught(name: str) -> None:
    """Each bug breaks a promise in one of its worlds."""
    assert BUGS.is_caught(name), f"not by {BUGS.cases[name]}: planted_bugs.py says what to do"


@pytest.mark.parametrize("name", BUGS.cases)
def test_the_worlds_that_catch_bugs_pass_without_them(name: str) -> None:
    """It is the bug that fails there, and not the world."""
    case = BUGS.cases[name]
    found = [BUGS.complaint(seed, case) for seed in case.seeds]
    assert not any(found), found
