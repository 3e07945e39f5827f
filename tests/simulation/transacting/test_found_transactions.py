"""Worlds of transactions that once broke a promise, each with the bug that it showed (A11.3).

A world shifts with any change of the code, and may pass by its bug then. So every bug has a
scenario of its own among the unit tests as well, named here.
"""

from __future__ import annotations

import pytest

from tests.simulation.transacting.world import failure

FOUND = [
    # A coordinator answered that a commit may have been carried out, and to later attempts that
    # they were not: the client aborted, and told so of a transaction that was committed
    # (test_transactions: test_a_coordinator_that_does_not_know).
    (1000, 5.0),
    # An answer that nobody knows any more what became of a commit was taken for a failed attempt;
    # the next one failed with an assertion (test_transactions, as above).
    (4, 3.0),
]


@pytest.mark.teeth
@pytest.mark.parametrize(("seed", "seconds"), FOUND)
def test_what_a_world_has_found_stays_found(seed: int, seconds: float) -> None:
    """The same faults, the same clients."""
    found = failure(seed, seconds=seconds)
    assert found is None, found
