"""Random faults of brokers, disks and network: no promise is broken, and afterwards all heals.

Here a few worlds, which are short; `python -m tests.simulation.brokers --seeds N` goes on from
there. A failure prints the command that replays it.
"""

from __future__ import annotations

import pytest

from tests.simulation.brokers.task_plan import TASK_KINDS
from tests.simulation.brokers.world import World, failure
from tests.simulation.seeds import first_line

GATE_SECONDS = 4.0
TEETH = pytest.mark.teeth  # too long for `make check`
SEEDS = [
    pytest.param(0, marks=pytest.mark.gate),
    *range(1, 7),
    *(pytest.param(seed, marks=TEETH) for seed in range(7, 10)),
]
SOAK_SEEDS = range(1000, 1300)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_survives_its_troubles(seed: int) -> None:
    """Crashes, cuts, frozen disks: nothing acknowledged is lost, all replicas are equal."""
    found = failure(seed, seconds=GATE_SECONDS)
    assert found is None, found


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_a_cluster_survives_many_troubles(seed: int) -> None:
    """The same, longer and in many more worlds."""
    found = failure(seed)
    assert found is None, found


@TEETH
def test_the_same_seed_is_the_same_world() -> None:
    """Two processes with different hash seeds see the same trace, so a failure can be replayed."""
    plan = World(4).plan
    assert min(plan.sdk_producer_count, plan.sdk_consumer_count), "choose a seed that has both"
    told = [
        first_line("tests.simulation.brokers", seed=4, seconds=3, hash_seed=hash_seed)
        for hash_seed in ("1", "2")
    ]
    assert told[0].startswith("seed 4: ")
    assert told[0] == told[1]


@TEETH
def test_the_troubles_are_troubles() -> None:
    """Worlds in which little happens would prove little: look what did in two."""
    worlds = [World(seed, seconds=2 * GATE_SECONDS) for seed in (0, 4)]
    for world in worlds:
        world.play()
    assert sum(world.ledger.acknowledged for world in worlds) >= 80
    assert sum(world.ledger.reads for world in worlds) >= 200
    assert sum(world.nemesis.counts.total() for world in worlds) >= 3


@TEETH
def test_tasks_are_broken_off_and_overtaken() -> None:
    """A run that is left alone proves little: look how many there were, and who was refused."""
    worlds = [World(0, seconds=2 * GATE_SECONDS, kinds=(kind,)) for kind in TASK_KINDS]
    for world in worlds:
        world.play()
    ledgers = [task.ledger for world in worlds for task in world.tasks]
    assert sum(ledger.finished for ledger in ledgers) >= 10
    assert sum(ledger.runs - len(ledger.generations) for ledger in ledgers) >= 10
    assert sum(ledger.refused for ledger in ledgers) >= 3
