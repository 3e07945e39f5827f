"""Random faults of brokers and controllers: no invariant breaks, and afterwards everything heals.

Here a few worlds; `python -m tests.simulation.controller_world --seeds N` goes on from there. A
failure prints the command that replays it.
"""

from __future__ import annotations

from itertools import count

import pytest

from raftmq.metadata.controller.elections import BALANCE_SECONDS, misplaced
from tests.simulation.controller_world import World, failure

SEEDS = range(30)
SURVEY_SECONDS = 1.0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_survives_its_troubles(seed: int) -> None:
    """Crashes, pauses, frozen disks, deposed controllers; then all is in service, and quiet.

    A6.1.
    """
    found = failure(seed)
    assert found is None, found


def test_the_troubles_are_troubles() -> None:
    """A world in which little happens would prove little: count what was committed in one."""
    world = World(5)
    world.play()
    assert world.commits.keys() >= {
        "RegisterBroker",
        "FenceBroker",
        "UnfenceBroker",
        "ReviewPartitions",
        "FinishReview",
        "CreateTopic",
        "AlterPartition",
        "AssignSlot",
        "PlanMove",
        "ReassignPartition",
    }
    assert world.commits["FenceBroker"] >= 3
    assert world.commits["ReviewPartitions"] >= 10


def test_moves_begin_and_wait() -> None:
    """Some of the worlds plan more than the limits allow at once, and take some of it back.

    A10.2.
    """
    worlds = [World(seed) for seed in range(1, 5)]
    for world in worlds:
        world.play()
    assert sum(world.moves.started for world in worlds) > 20
    assert sum(world.moves.waited for world in worlds) > 10
    assert any("CancelMove" in world.commits for world in worlds)


def test_the_same_seed_is_the_same_world() -> None:
    """A failure can be replayed: all of the metadata is the same at the end."""
    worlds = World(3), World(3)
    for world in worlds:
        world.play()
    assert worlds[0].image == worlds[1].image
    assert worlds[0].commits == worlds[1].commits


def test_preferred_leaders_are_back_after_a_while() -> None:
    """All has healed, and some broker misses its leaderships: the next look brings them back."""
    for seed in count(30):
        world = World(seed)
        world.play()
        if misplaced(world.image):
            break
    world.run(BALANCE_SECONDS + SURVEY_SECONDS)
    assert not misplaced(world.image)
