"""Transactions of real clients in whole brokers, under faults that aim at them (A11.3, A11.4).

All of a transaction that was told committed is there, and nothing of one that was told aborted; no
reader of committed records ever got anything else; each input of the group has one result; in the
end nothing is open or unsettled. A failure prints the command that replays it.
"""

from __future__ import annotations

import pytest

from tests.simulation.seeds import first_line
from tests.simulation.transacting.world import TransactionWorld, failure

GATE_SECONDS = 3.0
TEETH = pytest.mark.teeth  # too long for `make check`
SEEDS = [
    pytest.param(0, marks=pytest.mark.gate),
    *(pytest.param(seed, marks=TEETH) for seed in range(1, 60)),
]
SOAK_SEEDS = range(2000, 2400)


@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_survive_their_troubles(seed: int) -> None:
    found = failure(seed, seconds=GATE_SECONDS)
    assert found is None, found


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_transactions_survive_many_troubles(seed: int) -> None:
    """The same, longer and in many more worlds."""
    found = failure(seed)
    assert found is None, found


@TEETH
def test_the_same_seed_is_the_same_world() -> None:
    """Two processes with different hash seeds see the same trace, so a failure can be replayed."""
    told = [
        first_line("tests.simulation.transacting", seed=4, seconds=2, hash_seed=hash_seed)
        for hash_seed in ("1", "2")
    ]
    assert told[0].startswith("seed 4: ")
    assert told[0] == told[1]


@TEETH
def test_the_troubles_are_troubles() -> None:
    """Worlds in which little happens would prove little: look what did in two."""
    worlds = [TransactionWorld(seed, seconds=2 * GATE_SECONDS) for seed in (3, 4)]
    for world in worlds:
        world.play()
    assert sum(world.count("end", "committed") for world in worlds) >= 30
    assert sum(world.count("end", "aborted") for world in worlds) >= 4
    assert sum(world.count("open") for world in worlds) >= 8
    assert sum(world.nemesis.counts.total() for world in worlds) >= 3
