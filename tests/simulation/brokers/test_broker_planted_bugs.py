"""The worlds have teeth: every planted bug is found by the worlds that are named for it.

That the same worlds pass without the bugs is asked here, too: otherwise one that always fails
would count as teeth.

A15.
"""

from __future__ import annotations

import pytest

from tests.simulation.brokers.planted_bugs import BUGS, HARMLESS, SECONDS
from tests.simulation.brokers.world import failure

pytestmark = pytest.mark.teeth
HARMFUL = [name for name in BUGS.cases if name != HARMLESS.__name__]
WORLDS = sorted(
    {(case.kinds, seed) for case in BUGS.cases.values() for seed in case.seeds}
)  # fmt: skip


@pytest.mark.parametrize("name", HARMFUL)
def test_a_planted_bug_is_caught(name: str) -> None:
    """Each bug breaks a promise in one of its worlds."""
    case = BUGS.cases[name]
    assert BUGS.is_caught(name), f"not by {case}: planted_bugs.py says what to do"


@pytest.mark.soak
@pytest.mark.parametrize("name", HARMFUL)
def test_every_world_that_is_named_catches_its_bug(name: str) -> None:
    """Where one of them does not any more, another one should take its place."""
    case = BUGS.cases[name]
    missed = [seed for seed in case.seeds if not BUGS.complaint(seed, case, bug=name)]
    assert len(case.seeds) >= 2
    assert not missed, f"{missed} of {case}: planted_bugs.py says what to do"


@pytest.mark.soak
def test_what_is_harmless_is_not_caught() -> None:
    """To forget high watermarks breaks no promise."""
    assert not BUGS.is_caught(HARMLESS.__name__)


@pytest.mark.soak
@pytest.mark.parametrize(("kinds", "seed"), WORLDS)
def test_the_worlds_that_catch_bugs_pass_without_them(kinds: tuple[str, ...], seed: int) -> None:
    """It is the bug that fails there, and not the world."""
    found = failure(seed, seconds=SECONDS, kinds=kinds)
    assert found is None, found
