"""Random faults of replicas, disks and network: no promise is broken, and afterwards all heals.

Here a few worlds; `python -m tests.simulation.replication --seeds N` goes on from there. A failure
prints the command that replays it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.replication.world import drawn_world, failure

SOAK_SEEDS = range(1000, 6000)
BATCH = 20
FIRSTS = [pytest.param(0, marks=pytest.mark.gate), *range(BATCH, 200, BATCH)]
REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize("first", FIRSTS)
def test_replicas_survive_their_troubles(first: int) -> None:
    """Crashes, power cuts, zombies, old directories: nothing acknowledged is lost, all heals."""
    found = [failure(seed) for seed in range(first, first + BATCH)]
    assert not any(found), "\n".join(filter(None, found))


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK_SEEDS[::BATCH])
def test_replicas_survive_many_troubles(first: int) -> None:
    """The same in many more worlds, which last longer."""
    found = [failure(seed, seconds=15.0) for seed in range(first, first + BATCH)]
    assert not any(found), "\n".join(filter(None, found))


def test_the_same_seed_is_the_same_world() -> None:
    """Two processes with different hash seeds see the same trace, so a failure can be replayed."""
    told = [_told(hash_seed="1"), _told(hash_seed="2")]
    assert told[0].startswith("seed 1: ")
    assert told[0] == told[1]


def _told(*, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulation.replication", "--seed", "1", "--seeds", "4"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True
    )
    return "\n".join(done.stdout.splitlines()[:4])  # each ends with the digest of its trace


def test_the_troubles_are_troubles() -> None:
    """A world in which little happens would prove little: look what did in some."""
    worlds = [drawn_world(seed) for seed in range(8)]
    for world in worlds:
        world.play()
    assert sum(world.clients.outcomes["ok"] for world in worlds) >= 300
    assert sum(world.checks.elections for world in worlds) >= 15
    assert sum(world.nemesis.counts.total() for world in worlds) >= 80
    commits = [world.quorum.commits.get("AlterPartition", 0) for world in worlds]
    assert sum(commits) >= 20
