"""Transactions over replicas that fail, elect and cut (A11.3): no outcome is torn, nothing hangs.

The same worlds as without transactions, with clients that open, commit and abort. A failure prints
the command that replays it.
"""

from __future__ import annotations

import pytest

from tests.simulation.replication.world import drawn_world, failure

BATCH = 20
SOAK_SEEDS = range(1000, 6000)
FIRSTS = [pytest.param(0, marks=pytest.mark.gate), *range(BATCH, 200, BATCH)]


@pytest.mark.parametrize("first", FIRSTS)
def test_transactions_survive_replicas_troubles(first: int) -> None:
    """X1 to X5 of `transactions.py`, after every event, and all promises in the end."""
    found = [failure(seed, has_transactions=True) for seed in range(first, first + BATCH)]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK_SEEDS[::BATCH])
def test_transactions_survive_many_troubles(first: int) -> None:
    """The same in many more worlds, which last longer."""
    found = [
        failure(seed, seconds=15.0, has_transactions=True) for seed in range(first, first + BATCH)
    ]
    assert not any(found), "\n".join(filter(None, found))


def test_transactions_end_in_all_ways() -> None:
    """A world in which little happens would prove little: look what did in some."""
    commits = aborts = settled = elections = 0
    for seed in range(20):
        world = drawn_world(seed, has_transactions=True)
        world.play()
        assert world.transactions is not None
        commits += sum(world.transactions.decided.values())
        aborts += len(world.transactions.decided) - sum(world.transactions.decided.values())
        settled += world.transactions.settled
        elections += world.checks.elections
    assert commits >= 100
    assert aborts >= 100
    assert settled >= 100
    assert elections >= 20
