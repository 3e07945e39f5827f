"""Worlds that once broke a promise, each with the bug that it showed.

A world shifts with any change of the code, and may pass by its bug then. So every bug has a
scenario of its own among the unit tests as well, named here.
"""

from __future__ import annotations

import pytest

from tests.simulation.brokers.world import failure

FOUND = [
    # A fetch waited for more bytes than it was allowed to tell of a partition, so a consumer with
    # small limits got one batch for each wait, and fell behind for ever (test_fetch:
    # test_a_fetch_does_not_wait_for_what_will_not_fit).
    # 5013 as well: the clock of groups never slept again after a slot was lost whose idle group had
    # been dropped from memory.
    5013,
    5028,
    # No bug of a broker: the judge took it for one that a record acknowledged by its leader alone
    # was replaced by an older one, of a replica that had been eligible all the while.
    20237,
    # A member left over an error of its program, and a background commit that had waited for its
    # turn committed what the program had not finished (test_leaving:
    # test_work_is_held_at_the_end).
    405,
]


@pytest.mark.teeth
@pytest.mark.parametrize("seed", FOUND)
def test_what_a_world_has_found_stays_found(seed: int) -> None:
    """The same faults, the same clients."""
    found = failure(seed)
    assert found is None, found
