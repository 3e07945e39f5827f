"""The crash sweep has teeth: every planted bug is found, and without it the same sweep passes.

`test_crash_sweep.py` runs most of the very same sweeps on the code as it is, and the rest is here.
"""

from __future__ import annotations

import pytest

from tests.simulation.crash_sweep import SWEEPS, first_failure
from tests.simulation.planted_bugs import BUGS, Bug, caught

pytestmark = pytest.mark.teeth


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    """Each bug breaks a promise at some crash of its sweep."""
    assert caught(bug, BUGS[bug]), f"not by {BUGS[bug]}: see planted_bugs.py for what to do"


def test_the_sweeps_that_catch_bugs_pass_without_them() -> None:
    """Otherwise a sweep that always fails would count as teeth. Some run in any case, elsewhere."""
    failures = {sweep: first_failure(sweep) for sweep in sorted({*BUGS.values()} - {*SWEEPS})}
    assert not any(failures.values()), "\n".join(map(str, filter(None, failures.values())))
