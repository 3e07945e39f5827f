"""Scheduled records of real clients in whole brokers, under faults that aim at them (A12.2, A12.3).

Each acknowledged one is delivered once in the end, none early by its leader's clock, and never one
whose cancel was acknowledged, or whose transaction was aborted; readers get nothing that is hidden,
and everything else without gaps, with a filter and without. A failure prints the command that
replays it.
"""

from __future__ import annotations

import pytest

from tests.simulation.brokers.ledger import Outcome
from tests.simulation.scheduling.world import SchedulingWorld, failure
from tests.simulation.seeds import first_line

GATE_SECONDS = 3.0
TEETH = pytest.mark.teeth  # too long for `make check`
SEEDS = [
    pytest.param(0, marks=pytest.mark.gate),
    *(pytest.param(seed, marks=TEETH) for seed in range(1, 30)),
]
SOAK_SEEDS = range(3000, 3300)


@pytest.mark.parametrize("seed", SEEDS)
def test_scheduled_records_survive_their_troubles(seed: int) -> None:
    """Crashes, power cuts, deposed leaders, wrong clocks, retention and cancels (A12.2)."""
    found = failure(seed, seconds=GATE_SECONDS)
    assert found is None, found


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_scheduled_records_survive_many_troubles(seed: int) -> None:
    """The same, longer and in many more worlds."""
    found = failure(seed)
    assert found is None, found


@TEETH
def test_the_same_seed_is_the_same_world() -> None:
    """Two processes with different hash seeds see the same trace, so a failure can be replayed."""
    told = [
        first_line("tests.simulation.scheduling", seed=4, seconds=2, hash_seed=hash_seed)
        for hash_seed in ("1", "2")
    ]
    assert told[0].startswith("seed 4: ")
    assert told[0] == told[1]


@TEETH
def test_the_troubles_are_troubles() -> None:
    """Worlds in which little happens would prove little: look what did in three."""
    worlds = [SchedulingWorld(seed, seconds=2 * GATE_SECONDS) for seed in (6, 9, 11)]
    for world in worlds:
        world.play()
    ledgers = [world.schedules for world in worlds]
    assert sum(ledger.count(Outcome.OK, is_scheduled=True) for ledger in ledgers) >= 60
    assert sum(ledger.answers[""] for ledger in ledgers) >= 10
    assert sum(ledger.answers["delivered"] for ledger in ledgers) >= 5
    assert sum(ledger.read for ledger in ledgers) >= 200
    logs = [log for world in worlds for log in world.observer.logs.values()]
    assert sum(log.copies for log in logs) >= 1
