"""The worlds have teeth: every planted bug is found by the worlds that are named for it.

That the same worlds pass without the bugs is asked here, too: otherwise one that always fails
would count as teeth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation.raft.planted_bugs import BUGS
from tests.simulation.raft.world import failure

if TYPE_CHECKING:
    from tests.simulation.planting import Case

pytestmark = pytest.mark.teeth


@pytest.mark.parametrize("name", BUGS.cases)
def test_a_planted_bug_is_caught(name: str) -> None:
    """Each bug breaks a promise in one of its worlds."""
    assert BUGS.is_caught(name), f"not by {BUGS.cases[name]}: planted_bugs.py says what to do"


@pytest.mark.soak
@pytest.mark.parametrize("case", sorted(set(BUGS.cases.values())), ids=str)
def test_the_worlds_that_catch_bugs_pass_without_them(case: Case) -> None:
    """It is the bug that fails there, and not the world."""
    found = [failure(seed, kinds=case.kinds) for seed in case.seeds]
    assert not any(found), found
