"""Random faults of voters, disks and network: no promise is broken, and afterwards all heals.

Here a few worlds, which are short; `python -m tests.simulation.raft --seeds N` goes on from there.
A failure prints the command that replays it.
"""

from __future__ import annotations

import pytest

from tests.simulation.raft.world import World, failure
from tests.simulation.seeds import first_line

GATE_SECONDS = 2.0
TEETH = pytest.mark.teeth  # too long for `make check`
SEEDS = [*range(8), *(pytest.param(seed, marks=TEETH) for seed in range(8, 16))]
SOAK_SEEDS = range(1000, 1400)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_quorum_survives_its_troubles(seed: int) -> None:
    """Crashes, cuts, lost disks, scripts: nothing acknowledged is lost, every read is right."""
    found = failure(seed, seconds=GATE_SECONDS)
    assert found is None, found


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_a_quorum_survives_many_troubles(seed: int) -> None:
    """The same, longer and in many more worlds."""
    found = failure(seed)
    assert found is None, found


def test_the_same_seed_is_the_same_world() -> None:
    """Two processes with different hash seeds see the same trace, so a failure can be replayed."""
    told = [
        first_line("tests.simulation.raft", seed=3, seconds=1, hash_seed=hash_seed)
        for hash_seed in ("1", "2")
    ]
    assert told[0].startswith("seed 3: ")
    assert told[0] == told[1]


@TEETH
def test_the_troubles_are_troubles() -> None:
    """Worlds in which little happens would prove little: look what did in two."""
    worlds = [World(3), World(4)]
    for world in worlds:
        world.play()
    assert sum(world.history.done for world in worlds) >= 100
    assert sum(world.nemesis.counts.total() for world in worlds) >= 8
    assert sum(len(world.ledger.leaders) for world in worlds) >= 4
