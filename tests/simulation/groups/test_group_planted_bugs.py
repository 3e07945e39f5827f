"""The worlds have teeth: every planted bug is found by the worlds named for it."""

from __future__ import annotations

import pytest

from tests.simulation.groups.planted_bugs import GARDEN

pytestmark = pytest.mark.teeth


@pytest.mark.parametrize("name", GARDEN.cases)
def test_a_planted_bug_is_caught(name: str) -> None:
    """Each bug breaks a promise in one of its worlds."""
    assert GARDEN.is_caught(name), f"not by {GARDEN.cases[name]}: planted_bugs.py says what to do"


@pytest.mark.parametrize("name", GARDEN.cases)
def test_the_worlds_that_catch_bugs_pass_without_them(name: str) -> None:
    """It is the bug that fails there, and not the world."""
    case = GARDEN.cases[name]
    found = [GARDEN.complaint(seed, case) for seed in case.seeds]
    assert not any(found), found
